// rope, attention, cached_attention, cache_append, rope_append.
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
    Rotation of;
    of.rotary = a.integer("rotary");
    of.halves = a.one_of("style", {"half", "interleaved"}) == 0;
    require(head_dim > 0 && of.rotary >= 0 && of.rotary <= head_dim && of.rotary % 2 == 0,
            "rotary is " + std::to_string(of.rotary) +
                ", not an even number of at most headDim = " + std::to_string(head_dim));
    of.cos = &a.input("cos", {DType::f32}, {-1, of.rotary / 2});
    of.sin = &a.input("sin", {DType::f32}, of.cos->shape);
    of.positions = &a.input("positions", {DType::i32}, {tokens});
    return of;
  }
};

// Rotates x f32 (on CUDA f16 or bf16 too) [T, heads*headDim] in place. With `first` x has more columns, of which the
// heads are those from there on.
struct Rope {
  const Tensor& x;
  Rotation rotation;
  int64_t heads, head_dim;
  Columns columns;

  static Rope parse(const Call& call) {
    Arguments a(call, "rope");
    a.input("x");  // which is the output
    const Tensor& x = a.output("x", kFloats, {-1, -1});
    const int64_t heads = a.integer("heads"), head_dim = a.integer("headDim");
    require(heads > 0, "heads is " + std::to_string(heads));
    const Columns columns = a.columns("first", x, "x", heads * head_dim);
    const Rope of{x, Rotation::read(a, head_dim, x.dim(0)), heads, head_dim, columns};
    return a.done(), of;
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
    of.window = a.integer("window", 0), of.scale = a.real("scale"), of.cap = a.real("softCap", 0);
    require(of.heads % of.kv_heads == 0,
            "heads is " + std::to_string(of.heads) + ", not a multiple of kvHeads = " + std::to_string(of.kv_heads));
    require(of.window >= 0, "window is " + std::to_string(of.window));
    require(of.cap >= 0, "softCap is " + std::to_string(of.cap));
    return of;
  }
  int64_t queries() const { return heads * head_dim; }
  int64_t keys() const { return kv_heads * head_dim; }
  int64_t values() const { return kv_heads * value_dim; }
  int64_t outputs() const { return heads * value_dim; }
};

inline const Tensor& read_starts(Arguments& a) {
  const Tensor& starts = a.input("starts", {DType::i32}, {-1});
  require(starts.dim(0) > 0, "starts is empty");
  return starts;
}

// Causal attention inside each sequence: y = softmax(q kᵀ * scale) v. q f32 [T, heads*headDim], k [T, kvHeads*headDim],
// v [T, kvHeads*valueDim], y [T, heads*valueDim], none of them; starts I32 [S+1], the first token of each sequence and
// T. On CUDA y may be f16 or bf16, and q, k and v of y's dtype; heads have at most 256 dims. window w > 0: token t sees
// t-w+1 .. t. softCap c > 0: softmax of c * tanh(q kᵀ * scale / c) (Gemma 2). sinks f32, f16 or bf16 [heads]
// (optional): a further logit of each head's softmax, without a value. With qFirst, kFirst, vFirst the matrices have
// more columns, of which the heads are those from there on. starts that do not rise from 0 to T: LPQ_NATIVE_ARGUMENT.
struct Attention {
  const Tensor &q, &k, &v, &starts, &y;
  const Tensor* sinks;
  AttentionShape shape;
  Columns of_q, of_k, of_v;

  static Attention parse(const Call& call) {
    Arguments a(call, "attention");
    const AttentionShape shape = AttentionShape::read(a);
    const Tensor &q = a.input("q", kFloats, {-1, -1}), &k = a.input("k", kFloats, {q.dim(0), -1}),
                 &v = a.input("v", kFloats, {q.dim(0), -1}), &starts = read_starts(a),
                 &y = a.output("y", kFloats, {q.dim(0), shape.outputs()});
    for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}}) {
      require_dtype(*tensor, name, {DType::f32, y.dtype});
      require(q.dim(0) == 0 || y.raw() != tensor->raw(), "y must be none of q, k and v");
    }
    const Attention of{q,
                       k,
                       v,
                       starts,
                       y,
                       a.input_if(a.left() > 0, "sinks", kFloats, {shape.heads}),
                       shape,
                       a.columns("qFirst", q, "q", shape.queries()),
                       a.columns("kFirst", k, "k", shape.keys()),
                       a.columns("vFirst", v, "v", shape.values())};
    return a.done(), of;
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
    const Tensor &slots = a.input("slots", {DType::i32}, {sequences}),
                 &totals = a.input("totals", {DType::i32}, {sequences});
    return {starts, slots, totals, sequences};
  }
};

// attention of the new tokens over all tokens of their sequences, which are in the cache already: q [T, heads*headDim],
// keys [S, R, kvHeads*headDim] and values [S, R, kvHeads*valueDim] f32, f16 or bf16, y [T, heads*valueDim], not q; the
// step as CacheStep. q and y f32; on CUDA y of the cache's dtype, and q f32 or that. most: the most new tokens of a
// sequence, longest: the most tokens of one; neither may be too small. On the CPU blocks of keys are those of
// attention, so that with an f32 cache y is what that gives, bit by bit. splits: of the tokens, on CUDA; the choice
// changes no more than the order of sums.
struct CachedAttention {
  const Tensor &q, &keys, &values, &y;
  CacheStep step;
  const Tensor* sinks;
  AttentionShape shape;
  int64_t most, longest, splits;  // splits 0: not given

