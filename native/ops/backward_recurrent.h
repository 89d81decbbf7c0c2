// Vector-Jacobian products of layers with a state, of whole sequences: short_conv_backward, gated_delta_backward,
// selective_scan_backward. As of backward.h. Activations and gradients f32. On CUDA states have 256 rows
// at most (keyDim, size), and sums are f32 with fused sums in another fixed order.
#pragma once
#include "ops/recurrent.h"

namespace lpq::ops {

// Of short_conv without a past: dx of the shape of x, whose columns that the operation does not read are not written.
// Sums in double (on CUDA in f32).
struct ShortConvBackward : Arguments {
  bool biased = flag("biased");
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& weight = input("weight", kFloats, {-1, -1});
  const Tensor* bias = input_if(biased, "bias", kFloats, {weight.dim(0)});
  const Tensor& starts = read_starts(*this);
  const Tensor& dy = input("dy", {f32}, {x.dim(0), weight.dim(0)});
  const Tensor& dx = output("dx", {f32}, x.shape);
  Columns columns = some_columns("first", x, "x", weight.dim(0));
  const bool multiplied = has("times"), gated = has("gate");
  Columns times = multiplied ? some_columns("times", x, "x", weight.dim(0)) : Columns{};
  Columns gate = gated ? some_columns("gate", x, "x", weight.dim(0)) : Columns{};
  bool silu = one_of("act", {"none", "silu"}) == 1;

  explicit ShortConvBackward(const Call& call) : Arguments(call, "short_conv_backward") {
    require(x.dim(0) == 0 || (dx.raw() != x.raw() && dx.raw() != dy.raw()), "dx must be neither x nor dy");
    done();
  }
};

// Of gated_delta without a past: gradients of the shapes of q, k, v, decay and beta, no other tensors of the call.
// States are computed again from every 64th token's; sums over a head's channels as dot products are, those of heads
// that share a key in the order of heads.
struct GatedDeltaBackward : Arguments {
  int64_t heads = at_least(1, "heads"), key_heads = at_least(1, "keyHeads");
  int64_t key_dim = at_least(1, "keyDim"), value_dim = at_least(1, "valueDim");
  const Tensor& q = input("q", {f32}, {-1, key_heads * key_dim});
  const Tensor& k = input("k", {f32}, q.shape);
  const Tensor& v = input("v", {f32}, {q.dim(0), heads * value_dim});
  const Tensor& decay = input("decay", {f32}, {q.dim(0), -1});
  const Tensor& beta = input("beta", {f32}, {q.dim(0), heads});
  const Tensor& rate = input("rate", kFloats, {heads});
  const Tensor& bias = input("bias", kFloats, {decay.dim(1)});
  const Tensor& starts = read_starts(*this);
  const Tensor& dy = input("dy", {f32}, v.shape);
  const Tensor& dq = output("dq", {f32}, q.shape);
  const Tensor& dk = output("dk", {f32}, k.shape);
  const Tensor& dv = output("dv", {f32}, v.shape);
  const Tensor& ddecay = output("ddecay", {f32}, decay.shape);
  const Tensor& dbeta = output("dbeta", {f32}, beta.shape);
  double strength = number("strength", 1);

  explicit GatedDeltaBackward(const Call& call) : Arguments(call, "gated_delta_backward") {
    require(heads % key_heads == 0,
            "heads is " + std::to_string(heads) + ", not a multiple of keyHeads = " + std::to_string(key_heads));
    require(decay.dim(1) == heads || decay.dim(1) == heads * key_dim,
            "decay has " + std::to_string(decay.dim(1)) + " columns, neither one a head nor one a channel of the keys");
    done();
  }
};

// Of selective_scan without a past: gradients of the shapes of x, b, c and step, no other tensors of the call. States
// are computed again from every 64th token's; sums over the heads of a group in double (on CUDA in f32), in the order
// of heads.
struct SelectiveScanBackward : Arguments {
  int64_t heads = at_least(1, "heads"), head_dim = at_least(1, "headDim");
  int64_t groups = at_least(1, "groups"), size = at_least(1, "size");
  const Tensor& x = input("x", {f32}, {-1, heads * head_dim});
  const Tensor& b = input("b", {f32}, {x.dim(0), groups * size});
  const Tensor& c = input("c", {f32}, {x.dim(0), groups * size});
  const Tensor& step = input("step", {f32}, {x.dim(0), -1});
  const bool by_channel = step.dim(1) != heads;
  const Tensor& rate = input("rate", kFloats, by_channel ? Dims{heads * head_dim, size} : Dims{heads});
  const Tensor& bias = input("bias", kFloats, {step.dim(1)});
  const Tensor& skip = input("skip", kFloats, {step.dim(1)});
  const Tensor& starts = read_starts(*this);
  const Tensor& dy = input("dy", {f32}, x.shape);
  const Tensor& dx = output("dx", {f32}, x.shape);
  const Tensor& db = output("db", {f32}, b.shape);
  const Tensor& dc = output("dc", {f32}, c.shape);
  const Tensor& dstep = output("dstep", {f32}, step.shape);
  double least = number("least", 0), most = number("most", std::numeric_limits<double>::infinity());

  explicit SelectiveScanBackward(const Call& call) : Arguments(call, "selective_scan_backward") {
    require(heads % groups == 0,
            "heads is " + std::to_string(heads) + ", not a multiple of groups = " + std::to_string(groups));
    require(!by_channel || step.dim(1) == heads * head_dim,
            "step has " + std::to_string(step.dim(1)) + " columns, neither one a head nor one a channel");
    require(least >= 0 && least <= most, "least is not from 0 to most");
    done();
  }
};

}  // namespace lpq::ops
