// latent_decode, latent_pack, latent_append: the cache of latent attention (MLA) in few bits (docs/kv-cache.md,
// formats/kv/spec.md).
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

constexpr int64_t kMostLatent = 512, kMostRotary = 64, kLatentTile = 32;

// Pages U8 [pages, bytes] of pageTokens tokens: codes of `bits` (2, 4, 8, or 16: the f16 themselves) of the `latent`
// dims of a token (64 to 512, a multiple of 64), a scale and a zero for each `group` dims (32, 64 or 128; of 16 bits
// none), and `rotary` dims (16 to 64, a multiple of 16) as f16. What one device refuses no other takes.
struct LatentForm {
  int64_t bits, group, latent, rotary, page_tokens;
  const Tensor* pages;

  int64_t width() const { return latent + rotary; }
  bool exact() const { return bits == 16; }
  // Of a page: bytes of a token's codes and of its numbers; where numbers and rotary dims begin; all.
  int64_t row() const { return latent * bits / 8; }
  int64_t number_row() const { return exact() ? 0 : 4 * latent / group; }
  int64_t numbers() const { return page_tokens * row(); }
  int64_t rope() const { return numbers() + page_tokens * number_row(); }
  int64_t bytes() const { return rope() + 2 * page_tokens * rotary; }

  // `page`: an input or an output of a.
  static LatentForm read(Arguments& a, const Tensor& (Arguments::*page)(const char*, Types)) {
    LatentForm f{};
    f.pages = &(a.*page)("pages", {u8});
    f.bits = a.integer("bits"), f.latent = a.integer("latent"), f.rotary = a.integer("rotary");
    f.group = a.integer("group", 128), f.page_tokens = a.integer("pageTokens");
    require(f.bits == 2 || f.bits == 4 || f.bits == 8 || f.bits == 16, "bits is not 2, 4, 8 or 16");
    require(f.latent >= 64 && f.latent <= kMostLatent && f.latent % 64 == 0,
            "latent is not a multiple of 64 from 64 to 512");
    require(f.rotary >= 16 && f.rotary <= kMostRotary && f.rotary % 16 == 0,
            "rotary is not a multiple of 16 from 16 to 64");
    require(f.group == 32 || f.group == 64 || f.group == 128, "group is not 32, 64 or 128");
    require(f.exact() || f.latent % f.group == 0, "group does not divide latent");
    require(f.page_tokens > 0 && f.page_tokens % kLatentTile == 0, "pageTokens is no multiple of 32");
    require_shape(*f.pages, "pages", {f.pages->rank() == 2 ? f.pages->dim(0) : -1, f.bytes()});
    return f;
  }
};

// Attention in the space of the latent: y [B*queries, heads*latent] f16, bf16 or f32 = softmax(q kᵀ * scale) c, where a
// token's k is its latent c and its rotary dims; 0 where a query sees no token. q f16 or bf16 (made f16) [B*queries,
// heads*(latent + rotary)]; the pages; table I32 [B,P]; lengths I32 [B] tokens. queries (1) tokens of a sequence are
// its newest: query i sees tokens up to its own, the (lengths - queries + i)-th. On CUDA splits overrides into how many
// runs tokens are cut, rows (16, 32 or 64) how many queries times heads a block takes; neither changes more than the
// order of sums. A page or length that is none: LPQ_NATIVE_ARGUMENT.
struct LatentDecode : Arguments {
  int64_t heads = integer("heads"), queries = integer("queries", 1);
  const Tensor& q = input("q", {f16, bf16});
  LatentForm form = LatentForm::read(*this, &Arguments::input);
  const Tensor& table = input("table", {i32}, {-1, -1});
  int64_t sequences = table.dim(0);
  const Tensor& lengths = input("lengths", {i32}, {sequences});
  const Tensor& y = output("y", {f16, bf16, f32}, {sequences * queries, heads * form.latent});
  double scale = number("scale");
  int64_t splits = integer("splits", 0), rows = integer("rows", 0);  // 0: not given

  explicit LatentDecode(const Call& call) : Arguments(call, "latent_decode") {
    require(heads > 0, "heads is not positive");
    require(queries >= 1, "queries is not positive");
    require_shape(q, "q", {sequences * queries, heads * form.width()});
    require((!has("splits") || splits >= 1) && splits <= 1024, "splits is not 1 to 1024");
    require(!has("rows") || rows == 16 || rows == 32 || rows == 64, "rows is not 16, 32 or 64");
    done();
  }
};

// Quantizes c f16 [T, latent] and packs it with rope f16 [T, rotary] as tokens first (0) .. of the sequence whose pages
// table I32 [P] names. NaN and infinity: LPQ_NATIVE_NUMERICS; a page that is none: LPQ_NATIVE_ARGUMENT. The same bytes
// on every device.
struct LatentPack : Arguments {
  const Tensor &c = input("c", {f16}), &rope = input("rope", {f16}), &table = input("table", {i32}, {-1});
  LatentForm form = LatentForm::read(*this, &Arguments::output);
  int64_t first = integer("first", 0);

  explicit LatentPack(const Call& call) : Arguments(call, "latent_pack") {
    require_shape(c, "c", {-1, form.latent});
    require_shape(rope, "rope", {c.dim(0), form.rotary});
    require(first >= 0 && first + c.dim(0) <= table.dim(0) * form.page_tokens, "the table has too few pages");
    done();
  }
};

// A step's token of every sequence, c f16 [B, latent] and rope f16 [B, rotary], packed at its end: lengths I32 [B]
// grows by 1. table I32 [B,P]. Failures as of latent_pack.
struct LatentAppend : Arguments {
  const Tensor &c = input("c", {f16}), &rope = input("rope", {f16}), &table = input("table", {i32}, {-1, -1});
  int64_t sequences = table.dim(0);
  LatentForm form = LatentForm::read(*this, &Arguments::output);
  const Tensor& lengths = output("lengths", {i32}, {sequences});

  explicit LatentAppend(const Call& call) : Arguments(call, "latent_append") {
    require_shape(c, "c", {sequences, form.latent});
    require_shape(rope, "rope", {sequences, form.rotary});
    done();
  }
};

}  // namespace lpq::ops
