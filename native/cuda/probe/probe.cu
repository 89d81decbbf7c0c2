// What the hardware does with registers: each experiment is one instruction on given registers, whose results are
// stored as they are. probe.cpp makes the registers and reads coordinates out of the results.
#include <cstdint>

#include "cuda/ptx/features.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

using lpq::cuda::shared_address;

// The metadata of these experiments is in order; compilers before CUDA 12.5 have the older name only.
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5)
#define LPQ_SPARSE "mma.sp::ordered_metadata"
#else
#define LPQ_SPARSE "mma.sp"
#endif

// image: four 8x8 matrices of halves, rows of 16 bytes one after another. out [32][4]: what each lane holds.
extern "C" __global__ void lpq_probe_ldmatrix(const uint16_t* image, uint32_t* out, int count, int trans) {
  __shared__ __align__(16) uint16_t matrices[4 * 64];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) matrices[i] = image[i];
  __syncwarp();
  const uint32_t address = shared_address(matrices + lane * 8);
  uint32_t r[4] = {0, 0, 0, 0};
#define LPQ_LOAD1(t) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x1" t ".shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory")
#define LPQ_LOAD2(t)                                                          \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" t ".shared.b16 {%0,%1}, [%2];" \
               : "=r"(r[0]), "=r"(r[1])                                       \
               : "r"(address)                                                 \
               : "memory")
#define LPQ_LOAD4(t)                                                                \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" t ".shared.b16 {%0,%1,%2,%3}, [%4];" \
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                     \
               : "r"(address)                                                       \
               : "memory")
  if (count == 1 && !trans) LPQ_LOAD1("");
  if (count == 1 && trans) LPQ_LOAD1(".trans");
  if (count == 2 && !trans) LPQ_LOAD2("");
  if (count == 2 && trans) LPQ_LOAD2(".trans");
  if (count == 4 && !trans) LPQ_LOAD4("");
  if (count == 4 && trans) LPQ_LOAD4(".trans");
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

// One warp an experiment: a, b [experiments][32][4], meta [experiments][32], d [experiments][32][4]. kind: as probe.cpp
// numbers them.
extern "C" __global__ void lpq_probe_mma(const uint32_t* a, const uint32_t* b, const uint32_t* meta, uint32_t* d,
                                         int kind) {
  const long long at = (static_cast<long long>(blockIdx.x) * 32 + threadIdx.x) * 4;
  const uint32_t *x = a + at, *y = b + at;
  const uint32_t e = meta[at / 4];
  float f[4] = {0, 0, 0, 0};
  int s[4] = {0, 0, 0, 0};
#define LPQ_FLOATS "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])
#define LPQ_INTS "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])
#define LPQ_A4 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
  switch (kind) {
    case 0:
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : LPQ_FLOATS
          : LPQ_A4, "r"(y[0]), "r"(y[1]));
      break;
    case 1:
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : LPQ_FLOATS
          : LPQ_A4, "r"(y[0]), "r"(y[1]));
      break;
    case 2:
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                   : LPQ_FLOATS
                   : "r"(x[0]), "r"(x[1]), "r"(y[0]));
      break;
    case 3:
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : LPQ_INTS
          : LPQ_A4, "r"(y[0]), "r"(y[1]));
      break;
    case 4:
      asm volatile(
          "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : LPQ_INTS
          : LPQ_A4, "r"(y[0]), "r"(y[1]));
      break;
    default:
      asm volatile(LPQ_SPARSE
                   ".sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, "
                   "{%0,%1,%2,%3}, %12, 0x0;"
                   : LPQ_FLOATS
                   : LPQ_A4, "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]), "r"(e));
  }
  for (int i = 0; i < 4; ++i)
    d[at + i] = kind == 3 || kind == 4 ? static_cast<uint32_t>(s[i] != 0) : static_cast<uint32_t>(f[i] != 0);
}

// One warpgroup an experiment, wgmma m64n8k16: a, d [experiments][128][4], b [experiments][8 tokens][16 k] in shared
// memory.
template <bool BF>
__device__ __forceinline__ void probe_wgmma(const uint32_t* a, const uint16_t* b, uint32_t* d) {
#if LPQ_HAS_WGMMA
  __shared__ __align__(1024) unsigned char rows[1024];
  const int t = threadIdx.x;
  for (int i = t; i < 512; i += 128) reinterpret_cast<uint16_t*>(rows)[i] = 0;
  __syncthreads();
  const int n = t / 16, k = t % 16;
  *reinterpret_cast<uint16_t*>(rows + n * 128 + (((k >> 3) ^ n) << 4) + (k & 7) * 2) = b[blockIdx.x * 128 + t];
  lpq::cuda::fence_proxy_async_shared();
  __syncthreads();
  const long long at = (static_cast<long long>(blockIdx.x) * 128 + t) * 4;
  const uint32_t x[4] = {a[at], a[at + 1], a[at + 2], a[at + 3]};
  float c[1][4] = {{0, 0, 0, 0}};
  const uint64_t descriptor = lpq::cuda::wgmma_descriptor(shared_address(rows));
  lpq::cuda::wgmma_fence();
  lpq::cuda::wgmma_k16<BF, 1>(c, x, descriptor, false);
  lpq::cuda::wgmma_commit();
  lpq::cuda::wgmma_wait<0>();
  for (int i = 0; i < 4; ++i) d[at + i] = static_cast<uint32_t>(c[0][i] != 0);
#endif
}
extern "C" __global__ void lpq_probe_wgmma_f16(const uint32_t* a, const uint16_t* b, uint32_t* d) {
  probe_wgmma<false>(a, b, d);
}
extern "C" __global__ void lpq_probe_wgmma_bf16(const uint32_t* a, const uint16_t* b, uint32_t* d) {
  probe_wgmma<true>(a, b, d);
}
