// hyper_weights, hyper_collapse, hyper_expand, limited_gate, route_root: what DeepSeek-V4 has around attention and
// experts.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// How N = `streams` streams become one and take over what a branch makes of it (mHC, arXiv:2512.24880, eq. 8 and 9). w
// f32 [T, (2 + N) N], base [(2 + N) N] and scale [3] f32, f16 or bf16. pre f32 [T,N] = sigmoid(w scale_0 + base) + eps,
// post [T,N] = 2 sigmoid(w scale_1 + base), mix [T, N N] = a softmax of each row of w scale_2 + base, plus eps, whose
// columns and then `iterations` - 1 times rows and columns are divided by their sums + eps. With w [T,N], base [N] and
// scale [1] there is only pre. In double; on CUDA N is 8 at
// most.
struct HyperWeights : Arguments {
  int64_t streams = at_least(1, "streams"), iterations = at_least(1, "iterations", 1);
  double eps = number("eps");
  const Tensor& w = input("w", {f32}, {-1, -1});
  bool whole = w.dim(1) != streams;
  const Tensor& base = input("base", kFloats, {whole ? (2 + streams) * streams : streams});
  const Tensor& scale = input("scale", kFloats, {whole ? 3 : 1});
  const Tensor& pre = output("pre", {f32}, {w.dim(0), streams});
  const Tensor* post = output_if(whole, "post", {f32}, {w.dim(0), streams});
  const Tensor* mix = output_if(whole, "mix", {f32}, {w.dim(0), streams * streams});

  explicit HyperWeights(const Call& call) : Arguments(call, "hyper_weights") {
    require(w.dim(1) == base.dim(0),
            "w has " + std::to_string(w.dim(1)) + " columns, not " + std::to_string(base.dim(0)));
    done();
  }
};

// y = sum_n pre_n x_n; x f32 [T, N C], pre f32 [T,N], y f32 [T,C].
struct HyperCollapse : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& pre = input("pre", {f32}, {x.dim(0), -1});
  const Tensor& y = output("y", {f32}, {x.dim(0), -1});

  explicit HyperCollapse(const Call& call) : Arguments(call, "hyper_collapse") {
    require(x.dim(1) == pre.dim(1) * y.dim(1), "x has " + std::to_string(x.dim(1)) + " columns, not those of streams");
    done();
  }
};

// y_n = post_n made + sum_m mix[m][n] x_m; x and y f32 [T, N C], y not x, made f32 [T,C], post [T,N], mix [T, N N].
struct HyperExpand : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& made = input("made", {f32}, {x.dim(0), -1});
  const Tensor& post = input("post", {f32}, {x.dim(0), -1});
  const Tensor& mix = input("mix", {f32}, {x.dim(0), post.dim(1) * post.dim(1)});
  const Tensor& y = output("y", {f32}, x.shape);

  explicit HyperExpand(const Call& call) : Arguments(call, "hyper_expand") {
    require(x.dim(1) == post.dim(1) * made.dim(1),
            "x has " + std::to_string(x.dim(1)) + " columns, not those of streams");
    require(x.dim(0) == 0 || y.raw() != x.raw(), "y must not be x");
    done();
  }
};

// y = silu(min(gate, limit)) * clamp(up, -limit, limit); f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y
// may be gate or up.
struct LimitedGate : Arguments {
  const Tensor& gate = input("gate", kFloats);
  const Tensor& up = input("up", {gate.dtype}, gate.shape);
  const Tensor& y = output("y", {gate.dtype}, gate.shape);
  float limit = real("limit");

  explicit LimitedGate(const Call& call) : Arguments(call, "limited_gate") {
    require(limit > 0, "limit is " + std::to_string(limit) + ", not positive");
    done();
  }
};

// Experts by shares sqrt(softplus(logit)) of logits f32 [T,E]: the k highest share + bias (bias f32, f16 or bf16 [E]
// with `biased`; ties: lower index), or with `hashed` those that a table I32 or I64 [V,k] names for each of the tokens'
// ids I32 [T]. weights f32 [T,k]: shares without the bias, divided by their sum, times scale (1); indices I32 [T,k].
// NaN and infinity: LPQ_NATIVE_NUMERICS; ids and experts that there are none of: LPQ_NATIVE_ARGUMENT.
struct RouteRoot : Arguments {
  bool biased = flag("biased"), hashed = flag("hashed");
  const Tensor& logits = input("logits", {f32}, {-1, -1});
  int64_t experts = logits.dim(1), k = at_least(1, "k");
  const Tensor* bias = input_if(biased, "bias", kFloats, {experts});
  const Tensor* ids = input_if(hashed, "ids", {i32}, {logits.dim(0)});
  const Tensor* table = input_if(hashed, "table", {i32, i64}, {-1, k});
  const Tensor& indices = output("indices", {i32}, {logits.dim(0), k});
  const Tensor& weights = output("weights", {f32}, {logits.dim(0), k});
  float scale = real("scale", 1);

  explicit RouteRoot(const Call& call) : Arguments(call, "route_root") {
    require(k <= experts, "k is " + std::to_string(k) + " of " + std::to_string(experts) + " experts");
    done();
  }
};

}  // namespace lpq::ops
