// tune_aim: targets of weights that are trained, whose codes follow by coordinate descent (gptq_descend). tune_grid,
// tune_scale_gradient, tune_gain_gradient, tune_adam: scales and norms that are trained for fixed codes.
// tune_refit_grid: coarse scales and zeros, likewise. tune_row_dots: what a change of a weight does to the loss.
#pragma once
#include "ops/quant.h"

namespace lpq::ops {

// Where a weight [N,K] f32 stands on its grid: scale and zero f32 [N, K/groupSize].
struct TuneGroups {
  int64_t n, k, length, groups;
  static TuneGroups read(Arguments& a, const Tensor& w) {
    const int64_t length = a.integer("groupSize");
    return {w.dim(0), w.dim(1), length, groups_along(w.dim(1), length)};
  }
  Dims shape() const { return {n, groups}; }
};

// One step of targets t f32 [N,K], in place: against directions p f32 [N,K], and back towards the quantized weights w
// f32 [N,K]: t = w + leak (t - w) - rate u p / most. By rows: u is the mean size of the scales [N,G], most f32 [N] (in
// place) the largest root mean square of p that there was; where it is 0, the row has no step.
struct TuneAim : Arguments {
  const Tensor& p = input("p", {f32}, {-1, -1});
  const Tensor& w = input("w", {f32}, p.shape);
  const Tensor& scale = input("scale", {f32}, {p.dim(0), -1});
  const Tensor& t = in_place("t", {f32}, p.shape);
  const Tensor& most = in_place("most", {f32}, {p.dim(0)});
  float rate = real("rate"), leak = real("leak");

  explicit TuneAim(const Call& call) : Arguments(call, "tune_aim") {
    require(leak >= 0 && leak <= 1, "leak is " + std::to_string(leak) + ", which is 0 to 1");
    done();
  }
};

// Scales as stored, and what they stand for times `unit` (1), the second level: s, f f32 [N,G] -> stored [N,G] in a
// dtype of scales, scale f32 [N,G]; of a scale that would become 0 or infinite, that of f = 1. Zeros: z, e f32 [N,G] ->
// zero f32 [N,G], z + e rounded into the range of `type`, z itself where e is 0.
struct TuneGrid : Arguments {
  QuantType type = quant_type();
  const Tensor& s = input("s", {f32}, {-1, -1});
  const Tensor& f = input("f", {f32}, s.shape);
  const Tensor& z = input("z", {f32}, s.shape);
  const Tensor& e = input("e", {f32}, s.shape);
  const Tensor& stored = output("stored", kScaleTypes, s.shape);
  const Tensor& scale = output("scale", {f32}, s.shape);
  const Tensor& zero = output("zero", {f32}, s.shape);
  float unit = real("unit", 1);

  explicit TuneGrid(const Call& call) : Arguments(call, "tune_grid") { done(); }
};

// The gradient with respect to factors of scales, codes and zeros fixed: dw, w f32 [N,K], a weight and the gradient
// with respect to it, f f32 [N,G] the factors that w has, g f32 [N,G] += sum over the group of dw w / f, added in f64
// in order.
struct TuneScaleGradient : Arguments {
  const Tensor& dw = input("dw", {f32}, {-1, -1});
  TuneGroups of = TuneGroups::read(*this, dw);
  const Tensor& w = input("w", {f32}, dw.shape);
  const Tensor& f = input("f", {f32}, of.shape());
  const Tensor& g = in_place("g", {f32}, of.shape());

  explicit TuneScaleGradient(const Call& call) : Arguments(call, "tune_scale_gradient") { done(); }
};

// The gradient with respect to factors of a norm's gain f32 [C]: x, dy f32 [T,C], what the norm makes without its
// weight and the gradient with respect to what it makes, g f32 [C] += gain times the sum over the rows of x dy, added
// in f64 in order.
struct TuneGainGradient : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& dy = input("dy", {f32}, x.shape);
  const Tensor& gain = input("gain", {f32}, {x.dim(1)});
  const Tensor& g = in_place("g", {f32}, gain.shape);

  explicit TuneGainGradient(const Call& call) : Arguments(call, "tune_gain_gradient") { done(); }
};

// Scales in a coarse dtype, or zeros, that fit fixed codes better: r f32 [N,K] = (W - T) M, what the weights W of the
// codes are off their targets in the metric M f32 [K,K], level f32 [N,K] the codes decoded; scale, zero f32 [N,G] (in
// place) -> moved f64 [1] = groups that changed. Group after group takes what lowers the row's (W - T) M (W - T)^T
// most, if anything does. zeros: a zero one higher or lower, within the range of `type`, with the scale that fits best
// then as scaleDtype holds it, of the same sign and within a factor of 2. Else the next scale up or down that
// scaleDtype, of 8 bits, holds, times `unit` (1), the second level.
struct TuneRefitGrid : Arguments {
  QuantType type = quant_type();
  const Tensor& r = input("r", {f32}, {-1, -1});
  TuneGroups of = TuneGroups::read(*this, r);
  const Tensor& m = input("M", {f32}, {of.k, of.k});
  const Tensor& level = input("level", {f32}, r.shape);
  const Tensor& scale = in_place("scale", {f32}, of.shape());
  const Tensor& zero = in_place("zero", {f32}, of.shape());
  const Tensor& moved = output("moved", {f64}, {1});
  DType dtype = dtype_from_name(text("scaleDtype"));
  float unit = real("unit", 1);
  bool zeros = flag("zeros");

  explicit TuneRefitGrid(const Call& call) : Arguments(call, "tune_refit_grid") {
    const bool coarse = dtype == DType::f8_e8m0 || dtype == DType::f8_e4m3;
    require(coarse != zeros, zeros ? "zeros go with scales of 16 or 32 bits" : "scaleDtype has more than 8 bits");
    done();
  }
};

// Step `step` (from 1) of Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) on f against its gradient g, with the
// moments m and v, all f32 of one shape; f stays within [least, most]. g is 0 afterwards.
struct TuneAdam : Arguments {
  const Tensor& f = in_place("f", {f32});
  const Tensor& g = in_place("g", {f32}, f.shape);
  const Tensor& m = in_place("m", {f32}, f.shape);
  const Tensor& v = in_place("v", {f32}, f.shape);
  int64_t step = at_least(1, "step", 1);
  double rate = number("rate"), beta1 = number("beta1"), beta2 = number("beta2"), eps = number("eps");
  float least = real("least"), most = real("most");

  explicit TuneAdam(const Call& call) : Arguments(call, "tune_adam") {
    for (const auto& [beta, name] : {std::pair{beta1, "beta1"}, {beta2, "beta2"}})
      require(beta >= 0 && beta < 1, std::string(name) + " is " + std::to_string(beta) + ", which is 0 to 1");
    done();
  }
};

// dots f64 [T]: of each row of x f32 [T,C] with that of y f32 [T,C], added in order.
struct TuneRowDots : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& y = input("y", {f32}, x.shape);
  const Tensor& dots = output("dots", {f64}, {x.dim(0)});

  explicit TuneRowDots(const Call& call) : Arguments(call, "tune_row_dots") { done(); }
};

}  // namespace lpq::ops
