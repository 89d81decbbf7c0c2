// compress, append_rows, compressed_attention: attention over the newest tokens and what older ones were compressed to.
#pragma once
#include "ops/recurrent.h"

namespace lpq::ops {

// Every full run of `rate` tokens of a sequence becomes one entry (DeepSeek-V4): y[w] = sum_j softmax_j(gate + bias)
// kv, channel by channel. x and gate f32 [T, S D], bias f32, f16 or bf16 [rate, S D], starts I32, y f32 [E, D], E the
// full runs of all sequences. S = 2: the second D columns of the run's own tokens beside the first D of those of the
// run before it, 2 rate tokens in one softmax. The past is that of Recurrence: a slot's state [S rate, 2 S D] has x
// beside gate of the newest tokens, token p in row p mod S rate, and E counts the runs that end in the new tokens. In
// double (on CUDA in f32).
struct Compress : Arguments {
  int64_t rate = at_least(1, "rate");
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& gate = input("gate", {f32}, x.shape);
  const Tensor& bias = input("bias", kFloats, {rate, x.dim(1)});
  const Tensor& y = output("y", {f32}, {-1, -1});
  int64_t series = y.dim(1) > 0 ? x.dim(1) / y.dim(1) : 1;
  Recurrence past = Recurrence::read(*this, {series * rate, 2 * x.dim(1)});

  explicit Compress(const Call& call) : Arguments(call, "compress") {
    require(y.dim(1) == x.dim(1) || 2 * y.dim(1) == x.dim(1),
            "y has " + std::to_string(y.dim(1)) + " columns of " + std::to_string(x.dim(1)));
    done();
  }
};

// state[slot][p] = x[t] f32 [T, C], p the token's place in its sequence, of the past of Recurrence with rows [slots, R,
// C], R at least the longest total.
struct AppendRows : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  Recurrence past = Recurrence::read(*this, {-1, x.dim(1)});

  explicit AppendRows(const Call& call) : Arguments(call, "append_rows") {
    require(past.state != nullptr, "there are no rows to append to");
    done();
  }
};

// y = softmax(q kᵀ * scale) k: a token sees the newest `window` tokens of its sequence, itself included, and behind
// them entries of full runs of `rate` tokens up to itself: all, or those that selected I32 [T, top] names (with
// `chosen`; -1: none). One k f32 [T, D] for all heads, entries f32 [E, D] as of compress, q and y f32 [T, heads*D],
// sinks f32, f16 or bf16 [heads], a further logit of each head. rate 0: no entries. With `kept` the tokens are the
// newest of their sequences: k [slots, R, D] and entries [slots, E, D] have all so far, theirs included, and slots and
// totals (CacheStep) come last. On CUDA D is 512 at most.
struct CompressedAttention : Arguments {
  int64_t heads = at_least(1, "heads"), window = at_least(1, "window"), rate = at_least(0, "rate");
  bool chosen = flag("chosen"), kept = flag("kept");
  float scale = real("scale");
  const Tensor& q = input("q", {f32}, {-1, -1});
  int64_t dim = q.dim(1) / heads;
  const Tensor& k = input("k", {f32}, kept ? Dims{-1, -1, dim} : Dims{q.dim(0), dim});
  const Tensor& entries = input("entries", {f32}, kept&& rate > 0 ? Dims{k.dim(0), -1, dim} : Dims{-1, dim});
  const Tensor& sinks = input("sinks", kFloats, {heads});
  const Tensor& starts = read_starts(*this);
  const Tensor* selected = input_if(chosen, "selected", {i32}, {q.dim(0), -1});
  const Tensor* slots = input_if(kept, "slots", {i32}, {starts.dim(0) - 1});
  const Tensor* totals = input_if(kept, "totals", {i32}, {starts.dim(0) - 1});
  const Tensor& y = output("y", {f32}, q.shape);

  explicit CompressedAttention(const Call& call) : Arguments(call, "compressed_attention") {
    require(q.dim(1) == heads * dim,
            "q has " + std::to_string(q.dim(1)) + " columns, which are not of " + std::to_string(heads) + " heads");
    require(q.dim(0) == 0 || (y.raw() != q.raw() && y.raw() != k.raw()), "y must be neither q nor k");
    done();
  }
};

}  // namespace lpq::ops
