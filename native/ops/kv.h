// kv_decode, kv_pack, kv_append: a cache of keys and values in few bits (docs/kv-cache.md, formats/kv/spec.md).
#pragma once
#include <algorithm>

#include "ops/arguments.h"

namespace lpq::ops {

// Dims of a head as a cache holds them, zeros behind the head's own.
constexpr int64_t kMostKvDims = 512;
constexpr int64_t kv_stored_dims(int64_t head_dims) {
  int64_t dims = 64;
  while (dims < head_dims && dims < kMostKvDims) dims *= 2;
  return dims;
}

// Pages of a cache in a form that kernels read, keys, their numbers, values, theirs: U8 [pages, bytes] each, of
// turbomind one block four times. bits: 2, 4 or 8, of keys and, where valueBits is not given, of values; valueBits:
// also 4, with keys of 8. form: bitdecoding, or turbomind (4 and 8 bits, one scale and zero a token and head, pages of
// whole 64 tokens; keyGroup and valueGroup are the stored dims). granularity, of keys: a scale a channel over keyGroup
// tokens, or a token over keyGroup dims. headDim: 64, or a multiple of 8 up to 512; the cache holds 64, 128, 256
// or 512 dims, the least that suffice, zeros behind the head's own. keyGroup: 32, 64 or 128 tokens; by token, dims, and
// valueGroup. valueGroup, dims: min(keyGroup, stored dims). outer: heads outside tokens (0). fit, of packing: ends of
// groups are fitted (formats/kv/spec.md; 0). What one device refuses no other takes.
struct KvForm {
  int64_t bits, value_bits, head_dims, dims, heads, key_group, value_group, page_tokens;  // dims: as they are stored
  bool turbomind, channel, outer, fit;
  int64_t tile, block;  // packed tokens of a sequence are whole tiles; tokens are packed in whole blocks
  const Tensor* pages[4];

  int64_t width() const { return heads * head_dims; }

  // `page`: an input or an output of a.
  static KvForm read(Arguments& a, const Tensor& (Arguments::*page)(const char*, Types)) {
    KvForm f{};
    for (int i = 0; i < 4; ++i) f.pages[i] = &(a.*page)(kPages[i], {u8});
    f.bits = a.integer("bits"), f.value_bits = a.integer("valueBits", f.bits), f.head_dims = a.integer("headDim");
    f.dims = kv_stored_dims(f.head_dims);
    f.heads = a.integer("kvHeads"), f.key_group = a.integer("keyGroup"), f.value_group = a.integer("valueGroup");
    f.page_tokens = a.integer("pageTokens"), f.outer = a.flag("outer"), f.fit = a.flag("fit");
    f.turbomind = a.one_of("form", {"bitdecoding", "turbomind"}, 0) == 1;
    const bool by_token = a.one_of("granularity", {"channel", "token"}, 0) == 1;
    f.channel = !f.turbomind && !by_token;
    require(f.bits == 4 || f.bits == 8 || (f.bits == 2 && !f.turbomind),
            f.turbomind ? "bits is not 4 or 8" : "bits is not 2, 4 or 8");
    require(f.value_bits == f.bits || (f.bits == 8 && f.value_bits == 4), "valueBits is not bits, nor 4 beside 8");
    require(f.head_dims >= 64 && f.head_dims <= kMostKvDims && f.head_dims % 8 == 0,
            "headDim is not a multiple of 8 from 64 to 512");
    require(f.heads > 0, "kvHeads is not positive");
    if (f.turbomind) {
      require(f.key_group == f.dims && f.value_group == f.dims,
              "keyGroup and valueGroup of turbomind are the stored dims");
      require(!f.outer, "turbomind has one order of heads");
      f.tile = f.block = 1;
    } else {
      require(f.key_group == 32 || f.key_group == 64 || f.key_group == 128, "keyGroup is not 32, 64 or 128");
      require(f.value_group == std::min(f.key_group, f.dims), "valueGroup is not that of keyGroup");
      require(f.channel || f.key_group == f.value_group, "keyGroup does not divide the stored dims");
      f.tile = 512 / f.bits, f.block = std::max({f.tile, 512 / f.value_bits, f.channel ? f.key_group : 0});
    }
    const int64_t whole = f.turbomind ? 64 : f.block;
    require(f.page_tokens > 0 && f.page_tokens % whole == 0, "pageTokens is no multiple of " + std::to_string(whole));
    f.check_pages();
    return f;
  }

