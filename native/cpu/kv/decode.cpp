// kv_decode: attention over packed pages as CUDA's operation of that name, summed in fp64.
#include "cpu/kv/attend.h"
#include "cpu/kv/form.h"
#include "cpu/nn/attention.h"

namespace lpq::kv {
namespace {

constexpr int64_t kQueries = 32;  // of a sequence that read its rows together

void decode(Call& call, Exec& exec) {
  const ops::KvDecode of(call);
  const Tensor &q = of.q, &table = of.table, &lengths = of.lengths, &tail_keys = of.tail_keys,
               &tail_values = of.tail_values, &tails = of.tails, &y = of.y;
  const Form form(of.form);
  const int64_t sequences = of.sequences, heads = of.heads, queries = of.queries, group = heads / form.heads,
                room = tail_keys.dim(1), table_pages = table.dim(1), runs = (queries + kQueries - 1) / kQueries;
  const double scale = of.scale;
  const std::vector<float> sinks = nn::attention_sinks(of.sinks, heads);
  const auto query = [bf = q.dtype == DType::bf16](uint16_t x) {
    return f16_to_f32(bf ? f32_to_f16(bf16_to_f32(x)) : x);
  };
  for (int64_t b = 0; b < sequences; ++b) {
    const int32_t packed = lengths.data<int32_t>()[b], tail = tails.data<int32_t>()[b];
    require(packed >= 0 && packed <= table_pages * form.page_tokens,
            "sequence " + std::to_string(b) + " is longer than its pages");
    require(packed % form.tile == 0, "sequence " + std::to_string(b) + " has " + std::to_string(packed) +
                                         " packed tokens, not whole tiles of " + std::to_string(form.tile));
    require(tail >= 0 && tail <= room, "the tail of sequence " + std::to_string(b) + " is longer than its room");
    form.require_pages(table.data<int32_t>() + b * table_pages, table_pages, 0, packed);
  }
  exec.pool.parallel_for(sequences * form.heads * runs, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<double> out;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i % runs * kQueries, count = std::min(kQueries, queries - from), b = i / runs / form.heads,
                    head = i / runs % form.heads;
      const int64_t packed = lengths.data<int32_t>()[b], tokens = packed + tails.data<int32_t>()[b];
      const int32_t* own = table.data<int32_t>() + b * table_pages;
      const auto rows = [&](const FormSide& side, const Tensor& exact) {
        return [&](int64_t t, double* row) {
          if (t < packed) return side.row(own[t / form.page_tokens], t % form.page_tokens, head, row);
          const uint16_t* tail =
              exact.data<uint16_t>() + ((b * room + t - packed) * form.heads + head) * form.head_dims;
          for (int64_t d = 0; d < form.head_dims; ++d) row[d] = f16_to_f32(tail[d]);
        };
      };
      // Row n of the run: head n mod group of query n div group.
      const auto element = [&](int64_t n) {
        return ((b * queries + from + n / group) * heads + head * group + n % group) * form.head_dims;
      };
      const auto seen = [&](int64_t n) { return std::max<int64_t>(0, tokens - queries + from + n / group + 1); };
      out.resize(static_cast<size_t>(count * group * form.head_dims));
      attend_rows<double>(
          count * group, form.head_dims, scale, seen,
          [&](int64_t n, int64_t d) { return query(q.data<uint16_t>()[element(n) + d]); }, rows(form.keys, tail_keys),
          rows(form.values, tail_values), out.data(),
          [&](int64_t n) { return sinks.empty() ? kNoSink(n) : sinks[static_cast<size_t>(head * group + n % group)]; });
      for (int64_t n = 0; n < count * group; ++n)
        for (int64_t d = 0; d < form.head_dims; ++d) {
          const float v = static_cast<float>(out[static_cast<size_t>(n * form.head_dims + d)]);
          if (y.dtype == DType::f32) y.data<float>()[element(n) + d] = v;
          else y.data<uint16_t>()[element(n) + d] = y.dtype == DType::bf16 ? f32_to_bf16(v) : f32_to_f16(v);
        }
    }
  });
}
LPQ_OP(decode, "kv_decode");

}  // namespace
}  // namespace lpq::kv
