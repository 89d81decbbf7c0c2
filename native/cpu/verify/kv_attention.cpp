// Attention over a cache in fp64, and how far from it a computation may be.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lpq/arguments.h"

namespace lpq::verify {
namespace {

// Inputs: q f32 [heads*dim]; of keys and of values f64 [T, kvHeads*dim] code times scale and, second, the zero (exact
// numbers are zeros). Outputs f64 [heads*dim]: y, and how far from it a computation may be whose results are rounded to
// `unit`.
//
// In one precision (top 0), u the unit, d dims and T tokens:
//   scores    delta = (d + 4) u scale sum |q||k| (a chain of fma over k, itself rounded once; the product with scale),
//   weights   exp(2 delta + u span + 4 u) - 1 of themselves, delta the largest, span the range of scores (s - max is
//   rounded
//             once; exp is good to 2 u),
//   sums      T u each in numerator and denominator, the quotient u.
//
// By tensor cores on f16 (top: the largest code), h = 2^-11 half a unit of f16, 2^-25 that of its subnormal numbers; a
// size is |code scale| + |zero|:
//   scores    q times scale, or k, is rounded to f16: h |q| size, or 2^-25 (top + |q|) a dim; a tensor core may drop
//   what is below 2^-23 of
//             the largest of the 17 numbers that it adds: (d / 16) 17 2^-23 |q| size; fp32 besides, (d + 4) 2^-24 |q|
//             size,
//   weights   exp of that, of 2^-21 for 2^x and its argument, and of 8 2^-24 (|s| + |max|) - 1,
//   sums      (T / 16) 17 2^-23 + T 2^-24 likewise, and (T / 16 + 4) 2^-21 for sums that are scaled down as a larger
//   score comes, products  a weight (times a scale) and a value are each rounded to f16: 2 h, or 2^-25 (top + |v| + 1).
//
// With N the errors of the numerator and D those of the denominator, over the denominator, y errs by (N + |y| D) / (1 -
// D) and the unit.
void attention(Call& call, Exec& exec) {
  Arguments a(call, "verify_kv_attention");
  const int64_t heads = a.integer("heads"), kv_heads = a.integer("kvHeads"), dim = a.integer("headDim");
  const double scale = a.number("scale"), unit = a.number("unit"), top = a.number("top");
  require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads is no multiple of kvHeads");
  const int64_t width = kv_heads * dim;
  const Tensor& q = a.input("q", {DType::f32}, {heads * dim});
  const Tensor& key_steps = a.input("keys", {DType::f64}, {-1, width});
  const int64_t tokens = key_steps.dim(0);
  const Tensor& key_zeros = a.input("zeros of keys", {DType::f64}, {tokens, width});
  const Tensor& value_steps = a.input("values", {DType::f64}, {tokens, width});
  const Tensor& value_zeros = a.input("zeros of values", {DType::f64}, {tokens, width});
  const Tensor& y = a.output("y", {DType::f64}, q.shape);
  const Tensor& bound = a.output("bound", {DType::f64}, q.shape);
  a.done();
  const double T = static_cast<double>(tokens), d16 = static_cast<double>(dim) / 16, half = 0x1p-11, least = 0x1p-25;
  exec.pool.parallel_for(heads, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<double> score(static_cast<size_t>(tokens)), error(static_cast<size_t>(tokens));
    for (int64_t h = begin; h < end; ++h) {
      const int64_t first = h / (heads / kv_heads) * dim;
      const float* query = q.data<float>() + h * dim;
      double *out = y.data<double>() + h * dim, *room = bound.data<double>() + h * dim, most_error = 0, low = INFINITY,
             high = -INFINITY, total = 0;
      for (int64_t d = 0; d < dim; ++d) out[d] = room[d] = 0;
      if (tokens == 0) continue;
      for (int64_t t = 0; t < tokens; ++t) {
        double sum = 0, plain = 0, sized = 0, small = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const double step = key_steps.data<double>()[t * width + first + d],
                       zero = key_zeros.data<double>()[t * width + first + d], x = query[d];
          sum += x * (step + zero), plain += std::fabs(x * (step + zero)),
              sized += std::fabs(x) * (std::fabs(step) + std::fabs(zero)), small += top + std::fabs(x);
        }
        const size_t i = static_cast<size_t>(t);
        score[i] = sum * scale, low = std::min(low, score[i]), high = std::max(high, score[i]);
        error[i] =
            std::fabs(scale) * (top > 0 ? half * sized + least * small +
                                              sized * (d16 * 17 * 0x1p-23 + static_cast<double>(dim + 4) * 0x1p-24)
                                        : static_cast<double>(dim + 4) * unit * plain);
        most_error = std::max(most_error, error[i]);
      }
      for (size_t i = 0; i < score.size(); ++i) {
        error[i] = std::expm1(top > 0 ? error[i] + 0x1p-21 + 8 * 0x1p-24 * (std::fabs(score[i]) + std::fabs(high))
                                      : 2 * most_error + unit * (high - low) + 4 * unit);
        total += score[i] = std::exp(score[i] - high);
      }
      const double sums = top > 0 ? T / 16 * 17 * 0x1p-23 + T * 0x1p-24 + (T / 16 + 4) * 0x1p-21 : T * unit,
                   products = top > 0 ? 2 * half : 0;
      double below = 0;
      for (size_t i = 0; i < score.size(); ++i)
        score[i] /= total, below += score[i] * ((1 + error[i]) * (1 + sums) - 1);
      for (int64_t d = 0; d < dim; ++d) {
        double above = 0;
        for (int64_t t = 0; t < tokens; ++t) {
          const size_t i = static_cast<size_t>(t);
          const double step = value_steps.data<double>()[t * width + first + d],
                       zero = value_zeros.data<double>()[t * width + first + d];
          const double size = top > 0 ? std::fabs(step) + std::fabs(zero) : std::fabs(step + zero);
          out[d] += score[i] * (step + zero);
          above += score[i] * size * ((1 + error[i]) * (1 + sums) * (1 + products) - 1) +
                   (top > 0 ? least * (top + std::fabs(step + zero) + 1) / total : 0);
        }
        const double errs = (above + std::fabs(out[d]) * below) / (1 - below);
        room[d] =
            below < 1 ? errs + 2 * unit * (std::fabs(out[d]) + errs) + (unit > 0x1p-20 ? least : 1e-37) : INFINITY;
      }
    }
  });
}
LPQ_OP(attention, "verify_kv_attention");

}  // namespace
}  // namespace lpq::verify
