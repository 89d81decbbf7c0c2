// Round-to-nearest of a weight, its codes into the bitstream: the rule of cpu/quant/scale.cpp and cpu/quant/rtn.cpp in
// the same f32 operations, so that codes, scales and zeros are the CPU's bytes. One block a row, which lies in shared
// memory when it fits (args.staged).
#include "cuda/quant/choice.cuh"
#include "cuda/quant/rtn.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

// Loads the row; true when all of it is finite. A row that is not becomes zeros: the caller refuses the result.
__device__ bool load_row(const RtnArgs& a, int64_t row, float* line, unsigned long long* bad,
                         long long* first) {  // line: null unless staged
  __shared__ unsigned long long bad_count;
  __shared__ unsigned long long bad_first;
  if (threadIdx.x == 0) bad_count = 0, bad_first = ~0ull;
  __syncthreads();
  for (int64_t j = threadIdx.x; j < a.k; j += kThreads) {
    const float x = read_number(a.w_type, a.w, row * a.k + j);
    if (line) line[j] = x;
    if (!isfinite(x)) {
      atomicAdd(&bad_count, 1ull);
      atomicMin(&bad_first, static_cast<unsigned long long>(row * a.k + j));
    }
  }
  __syncthreads();
  const bool finite = bad_count == 0;
  *bad = bad_count;
  *first = finite ? -1 : static_cast<long long>(bad_first);
  if (!finite && line)
    for (int64_t j = threadIdx.x; j < a.k; j += kThreads) line[j] = 0;
  __syncthreads();
  return finite;
}

// The weights of a row as load_row left them.
struct Row {
  const RtnArgs& a;
  int64_t row;
  const float* line;
  bool finite;
  __device__ float operator[](int64_t j) const {
    return line ? line[j] : finite ? read_number(a.w_type, a.w, row * a.k + j) : 0.0f;
  }
};

__device__ void extent(const Row& line, int64_t from, int length, int lane, float& min, float& max) {
  int32_t low = 0x7fffffff, high = static_cast<int32_t>(0x80000000u);
  for (int i = lane; i < length; i += 32) {
    const int32_t key = key_of(line[from + i]);
    low = ::min(low, key);
    high = ::max(high, key);
  }
  for (int mask = 16; mask > 0; mask >>= 1) {
    low = ::min(low, __shfl_xor_sync(~0u, low, mask));
    high = ::max(high, __shfl_xor_sync(~0u, high, mask));
  }
  min = __int_as_float(low ^ ((low >> 31) & 0x7fffffff));
  max = __int_as_float(high ^ ((high >> 31) & 0x7fffffff));
}

// Bits of `codes` (one a byte) into little-endian bytes of the row's stream.
__device__ __forceinline__ void pack_stream(const uint8_t* codes, int64_t k, int bits, uint8_t* stream,
                                            int64_t row_bytes) {
  for (int64_t b = threadIdx.x; b < row_bytes; b += blockDim.x) {
    uint32_t byte = 0;
    const int64_t bit = b * 8;
    int64_t i = bit / bits;
    int at = static_cast<int>(i * bits - bit);  // <= 0
    for (; at < 8 && i < k; ++i, at += bits) {
      const uint32_t code = codes[i] & ((1u << bits) - 1u);
      byte |= at < 0 ? code >> -at : code << at;
    }
    stream[b] = static_cast<uint8_t>(byte);
  }
}

