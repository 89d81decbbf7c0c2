// Element by element: sums, activations, conversions, biases. VEC: four elements at a time where everything is aligned.
#include "cuda/nn/activate.cuh"
#include "cuda/nn/each.cuh"
#include "cuda/nn/token_codes.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/types.cuh"

using namespace lpq;

namespace {

template <class T>
__device__ void gated(const T* gate, const T* up, T* y, int act, index_t count, int vec) {
  cuda::griddepcontrol_launch_and_wait();
  if (vec) {
    each(count / 4, [&](index_t i) {
      const float4 g = load4(gate + 4 * i), u = load4(up + 4 * i);
      store4(y + 4 * i, make_float4(activate(g.x, act) * u.x, activate(g.y, act) * u.y, activate(g.z, act) * u.z,
                                    activate(g.w, act) * u.w));
    });
  } else {
    each(count, [&](index_t i) { y[i] = narrow<T>(activate(widen(gate[i]), act) * widen(up[i])); });
  }
}

// Rows of gate and up that others' columns surround; blocks in y share the rows. VEC: sixteen bytes at a time.
template <class T>
__device__ void gated_rows(const T* gate, const T* up, T* y, int act, index_t rows, index_t width, index_t gate_pitch,
                           index_t up_pitch, int vec) {
  cuda::griddepcontrol_launch_and_wait();
  constexpr int kWide = 16 / sizeof(T);
  union Sixteen {
    uint4 raw;
    T item[kWide];
  };
  const index_t c = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= (vec ? width / kWide : width)) return;
  for (index_t t = blockIdx.y; t < rows; t += gridDim.y) {
    if (!vec) {
      y[t * width + c] = narrow<T>(activate(widen(gate[t * gate_pitch + c]), act) * widen(up[t * up_pitch + c]));
      continue;
    }
    Sixteen g, u, out;
    g.raw = *reinterpret_cast<const uint4*>(gate + t * gate_pitch + c * kWide);
    u.raw = *reinterpret_cast<const uint4*>(up + t * up_pitch + c * kWide);
#pragma unroll
    for (int i = 0; i < kWide; ++i) out.item[i] = narrow<T>(activate(widen(g.item[i]), act) * widen(u.item[i]));
    *reinterpret_cast<uint4*>(y + t * width + c * kWide) = out.raw;
  }
}

// As gated_rows, sixteen bytes at a time, with codes of each row; a block a row.
//   thread t -> chunks t, t + threads, ... of a row, of which kHeld stay in registers
template <class T, bool Float>
__device__ void gated_codes(const T* gate, const T* up, T* y, int act, int width, index_t gate_pitch, index_t up_pitch,
                            unsigned char* codes, float* scales, unsigned* fault) {
  cuda::griddepcontrol_launch_and_wait();
  constexpr int kWide = 16 / sizeof(T), kHeld = 4;
  __shared__ float parts[32];
  const index_t t = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x), chunks = width / kWide;
  uint4* const row = reinterpret_cast<uint4*>(y + t * width);
  const uint4* const gates = reinterpret_cast<const uint4*>(gate + t * gate_pitch);
  const uint4* const ups = reinterpret_cast<const uint4*>(up + t * up_pitch);
  uint2* const to = reinterpret_cast<uint2*>(codes + t * width);
  union Sixteen {
    uint4 raw;
    T item[kWide];
  };
  TokenRange range;
  const auto compute = [&](uint4 gate16, uint4 up16, int c) {
    Sixteen g, u;
    g.raw = gate16, u.raw = up16;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      g.item[i] = narrow<T>(activate(widen(g.item[i]), act) * widen(u.item[i]));
      range.see(widen(g.item[i]));
    }
    row[c] = g.raw;
    return g.raw;
  };
  uint4 held[kHeld], ups_held[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (first + h * step < chunks) held[h] = gates[first + h * step], ups_held[h] = ups[first + h * step];
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (first + h * step < chunks) held[h] = compute(held[h], ups_held[h], first + h * step);
  for (int c = first + kHeld * step; c < chunks; c += step) compute(gates[c], ups[c], c);
  const TokenCode<Float> code(range.of_block(parts, fault));
  if (threadIdx.x == 0) scales[t] = code.scale;
  const auto store = [&](int c, uint4 raw) {
    Sixteen v;
    v.raw = raw;
    const auto four = [&](int i) {
      return code(make_float4(widen(v.item[i]), widen(v.item[i + 1]), widen(v.item[i + 2]), widen(v.item[i + 3])));
    };
    to[c] = make_uint2(four(0), four(4));
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (first + h * step < chunks) store(first + h * step, held[h]);
  for (int c = first + kHeld * step; c < chunks; c += step) store(c, row[c]);
}

template <class From, class To>
__device__ void convert(const From* x, To* y, index_t count, int vec) {
  if (vec) {
    each(count / 4, [&](index_t i) { store4(y + 4 * i, load4(x + 4 * i)); });
  } else {
    each(count, [&](index_t i) { y[i] = narrow<To>(widen(x[i])); });
  }
}

}  // namespace

// y = a + b * scale.
#define LPQ_ADD(type, name)                                                                                      \
  extern "C" __global__ void lpq_add_##name(const float* a, const type* b, float* y, float scale, index_t count, \
                                            int vec) {                                                           \
    cuda::griddepcontrol_launch_and_wait();                                                                      \
    if (vec) {                                                                                                   \
      each(count / 4, [&](index_t i) {                                                                           \
        const float4 p = load4(a + 4 * i), q = load4(b + 4 * i);                                                 \
        store4(y + 4 * i, make_float4(__fmaf_rn(q.x, scale, p.x), __fmaf_rn(q.y, scale, p.y),                    \
                                      __fmaf_rn(q.z, scale, p.z), __fmaf_rn(q.w, scale, p.w)));                  \
      });                                                                                                        \
    } else {                                                                                                     \
      each(count, [&](index_t i) { y[i] = __fmaf_rn(widen(b[i]), scale, a[i]); });                               \
    }                                                                                                            \
  }
