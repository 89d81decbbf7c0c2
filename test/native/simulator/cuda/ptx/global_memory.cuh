// native/cuda/ptx/global_memory.cuh, simulated.
#pragma once
#include "asynchronous.h"

namespace lpq::cuda {

inline uint64_t createpolicy_evict_first() { return 0; }
constexpr unsigned long long kEvictFirst = 0;
inline void load_if(bool wanted, void* to, const void* from, size_t bytes) {
  if (!wanted) return;
  simt::check_readable(from, bytes);
  std::memcpy(to, from, bytes);
}
inline uint32_t ld_global_nc(const void* from) {
  uint32_t v;
  load_if(true, &v, from, 4);
  return v;
}
inline void ld_global_nc_v2_if(uint2& to, const void* from, bool wanted) { load_if(wanted, &to, from, 8); }
inline void ld_global_nc_v4_if(uint32_t* to, const void* from, uint64_t, bool wanted) { load_if(wanted, to, from, 16); }
inline void ld_global_nc_u16_if(uint32_t& to, const void* from, bool wanted) {
  if (wanted) to = 0;
  load_if(wanted, &to, from, 2);
}
inline void ld_global_nc_u8_if(uint32_t& to, const void* from, bool wanted) {
  if (wanted) to = 0;
  load_if(wanted, &to, from, 1);
}
inline void prefetch_l2(const void*) {}
inline void bulk_prefetch_l2(const void*, int) {}
inline unsigned ld_acquire(const unsigned* from) {
  simt::poll();
  return *from;
}
inline void wait_for_count(const unsigned* counter, unsigned value) {
  while (*counter < value) simt::poll();
}
inline unsigned atom_inc_acq_rel(unsigned* counter) { return (*counter)++; }

}  // namespace lpq::cuda
