// A product added to the residual stream, the norm that reads the sum, and codes of that, in one pass over a row. Sums
// run in a fixed order.
#include "cuda/nn/token_codes.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"

using namespace lpq;

namespace {

__device__ __forceinline__ float* row_memory() { return reinterpret_cast<float*>(cuda::dynamic_shared()); }

// The sum of `value` over the block, in every thread; `parts`: 32 floats of shared memory. Blocks of whole warps.
__device__ float sum_of(float value, float* parts) {
  value = warp_sum(value);
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
  return sum;
}

// Where codes of x go; kNone: nowhere.
enum class Codes { kNone, kInt8, kFloat8 };
struct CodesTo {
  unsigned char* codes;
  float* scales;
  unsigned* fault;
};

// A block a row of h f32, which becomes h + y * scale; x = its norm. The row waits in shared memory, 32 floats from its
// start:
//   thread t -> columns t, t + threads, ... of it, or fours of columns (VEC)
template <Codes C = Codes::kNone, class Y, class X>
__device__ void add_norm(float* h, const Y* y, const void* weight, int weight_type, const void* bias, int bias_type,
                         X* x, int width, float scale, float eps, float offset, int layer, int vec,
                         const CodesTo& to = {}) {
  cuda::griddepcontrol_launch_dependents();
  // Gains come from memory while the operation before ends.
  for (int c = 32 * static_cast<int>(threadIdx.x); c < width; c += 32 * static_cast<int>(blockDim.x)) {
    if (weight) cuda::prefetch_l2(static_cast<const char*>(weight) + (weight_type == 0 ? 4 : 2) * c);
    if (bias) cuda::prefetch_l2(static_cast<const char*>(bias) + (bias_type == 0 ? 4 : 2) * c);
  }
  cuda::griddepcontrol_wait();
  const index_t start = static_cast<index_t>(blockIdx.x) * width;
  float* const parts = row_memory();
  float* const row = parts + 32;
  const int count = vec ? width / 4 : width, step = static_cast<int>(blockDim.x);
  float sum = 0;
  const auto add_to = [&](float v) { sum = layer ? sum + v : __fmaf_rn(v, v, sum); };
  for (int c = threadIdx.x; c < count; c += step) {
    if (vec) {
      const float4 a = load4(h + start + 4 * c), b = load4(y + start + 4 * c);
      const float4 v = make_float4(__fmaf_rn(b.x, scale, a.x), __fmaf_rn(b.y, scale, a.y), __fmaf_rn(b.z, scale, a.z),
                                   __fmaf_rn(b.w, scale, a.w));
      store4(h + start + 4 * c, v);
      store4(row + 4 * c, v);
      add_to(v.x), add_to(v.y), add_to(v.z), add_to(v.w);
    } else {
      const float v = __fmaf_rn(widen(y[start + c]), scale, h[start + c]);
      h[start + c] = row[c] = v;
      add_to(v);
    }
  }
  float mean = 0;
  sum = sum_of(sum, parts);
  if (layer) {
    // The mean of squared differences, so that nothing cancels.
    mean = sum / static_cast<float>(width);
    sum = 0;
    for (int c = threadIdx.x; c < count; c += step)
      for (int i = 0; i < (vec ? 4 : 1); ++i) {
        const float d = row[vec ? 4 * c + i : c] - mean;
        sum = __fmaf_rn(d, d, sum);
      }
    sum = sum_of(sum, parts);
  }
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  const auto normed = [&](float v, int c) {
    v = (v - mean) * factor;
    if (weight) v *= load_any(weight, weight_type, c) + offset;
    return bias ? v + load_any(bias, bias_type, c) : v;
  };
  // What codes are made of is x as it is rounded.
  const auto keep = [&](int c, float v) {
    const X rounded = narrow<X>(v);
    x[start + c] = rounded;
    if constexpr (C != Codes::kNone) row[c] = widen(rounded);
  };
  for (int c = threadIdx.x; c < count; c += step) {
    if (vec) {
      const float4 v = load4(row + 4 * c), n = make_float4(normed(v.x, 4 * c), normed(v.y, 4 * c + 1),
                                                           normed(v.z, 4 * c + 2), normed(v.w, 4 * c + 3));
      store4(x + start + 4 * c, n);
      if constexpr (C != Codes::kNone)
        store4(row + 4 * c,
               make_float4(widen(narrow<X>(n.x)), widen(narrow<X>(n.y)), widen(narrow<X>(n.z)), widen(narrow<X>(n.w))));
    } else {
      keep(c, normed(row[c], c));
    }
  }
  if constexpr (C != Codes::kNone) {
    TokenRange range;
    for (int c = threadIdx.x; c < count; c += step) {
      if (vec) range.see(load4(row + 4 * c));
      else range.see(row[c]);
    }
    __syncthreads();  // parts have been read
    const TokenCode<C == Codes::kFloat8> code(range.of_block(parts, to.fault));
    if (threadIdx.x == 0) to.scales[blockIdx.x] = code.scale;
    for (int c = threadIdx.x; c < count; c += step) {
      if (vec) *reinterpret_cast<uint32_t*>(to.codes + start + 4 * c) = code(load4(row + 4 * c));
      else to.codes[start + c] = static_cast<unsigned char>(code(row[c]));
    }
  }
}

}  // namespace

#define LPQ_ADD_NORM(y_type, y_name, x_type, x_name)                                                              \
  extern "C" __global__ void lpq_add_norm_##y_name##_##x_name(                                                    \
      float* h, const y_type* y, const void* weight, int weight_type, const void* bias, int bias_type, x_type* x, \
      int width, float scale, float eps, float offset, int layer, int vec) {                                      \
    add_norm(h, y, weight, weight_type, bias, bias_type, x, width, scale, eps, offset, layer, vec);               \
  }
LPQ_ADD_NORM(float, f32, float, f32)
LPQ_ADD_NORM(float, f32, f16, f16)
LPQ_ADD_NORM(float, f32, bf16, bf16)
LPQ_ADD_NORM(f16, f16, f16, f16)
LPQ_ADD_NORM(bf16, bf16, bf16, bf16)

#define LPQ_ADD_NORM_CODES(y_type, y_name, x_type, x_name, kind, name)                                            \
  extern "C" __global__ void lpq_add_norm_##name##_##y_name##_##x_name(                                           \
      float* h, const y_type* y, const void* weight, int weight_type, const void* bias, int bias_type, x_type* x, \
      int width, float scale, float eps, float offset, int layer, int vec, unsigned char* codes, float* scales,   \
      unsigned* fault) {                                                                                          \
    add_norm<Codes::kind>(h, y, weight, weight_type, bias, bias_type, x, width, scale, eps, offset, layer, vec,   \
                          {codes, scales, fault});                                                                \
  }
#define LPQ_ADD_NORM_BOTH(y_type, y_name, x_type, x_name)       \
  LPQ_ADD_NORM_CODES(y_type, y_name, x_type, x_name, kInt8, i8) \
  LPQ_ADD_NORM_CODES(y_type, y_name, x_type, x_name, kFloat8, f8)
LPQ_ADD_NORM_BOTH(float, f32, f16, f16)
LPQ_ADD_NORM_BOTH(float, f32, bf16, bf16)
LPQ_ADD_NORM_BOTH(f16, f16, f16, f16)
LPQ_ADD_NORM_BOTH(bf16, bf16, bf16, bf16)
