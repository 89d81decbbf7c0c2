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
      const float *y = logits + t * vocabulary, *z = target + t * vocabulary;
      float *p = wanted.data(), *q = dlogits + t * vocabulary;
      const float most_z = kernels.maximum(z, vocabulary), most_y = kernels.maximum(y, vocabulary);
      const double sum_p = static_cast<double>(kernels.exponentials(z, most_z, p, vocabulary));
      // KL = sum p (log p - log q), of which the logarithms of both sums and the maxima are the same for all v.
      double inner = 0;
      for (int64_t i = 0; i < vocabulary; ++i)
        inner += static_cast<double>(p[i]) * (static_cast<double>(z[i]) - static_cast<double>(y[i]));
      const double sum_q = static_cast<double>(kernels.exponentials(y, most_y, q, vocabulary));
      sums[t] = inner / sum_p - static_cast<double>(most_z) + static_cast<double>(most_y) + std::log(sum_q / sum_p);
      kernels.scale(q, static_cast<float>(static_cast<double>(a.factor) / sum_q), q, vocabulary);
      kernels.add_scaled(q, p, static_cast<float>(-static_cast<double>(a.factor) / sum_p), q, vocabulary);
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
