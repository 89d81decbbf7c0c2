// The cache of keys and values behind the C interface.
#include <algorithm>

#include "library/cache_calls.h"
#include "ops/kv.h"

namespace lpq::library {
namespace {

// What is asked of a description without a device; the operations ask the rest.
struct Cache {
  lpq_kv_desc d{};
  bool turbomind = false;
  int64_t width = 0, dims = 0, block = 1, unit = 64;  // of a token as it comes; of a head as it is stored

  explicit Cache(const lpq_kv_desc* given) : d(taken(given, "desc")) {
    argument(d.form == LPQ_KV_BITDECODING || d.form == LPQ_KV_TURBOMIND,
             "form is neither LPQ_KV_BITDECODING nor LPQ_KV_TURBOMIND");
    turbomind = d.form == LPQ_KV_TURBOMIND;
    const auto one_of = [](int value, std::initializer_list<int> values) {
      return std::find(values.begin(), values.end(), value) != values.end();
    };
    argument(turbomind ? one_of(d.key_bits, {4, 8}) : one_of(d.key_bits, {2, 4, 8}),
             turbomind ? "key_bits is not 4 or 8" : "key_bits is not 2, 4 or 8");
    argument(d.value_bits == d.key_bits || (d.key_bits == 8 && d.value_bits == 4),
             "value_bits is not key_bits, nor 4 beside 8");
    argument(d.head_dim >= 64 && d.head_dim <= ops::kMostKvDims && d.head_dim % 8 == 0,
             "head_dim is not a multiple of 8 from 64 to 512");
    dims = ops::kv_stored_dims(d.head_dim);
    argument(d.kv_heads > 0 && d.kv_heads <= 1 << 16 && d.heads > 0 && d.heads % d.kv_heads == 0 && d.heads <= 1 << 20,
             "heads is no multiple of kv_heads, or beyond 2^20");
    argument(one_of(d.by_token, {0, 1}) && one_of(d.outer, {0, 1}) && one_of(d.fit, {0, 1}),
             "by_token, outer and fit are 0 or 1");
    if (turbomind) {
      argument(d.key_group == dims && d.value_group == dims,
               "key_group and value_group of turbomind are the stored dims, " + std::to_string(dims));
      argument(d.outer == 0, "turbomind has one order of heads");
    } else {
      argument(one_of(d.key_group, {32, 64, 128}) && (!d.by_token || d.key_group <= dims),
               "key_group is not 32, 64 or 128, or beyond the stored dims");
      argument(d.value_group == std::min<int64_t>(d.key_group, dims),
               "value_group is not key_group, or the stored dims if those are less");
      block = unit = std::max({512 / d.key_bits, 512 / d.value_bits, d.by_token ? 0 : d.key_group});
    }
    argument(d.page_tokens >= 0 && d.page_tokens <= 1 << 24 && d.page_tokens % unit == 0,
             "page_tokens is no multiple of " + std::to_string(unit) + " up to 2^24");
    width = int64_t{d.kv_heads} * d.head_dim;
  }