template <bool kFloat>
__device__ void rtn_row(const RtnArgs& a) {
  extern __shared__ float memory[];  // [k] when staged, then the codes
  float* line = a.staged ? memory : nullptr;
  uint8_t* codes = reinterpret_cast<uint8_t*>(memory + (a.staged ? a.k : 0));
  __shared__ double errors[kThreads / 32], norms[kThreads / 32];
  __shared__ unsigned over, under;
  __shared__ int least, most;
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) over = under = 0, least = 0x7f800000, most = 0;
  RtnStats stats{};
  const Row weights{a, row, line, load_row(a, row, line, &stats.not_finite, &stats.first)};
  const DeviceGrid<kFloat> grid(a.grid);
  const float global = a.has_global ? *a.global : 1.0f;
  double error = 0, norm = 0;
  for (int g = warp; g < a.groups; g += kThreads / 32) {
    const int64_t base = static_cast<int64_t>(g) * a.length;
    float min, max;
    extent(weights, base, a.length, lane, min, max);
    Choice c = choose(a, min, max, global);
    if (a.given) {
      c.codes = c.stored = read_number(a.scale_type, a.scales, row * a.groups + g);
      __syncwarp();  // before it is written again
      if (!isfinite(c.stored)) c.overflow = 1;
    }
    if (lane == 0) {
      if (c.ideal > 0) {
        atomicMin(&least, __float_as_int(c.ideal));
        atomicMax(&most, __float_as_int(c.ideal));
      }
      if (c.overflow) atomicAdd(&over, 1u);
      if (c.underflow) atomicAdd(&under, 1u);
      write_number(a.scale_type, a.scales, row * a.groups + g, c.stored);
      if (a.zeros) write_number(a.zero_type, a.zeros, row * a.groups + g, c.zero);
    }
    const GridStep step = grid.step(c.codes, c.zero);
    for (int i = lane; i < a.length; i += 32) {
      const float w = weights[base + i];
      uint32_t code;
      const float value = grid.nearest(w, step, &code);
      codes[base + i] = static_cast<uint8_t>(code);
      const double e = w - (value - c.zero) * c.stored * global, x = w;
      error += e * e;
      norm += x * x;
    }
  }
  for (int mask = 16; mask > 0; mask >>= 1) {
    error += __shfl_xor_sync(~0u, error, mask);
    norm += __shfl_xor_sync(~0u, norm, mask);
  }
  if (lane == 0) errors[warp] = error, norms[warp] = norm;
  __syncthreads();
  pack_stream(codes, a.k, a.grid.bits, a.codes + row * a.row_bytes, a.row_bytes);
  if (threadIdx.x == 0) {
    for (int w = 0; w < kThreads / 32; ++w) stats.error += errors[w], stats.norm += norms[w];
    stats.overflow = over;
    stats.underflow = under;
    stats.smallest = __int_as_float(least);
    stats.largest = __int_as_float(most);
    a.stats[row] = stats;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) lpq_rtn(RtnArgs a) {
  if (a.grid.is_float) rtn_row<true>(a);
  else rtn_row<false>(a);
}

// largest[n] = the largest ideal scale of a row, which the second level needs first.
extern "C" __global__ void __launch_bounds__(kThreads) lpq_rtn_largest(RtnArgs a) {
  extern __shared__ float memory[];
  float* line = a.staged ? memory : nullptr;
  __shared__ int most;
  const int64_t row = blockIdx.x;
  if (threadIdx.x == 0) most = 0;
  unsigned long long bad;
  long long first;
  if (load_row(a, row, line, &bad, &first))
    for (int g = threadIdx.x / 32; g < a.groups; g += kThreads / 32) {
      float min, max;
      extent(Row{a, row, line, true}, static_cast<int64_t>(g) * a.length, a.length, threadIdx.x % 32, min, max);
      if (threadIdx.x % 32 == 0) atomicMax(&most, __float_as_int(ideal_scale(a, min, max)));
    }
  __syncthreads();
  if (threadIdx.x == 0) a.largest[row] = __int_as_float(most);
}

// One block. global = the second level that puts the largest scale of all at 448; 1 for a tensor of zeros.
extern "C" __global__ void lpq_rtn_global(const float* largest, int64_t n, float* global) {
  __shared__ int most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  int mine = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine = ::max(mine, __float_as_int(largest[i]));
  atomicMax(&most, mine);
  __syncthreads();
  const float top = __int_as_float(most);
  if (threadIdx.x == 0) *global = top > 0.0f ? fmaxf(__fdiv_rn(top, kTopE4m3), kLeastNormal) : 1.0f;
}

