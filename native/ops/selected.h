// index_keys, selected_attention: attention over keys that are chosen query by query.
#pragma once
#include "ops/recurrent.h"

namespace lpq::ops {

// The indexer of sparse attention: for each token the `top` best runs of `block` (1) tokens of its sequence, the last
// one cut at the token itself. q f32 [T, heads*dim], k f32 [T, dim], weights f32 [T, heads] with `weighted`.
// weighted (DeepSeek-V3.2, arXiv:2512.02556, eq. 1): a token s has the score sum_h w_h max(0, q_h k_s), and there is
// one choice; otherwise (MiniMax-M3) it has q_h k_s, and each head chooses. A run has its best token's score, the own
// one and the local - 1 (0) before it more than any other; which of equal ones are chosen may depend on how much of the
// sequence is there. y I32 [T, choices * top]: indices of runs in the sequence, rising, then -1 where there are fewer.
// The past is that of Recurrence with keys [slots, R, dim], R at least the longest total: rows of k are put there, and
// earlier ones read. rate (1) r > 1: keys are those of full runs of r tokens of each sequence, those that end in the
// new tokens, one sequence's after another's, and a token sees those that end with it or before; rows of a past are
// runs. Products are f32 in 16 partial sums, those of heads added in double. A score that is NaN, where there are more
// than top runs: LPQ_NATIVE_NUMERICS. On CUDA all sums are f32, and of equal scores those in front are chosen.
struct IndexKeys : Arguments {
  int64_t heads = at_least(1, "heads"), top = at_least(1, "top");
  int64_t block = at_least(1, "block", 1), local = at_least(0, "local", 0), rate = at_least(1, "rate", 1);
  bool weighted = flag("weighted");
  const Tensor& q = input("q", {f32}, {-1, -1});
  const Tensor& k = input("k", {f32}, {rate == 1 ? q.dim(0) : -1, q.dim(1) / heads});
  const Tensor* weights = input_if(weighted, "weights", {f32}, {q.dim(0), heads});
  int64_t choices = weighted ? 1 : heads;
  const Tensor& y = output("y", {i32}, {q.dim(0), choices * top});
  Recurrence past = Recurrence::read(*this, {-1, k.dim(1)});

  explicit IndexKeys(const Call& call) : Arguments(call, "index_keys") {
    require(q.dim(1) == heads * k.dim(1) && k.dim(1) > 0,
            "q has " + std::to_string(q.dim(1)) + " columns, which are not of " + std::to_string(heads) + " heads");
    done();
  }
};

// y = softmax(q kᵀ * scale) v over the tokens that `selected` names, the own one and earlier ones. Shapes are those of
// attention, or, with slots and totals behind starts, keys and values as of cached_attention, those of the tokens
// included; k and v f32, f16 or bf16, q and y f32, y none of them. selected I32 [T, choices * top]: runs of `block` (1)
// tokens of the sequence, each once; -1: none. choices (1) divides the heads, each choice being that of as many
// neighbours. Indices beyond the sequence, and tokens that see nothing: LPQ_NATIVE_ARGUMENT. Keys are taken in their
// order in `selected` (on CUDA 32 at a time; valueDim is 512 at most).
struct SelectedAttention : Arguments {
  AttentionShape shape = AttentionShape::heads_of(*this);
  int64_t choices = at_least(1, "choices", 1), block = at_least(1, "block", 1);
  const Tensor& q = input("q", {f32}, {-1, shape.queries()});
  const Tensor& k = input("k", kFloats);
  const Tensor& v = input("v", {k.dtype});
  const Tensor& selected = input("selected", {i32}, {q.dim(0), -1});
  const Tensor& starts = read_starts(*this);
  bool kept = left() > 0;
  const Tensor* slots = input_if(kept, "slots", {i32}, {starts.dim(0) - 1});
  const Tensor* totals = input_if(kept, "totals", {i32}, {starts.dim(0) - 1});
  const Tensor& y = output("y", {f32}, {q.dim(0), shape.outputs()});

  explicit SelectedAttention(const Call& call) : Arguments(call, "selected_attention") {
    shape.scale = real("scale");
    if (kept) {
      require_shape(k, "k", {-1, -1, shape.keys()});
      require_shape(v, "v", {k.dim(0), k.dim(1), shape.values()});
    } else {
      require_shape(k, "k", {q.dim(0), shape.keys()});
      require_shape(v, "v", {q.dim(0), shape.values()});
    }
    require(shape.heads % shape.kv_heads == 0, "heads is " + std::to_string(shape.heads) +
                                                   ", not a multiple of kvHeads = " + std::to_string(shape.kv_heads));
    require(shape.heads % choices == 0 && selected.dim(1) % choices == 0,
            "choices is " + std::to_string(choices) + ", which divides heads and columns of selected");
    for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}})
      require(q.dim(0) == 0 || y.raw() != tensor->raw(), std::string("y must not be ") + name);
    done();
  }
};

}  // namespace lpq::ops
