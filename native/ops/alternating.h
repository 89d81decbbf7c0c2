// match_rms, scale_columns, gaussian_top_k: what alternating updates and sparse activations need beside other rows.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// y[t] = x[t] * sqrt(mean(like[t]^2)) / sqrt(max(mean(x[t]^2), floor)), row by row; f32 [T,C], floor > 0; y may be x or
// like.
struct MatchRms : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& like = input("like", {f32}, x.shape);
  const Tensor& y = output("y", {f32}, x.shape);
  double floor = number("floor");

  explicit MatchRms(const Call& call) : Arguments(call, "match_rms") {
    require(floor > 0, "floor is " + std::to_string(floor) + ", not positive");
    done();
  }
};

// y[t][c] = x[t][c] * scales[c]; x, y f32 [T,C], scales f32, f16 or bf16 [C]; y may be x.
struct ScaleColumns : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& scales = input("scales", kFloats, {x.dim(1)});
  const Tensor& y = output("y", {f32}, x.shape);

  explicit ScaleColumns(const Call& call) : Arguments(call, "scale_columns") { done(); }
};

// y[t] = max(x[t] - (mean + deviations * sqrt(variance)), 0), mean and variance (the mean of squared differences) of
// row t: about the same share of every row stays (Gemma 3n; arXiv:2506.06644). x, y f32 (on CUDA f16 or
// bf16 too) [T,C] of one dtype; y may be x.
struct GaussianTopK : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& y = output("y", {x.dtype}, x.shape);
  double deviations = number("deviations");

  explicit GaussianTopK(const Call& call) : Arguments(call, "gaussian_top_k") { done(); }
};

}  // namespace lpq::ops
