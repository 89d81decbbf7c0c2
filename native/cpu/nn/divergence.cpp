// What a distribution of next tokens loses against another, and gradients behind the head.
#include <cmath>
#include <vector>

#include "cpu/nn/cast.h"
#include "ops/backward.h"

namespace lpq::nn {
namespace {

void divergence(Call& call, Exec& exec) {
  const ops::Divergence a(call);
  const int64_t vocabulary = a.logits.dim(1);
  const float *logits = a.logits.data<float>(), *target = a.target.data<float>();
  float* dlogits = a.dlogits.data<float>();
  double* sums = a.sums.data<double>();
  const VectorKernels& kernels = vector_kernels();
  exec.pool.parallel_for(a.logits.dim(0), rows_grain(vocabulary * 4), [&](int64_t begin, int64_t end, int) {
    std::vector<float> wanted(static_cast<size_t>(vocabulary));
    for (int64_t t = begin; t < end; ++t) {
      sums[t] = kernels.divergence(logits + t * vocabulary, target + t * vocabulary, wanted.data(),
                                   dlogits + t * vocabulary, vocabulary, static_cast<double>(a.factor));
    }
  });
}

void soft_cap_backward(Call& call, Exec& exec) {
  const ops::SoftCapBackward a(call);
  const float *y = a.y.data<float>(), *dy = a.dy.data<float>();
  float* dx = a.dx.data<float>();
  const float inverse = a.cap > 0 ? 1 / a.cap : 0;
  exec.pool.parallel_for(a.y.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float share = y[i] * inverse;
      dx[i] = std::fma(-share, share, 1.0f) * a.scale * dy[i];
    }
  });
}

}  // namespace
LPQ_OP(divergence, "divergence");
LPQ_OP(soft_cap_backward, "soft_cap_backward");
}  // namespace lpq::nn
