// rope, rope_backward, attention, cached_attention, cache_append, rope_append.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// A turn of the first `rotary` dims of every head by the angles of its token's position: cos, sin f32 [P, rotary/2],
// positions I32 [T]. style half: pairs (i, i + rotary/2); interleaved: pairs (2i, 2i+1). A position outside the table:
// LPQ_NATIVE_ARGUMENT. rotary 0 turns nothing.
struct Rotation {
  const Tensor *cos = nullptr, *sin = nullptr, *positions = nullptr;
  int64_t rotary = 0;
  bool halves = false;

  static Rotation read(Arguments& a, int64_t head_dim, int64_t tokens) {
    const int64_t rotary = a.integer("rotary");
    const bool halves = a.one_of("style", {"half", "interleaved"}) == 0;
    require(head_dim > 0 && rotary >= 0 && rotary <= head_dim && rotary % 2 == 0,
            "rotary is " + std::to_string(rotary) +
                ", not an even number of at most headDim = " + std::to_string(head_dim));
    const Tensor& cos = a.input("cos", {f32}, {-1, rotary / 2});
    return {&cos, &a.input("sin", {f32}, cos.shape), &a.input("positions", {i32}, {tokens}), rotary, halves};
  }
};

// Rotates x f32 (on CUDA f16 or bf16 too) [T, heads*headDim] in place. With `first` x has more columns, of which the
// heads are those from there on. rope_backward: the gradient with respect to y becomes that with respect to x, the turn
// back.
struct Rope : Arguments {
  const Tensor& x = in_place("x", kFloats, {-1, -1});
  int64_t heads = at_least(1, "heads"), head_dim = integer("headDim");
  Columns columns = some_columns("first", x, "x", heads* head_dim);
  Rotation rotation = Rotation::read(*this, head_dim, x.dim(0));

  explicit Rope(const Call& call, bool backward = false) : Arguments(call, backward ? "rope_backward" : "rope") {
    done();
  }
};

struct AttentionShape {
  int64_t heads, kv_heads, head_dim, value_dim, window;
  float scale, cap;

  // heads and kvHeads, headDim and valueDim (headDim).
  static AttentionShape heads_of(Arguments& a) {
    AttentionShape of{};
    of.heads = a.integer("heads"), of.kv_heads = a.integer("kvHeads"), of.head_dim = a.integer("headDim");
    of.value_dim = a.integer("valueDim", of.head_dim);
    require(of.heads > 0 && of.kv_heads > 0 && of.head_dim > 0 && of.value_dim > 0,
            "heads, kvHeads, headDim and valueDim must be positive");
    return of;
  }
  // And scale, window (0: none) and softCap (0: none).
  static AttentionShape read(Arguments& a) {
    AttentionShape of = heads_of(a);
    of.window = a.at_least(0, "window", 0), of.scale = a.real("scale"), of.cap = a.real("softCap", 0);
    require(of.heads % of.kv_heads == 0,
            "heads is " + std::to_string(of.heads) + ", not a multiple of kvHeads = " + std::to_string(of.kv_heads));
    require(of.cap >= 0, "softCap is " + std::to_string(of.cap));
    return of;
  }
  int64_t queries() const { return heads * head_dim; }
  int64_t keys() const { return kv_heads * head_dim; }
  int64_t values() const { return kv_heads * value_dim; }
  int64_t outputs() const { return heads * value_dim; }
};

inline const Tensor& read_starts(Arguments& a) {
  const Tensor& starts = a.input("starts", {i32}, {-1});
  require(starts.dim(0) > 0, "starts is empty");
  return starts;
}

// Causal attention inside each sequence: y = softmax(q kᵀ * scale) v. q f32 [T, heads*headDim], k [T, kvHeads*headDim],
// v [T, kvHeads*valueDim], y [T, heads*valueDim], none of them; starts I32 [S+1], the first token of each sequence and
// T. On CUDA y may be f16 or bf16, and q, k and v of y's dtype; heads have at most 256 dims. window w > 0: token t sees
// t-w+1 .. t. softCap c > 0: softmax of c * tanh(q kᵀ * scale / c) (Gemma 2). sinks f32, f16 or bf16 [heads]
// (optional): a further logit of each head's softmax, without a value. With qFirst, kFirst, vFirst the matrices have
// more columns, of which the heads are those from there on. starts that do not rise from 0 to T: LPQ_NATIVE_ARGUMENT.
// bf16: of an f32 y, products in bf16: on the CPU as linalg.h has them, on CUDA with q rounded after its scale.
struct Attention : Arguments {
  AttentionShape shape = AttentionShape::read(*this);
  const Tensor& q = input("q", kFloats, {-1, -1});
  const Tensor& k = input("k", kFloats, {q.dim(0), -1});
  const Tensor& v = input("v", kFloats, {q.dim(0), -1});
  const Tensor& starts = read_starts(*this);
  const Tensor& y = output("y", kFloats, {q.dim(0), shape.outputs()});
  const Tensor* sinks = last_input("sinks", kFloats, {shape.heads});
  Columns of_q = some_columns("qFirst", q, "q", shape.queries());
  Columns of_k = some_columns("kFirst", k, "k", shape.keys());
  Columns of_v = some_columns("vFirst", v, "v", shape.values());
  bool bf16 = flag("bf16");

  explicit Attention(const Call& call) : Arguments(call, "attention") {
    for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}}) {
      require_dtype(*tensor, name, {f32, y.dtype});
      require(q.dim(0) == 0 || y.raw() != tensor->raw(), "y must be none of q, k and v");
    }
    done();
  }
};

