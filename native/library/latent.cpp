// The cache of latents (MLA) behind the C interface.
#include <algorithm>

#include "library/cache_calls.h"
#include "ops/latent.h"

namespace lpq::library {
namespace {

// What is asked of a description without a device; the operations ask the rest.
struct Latents {
  lpq_latent_desc d{};

  explicit Latents(const lpq_latent_desc* given) : d(taken(given, "desc")) {
    argument(d.bits == 2 || d.bits == 4 || d.bits == 8 || d.bits == 16, "bits is not 2, 4, 8 or 16");
    argument(d.latent >= 64 && d.latent <= ops::kMostLatent && d.latent % 64 == 0,
             "latent is not a multiple of 64 from 64 to 512");
    argument(d.rotary >= 16 && d.rotary <= ops::kMostRotary && d.rotary % 16 == 0,
             "rotary is not a multiple of 16 from 16 to 64");
    argument(d.bits == 16 || ((d.group == 32 || d.group == 64 || d.group == 128) && d.latent % d.group == 0),
             "group is not 32, 64 or 128, or does not divide latent");
    argument(d.heads > 0 && d.heads <= 1 << 20, "heads is not positive, or beyond 2^20");
    argument(d.page_tokens >= 0 && d.page_tokens <= 1 << 20 && d.page_tokens % ops::kLatentTile == 0,
             "page_tokens is no multiple of 32 up to 2^20");
  }

  int64_t page_bytes(int64_t tokens) const {
    return tokens * (d.latent * d.bits / 8 + (d.bits == 16 ? 0 : 4 * d.latent / d.group) + 2 * d.rotary);
  }
  Params params() const {
    argument(d.page_tokens > 0, "page_tokens is 0");
    return {{"bits", double(d.bits)},
            {"group", d.bits == 16 ? 128.0 : double(d.group)},
            {"latent", double(d.latent)},
            {"rotary", double(d.rotary)},
            {"pageTokens", double(d.page_tokens)}};
  }
  Tensor pages(Operands& operands, const lpq_latent_pages& p) const {
    argument(p.count >= 0 && p.count < kMost, "pages.count is negative, or 2^31 or more");
    return operands.at(p.data, "pages.data", DType::u8, {p.count, page_bytes(d.page_tokens)});
  }
};

lpq_latent_batch checked(const lpq_latent_batch* given) {
  const lpq_latent_batch b = taken(given, "batch");
  argument(b.sequences >= 0 && b.sequences < 1 << 24 && b.table_pages >= 0 && b.table_pages < 1 << 24,
           "a count of the batch is negative, or 2^24 or more");
  argument(b.sequences * std::max<int64_t>(b.table_pages, 1) < kMost, "the table holds 2^31 pages or more");
  argument(b.query_type == 0 || b.query_type == LPQ_F16 || b.query_type == LPQ_BF16,
           "batch.query_type is not 0, LPQ_F16 or LPQ_BF16");
  return b;
}

Call decode_call(Operands& operands, const Latents& c, int64_t queries, const void* q, void* y, DType type,
                 double scale, const lpq_latent_pages& pages, const lpq_latent_batch& b) {
  argument(queries >= 1 && queries < 1 << 24 && queries * b.sequences < 1 << 24,
           "queries is not positive, or of all sequences 2^24 or more");
  const int64_t rows = b.sequences * queries, heads = c.d.heads;
  Call call;
  call.in = {operands.at(q, "q", b.query_type == LPQ_BF16 ? DType::bf16 : DType::f16,
                         {rows, heads * (c.d.latent + c.d.rotary)}),
             c.pages(operands, pages), operands.at(b.table, "batch.table", DType::i32, {b.sequences, b.table_pages}),
             operands.at(b.lengths, "batch.lengths", DType::i32, {b.sequences})};
  call.out = {operands.at(y, "y", type, {rows, heads * c.d.latent})};
  call.params = c.params();
  call.params.set("heads", double(heads)), call.params.set("scale", scale), call.params.set("queries", double(queries));
  return call;
}

Call append_call(Operands& operands, const Latents& c, const void* latents, const void* rotary,
                 const lpq_latent_pages& pages, const lpq_latent_batch& b) {
  Call call;
  call.in = {operands.at(latents, "c", DType::f16, {b.sequences, c.d.latent}),
             operands.at(rotary, "rotary", DType::f16, {b.sequences, c.d.rotary}),
             operands.at(b.table, "batch.table", DType::i32, {b.sequences, b.table_pages})};
  call.out = {c.pages(operands, pages), operands.at(b.lengths, "batch.lengths", DType::i32, {b.sequences})};
  call.params = c.params();
  return call;
}

Call pack_call(Operands& operands, const Latents& c, int64_t tokens, const void* latents, const void* rotary,
               int64_t first, const int32_t* table, int64_t table_pages, const lpq_latent_pages& pages) {
  Call call;
  call.in = {operands.at(latents, "c", DType::f16, {tokens, c.d.latent}),
             operands.at(rotary, "rotary", DType::f16, {tokens, c.d.rotary}),
             operands.at(table, "table", DType::i32, {table_pages})};
  call.out = {c.pages(operands, pages)};
  call.params = c.params();
  call.params.set("first", double(first));
  return call;
}

void require_tokens(const Latents& c, int64_t tokens, int64_t first, int64_t table_pages) {
  argument(tokens >= 0 && tokens < kMost && first >= 0 && first < kMost && table_pages >= 0 && table_pages < kMost,
           "tokens, first or table_pages is negative, or 2^31 or more");
  argument(first + tokens <= table_pages * c.d.page_tokens, "the table has too few pages");
}

// Sequences up to which every count is rehearsed: beyond, tiles alone fill a device, and nothing is split.
constexpr int64_t kCounts = 1 << 10;

}  // namespace
}  // namespace lpq::library

