// The gradient of causal attention in double precision, and how far a kernel may be off, elementwise.
//
// The bound. s are scores, P shares, dP = dy v, D = sum P dP, dS = P (dP - D) slope. sums(n): the relative error of a
// sum of n products by the sum of their sizes: n/16 instructions of tensor cores, 17 2^-23 each, or a chain of n in
// fp32.
//   s     errs by sums(headDim) of its products' sizes, and 2^-21 of itself and of the largest (exponents, caps, L)
//   P     by e = exp(2 max of these) - 1 of itself, and the error of a sum of all keys
//   dP    by sums(valueDim) of its products' sizes, D by e + sums(keys) of sum P |dP|, and the largest of dP's
//   dS    by P (e |dP - D| + the errors of dP and D + 2^-22 (|dP| + |D|)) slope + P |dP - D| (twice that of s over cap)
// P and dS are rounded to u of themselves each (0 in fp32), and dq, dk, dv err by these times what they are multiplied
// by, and sums(keys or queries) of all sizes. y errs as dv does, by the sum of all shares, too. All times 1.05, for
// products of errors.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace lpq::test {

struct GradientCase {
  int heads, kv_heads, head_dim, value_dim;
  double factor, scale;  // scores are q k factor, dk has factor and dq scale
  double cap;
  std::vector<int> starts;
  std::vector<double> sinks;                                         // none, or one a head
  std::function<bool(int sequence, int t, int head, int key)> sees;  // tokens of the sequence, key <= t
  bool tensor_cores;
};

struct Gradients {
  std::vector<double> dq, dk, dv, y;  // y: what attention itself gives
};

struct ExpectedGradients {
  Gradients want, bound;

  // q [T, heads, head_dim], k, v, dy as the kernel multiplies them.
  ExpectedGradients(const GradientCase& c, const std::vector<double>& q, const std::vector<double>& k,
                    const std::vector<double>& v, const std::vector<double>& dy)
      : c_(c), q_(q), k_(k), v_(v), dy_(dy) {
    for (Gradients* each : {&want, &bound}) {
      each->dq.assign(q.size(), 0), each->dk.assign(k.size(), 0), each->dv.assign(v.size(), 0);
      each->y.assign(dy.size(), 0);
    }
    Gradients sizes = want;
    for (size_t s = 0; s + 1 < c.starts.size(); ++s) {
      const int length = c.starts[s + 1] - c.starts[s];
      for (int t = 0; t < length; ++t)
        for (int h = 0; h < c.heads; ++h) query(static_cast<int>(s), t, h, sizes);
      // Of dk and dv: how many queries a sum may have.
      const double queries = static_cast<double>(length) * c.heads / c.kv_heads;
      for (int t = c.starts[s]; t < c.starts[s + 1]; ++t) {
        finish(bound.dq, sizes.dq, t, c.heads * c.head_dim, length);
        finish(bound.y, sizes.y, t, c.heads * c.value_dim, length);
        finish(bound.dk, sizes.dk, t, c.kv_heads * c.head_dim, queries);
        finish(bound.dv, sizes.dv, t, c.kv_heads * c.value_dim, queries);
      }
    }
  }

 private:
  double sums(double n) const { return c_.tensor_cores ? (n / 16 + 2) * 17 * 0x1p-23 : (n + 40) * 0x1p-24; }
  void finish(std::vector<double>& bound, const std::vector<double>& sizes, int row, int width, double count) const {
    for (size_t i = static_cast<size_t>(row) * width; i < static_cast<size_t>(row + 1) * width; ++i)
      bound[i] = 1.05 * (bound[i] + sums(count) * sizes[i]) + 1e-30;
  }

