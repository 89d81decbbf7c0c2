// short_conv, gated_delta, selective_scan: layers that keep a state of fixed size instead of keys and values.
#pragma once
#include <limits>

#include "ops/attention.h"

namespace lpq::ops {

// Where sequences begin, and what they go on from. starts I32 [S+1], the first token of each sequence and T. Where
// three more tensors are given the tokens are the newest of their sequences: slots and totals I32 [S] as of CacheStep,
// and state f32 [slots, ...], changed in place. A sequence of no earlier tokens (total = its new ones) begins at zero,
// whatever its slot holds; the others go on from their slot, so that a sequence in pieces gives what it gives at once,
// bit by bit. Slots of one call differ.
struct Recurrence {
  const Tensor& starts;
  const Tensor *slots = nullptr, *totals = nullptr, *state = nullptr;

  static Recurrence read(Arguments& a, const Dims& of_one) {
    Recurrence r{read_starts(a)};
    if (a.left() == 0) return r;
    const int64_t sequences = r.starts.dim(0) - 1;
    r.slots = &a.input("slots", {i32}, {sequences});
    r.totals = &a.input("totals", {i32}, {sequences});
    Dims shape = {-1};
    shape.insert(shape.end(), of_one.begin(), of_one.end());
    r.state = &a.in_place("state", {f32}, shape);
    return r;
  }
};

// A causal convolution of each channel over the newest W tokens of its sequence: y[t][c] = act(sum_j w[c][j]
// x[t-W+1+j][c] + bias[c]), tokens before the first are zero. x f32 [T,C], or with `first` columns from there on of
// more; weight [C,W] and bias [C] (with `biased`) f32, f16 or bf16; y f32 [T,C], not x; act: none or silu. `times` and
// `gate`: the first of as many columns of the same matrix that multiply x before and y after (LFM2). A slot's state is
// [W-1, C], the newest W-1 tokens of what is convolved, the last one last. Summed in order of j, in double (on
// CUDA in f32 with fused sums).
struct ShortConv : Arguments {
  bool biased = flag("biased");
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& weight = input("weight", kFloats, {-1, -1});
  const Tensor* bias = input_if(biased, "bias", kFloats, {weight.dim(0)});
  const Tensor& y = output("y", {f32}, {x.dim(0), weight.dim(0)});
  Recurrence past = Recurrence::read(*this, {weight.dim(1) - 1, weight.dim(0)});
  Columns columns = some_columns("first", x, "x", weight.dim(0));
  const bool multiplied = has("times"), gated = has("gate");
  Columns times = multiplied ? some_columns("times", x, "x", weight.dim(0)) : Columns{};
  Columns gate = gated ? some_columns("gate", x, "x", weight.dim(0)) : Columns{};
  bool silu = one_of("act", {"none", "silu"}) == 1;

  explicit ShortConv(const Call& call) : Arguments(call, "short_conv") {
    require(weight.dim(1) >= 2, "weight has " + std::to_string(weight.dim(1)) + " taps, not 2 or more");
    require(x.dim(0) == 0 || y.raw() != x.raw(), "y must not be x");
    done();
  }
};

// The gated delta rule (arXiv:2412.06464, eq. 10; a decay a channel of the key: arXiv:2510.26692, eq. 1). A head has a
// matrix S [keyDim, valueDim], at first 0; at every token, with k and q of length 1 (x / sqrt(sum x^2 + 1e-6)), q then
// divided by sqrt(keyDim):
//   S = diag(exp(g)) S;  S += beta k (v - kᵀS);  y = qᵀS
// g = -exp(rate[h]) softplus(decay + bias), beta = strength * sigmoid(beta as given).
// q, k f32 [T, keyHeads*keyDim]: value head h reads those of head h div (heads/keyHeads); v and y f32 [T,
// heads*valueDim], y none of the inputs; decay f32 [T, heads] or, a channel each, [T, heads*keyDim], bias as wide; beta
// f32 [T, heads]; rate [heads]; rate and bias f32, f16 or bf16. A slot's state is [heads, keyDim, valueDim]. Rows of S
// are taken in order (on CUDA in another fixed order; keyDim is 256 at most), in f32 with fused sums.
struct GatedDelta : Arguments {
  int64_t heads = at_least(1, "heads"), key_heads = at_least(1, "keyHeads");
  int64_t key_dim = at_least(1, "keyDim"), value_dim = at_least(1, "valueDim");
  const Tensor& q = input("q", {f32}, {-1, key_heads * key_dim});
  const Tensor& k = input("k", {f32}, {q.dim(0), key_heads * key_dim});
  const Tensor& v = input("v", {f32}, {q.dim(0), heads * value_dim});
  const Tensor& decay = input("decay", {f32}, {q.dim(0), -1});
  const Tensor& beta = input("beta", {f32}, {q.dim(0), heads});
  const Tensor& rate = input("rate", kFloats, {heads});
  const Tensor& bias = input("bias", kFloats, {decay.dim(1)});
  const Tensor& y = output("y", {f32}, {q.dim(0), heads * value_dim});
  Recurrence past = Recurrence::read(*this, {heads, key_dim, value_dim});
  double strength = number("strength", 1);

  explicit GatedDelta(const Call& call) : Arguments(call, "gated_delta") {
    require(heads % key_heads == 0,
            "heads is " + std::to_string(heads) + ", not a multiple of keyHeads = " + std::to_string(key_heads));
    require(decay.dim(1) == heads || decay.dim(1) == heads * key_dim,
            "decay has " + std::to_string(decay.dim(1)) + " columns, neither one a head nor one a channel of the keys");
    for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}})
      require(q.dim(0) == 0 || y.raw() != tensor->raw(), std::string("y must not be ") + name);
    done();
  }
  bool by_channel() const { return decay.dim(1) != heads; }
};

// A selective state space. A head has a matrix S [size, headDim], at first 0; at every token, with
// d = min(max(softplus(step + bias), least), most):
//   S[n][p] = exp(-exp(rate) d) S[n][p] + d B[n] x[p];  y[p] = sum_n C[n] S[n][p] + skip x[p]
// x and y f32 [T, heads*headDim], y not x; B and C f32 [T, groups*size]: head h reads those of group h div
// (heads/groups). One step, rate, bias and skip a head (Mamba-2, arXiv:2405.21060, section 2.1): step f32 [T, heads],
// rate [heads]; or a channel each (Mamba, arXiv:2312.00752, section 3.2): step f32 [T, heads*headDim], rate
// [heads*headDim, size]. bias as wide as step, skip, too; rate, bias and skip f32, f16 or bf16. A slot's state is
// [heads, size, headDim]. Rows of S are taken in order (on CUDA in another fixed
// order; size is 256 at most), in f32 with fused sums.
struct SelectiveScan : Arguments {
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
  const Tensor& y = output("y", {f32}, {x.dim(0), heads * head_dim});
  Recurrence past = Recurrence::read(*this, {heads, size, head_dim});
  double least = number("least", 0), most = number("most", std::numeric_limits<double>::infinity());

  explicit SelectiveScan(const Call& call) : Arguments(call, "selective_scan") {
    require(heads % groups == 0,
            "heads is " + std::to_string(heads) + ", not a multiple of groups = " + std::to_string(groups));
    require(!by_channel || step.dim(1) == heads * head_dim,
            "step has " + std::to_string(step.dim(1)) + " columns, neither one a head nor one a channel");
    require(least >= 0 && least <= most, "least is not from 0 to most");
    require(x.dim(0) == 0 || y.raw() != x.raw(), "y must not be x");
    done();
  }
};

}  // namespace lpq::ops
