// Activations of MLPs and their slopes (ops/elementwise.h).
#pragma once
#include "cuda/types.cuh"

namespace lpq {

enum Act {
  kSilu = 0,
  kGelu = 1,
  kGeluTanh = 2,
  kRelu = 3,
  kRelu2 = 4,
  kQuickGelu = 5,
  kSigmoid = 6
};  // in the order of ops::Act

// 2 sqrt(2/pi): gelu_tanh is x / (1 + exp(-kTwice (x + kCubic x^3))).
constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;

__device__ __forceinline__ float activate(float x, int act) {
  if (act == kSilu) return x / (1.0f + expf(-x));
  if (act == kGelu) return 0.5f * x * erfcf(-x * 0.70710678f);
  if (act == kRelu) return fmaxf(x, 0.0f);
  if (act == kRelu2) return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
  if (act == kQuickGelu) return x / (1.0f + expf(-1.702f * x));
  if (act == kSigmoid) return 1.0f / (1.0f + expf(-x));
  return x / (1.0f + expf(-kTwice * __fmaf_rn(kCubic * x * x, x, x)));
}

__device__ __forceinline__ float slope(float x, int act) {
  const auto share = [](float u) { return 1.0f / (1.0f + expf(-u)); };
  if (act == kGelu) return __fmaf_rn(x * 0.3989422804014327f, expf(-0.5f * x * x), 0.5f * erfcf(-x * 0.70710678f));
  if (act == kRelu) return x > 0.0f ? 1.0f : 0.0f;
  if (act == kRelu2) return 2.0f * fmaxf(x, 0.0f);
  if (act == kSigmoid) {
    const float s = share(x);
    return s * (1.0f - s);
  }
  // Of x s(u): s + x s (1 - s) u'.
  float u = x, of_u = 1.0f;
  if (act == kQuickGelu) u = 1.702f * x, of_u = 1.702f;
  if (act == kGeluTanh)
    u = kTwice * __fmaf_rn(kCubic * x * x, x, x), of_u = kTwice * __fmaf_rn(3.0f * kCubic * x, x, 1.0f);
  const float s = share(u);
  return __fmaf_rn(x * s * (1.0f - s), of_u, s);
}

}  // namespace lpq