  void query(int sequence, int t, int h, Gradients& sizes) {
    const int first = c_.starts[static_cast<size_t>(sequence)], kv = h / (c_.heads / c_.kv_heads), hd = c_.head_dim,
              vd = c_.value_dim;
    const double u = c_.tensor_cores ? 0x1p-8 : 0;
    const double* const own_q = q_.data() + static_cast<size_t>((first + t) * c_.heads + h) * hd;
    const double* const own_dy = dy_.data() + static_cast<size_t>((first + t) * c_.heads + h) * vd;
    struct Key {
      int key;
      double score, slope, gradient, gradient_off, off, share;
    };
    std::vector<Key> keys;
    double peak = c_.sinks.empty() ? -INFINITY : c_.sinks[static_cast<size_t>(h)], furthest = 0, off = 0;
    if (!c_.sinks.empty()) furthest = std::fabs(peak);
    for (int key = 0; key <= t; ++key) {
      if (!c_.sees(sequence, t, h, key)) continue;
      const double* const row = k_.data() + static_cast<size_t>((first + key) * c_.kv_heads + kv) * hd;
      const double* const value = v_.data() + static_cast<size_t>((first + key) * c_.kv_heads + kv) * vd;
      double dot = 0, size = 0, gradient = 0, gradient_size = 0;
      for (int i = 0; i < hd; ++i) dot += own_q[i] * row[i], size += std::fabs(own_q[i] * row[i]);
      for (int i = 0; i < vd; ++i) gradient += own_dy[i] * value[i], gradient_size += std::fabs(own_dy[i] * value[i]);
      const double plain = dot * c_.factor, part = c_.cap > 0 ? std::tanh(plain / c_.cap) : 0;
      Key made{key, c_.cap > 0 ? c_.cap * part : plain, 1 - part * part, gradient, sums(vd) * gradient_size, 0, 0};
      made.off = sums(hd) * size * std::fabs(c_.factor) + 0x1p-21 * std::fabs(plain);
      off = std::max(off, made.off), furthest = std::max(furthest, std::fabs(made.score));
      peak = std::max(peak, made.score);
      keys.push_back(made);
    }
    double total = c_.sinks.empty() ? 0 : std::exp(c_.sinks[static_cast<size_t>(h)] - peak);
    for (Key& key : keys) total += key.share = std::exp(key.score - peak);
    double mean = 0, mean_size = 0, gradient_off = 0;
    for (Key& key : keys) {
      key.share /= total;
      mean += key.share * key.gradient, mean_size += key.share * std::fabs(key.gradient);
      gradient_off = std::max(gradient_off, key.gradient_off);
    }
    const double all = (static_cast<double>(keys.size()) + 40) * 0x1p-23,  // one by one, as they come
        e = std::expm1(2 * off + 4 * furthest * 0x1p-22 + 0x1p-20) + all,
                 mean_off = (e + all) * mean_size + gradient_off;
    for (const Key& key : keys) {
      const double apart = key.gradient - mean, ds = key.share * apart * key.slope;
      const double steep = c_.cap > 0 ? 2 * key.off / c_.cap + 0x1p-20 : 0;
      const double p_off = key.share * (e + u);
      const double ds_off = key.share * ((e * std::fabs(apart) + key.gradient_off + mean_off +
                                          0x1p-22 * (std::fabs(key.gradient) + std::fabs(mean))) *
                                             (key.slope + steep) +
                                         std::fabs(apart) * steep);
      const double ds_all = ds_off + u * (std::fabs(ds) + ds_off);
      const size_t row = static_cast<size_t>((first + key.key) * c_.kv_heads + kv);
      for (int i = 0; i < hd; ++i) {
        const size_t at_q = static_cast<size_t>((first + t) * c_.heads + h) * hd + i, at_k = row * hd + i;
        const double by_k = k_[at_k] * c_.scale, by_q = q_[at_q] * c_.factor;
        want.dq[at_q] += ds * by_k, sizes.dq[at_q] += std::fabs(ds * by_k), bound.dq[at_q] += ds_all * std::fabs(by_k);
        want.dk[at_k] += ds * by_q, sizes.dk[at_k] += std::fabs(ds * by_q), bound.dk[at_k] += ds_all * std::fabs(by_q);
      }
      for (int i = 0; i < vd; ++i) {
        const size_t at = row * vd + i;
        want.dv[at] += key.share * own_dy[i], sizes.dv[at] += key.share * std::fabs(own_dy[i]),
            bound.dv[at] += p_off * std::fabs(own_dy[i]);
        const size_t at_y = static_cast<size_t>((first + t) * c_.heads + h) * vd + i;
        want.y[at_y] += key.share * v_[at], sizes.y[at_y] += key.share * std::fabs(v_[at]),
            bound.y[at_y] += p_off * std::fabs(v_[at]);
      }
    }
  }

  const GradientCase& c_;
  const std::vector<double>&q_, &k_, &v_, &dy_;
};

}  // namespace lpq::test
