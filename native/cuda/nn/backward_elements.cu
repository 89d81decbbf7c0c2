// Gradients element by element (ops/backward.h), f32. vec: four at a time, where everything is aligned.
#include "cuda/nn/activate.cuh"
#include "cuda/nn/each.cuh"

using namespace lpq;

namespace {

// of(x, dy) -> dx.
template <class F>
__device__ void elements(const float* x, const float* dy, float* dx, index_t count, int vec, F of) {
  if (!vec) {
    each(count, [&](index_t i) { dx[i] = of(x[i], dy[i]); });
    return;
  }
  each(count / 4, [&](index_t i) {
    const float4 v = load4(x + 4 * i), d = load4(dy + 4 * i);
    store4(dx + 4 * i, make_float4(of(v.x, d.x), of(v.y, d.y), of(v.z, d.z), of(v.w, d.w)));
  });
}

struct Two {
  float gate, up;
};

// of(gate, up, dy) -> the gradients.
template <class F>
__device__ void gates(const float* gate, const float* up, const float* dy, float* dgate, float* dup, index_t count,
                      int vec, F of) {
  if (!vec) {
    each(count, [&](index_t i) {
      const Two made = of(gate[i], up[i], dy[i]);
      dgate[i] = made.gate, dup[i] = made.up;
    });
    return;
  }
  each(count / 4, [&](index_t i) {
    const float4 g = load4(gate + 4 * i), u = load4(up + 4 * i), d = load4(dy + 4 * i);
    const Two a = of(g.x, u.x, d.x), b = of(g.y, u.y, d.y), c = of(g.z, u.z, d.z), e = of(g.w, u.w, d.w);
    store4(dgate + 4 * i, make_float4(a.gate, b.gate, c.gate, e.gate));
    store4(dup + 4 * i, make_float4(a.up, b.up, c.up, e.up));
  });
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace

extern "C" __global__ void lpq_activation_backward(const float* x, const float* dy, float* dx, int act, index_t count,
                                                   int vec) {
  elements(x, dy, dx, count, vec, [&](float v, float d) { return slope(v, act) * d; });
}

extern "C" __global__ void lpq_gated_activation_backward(const float* gate, const float* up, const float* dy,
                                                         float* dgate, float* dup, int act, index_t count, int vec) {
  gates(gate, up, dy, dgate, dup, count, vec, [&](float g, float u, float d) {
    if (act == kSilu) {  // one exponential for both
      const float s = 1.0f / (1.0f + expf(-g));
      return Two{__fmaf_rn(g * s, 1.0f - s, s) * u * d, g * s * d};
    }
    return Two{slope(g, act) * u * d, activate(g, act) * d};
  });
}

// Of (clamp(up, -limit, limit) + more) g sigmoid(alpha g), g = min(gate, limit): no slope beyond the limit.
extern "C" __global__ void lpq_limited_backward(const float* gate, const float* up, const float* dy, float* dgate,
                                                float* dup, float alpha, float limit, float more, index_t count,
                                                int vec) {
  gates(gate, up, dy, dgate, dup, count, vec, [&](float x, float b, float d) {
    const float g = x > limit ? limit : x, line = (b > limit ? limit : b < -limit ? -limit : b) + more;
    const float share = 1.0f / (1.0f + expf(-alpha * g));
    return Two{x > limit ? 0.0f : line * share * __fmaf_rn(alpha * g, 1.0f - share, 1.0f) * d,
               b > limit || b < -limit ? 0.0f : g * share * d};
  });
}

extern "C" __global__ void lpq_xielu_backward(const float* x, const void* positive, const void* negative,
                                              const void* beta, const void* eps, int positive_type, int negative_type,
                                              int beta_type, int eps_type, const float* dy, float* dx, index_t count,
                                              int vec) {
  const float line = load_any(beta, beta_type, 0), least = load_any(eps, eps_type, 0),
              above = softplus(load_any(positive, positive_type, 0)),
              below = line + softplus(load_any(negative, negative_type, 0));
  elements(x, dy, dx, count, vec, [&](float v, float d) {
    const float bent = v > 0 ? 2.0f * above * v : below * (v < least ? expm1f(v) : -1.0f);
    return (bent + line) * d;
  });
}

extern "C" __global__ void lpq_soft_cap_backward(const float* y, const float* dy, float* dx, float scale, float inverse,
                                                 index_t count, int vec) {
  elements(y, dy, dx, count, vec, [&](float v, float d) {
    const float share = v * inverse;
    return __fmaf_rn(-share, share, 1.0f) * scale * d;
  });
}