using namespace lpq;
using namespace lpq::library;

extern "C" {

lpq_status lpq_latent_describe(const lpq_latent_desc* desc, lpq_latent_info* info) {
  return guarded([&] {
    const Latents c(desc);
    lpq_latent_info facts{};
    facts.unit = ops::kLatentTile;
    facts.page_bytes = static_cast<size_t>(c.page_bytes(c.d.page_tokens ? c.d.page_tokens : ops::kLatentTile));
    hand_out(facts, info, "info");
  });
}

lpq_status lpq_latent_workspace(lpq_context* context, const lpq_latent_desc* desc, const lpq_latent_batch* batch,
                                int64_t queries, size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    const Current current(context);
    const Latents c(desc);
    lpq_latent_batch b = checked(batch);
    const int64_t sequences = std::max<int64_t>(b.sequences, 1);
    lpq_latent_pages pages{};
    pages.count = 1;
    Operands operands(context, true);
    size_t most = kHostedHead;
    // Few sequences are cut into more splits than many.
    for (int64_t count = std::min(sequences, kCounts); count >= 1; --count)
      for (const int64_t each : {int64_t{1}, queries}) {
        b.sequences = count == kCounts ? sequences : count;
        Call decode = decode_call(operands, c, each, nullptr, nullptr, DType::f16, 1, pages, b);
        most = std::max(most, rehearsed(*context, "latent_decode", decode));
      }
    // These take no scratch; asked, so that their kernels are loaded.
    b.sequences = 1;
    Call pack = pack_call(operands, c, 1, nullptr, nullptr, 0, nullptr, 1, pages);
    most = std::max(most, rehearsed(*context, "latent_pack", pack));
    Call append = append_call(operands, c, nullptr, nullptr, pages, b);
    *bytes = std::max(most, rehearsed(*context, "latent_append", append));
  });
}

lpq_status lpq_latent_pack(lpq_context* context, const lpq_latent_desc* desc, int64_t tokens, const void* c,
                           const void* rotary, int64_t first, const int32_t* table, int64_t table_pages,
                           const lpq_latent_pages* pages, void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    const Current current(context);
    const Latents of(desc);
    require_tokens(of, tokens, first, table_pages);
    if (tokens == 0) return;
    Operands operands(context, false);
    Call call = pack_call(operands, of, tokens, c, rotary, first, table, table_pages, taken(pages, "pages"));
    launch(*context, "latent_pack", call, workspace, bytes, stream);
  });
}

lpq_status lpq_latent_append(lpq_context* context, const lpq_latent_desc* desc, const void* c, const void* rotary,
                             const lpq_latent_pages* pages, const lpq_latent_batch* batch, void* workspace,
                             size_t bytes, void* stream) {
  return guarded([&] {
    const Current current(context);
    const Latents of(desc);
    const lpq_latent_batch b = checked(batch);
    if (b.sequences == 0) return;
    Operands operands(context, false);
    Call call = append_call(operands, of, c, rotary, taken(pages, "pages"), b);
    launch(*context, "latent_append", call, workspace, bytes, stream);
  });
}

lpq_status lpq_latent_decode(lpq_context* context, const lpq_latent_desc* desc, int64_t queries, const void* q, void* y,
                             int type, double scale, const lpq_latent_pages* pages, const lpq_latent_batch* batch,
                             void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    const Current current(context);
    const Latents c(desc);
    const lpq_latent_batch b = checked(batch);
    const DType of_y = output_type(type, scale);
    if (b.sequences == 0) return;
    Operands operands(context, false);
    Call call = decode_call(operands, c, queries, q, y, of_y, scale, taken(pages, "pages"), b);
    launch(*context, "latent_decode", call, workspace, bytes, stream);
  });
}

lpq_status lpq_cpu_latent_pack(const lpq_latent_desc* desc, int64_t tokens, const void* c, const void* rotary,
                               int64_t first, const int32_t* table, int64_t table_pages, const lpq_latent_pages* pages,
                               int threads) {
  return guarded([&] {
    const Latents of(desc);
    require_tokens(of, tokens, first, table_pages);
    if (tokens == 0) return;
    Operands operands(nullptr, false);
    Call call = pack_call(operands, of, tokens, c, rotary, first, table, table_pages, taken(pages, "pages"));
    compute("latent_pack", call, threads);
  });
}

lpq_status lpq_cpu_latent_append(const lpq_latent_desc* desc, const void* c, const void* rotary,
                                 const lpq_latent_pages* pages, const lpq_latent_batch* batch, int threads) {
  return guarded([&] {
    const Latents of(desc);
    const lpq_latent_batch b = checked(batch);
    if (b.sequences == 0) return;
    Operands operands(nullptr, false);
    Call call = append_call(operands, of, c, rotary, taken(pages, "pages"), b);
    compute("latent_append", call, threads);
  });
}

lpq_status lpq_cpu_latent_decode(const lpq_latent_desc* desc, int64_t queries, const void* q, void* y, int type,
                                 double scale, const lpq_latent_pages* pages, const lpq_latent_batch* batch,
                                 int threads) {
  return guarded([&] {
    const Latents c(desc);
    const lpq_latent_batch b = checked(batch);
    const DType of_y = output_type(type, scale);
    if (b.sequences == 0) return;
    Operands operands(nullptr, false);
    Call call = decode_call(operands, c, queries, q, y, of_y, scale, taken(pages, "pages"), b);
    compute("latent_decode", call, threads);
  });
}
}