  // Of pages of `tokens`; 0 where turbomind has no tensor.
  size_t page_bytes(int i, int64_t tokens) const {
    const auto cells = static_cast<size_t>(tokens * d.kv_heads * dims);
    if (turbomind)
      return i == 0 ? cells * static_cast<size_t>(d.key_bits + d.value_bits) / 8 +
                          static_cast<size_t>(tokens * d.kv_heads) * 8
                    : 0;
    return i % 2 == 0 ? cells * static_cast<size_t>(i == 0 ? d.key_bits : d.value_bits) / 8
                      : 4 * cells / static_cast<size_t>(i == 1 ? d.key_group : d.value_group);
  }
  Params params() const {
    argument(d.page_tokens > 0, "page_tokens is 0");
    return {{"bits", double(d.key_bits)},
            {"valueBits", double(d.value_bits)},
            {"headDim", double(d.head_dim)},
            {"kvHeads", double(d.kv_heads)},
            {"keyGroup", double(d.key_group)},
            {"valueGroup", double(d.value_group)},
            {"pageTokens", double(d.page_tokens)},
            {"outer", double(d.outer)},
            {"fit", double(d.fit)},
            {"form", turbomind ? "turbomind" : "bitdecoding"},
            {"granularity", d.by_token ? "token" : "channel"}};
  }
};

std::vector<Tensor> pages_of(Operands& operands, const Cache& c, const lpq_kv_pages& p) {
  argument(p.count >= 0 && p.count < kMost, "pages.count is negative, or 2^31 or more");
  const void* const addresses[4] = {p.keys, p.key_numbers, p.values, p.value_numbers};
  const char* const names[4] = {"pages.keys", "pages.key_numbers", "pages.values", "pages.value_numbers"};
  std::vector<Tensor> all;
  for (int i = 0; i < 4; ++i) {
    if (c.turbomind && i > 0)
      argument(addresses[i] == nullptr || operands.made_up(),
               std::string(names[i]) + " is not NULL: turbomind's pages are one block");
    all.push_back(c.turbomind && i > 0
                      ? all[0]

                      : operands.at(addresses[i], names[i], DType::u8,
                                    {p.count, static_cast<int64_t>(c.page_bytes(i, c.d.page_tokens))}));
  }
  return all;
}

lpq_kv_batch checked(const lpq_kv_batch* given) {
  const lpq_kv_batch b = taken(given, "batch");
  argument(b.sequences >= 0 && b.sequences < 1 << 24 && b.table_pages >= 0 && b.table_pages < 1 << 24 &&
               b.tail_room >= 0 && b.tail_room < 1 << 24,
           "a count of the batch is negative, or 2^24 or more");
  argument(b.sequences * std::max<int64_t>(b.table_pages, 1) < kMost, "the table holds 2^31 pages or more");
  return b;
}

struct Sequences {
  Tensor table, lengths, tails, tail_keys, tail_values;
  Sequences(Operands& operands, const Cache& c, const lpq_kv_batch& b)
      : table(operands.at(b.table, "batch.table", DType::i32, {b.sequences, b.table_pages})),
        lengths(operands.at(b.lengths, "batch.lengths", DType::i32, {b.sequences})),
        tails(operands.at(b.tails, "batch.tails", DType::i32, {b.sequences})),
        tail_keys(operands.at(b.tail_keys, "batch.tail_keys", DType::f16, {b.sequences, b.tail_room, c.width})),
        tail_values(operands.at(b.tail_values, "batch.tail_values", DType::f16, {b.sequences, b.tail_room, c.width})) {}
};

Call decode_call(Operands& operands, const Cache& c, int64_t queries, const void* q, void* y, DType type, double scale,
                 const lpq_kv_pages& pages, const lpq_kv_batch& b) {
  argument(queries >= 1 && queries < 1 << 24 && queries * b.sequences < 1 << 24,
           "queries is not positive, or of all sequences 2^24 or more");
  const std::vector<int64_t> shape{b.sequences * queries, int64_t{c.d.heads} * c.d.head_dim};
  const Sequences s(operands, c, b);
  Call call;
  argument(b.query_type == 0 || b.query_type == LPQ_F16 || b.query_type == LPQ_BF16,
           "batch.query_type is not 0, LPQ_F16 or LPQ_BF16");
  call.in = {operands.at(q, "q", b.query_type == LPQ_BF16 ? DType::bf16 : DType::f16, shape)};
  for (Tensor& page : pages_of(operands, c, pages)) call.in.push_back(std::move(page));
  for (const Tensor& tensor : {s.table, s.lengths, s.tail_keys, s.tail_values, s.tails}) call.in.push_back(tensor);
  if (b.sinks) {
    argument(b.sinks_type == LPQ_F16 || b.sinks_type == LPQ_BF16 || b.sinks_type == LPQ_F32,
             "batch.sinks_type is not LPQ_F16, LPQ_BF16 or LPQ_F32");
    call.in.push_back(operands.at(b.sinks, "batch.sinks", float_type(b.sinks_type), {c.d.heads}));
  }
  call.out = {operands.at(y, "y", type, shape)};
  call.params = c.params();
  call.params.set("heads", double(c.d.heads)), call.params.set("scale", scale),
      call.params.set("queries", double(queries));
  return call;
}

Call append_call(Operands& operands, const Cache& c, const void* k, const void* v, int64_t residual,
                 const lpq_kv_pages& pages, const lpq_kv_batch& b) {
  const Sequences s(operands, c, b);
  Call call;
  call.in = {operands.at(k, "k", DType::f16, {b.sequences, c.width}),
             operands.at(v, "v", DType::f16, {b.sequences, c.width}), s.table};
  call.out = pages_of(operands, c, pages);
  for (const Tensor& tensor : {s.lengths, s.tails, s.tail_keys, s.tail_values}) call.out.push_back(tensor);
  call.params = c.params();
  if (!c.turbomind) call.params.set("residual", double(residual));
  return call;
}

Call pack_call(Operands& operands, const Cache& c, int64_t tokens, const void* k, const void* v, int64_t first,
               const int32_t* table, int64_t table_pages, const lpq_kv_pages& pages) {
  Call call;
  call.in = {operands.at(k, "k", DType::f16, {tokens, c.width}), operands.at(v, "v", DType::f16, {tokens, c.width}),
             operands.at(table, "table", DType::i32, {table_pages})};
  call.out = pages_of(operands, c, pages);
  call.params = c.params();
  call.params.set("first", double(first));
  return call;
}

void require_tokens(const Cache& c, int64_t tokens, int64_t first, int64_t table_pages) {
  argument(tokens >= 0 && tokens < kMost && first >= 0 && first < kMost && table_pages >= 0 && table_pages < kMost,
           "tokens, first or table_pages is negative, or 2^31 or more");
  argument(tokens % c.block == 0 && first % c.block == 0, "tokens come in blocks of " + std::to_string(c.block));
  argument(first + tokens <= table_pages * c.d.page_tokens, "the table has too few pages");
}

void require_residual(const Cache& c, int64_t residual, const lpq_kv_batch& b) {
  argument(c.turbomind || (residual > 0 && residual <= b.tail_room && residual % c.block == 0),
           "residual is no multiple of " + std::to_string(c.block) + " up to tail_room");
}

}  // namespace
}  // namespace lpq::library

