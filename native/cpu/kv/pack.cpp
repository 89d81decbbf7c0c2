// kv_pack and kv_append: the bytes of CUDA's operations of those names.
#include "cpu/kv/blocks.h"

namespace lpq::kv {
namespace {

void pack(Call& call, Exec& exec) {
  const ops::KvPack of(call);
  const Tensor &k = of.k, &v = of.v, &table = of.table;
  const Form form(of.form);
  const int64_t first = of.first, tokens = k.dim(0), width = of.form.width();
  form.require_pages(table.data<int32_t>(), table.dim(0), first, tokens);
  exec.pool.parallel_for(tokens / form.block * form.heads, rows_grain(64 * form.block * form.head_dims),
                         [&](int64_t begin, int64_t end, int) {
                           for (int64_t i = begin; i < end; ++i) {
                             const int64_t at = i / form.heads * form.block;
                             pack_block(form, k.data<uint16_t>() + at * width, v.data<uint16_t>() + at * width,
                                        table.data<int32_t>(), first + at, i % form.heads);
                           }
                         });
}
LPQ_OP(pack, "kv_pack");

void append(Call& call, Exec& exec) {
  const ops::KvAppend of(call);
  const Tensor &k = of.k, &v = of.v, &table = of.table, &lengths = of.lengths, &tails = of.tails;
  const Form form(of.form);
  const int64_t width = of.form.width(), sequences = of.sequences, room = of.tail_keys.dim(1), residual = of.residual,
                table_pages = table.dim(1);
  const bool whole = of.form.turbomind;  // no tail: the token is packed as it comes
  for (int64_t b = 0; b < sequences; ++b) {
    const int32_t packed = lengths.data<int32_t>()[b], tail = tails.data<int32_t>()[b];
    require(packed >= 0 && packed % form.block == 0,
            "sequence " + std::to_string(b) + " has " + std::to_string(packed) +
                " packed tokens, not whole blocks of " + std::to_string(form.block));
    require(whole || (tail >= 0 && tail <= residual),
            "the tail of sequence " + std::to_string(b) + " is longer than its room");
    form.require_pages(table.data<int32_t>() + b * table_pages, table_pages, packed,
                       whole              ? 1
                       : tail == residual ? residual
                                          : 0);
  }
  exec.pool.parallel_for(sequences * form.heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / form.heads, h = i % form.heads, packed = lengths.data<int32_t>()[b],
                    tail = tails.data<int32_t>()[b];
      const int32_t* own = table.data<int32_t>() + b * table_pages;
      const uint16_t *key = k.data<uint16_t>() + b * width, *value = v.data<uint16_t>() + b * width;
      if (whole) {
        pack_block(form, key, value, own, packed, h);
        continue;
      }
      uint16_t *keys = of.tail_keys.data<uint16_t>() + b * room * width,
               *values = of.tail_values.data<uint16_t>() + b * room * width;
      if (tail == residual)
        for (int64_t at = 0; at < residual; at += form.block)
          pack_block(form, keys + at * width, values + at * width, own, packed + at, h);
      const int64_t to = (tail == residual ? 0 : tail) * width + h * form.head_dims;
      std::copy_n(key + h * form.head_dims, form.head_dims, keys + to),
          std::copy_n(value + h * form.head_dims, form.head_dims, values + to);
    }
  });
  for (int64_t b = 0; b < sequences; ++b) {
    int32_t &packed = lengths.data<int32_t>()[b], &tail = tails.data<int32_t>()[b];
    if (whole) ++packed;
    else if (tail == residual) packed += static_cast<int32_t>(residual), tail = 1;
    else ++tail;
  }
}
LPQ_OP(append, "kv_append");

}  // namespace
}  // namespace lpq::kv
