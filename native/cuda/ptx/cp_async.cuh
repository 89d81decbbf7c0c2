// cp.async: 16 (or 4) bytes from global to shared memory by each thread, in groups that it waits for.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// Sixteen bytes, of which the first `bytes` are read and the rest is 0.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Four bytes, of which the first `bytes` are read and the rest is 0.
__device__ __forceinline__ void cp_async_4(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// All sixteen; L2 takes up the 128 bytes that they lie in.
__device__ __forceinline__ void cp_async_16_line(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// All sixteen, with a policy for L2.
__device__ __forceinline__ void cp_async_16_hint(uint32_t to, const void* from, unsigned long long policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of the newest groups are under way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void cp_async_wait(int n) {
  switch (n) {
    case 0: return cp_async_wait<0>();
    case 1: return cp_async_wait<1>();
    case 2: return cp_async_wait<2>();
    case 3: return cp_async_wait<3>();
    case 4: return cp_async_wait<4>();
    case 5: return cp_async_wait<5>();
    case 6: return cp_async_wait<6>();
    default: return cp_async_wait<7>();
  }
}

}  // namespace lpq::cuda