using namespace lpq;
using namespace lpq::library;

extern "C" {

lpq_status lpq_kv_describe(const lpq_kv_desc* desc, lpq_kv_info* info) {
  return guarded([&] {
    const Cache c(desc);
    lpq_kv_info facts{};
    facts.block = c.block, facts.unit = c.unit;
    for (int i = 0; i < 4; ++i) facts.page_bytes[i] = c.page_bytes(i, c.d.page_tokens ? c.d.page_tokens : c.unit);
    hand_out(facts, info, "info");
  });
}

lpq_status lpq_kv_workspace(lpq_context* context, const lpq_kv_desc* desc, const lpq_kv_batch* batch, int64_t queries,
                            size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    const Current current(context);
    const Cache c(desc);
    lpq_kv_batch b = checked(batch);
    b.sequences = std::max<int64_t>(b.sequences, 1);
    lpq_kv_pages pages{};
    pages.count = 1;
    Operands operands(context, true);
    // Few queries and many may go to kernels of their own. The last two take no scratch; asked, so that their kernels
    // are loaded.
    size_t most = kHostedHead;
    for (const int64_t count : {int64_t{1}, queries}) {
      lpq_kv_batch plain = b;
      plain.sinks = nullptr, plain.query_type = 0;
      Call decode = decode_call(operands, c, count, nullptr, nullptr, DType::f16, 1, pages, plain);
      most = std::max(most, rehearsed(*context, "kv_decode", decode));
    }
    Call pack = pack_call(operands, c, c.block, nullptr, nullptr, 0, nullptr, 1, pages);
    most = std::max(most, rehearsed(*context, "kv_pack", pack));
    const int64_t residual = b.tail_room / c.block * c.block;
    if (c.turbomind || residual > 0) {
      Call append = append_call(operands, c, nullptr, nullptr, residual, pages, b);
      most = std::max(most, rehearsed(*context, "kv_append", append));
    }
    *bytes = most;
  });
}

