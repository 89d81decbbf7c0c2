// hyper_weights, hyper_collapse, hyper_expand, limited_gate, route_root.
#include "ops/hyper.h"

#include "cpu/nn/recurrence.h"

namespace lpq::nn {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Rows (step 1) or columns of a square matrix, divided by their sums.
void divide(double* m, int64_t n, bool rows, double eps) {
  const int64_t along = rows ? 1 : n, across = rows ? n : 1;
  for (int64_t i = 0; i < n; ++i) {
    double sum = eps;
    for (int64_t j = 0; j < n; ++j) sum += m[i * across + j * along];
    for (int64_t j = 0; j < n; ++j) m[i * across + j * along] /= sum;
  }
}

void hyper_weights(Call& call, Exec& exec) {
  const ops::HyperWeights a(call);
  const std::vector<float> base = widened(a.base), scale = widened(a.scale);
  const int64_t n = a.streams, width = a.w.dim(1);
  exec.pool.parallel_for(a.w.dim(0), 64, [&](int64_t begin, int64_t end, int) {
    std::vector<double> mix(static_cast<size_t>(n * n));
    for (int64_t t = begin; t < end; ++t) {
      const float* w = a.w.data<float>() + t * width;
      const auto at = [&](int64_t i, size_t part) {
        return static_cast<double>(w[i]) * static_cast<double>(scale[part]) +
               static_cast<double>(base[static_cast<size_t>(i)]);
      };
      for (int64_t i = 0; i < n; ++i) a.pre.data<float>()[t * n + i] = static_cast<float>(sigmoid(at(i, 0)) + a.eps);
      if (!a.whole) continue;
      for (int64_t i = 0; i < n; ++i) a.post->data<float>()[t * n + i] = static_cast<float>(2 * sigmoid(at(n + i, 1)));
      for (int64_t i = 0; i < n; ++i) {
        double* row = mix.data() + i * n;
        for (int64_t j = 0; j < n; ++j) row[j] = at(2 * n + i * n + j, 2);
        const double most = *std::max_element(row, row + n);
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - most);
        for (int64_t j = 0; j < n; ++j) row[j] = row[j] / sum + a.eps;
      }
      divide(mix.data(), n, false, a.eps);
      for (int64_t i = 1; i < a.iterations; ++i)
        divide(mix.data(), n, true, a.eps), divide(mix.data(), n, false, a.eps);
      std::transform(mix.begin(), mix.end(), a.mix->data<float>() + t * n * n,
                     [](double x) { return static_cast<float>(x); });
    }
  });
}

void hyper_collapse(Call& call, Exec& exec) {
  const ops::HyperCollapse a(call);
  const int64_t n = a.pre.dim(1), c = a.y.dim(1);
  exec.pool.for_each(a.x.dim(0), 16, [&](int64_t t) {
    const float *x = a.x.data<float>() + t * n * c, *pre = a.pre.data<float>() + t * n;
    float* y = a.y.data<float>() + t * c;
    vector_kernels().scale(x, pre[0], y, c);
    for (int64_t i = 1; i < n; ++i) vector_kernels().add_scaled(y, x + i * c, pre[i], y, c);
  });
}

void hyper_expand(Call& call, Exec& exec) {
  const ops::HyperExpand a(call);
  const int64_t n = a.post.dim(1), c = a.made.dim(1);
  exec.pool.for_each(a.x.dim(0), 16, [&](int64_t t) {
    const float *x = a.x.data<float>() + t * n * c, *post = a.post.data<float>() + t * n;
    const float* mix = a.mix.data<float>() + t * n * n;
    for (int64_t i = 0; i < n; ++i) {
      float* y = a.y.data<float>() + (t * n + i) * c;
      vector_kernels().scale(a.made.data<float>() + t * c, post[i], y, c);
      for (int64_t j = 0; j < n; ++j) vector_kernels().add_scaled(y, x + j * c, mix[j * n + i], y, c);
    }
  });
}

void limited_gate(Call& call, Exec& exec) {
  const ops::LimitedGate a(call);
  const float *g = a.gate.data<float>(), *u = a.up.data<float>(), limit = a.limit;
  float* y = a.y.data<float>();
  exec.pool.parallel_for(a.gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    constexpr int64_t kChunk = 512;
    float gate[kChunk], up[kChunk];
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t n = std::min(kChunk, end - first);
      for (int64_t i = 0; i < n; ++i) {  // the comparisons let NaN through
        const float x = g[first + i], b = u[first + i];
        gate[i] = x > limit ? limit : x;
        up[i] = b > limit ? limit : b < -limit ? -limit : b;
      }
      vector_kernels().gated(Act::silu, gate, up, y + first, n);
    }
  });
}

void route_root(Call& call, Exec& exec) {
  const ops::RouteRoot a(call);
  const std::vector<float> bias = a.bias ? widened(*a.bias) : std::vector<float>(static_cast<size_t>(a.experts), 0.0f);
  exec.pool.parallel_for(a.logits.dim(0), 64, [&](int64_t begin, int64_t end, int) {
    std::vector<float> share(static_cast<size_t>(a.experts)), left(share.size());
    for (int64_t t = begin; t < end; ++t) {
      int32_t* index = a.indices.data<int32_t>() + t * a.k;
      float* weight = a.weights.data<float>() + t * a.k;
      for (size_t e = 0; e < share.size(); ++e) {
        const double x = static_cast<double>(a.logits.data<float>()[t * a.experts + static_cast<int64_t>(e)]);
        share[e] = static_cast<float>(std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
        left[e] = share[e] + bias[e];
        if (!std::isfinite(left[e])) throw Failure("LPQ_NATIVE_NUMERICS", "a share of an expert is NaN or infinite");
      }
      int64_t id = 0;
      if (a.hashed) {
        id = a.ids->data<int32_t>()[t];
        require(id >= 0 && id < a.table->dim(0), "the table has no id " + std::to_string(id));
      }
      double sum = 1e-20;
      for (int64_t j = 0; j < a.k; ++j) {
        int64_t expert = std::max_element(left.begin(), left.end()) - left.begin();
        if (a.hashed)
          expert = a.table->dtype == DType::i32 ? a.table->data<int32_t>()[id * a.k + j]
                                                : a.table->data<int64_t>()[id * a.k + j];
        require(expert >= 0 && expert < a.experts, "the table names expert " + std::to_string(expert));
        left[static_cast<size_t>(expert)] = -std::numeric_limits<float>::infinity();
        index[j] = static_cast<int32_t>(expert);
        weight[j] = share[static_cast<size_t>(expert)];
        sum += static_cast<double>(weight[j]);
      }
      for (int64_t j = 0; j < a.k; ++j)
        weight[j] = static_cast<float>(static_cast<double>(weight[j]) / sum * static_cast<double>(a.scale));
    }
  });
}

}  // namespace
LPQ_OP(hyper_weights, "hyper_weights");
LPQ_OP(hyper_collapse, "hyper_collapse");
LPQ_OP(hyper_expand, "hyper_expand");
LPQ_OP(limited_gate, "limited_gate");
LPQ_OP(route_root, "route_root");
}  // namespace lpq::nn
