// Whether blocks of GGUF are an encoding of the weights that they should hold, whoever searched for it. The codes
// follow from
// the scales: each must be the nearest there is. The scales are free within a bound that the weights set.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/verify/gguf_element.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

// Distance of neighbours among fp16 numbers of this size.
double half_unit(double x) { return std::ldexp(1.0, std::max(std::ilogb(std::max(x, 0x1p-14)) - 10, -24)); }

// What plain rounding into the type leaves of a block: its error, what the grid of scales (and minima) adds at most,
// and the size of the largest step that such a grid rounds to 0. All norms.
struct Plain {
  double error = 0.0, grid = 0.0, lost = 0.0;
};

Plain plain_rounding(const BlockType& t, const double* x, const double* weights) {
  const int parts = t.size / t.part;
  double squares = 0.0, norms[16], sums[16], step_most = 0.0, min_most = 0.0;
  for (int p = 0; p < parts; ++p) {
    const double *v = x + p * t.part, *w = weights + p * t.part;
    double extreme = 0.0, low = 0.0, top = 0.0, codes = 0.0, all = 0.0;
    for (int i = 0; i < t.part; ++i) {
      if (std::fabs(v[i]) > std::fabs(extreme)) extreme = v[i];
      low = std::min(low, v[i]), top = std::max(top, v[i]);
    }
    const double step = t.affine ? (top - low) / t.high : extreme / (t.bytes == 34 ? t.high : t.low);
    const double min = t.affine ? -low : 0.0;
    for (int i = 0; i < t.part; ++i) {
      const double steps = step != 0.0 ? std::rint((v[i] + min) / step) : 0.0;
      const double code = std::clamp(steps, double(t.low), double(t.high)), off = v[i] - (step * code - min);
      squares += w[i] * off * off, codes += w[i] * code * code, all += w[i];
    }
    norms[p] = std::sqrt(codes), sums[p] = std::sqrt(all);
    step_most = std::max(step_most, std::fabs(step)), min_most = std::max(min_most, min);
  }
  // A step is a whole multiple of an f16 number, up to `steps` of it: half of that off, and half a unit of the f16 for
  // each.
  const auto off_grid = [&](double most) {
    const double scale = most / t.steps;
    return (t.steps > 1 ? scale / 2 : 0.0) + half_unit(scale) / 2 * t.steps;
  };
  const double step_off = off_grid(step_most), min_off = t.affine ? off_grid(min_most) : 0.0;
  double grid = 0.0;
  for (int p = 0; p < parts; ++p) {
    const double off = step_off * norms[p] + min_off * sums[p];
    grid += off * off;
  }
  return {std::sqrt(squares), std::sqrt(grid), step_off};
}