lpq_status lpq_kv_pack(lpq_context* context, const lpq_kv_desc* desc, int64_t tokens, const void* k, const void* v,
                       int64_t first, const int32_t* table, int64_t table_pages, const lpq_kv_pages* pages,
                       void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    const Current current(context);
    const Cache c(desc);
    require_tokens(c, tokens, first, table_pages);
    if (tokens == 0) return;
    Operands operands(context, false);
    Call call = pack_call(operands, c, tokens, k, v, first, table, table_pages, taken(pages, "pages"));
    launch(*context, "kv_pack", call, workspace, bytes, stream);
  });
}

lpq_status lpq_kv_append(lpq_context* context, const lpq_kv_desc* desc, const void* k, const void* v, int64_t residual,
                         const lpq_kv_pages* pages, const lpq_kv_batch* batch, void* workspace, size_t bytes,
                         void* stream) {
  return guarded([&] {
    const Current current(context);
    const Cache c(desc);
    const lpq_kv_batch b = checked(batch);
    require_residual(c, residual, b);
    if (b.sequences == 0) return;
    Operands operands(context, false);
    Call call = append_call(operands, c, k, v, residual, taken(pages, "pages"), b);
    launch(*context, "kv_append", call, workspace, bytes, stream);
  });
}

lpq_status lpq_kv_decode(lpq_context* context, const lpq_kv_desc* desc, int64_t queries, const void* q, void* y,
                         int type, double scale, const lpq_kv_pages* pages, const lpq_kv_batch* batch, void* workspace,
                         size_t bytes, void* stream) {
  return guarded([&] {
    const Current current(context);
    const Cache c(desc);
    const lpq_kv_batch b = checked(batch);
    const DType of_y = output_type(type, scale);
    if (b.sequences == 0) return;
    Operands operands(context, false);
    Call call = decode_call(operands, c, queries, q, y, of_y, scale, taken(pages, "pages"), b);
    launch(*context, "kv_decode", call, workspace, bytes, stream);
  });
}

lpq_status lpq_cpu_kv_pack(const lpq_kv_desc* desc, int64_t tokens, const void* k, const void* v, int64_t first,
                           const int32_t* table, int64_t table_pages, const lpq_kv_pages* pages, int threads) {
  return guarded([&] {
    const Cache c(desc);
    require_tokens(c, tokens, first, table_pages);
    if (tokens == 0) return;
    Operands operands(nullptr, false);
    Call call = pack_call(operands, c, tokens, k, v, first, table, table_pages, taken(pages, "pages"));
    compute("kv_pack", call, threads);
  });
}

lpq_status lpq_cpu_kv_append(const lpq_kv_desc* desc, const void* k, const void* v, int64_t residual,
                             const lpq_kv_pages* pages, const lpq_kv_batch* batch, int threads) {
  return guarded([&] {
    const Cache c(desc);
    const lpq_kv_batch b = checked(batch);
    require_residual(c, residual, b);
    if (b.sequences == 0) return;
    Operands operands(nullptr, false);
    Call call = append_call(operands, c, k, v, residual, taken(pages, "pages"), b);
    compute("kv_append", call, threads);
  });
}

lpq_status lpq_cpu_kv_decode(const lpq_kv_desc* desc, int64_t queries, const void* q, void* y, int type, double scale,
                             const lpq_kv_pages* pages, const lpq_kv_batch* batch, int threads) {
  return guarded([&] {
    const Cache c(desc);
    const lpq_kv_batch b = checked(batch);
    const DType of_y = output_type(type, scale);
    if (b.sequences == 0) return;
    Operands operands(nullptr, false);
    Call call = decode_call(operands, c, queries, q, y, of_y, scale, taken(pages, "pages"), b);
    compute("kv_decode", call, threads);
  });
}
}
