// Decode attention over a packed cache of any layout and its exact tail, in fp32 or, where y is f64, in fp64, and the
// cache's numbers read back. Contracts: native/kv-ops.ts.
#include <cmath>

#include "cpu/kv/attend.h"
#include "cpu/kv/places.h"
#include "cpu/nn/attention.h"
#include "lpq/half.h"

namespace lpq::kv {
namespace {

// Row `token` of one head, dequantized: code * scale + zero, fused.
template <class T>
void row_of(const Side& side, int64_t page, int64_t token, int64_t first, int64_t dims, T* to) {
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t row = token / side.group_tokens, column = (first + d) / side.group_dims;
    const T scale = f16_to_f32(static_cast<uint16_t>(side.scales.at(page, row, column)));
    const T zero = f16_to_f32(static_cast<uint16_t>(side.zeros.at(page, row, column)));
    to[d] = std::fma(static_cast<T>(side.codes.at(page, token, first + d)), scale, zero);
  }
}

struct Shape {
  int64_t heads, kv_heads, dim, stored, pages, tail;  // stored: dims of a head in pages, zeros behind its own
  double scale;
};

// The output of the query heads that share one kv head of one sequence.
template <class T>
void attend(const Shape& s, const Side& keys, const Side& values, const float* q, const int32_t* table, int64_t packed,
            const uint16_t* tail_keys, const uint16_t* tail_values, int64_t tail, int64_t head, const float* sinks,
            T* y) {
  const int64_t group = s.heads / s.kv_heads, width = s.kv_heads * s.dim;
  const auto rows = [&](const Side& side, const uint16_t* exact) {
    return [&, exact](int64_t t, T* row) {
      if (t < packed)
        return row_of(side, table[t / side.page_tokens], t % side.page_tokens, head * s.stored, s.dim, row);
      for (int64_t d = 0; d < s.dim; ++d) row[d] = f16_to_f32(exact[(t - packed) * width + head * s.dim + d]);
    };
  };
  attend_rows<T>(
      group, s.dim, s.scale, [&](int64_t) { return packed + tail; },
      [&](int64_t h, int64_t d) { return q[(head * group + h) * s.dim + d]; }, rows(keys, tail_keys),
      rows(values, tail_values), y + head * group * s.dim,
      [&](int64_t h) { return sinks ? sinks[head * group + h] : kNoSink(h); });
}

void attention(Call& call, Exec& exec) {
  Arguments a(call, "kv_attention");
  const Tensor& q = a.input("q");
  const Side keys(a, "keys"), values(a, "values");
  const Tensor &table = a.input("table"), &lengths = a.input("lengths"), &tail_keys = a.input("tailKeys"),
               &tail_values = a.input("tailValues"), &tails = a.input("tails"), &y = a.output("y");
  Shape s{a.integer("heads"), a.integer("kvHeads"), a.integer("headDim"), 0, 0, 0, a.number("scale")};
  const Tensor* const given = a.last_input("sinks", ops::kFloats, {s.heads});
  a.done();
  const std::vector<float> sinks = nn::attention_sinks(given, s.heads);
  require(s.kv_heads > 0 && s.dim > 0 && s.heads > 0 && s.heads % s.kv_heads == 0, "heads is no multiple of kvHeads");
  const int64_t width = s.kv_heads * s.dim;
  s.stored = keys.columns / s.kv_heads;
  require(s.stored >= s.dim && keys.columns == s.kv_heads * s.stored && values.columns == keys.columns &&
              keys.page_tokens == values.page_tokens,
          "a page is not of these heads");
  require_tensor(q, "q", DType::f32, {-1, s.heads * s.dim});
  const int64_t sequences = q.dim(0);
  require_tensor(table, "table", DType::i32, {sequences, -1});
  require_tensor(lengths, "lengths", DType::i32, {sequences});
  require_tensor(tails, "tails", DType::i32, {sequences});
  require_tensor(tail_keys, "tailKeys", DType::f16, {sequences, -1, width});
  require_tensor(tail_values, "tailValues", DType::f16, tail_keys.shape);
  require_dtype(y, "y", {DType::f32, DType::f64});
  require_shape(y, "y", q.shape);
  s.pages = table.dim(1), s.tail = tail_keys.dim(1);
  for (int64_t b = 0; b < sequences; ++b) {
    const int32_t packed = lengths.data<int32_t>()[b], tail = tails.data<int32_t>()[b];
    require(packed >= 0 && packed <= s.pages * keys.page_tokens,
            "sequence " + std::to_string(b) + " is longer than its pages");
    require(tail >= 0 && tail <= s.tail, "the tail of sequence " + std::to_string(b) + " is longer than its room");
    for (int64_t p = 0; p * keys.page_tokens < packed; ++p) {
      const int32_t page = table.data<int32_t>()[b * s.pages + p];
      require(page >= 0 && page < keys.codes.pages() && page < values.codes.pages(),
              "the table names page " + std::to_string(page) + ", which is none");
    }
  }
  exec.pool.for_each(sequences * s.kv_heads, 1, [&](int64_t i) {
    const int64_t b = i / s.kv_heads, head = i % s.kv_heads, at = b * s.heads * s.dim;
    const auto run = [&]<class T>(T* out) {
      attend<T>(s, keys, values, q.data<float>() + at, table.data<int32_t>() + b * s.pages, lengths.data<int32_t>()[b],
                tail_keys.data<uint16_t>() + b * s.tail * width, tail_values.data<uint16_t>() + b * s.tail * width,
                tails.data<int32_t>()[b], head, sinks.empty() ? nullptr : sinks.data(), out + at);
    };
    if (y.dtype == DType::f64) run(y.data<double>());
    else run(y.data<float>());
  });
}
LPQ_OP(attention, "kv_attention");

// y f32 [T, width]: tokens 0 .. T-1 of a sequence whose pages `table` I32 [P] names.
void unpack(Call& call, Exec& exec) {
  Arguments a(call, "kv_unpack");
  const Side side(a, "side");
  const Tensor &table = a.input("table", {DType::i32}, {-1}), &y = a.output("y", {DType::f32}, {-1, side.columns});
  a.done();
  const int64_t tokens = y.dim(0);
  require(tokens <= table.dim(0) * side.page_tokens, "y is longer than the pages");
  for (int64_t p = 0; p * side.page_tokens < tokens; ++p)
    require(table.data<int32_t>()[p] >= 0 && table.data<int32_t>()[p] < side.codes.pages(),
            "the table names a page that is none");
  exec.pool.for_each(tokens, rows_grain(16 * side.columns), [&](int64_t t) {
    row_of<float>(side, table.data<int32_t>()[t / side.page_tokens], t % side.page_tokens, 0, side.columns,
                  y.data<float>() + t * side.columns);
  });
}
LPQ_OP(unpack, "kv_unpack");

}  // namespace
}  // namespace lpq::kv