  static CachedAttention parse(const Call& call) {
    Arguments a(call, "cached_attention");
    const AttentionShape shape = AttentionShape::read(a);
    const Tensor &q = a.input("q", kFloats, {-1, shape.queries()}),
                 &keys = a.input("keys", kFloats, {-1, -1, shape.keys()}),
                 &values = a.input("values", {keys.dtype}, {keys.dim(0), keys.dim(1), shape.values()});
    const CacheStep step = CacheStep::read(a);
    const Tensor& y = a.output("y", kFloats, {q.dim(0), shape.outputs()});
    require_dtype(q, "q", {DType::f32, y.dtype});
    require(q.dim(0) == 0 || y.raw() != q.raw(), "y must not be q");
    const CachedAttention of{q,
                             keys,
                             values,
                             y,
                             step,
                             a.input_if(a.left() > 0, "sinks", kFloats, {shape.heads}),
                             shape,
                             a.integer("most"),
                             a.integer("longest"),
                             a.has("splits") ? a.integer("splits") : 0};
    require(of.most >= 0 && of.longest >= 0,
            "most is " + std::to_string(of.most) + " and longest " + std::to_string(of.longest));
    require(!a.has("splits") || (of.splits >= 1 && of.splits <= 1024), "splits is not 1 to 1024");
    return a.done(), of;
  }
};

// k [T, kvHeads*headDim] and v [T, kvHeads*valueDim] f32 (on CUDA f16 or bf16 too) become rows total - new .. total of
// their sequences' slots in keys and values [S, R, ...] f32, f16 or bf16, rounded to nearest even. kFirst, vFirst: as
// of attention.
struct CacheAppend {
  const Tensor &k, &v, &keys, &values;
  CacheStep step;
  Columns of_k, of_v;

  static CacheAppend parse(const Call& call) {
    Arguments a(call, "cache_append");
    const Tensor &k = a.input("k", kFloats, {-1, -1}), &v = a.input("v", {k.dtype}, {k.dim(0), -1});
    const CacheStep step = CacheStep::read(a);
    const bool some = a.integer("kFirst", -1) >= 0, other = a.integer("vFirst", -1) >= 0;
    const Tensor &keys = a.output("keys", kFloats, {-1, -1, some ? -1 : k.dim(1)}),
                 &values = a.output("values", kFloats, {keys.dim(0), keys.dim(1), other ? -1 : v.dim(1)});
    const CacheAppend of{
        k, v, keys, values, step, a.columns("kFirst", k, "k", keys.dim(2)), a.columns("vFirst", v, "v", values.dim(2))};
    return a.done(), of;
  }
};

// rope of q [T, heads*headDim] and k, then cache_append, in one: y [T, heads*headDim] = q turned, k is turned on its
// way into keys, and neither k nor v changes. Tensors: q, k, v, the step, a rotation (cos, sin, positions; without it
// nothing turns), the weights f32, f16 or bf16 [headDim] of RMS norms of every head of q and of k, with eps and offset
// (0), which come before the turn. q, k and v f32 (on CUDA f16 or bf16 too), y and the cache f32, f16 or bf16; y may be
// q where that has no other columns and y's dtype. qFirst, kFirst, vFirst: as of attention. On CUDA headDim and
// valueDim are at most 256.
struct RopeAppend {
  const Tensor &q, &k, &v, &y, &keys, &values;
  CacheStep step;
  AttentionShape shape;
  Rotation rotation;
  const Tensor *q_norm, *k_norm;
  double eps;
  float offset;
  Columns of_q, of_k, of_v;

  static RopeAppend parse(const Call& call) {
    Arguments a(call, "rope_append");
    const AttentionShape shape = AttentionShape::heads_of(a);
    const Tensor &q = a.input("q", kFloats, {-1, -1}), &k = a.input("k", {q.dtype}, {q.dim(0), -1}),
                 &v = a.input("v", {q.dtype}, {q.dim(0), -1});
    const CacheStep step = CacheStep::read(a);
    const Rotation rotation = a.left() >= 3 ? Rotation::read(a, shape.head_dim, q.dim(0)) : Rotation{};
    const bool normed = a.left() > 0;
    const Tensor *q_norm = a.input_if(normed, "the norm of q", kFloats, {shape.head_dim}),
                 *k_norm = a.input_if(normed, "the norm of k", kFloats, {shape.head_dim});
    const Tensor &y = a.output("y", kFloats, {q.dim(0), shape.queries()}),
                 &keys = a.output("keys", kFloats, {-1, -1, shape.keys()}),
                 &values = a.output("values", {keys.dtype}, {keys.dim(0), keys.dim(1), shape.values()});
    const RopeAppend of{q,
                        k,
                        v,
                        y,
                        keys,
                        values,
                        step,
                        shape,
                        rotation,
                        q_norm,
                        k_norm,
                        normed ? a.number("eps") : 0,
                        normed ? a.real("offset", 0) : 0,
                        a.columns("qFirst", q, "q", shape.queries()),
                        a.columns("kFirst", k, "k", shape.keys()),
                        a.columns("vFirst", v, "v", shape.values())};
    require(q.dim(0) == 0 || y.raw() != q.raw() || (y.dtype == q.dtype && of.of_q.pitch == shape.queries()),
            "y may be q where that has no other columns, and its dtype");
    return a.done(), of;
  }
};

}  // namespace lpq::ops