 private:
  static constexpr const char* kPages[4] = {"keys", "keyNumbers", "values", "valueNumbers"};
  void check_pages() const {
    const int64_t all = page_tokens * heads * dims, one = heads * page_tokens * (dims * (bits + value_bits) / 8 + 8);
    const int64_t bytes[4] = {all * bits / 8, 4 * all / key_group, all * value_bits / 8, 4 * all / value_group};
    for (int i = 0; i < 4; ++i) {
      require_shape(*pages[i], kPages[i], {pages[0]->rank() == 2 ? pages[0]->dim(0) : -1, turbomind ? one : bytes[i]});
      require(!turbomind || pages[i]->raw() == pages[0]->raw(), "turbomind has one block a page");
    }
  }
};

// Decode attention over packed pages and an exact tail: y [B*queries, heads*headDim] f16, bf16 or f32, 0 where a query
// sees no token. q f16 or bf16 (made f16) [B*queries, heads*headDim]; the pages; table I32 [B,P]; lengths I32 [B] of
// packed tokens (bitdecoding: whole tiles); tailKeys, tailValues f16 [B, R, kvHeads*headDim]; tails I32 [B], at most R.
// queries (1) tokens of a sequence are its newest, packed or in the tail: query i sees tokens up to its own, the
// (lengths + tails - queries + i)-th. sinks f32, f16 or bf16 [heads]: a logit a head that takes part in the softmax and
// has no value; may be absent. On CUDA splits overrides into how many runs tokens are
// cut, warps how many warps a block has; neither changes more than the order of sums. A page or length that is none:
// LPQ_NATIVE_ARGUMENT.
struct KvDecode : Arguments {
  int64_t heads = integer("heads"), queries = integer("queries", 1);
  const Tensor& q = input("q", {f16, bf16});
  KvForm form = KvForm::read(*this, &Arguments::input);
  const Tensor& table = input("table", {i32}, {-1, -1});
  int64_t sequences = table.dim(0);
  const Tensor& lengths = input("lengths", {i32}, {sequences});
  const Tensor& tail_keys = input("tailKeys", {f16}, {sequences, -1, form.width()});
  const Tensor& tail_values = input("tailValues", {f16}, tail_keys.shape);
  const Tensor& tails = input("tails", {i32}, {sequences});
  const Tensor& y = output("y", {f16, bf16, f32}, {sequences * queries, heads * form.head_dims});
  double scale = number("scale");
  int64_t splits = integer("splits", 0), warps = integer("warps", 0);  // 0: not given
  const Tensor* sinks = last_input("sinks", kFloats, {heads});

  explicit KvDecode(const Call& call) : Arguments(call, "kv_decode") {
    require(heads > 0 && heads % form.heads == 0, "heads is no multiple of kvHeads");
    require(queries >= 1, "queries is not positive");
    require_shape(q, "q", {sequences * queries, heads * form.head_dims});
    require((!has("splits") || splits >= 1) && splits <= 1024 && (!has("warps") || warps >= 1),
            "splits is not 1 to 1024, or warps is not positive");
    done();
  }
};

// Quantizes k, v f16 [T, kvHeads*headDim] (bitdecoding: whole blocks) as kv_quantize does, and packs them as tokens
// first (0) .. of the sequence whose pages table I32 [P] names. NaN and infinity: LPQ_NATIVE_NUMERICS; a page that is
// none: LPQ_NATIVE_ARGUMENT. The same bytes on every device.
struct KvPack : Arguments {
  const Tensor &k = input("k", {f16}), &v = input("v", {f16}), &table = input("table", {i32}, {-1});
  KvForm form = KvForm::read(*this, &Arguments::output);
  int64_t first = integer("first", 0);

  explicit KvPack(const Call& call) : Arguments(call, "kv_pack") {
    require_shape(k, "k", {-1, form.width()});
    require_shape(v, "v", k.shape);
    require(first >= 0 && first % form.block == 0 && k.dim(0) % form.block == 0,
            "tokens come in blocks of " + std::to_string(form.block));
    require(first + k.dim(0) <= table.dim(0) * form.page_tokens, "the table has too few pages");
    done();
  }
};

// A step's token of every sequence, k and v f16 [B, kvHeads*headDim]. Where the tail is full (tails = residual, R where
// it is not given, whole blocks) it is packed first, as tokens lengths .. (whole blocks), lengths grows by residual and
// tails becomes 0; then the token goes to the tail, and tails grows by 1. So the step that fills a tail still reads it
// exactly (BitDecoding, section V-B). turbomind, which has no residual: the token is packed at once, lengths grows
// by 1. table I32 [B,P]; lengths, tails I32 [B] and tailKeys, tailValues f16 [B, R, kvHeads*headDim] are read and
// written where they are. Failures as of kv_pack.
struct KvAppend : Arguments {
  const Tensor &k = input("k", {f16}), &v = input("v", {f16}), &table = input("table", {i32}, {-1, -1});
  int64_t sequences = table.dim(0);
  KvForm form = KvForm::read(*this, &Arguments::output);
  const Tensor& lengths = output("lengths", {i32}, {sequences});
  const Tensor& tails = output("tails", {i32}, {sequences});
  const Tensor& tail_keys = output("tailKeys", {f16}, {sequences, -1, form.width()});
  const Tensor& tail_values = output("tailValues", {f16}, tail_keys.shape);
  int64_t residual = integer("residual", form.turbomind ? 0 : tail_keys.dim(1));

  explicit KvAppend(const Call& call) : Arguments(call, "kv_append") {
    require_shape(k, "k", {sequences, form.width()});
    require_shape(v, "v", k.shape);
    require(form.turbomind ? residual == 0 : residual > 0 && residual <= tail_keys.dim(1) && residual % form.block == 0,
            form.turbomind ? "turbomind has no residual"
                           : "residual is no multiple of " + std::to_string(form.block) + " up to the tails' room");
    done();
  }
};

}  // namespace lpq::ops