// Which sequences a step adds tokens to: starts I32 [B+1] of the new tokens, slots I32 [B] of the cache, totals I32
// [B]: tokens of the sequences, the new ones included. What does not fit the cache: LPQ_NATIVE_ARGUMENT.
struct CacheStep {
  const Tensor &starts, &slots, &totals;
  int64_t sequences;

  static CacheStep read(Arguments& a) {
    const Tensor& starts = read_starts(a);
    const int64_t sequences = starts.dim(0) - 1;
    return {starts, a.input("slots", {i32}, {sequences}), a.input("totals", {i32}, {sequences}), sequences};
  }
};

// attention of the new tokens over all tokens of their sequences, which are in the cache already: q [T, heads*headDim],
// keys [S, R, kvHeads*headDim] and values [S, R, kvHeads*valueDim] f32, f16 or bf16, y [T, heads*valueDim], not q; the
// step as CacheStep. q and y f32; on CUDA y of the cache's dtype, and q f32 or that. most: the most new tokens of a
// sequence, longest: the most tokens of one; neither may be too small. On the CPU blocks of keys are those of
// attention, so that with an f32 cache y is what that gives, bit by bit. splits: of the tokens, on CUDA; the choice
// changes no more than the order of sums.
struct CachedAttention : Arguments {
  AttentionShape shape = AttentionShape::read(*this);
  const Tensor& q = input("q", kFloats, {-1, shape.queries()});
  const Tensor& keys = input("keys", kFloats, {-1, -1, shape.keys()});
  const Tensor& values = input("values", {keys.dtype}, {keys.dim(0), keys.dim(1), shape.values()});
  CacheStep step = CacheStep::read(*this);
  const Tensor* sinks = last_input("sinks", kFloats, {shape.heads});
  const Tensor& y = output("y", kFloats, {q.dim(0), shape.outputs()});
  int64_t most = integer("most"), longest = integer("longest"), splits = integer("splits", 0);  // 0: not given

  explicit CachedAttention(const Call& call) : Arguments(call, "cached_attention") {
    require_dtype(q, "q", {f32, y.dtype});
    require(q.dim(0) == 0 || y.raw() != q.raw(), "y must not be q");
    require(most >= 0 && longest >= 0, "most is " + std::to_string(most) + " and longest " + std::to_string(longest));
    require(!has("splits") || (splits >= 1 && splits <= 1024), "splits is not 1 to 1024");
    done();
  }
};

// k [T, kvHeads*headDim] and v [T, kvHeads*valueDim] f32 (on CUDA f16 or bf16 too) become rows total - new .. total of
// their sequences' slots in keys and values [S, R, ...] f32, f16 or bf16, rounded to nearest even. kFirst, vFirst: as
// of attention.
struct CacheAppend : Arguments {
  const Tensor& k = input("k", kFloats, {-1, -1});
  const Tensor& v = input("v", {k.dtype}, {k.dim(0), -1});
  CacheStep step = CacheStep::read(*this);
  const Tensor& keys = output("keys", kFloats, {-1, -1, integer("kFirst", -1) >= 0 ? -1 : k.dim(1)});
  const Tensor& values =
      output("values", kFloats, {keys.dim(0), keys.dim(1), integer("vFirst", -1) >= 0 ? -1 : v.dim(1)});
  Columns of_k = some_columns("kFirst", k, "k", keys.dim(2));
  Columns of_v = some_columns("vFirst", v, "v", values.dim(2));

  explicit CacheAppend(const Call& call) : Arguments(call, "cache_append") { done(); }
};

// rope of q [T, heads*headDim] and k, then cache_append, in one: y [T, heads*headDim] = q turned, k is turned on its
// way into keys, and neither k nor v changes. Tensors: q, k, v, the step, a rotation (cos, sin, positions; without it
// nothing turns), the weights f32, f16 or bf16 [headDim] of RMS norms of every head of q and of k, with eps and offset
// (0), which come before the turn. q, k and v f32 (on CUDA f16 or bf16 too), y and the cache f32, f16 or bf16; y may be
// q where that has no other columns and y's dtype. qFirst, kFirst, vFirst: as of attention. On CUDA headDim and
// valueDim are at most 256.
struct RopeAppend : Arguments {
  AttentionShape shape = AttentionShape::heads_of(*this);
  const Tensor& q = input("q", kFloats, {-1, -1});
  const Tensor& k = input("k", {q.dtype}, {q.dim(0), -1});
  const Tensor& v = input("v", {q.dtype}, {q.dim(0), -1});
  CacheStep step = CacheStep::read(*this);
  Rotation rotation = left() >= 3 ? Rotation::read(*this, shape.head_dim, q.dim(0)) : Rotation{};
  bool normed = left() > 0;
  const Tensor* q_norm = input_if(normed, "the norm of q", kFloats, {shape.head_dim});
  const Tensor* k_norm = input_if(normed, "the norm of k", kFloats, {shape.head_dim});
  const Tensor& y = output("y", kFloats, {q.dim(0), shape.queries()});
  const Tensor& keys = output("keys", kFloats, {-1, -1, shape.keys()});
  const Tensor& values = output("values", {keys.dtype}, {keys.dim(0), keys.dim(1), shape.values()});
  double eps = normed ? number("eps") : 0;
  float offset = normed ? real("offset", 0) : 0;
  Columns of_q = some_columns("qFirst", q, "q", shape.queries());
  Columns of_k = some_columns("kFirst", k, "k", shape.keys());
  Columns of_v = some_columns("vFirst", v, "v", shape.values());

  explicit RopeAppend(const Call& call) : Arguments(call, "rope_append") {
    require(q.dim(0) == 0 || y.raw() != q.raw() || (y.dtype == q.dtype && of_q.pitch == shape.queries()),
            "y may be q where that has no other columns, and its dtype");
    done();
  }
};

}  // namespace lpq::ops