LPQ_EACH_TYPE(LPQ_ADD)

#define LPQ_GATED(type, name)                                                                                    \
  extern "C" __global__ void lpq_gated_##name(const type* gate, const type* up, type* y, int act, index_t count, \
                                              int vec) {                                                         \
    gated(gate, up, y, act, count, vec);                                                                         \
  }
LPQ_EACH_TYPE(LPQ_GATED)

#define LPQ_GATED_ROWS(type, name)                                                                                   \
  extern "C" __global__ void lpq_gated_rows_##name(const type* gate, const type* up, type* y, int act, index_t rows, \
                                                   index_t width, index_t gate_pitch, index_t up_pitch, int vec) {   \
    gated_rows(gate, up, y, act, rows, width, gate_pitch, up_pitch, vec);                                            \
  }
LPQ_EACH_TYPE(LPQ_GATED_ROWS)

#define LPQ_GATED_CODES(type, name, is_float, codes_name)                                                  \
  extern "C" __global__ void __launch_bounds__(512) lpq_gated_##codes_name##_##name(                       \
      const type* gate, const type* up, type* y, int act, int width, index_t gate_pitch, index_t up_pitch, \
      unsigned char* codes, float* scales, unsigned* fault) {                                              \
    gated_codes<type, is_float>(gate, up, y, act, width, gate_pitch, up_pitch, codes, scales, fault);      \
  }
LPQ_GATED_CODES(f16, f16, false, i8)
LPQ_GATED_CODES(f16, f16, true, f8)
LPQ_GATED_CODES(bf16, bf16, false, i8)
LPQ_GATED_CODES(bf16, bf16, true, f8)

#define LPQ_ACTIVATE(type, name)                                                                        \
  extern "C" __global__ void lpq_activate_##name(const type* x, type* y, int act, index_t count, int) { \
    each(count, [&](index_t i) { y[i] = narrow<type>(activate(widen(x[i]), act)); });                   \
  }
LPQ_EACH_TYPE(LPQ_ACTIVATE)

// y = x * scale, then with a cap cap * tanh(y / cap).
extern "C" __global__ void lpq_soft_cap(const float* x, float* y, float scale, float cap, index_t count) {
  each(count, [&](index_t i) {
    const float v = x[i] * scale;
    y[i] = cap > 0 ? cap * tanhf(v / cap) : v;
  });
}

#define LPQ_CAST(from, from_name, to, to_name)                                                                \
  extern "C" __global__ void lpq_cast_##from_name##_##to_name(const from* x, to* y, index_t count, int vec) { \
    convert(x, y, count, vec);                                                                                \
  }
LPQ_CAST(float, f32, f16, f16)
LPQ_CAST(float, f32, bf16, bf16)
LPQ_CAST(f16, f16, float, f32)
LPQ_CAST(f16, f16, bf16, bf16)
LPQ_CAST(bf16, bf16, float, f32)
LPQ_CAST(bf16, bf16, f16, f16)

extern "C" __global__ void lpq_cast_f64_f32(const double* x, float* y, index_t count, int) {
  each(count, [&](index_t i) { y[i] = __double2float_rn(x[i]); });
}
// One rounding, not two: the conversions of the headers go from f64 directly.
extern "C" __global__ void lpq_cast_f64_f16(const double* x, f16* y, index_t count, int) {
  each(count, [&](index_t i) { y[i] = __double2half(x[i]); });
}
extern "C" __global__ void lpq_cast_f64_bf16(const double* x, bf16* y, index_t count, int) {
  each(count, [&](index_t i) { y[i] = __double2bfloat16(x[i]); });
}
#define LPQ_CAST_WIDE(type, name)                                                                  \
  extern "C" __global__ void lpq_cast_##name##_f64(const type* x, double* y, index_t count, int) { \
    each(count, [&](index_t i) { y[i] = static_cast<double>(widen(x[i])); });                      \
  }
LPQ_EACH_TYPE(LPQ_CAST_WIDE)
extern "C" __global__ void lpq_cast_i32_f32(const int* x, float* y, index_t count, int) {
  each(count, [&](index_t i) { y[i] = __int2float_rn(x[i]); });
}

// y [rows, n] += bias [n].
#define LPQ_BIAS(type, name)                                                                                      \
  extern "C" __global__ void lpq_bias_##name(type* y, const void* bias, int bias_type, index_t rows, index_t n) { \
    each(rows * n, [&](index_t i) { y[i] = narrow<type>(widen(y[i]) + load_any(bias, bias_type, i % n)); });      \
  }
LPQ_EACH_TYPE(LPQ_BIAS)

// fault = 1 when x holds NaN or infinity.
#define LPQ_FINITE(type, name)                                                                           \
  extern "C" __global__ void lpq_finite_##name(const type* x, index_t count, int vec, unsigned* fault) { \
    bool bad = false;                                                                                    \
    if (vec)                                                                                             \
      each(count / 4, [&](index_t i) {                                                                   \
        const float4 v = load4(x + 4 * i);                                                               \
        bad |= !(isfinite(v.x) && isfinite(v.y) && isfinite(v.z) && isfinite(v.w));                      \
      });                                                                                                \
    else each(count, [&](index_t i) { bad |= !isfinite(widen(x[i])); });                                 \
    if (bad) *fault = 1;                                                                                 \
  }
LPQ_EACH_TYPE(LPQ_FINITE)