// The nine numbers of ops.rtn, of the rows in their order. One block of 1024.
extern "C" __global__ void lpq_rtn_stats(const RtnStats* rows, int64_t n, const float* global, double* out) {
  __shared__ double error[1024], norm[1024];
  __shared__ unsigned long long counts[3], first;
  __shared__ int least, most;
  const int tid = threadIdx.x;
  if (tid == 0) counts[0] = counts[1] = counts[2] = 0, first = ~0ull, least = 0x7f800000, most = 0;
  __syncthreads();
  double e = 0, s = 0;
  for (int64_t i = tid; i < n; i += blockDim.x) {
    const RtnStats& r = rows[i];
    e += r.error;
    s += r.norm;
    if (r.overflow) atomicAdd(&counts[0], r.overflow);
    if (r.underflow) atomicAdd(&counts[1], r.underflow);
    if (r.not_finite) atomicAdd(&counts[2], r.not_finite);
    if (r.first >= 0) atomicMin(&first, static_cast<unsigned long long>(r.first));
    atomicMin(&least, __float_as_int(r.smallest));
    atomicMax(&most, __float_as_int(r.largest));
  }
  error[tid] = e;
  norm[tid] = s;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (tid < half) error[tid] += error[tid + half], norm[tid] += norm[tid + half];
    __syncthreads();
  }
  if (tid != 0) return;
  const float largest = __int_as_float(most);
  out[0] = error[0];
  out[1] = norm[0];
  out[2] = static_cast<double>(counts[0]);
  out[3] = static_cast<double>(counts[1]);
  out[4] = static_cast<double>(counts[2]);
  out[5] = first == ~0ull ? -1.0 : static_cast<double>(first);
  out[6] = global ? *global : 1.0f;
  out[7] = largest > 0 ? __int_as_float(least) : 0;
  out[8] = largest;
}

// Byte codes [rows, k] -> streams [rows, row_bytes]; one block a row.
extern "C" __global__ void lpq_pack_codes(const uint8_t* codes, int64_t k, int bits, uint8_t* stream,
                                          int64_t row_bytes) {
  pack_stream(codes + blockIdx.x * k, k, bits, stream + blockIdx.x * row_bytes, row_bytes);
}

extern "C" __global__ void lpq_unpack_codes(const uint8_t* stream, int64_t k, int bits, uint8_t* codes,
                                            int64_t row_bytes) {
  const uint8_t* row = stream + blockIdx.x * row_bytes;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    const int64_t bit = i * bits, b = bit / 8;
    uint32_t pair = row[b];
    if (bit % 8 + bits > 8) pair |= static_cast<uint32_t>(row[b + 1]) << 8;
    codes[blockIdx.x * k + i] = static_cast<uint8_t>((pair >> (bit % 8)) & ((1u << bits) - 1u));
  }
}

// w = (decode(code) - zero) * scale * global. table: what the 256 patterns decode to. group null: column / block_k.
extern "C" __global__ void lpq_dequantize(const uint8_t* codes, int64_t k, const float* table, const uint8_t* scales,
                                          int scale_type, const uint8_t* zeros, int zero_type, const int32_t* group,
                                          int64_t block_n, int64_t block_k, int64_t width, float constant, float global,
                                          uint8_t* w, int w_type, uint32_t* fault) {
  __shared__ float decode[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) decode[i] = table[i];
  __syncthreads();
  const int64_t row = blockIdx.x, base = row / block_n * width;
  for (int64_t j = threadIdx.x; j < k; j += blockDim.x) {
    int64_t g = group ? group[j] : j / block_k;
    if (g < 0 || g >= width) {
      *fault = 1;
      g = 0;
    }
    const float scale = read_number(scale_type, scales, base + g),
                zero = zeros ? read_number(zero_type, zeros, base + g) : constant;
    const float v = (decode[codes[row * k + j]] - zero) * scale * global;
    const int64_t at = row * k + j;
    if (w_type == kNumberF32) reinterpret_cast<float*>(w)[at] = v;
    else if (w_type == kNumberF16) reinterpret_cast<__half*>(w)[at] = __float2half_rn(v);
    else reinterpret_cast<__nv_bfloat16*>(w)[at] = __float2bfloat16_rn(v);
  }
}

}  // namespace lpq::cuda