// blocks U8 [N, bytes], order I32 [N], w [N, K] (f32, f16, bf16): stored row r is to hold row order[r] of w. Reports
// codes that are not the nearest of their step (got and expected: bits of f32), and blocks that are farther from w than
// they may be.
//
// A code: |w - (step * code - min)| is at most step/2, or the code is the last one on that side. Added: the roundings
// of a packer that computes in f32, 2^-22 (|w| + min), and 2^-10 steps. A step of 0 says that the part needs less than
// the grid of
// scales has: |w + min| is at most three times the largest code times what that grid loses.
//
// A block: plain rounding (the largest weight is the largest code, scales to the nearest of their grid) is one encoding
// out of those that a search tries. A search fits steps to all weights instead, and rounds to a grid for the largest of
// these: by least squares, with codes up to half a step off, they are at most twice as large. So the norm of the error
// is at most 2 (error of plain rounding + what the grid adds). Zeros leave the whole norm, another block sqrt(2) of it.
// Squares may be weighted column by column, `weights` F64 [K]: all of these norms then are. A column of weight 0 says
// nothing of its block.
void gguf_nearest(Call& call, Exec& exec) {
  Arguments a(call, "verify_gguf_nearest");
  const GgufBlocks from(a);
  const Tensor& w = a.input("w", {DType::f32, DType::f16, DType::bf16}, {from.rows, -1});
  const Tensor* weights = a.last_input("weights", {DType::f64}, {w.dim(1)});
  const Tensor &codes_info = report_output(a, "codes"), &norms_info = report_output(a, "norms");
  a.done();
  const BlockType& type = from.type;
  const int64_t k = w.dim(1);
  from.check(k);
  WrongReport norms;
  report_rows(exec, from.rows, 4, codes_info, [&](int64_t r, Wrong& wrong) {
    Wrong far;
    double x[256], weigh[256];
    for (int64_t first = 0; first < k; first += type.size) {
      const int64_t row = from.row(r);
      const uint8_t* b = from.block(r, first);
      double norm = 0.0, error = 0.0;
      for (int e = 0; e < type.size; ++e) {
        x[e] = float_at(w, row * k + first + e);
        weigh[e] = weights ? weights->data<double>()[first + e] : 1.0;
        norm += weigh[e] * x[e] * x[e];
      }
      const Plain plain = plain_rounding(type, x, weigh);
      const double reach = std::max(std::abs(type.low), type.high);
      for (int e = 0; e < type.size; ++e) {
        const Element element = element_at(type, b, e);
        const double step = element.step, value = step * element.code - element.min, off = x[e] - value;
        error += weigh[e] * off * off;
        const double loose = 0x1p-22 * (std::fabs(x[e]) + std::fabs(double(element.min)));
        const bool last = step != 0.0 && ((element.code == type.high && off * step > 0.0) ||
                                          (element.code == type.low && off * step < 0.0));
        const double most = step != 0.0 ? std::fabs(step) * (0.5 + 0x1p-10) : 3.0 * reach * plain.lost;
        if (!(std::fabs(off) <= most + loose) && !last)
          wrong.see(row, first + e, std::bit_cast<int32_t>(static_cast<float>(value)),
                    std::bit_cast<int32_t>(static_cast<float>(x[e])));
      }
      const double bound = 2.0 * (plain.error + plain.grid) + 0x1p-20 * std::sqrt(norm);
      if (!(std::sqrt(error) <= bound)) far.see(row, first, 0, 0);
    }
    norms.merge(far);
  });
  norms.write(norms_info);
}
LPQ_OP(gguf_nearest, "verify_gguf_nearest");

// a, w F32 [N, K], two roundings of one weight: reports rows of a that are not w's (column -1), and runs of 256
// columns. A row of zeros is off by all of w's norm, another row by sqrt(2) of it: more than half of the square is
// reported. A run, where a rounding to few bits may leave little of small weights, must still lie along w's: another
// one has a cosine of 1/16 or so.
void near_rows(Call& call, Exec& exec) {
  Arguments args(call, "verify_near_rows");
  const Tensor& a = args.input("a", {DType::f32}, {-1, -1});
  const Tensor& w = args.input("w", {DType::f32}, a.shape);
  const Tensor& info = report_output(args, "info");
  args.done();
  const int64_t k = w.dim(1);
  report_rows(exec, w.dim(0), 8, info, [&](int64_t r, Wrong& wrong) {
    double off = 0.0, whole = 0.0;
    for (int64_t first = 0; first < k; first += 256) {
      double product = 0.0, got = 0.0, norm = 0.0;
      for (int64_t i = first; i < std::min(first + 256, k); ++i) {
        const double x = a.data<float>()[r * k + i], y = w.data<float>()[r * k + i];
        product += x * y, got += x * x, norm += y * y, off += (x - y) * (x - y);
      }
      whole += norm;
      if (norm > 0.0 && !(product > 0.25 * std::sqrt(got * norm))) wrong.see(r, first, 0, 0);
    }
    if (whole > 0.0 && !(off < 0.5 * whole)) wrong.see(r, -1, 0, 0);
  });
}
LPQ_OP(near_rows, "verify_near_rows");

}  // namespace
}  // namespace lpq::verify
