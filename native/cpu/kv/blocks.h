// Quantizes blocks of tokens into pages: kv_pack, and kv_append of a full tail.
#pragma once
#include "cpu/kv/form.h"
#include "cpu/kv/grid.h"

namespace lpq::kv {

// Head h of `count` tokens, whole groups, x [count][heads][head_dims] f16, zeros behind, at token `first` of a page.
inline void pack_rows(const FormSide& side, const uint16_t* x, int64_t count, int64_t page, int64_t first, int64_t h) {
  uint8_t *words = FormSide::page_of(*side.codes, page), *pairs = FormSide::page_of(*side.numbers, page);
  const int64_t tokens = side.group_tokens(), dims = side.group_dims();
  const auto value = [&](int64_t t, int64_t d) {
    return d < side.head_dims ? finite_half(x[(t * side.heads + h) * side.head_dims + d]) : 0.0f;
  };
  for (int64_t t0 = 0; t0 < count; t0 += tokens)
    for (int64_t d0 = 0; d0 < side.dims; d0 += dims) {
      float low = value(t0, d0), high = low;
      for (int64_t t = t0; t < t0 + tokens; ++t)
        for (int64_t d = d0; d < d0 + dims; ++d) low = std::min(low, value(t, d)), high = std::max(high, value(t, d));
      if (side.fit) {
        const Ends ends = fitted_ends(low, high, static_cast<float>((1 << side.bits) - 1), tokens * dims,
                                      [&](int64_t i) { return value(t0 + i / dims, d0 + i % dims); });
        low = ends.low, high = ends.high;
      }
      const Group group(low, high, static_cast<float>((1 << side.bits) - 1));
      const int64_t at = side.number((first + t0) / tokens, h, d0 / dims);
      FormSide::put(pairs, at, group.scale), FormSide::put(pairs, at + side.apart(), group.zero);
      for (int64_t t = t0; t < t0 + tokens; ++t)
        for (int64_t d = d0; d < d0 + dims; ++d) side.put_code(words, first + t, h, d, group.code(value(t, d)));
    }
}

// Head h of the block of tokens that begins with token `at` of a sequence.
inline void pack_block(const Form& form, const uint16_t* k, const uint16_t* v, const int32_t* table, int64_t at,
                       int64_t h) {
  const int64_t page = table[at / form.page_tokens], first = at % form.page_tokens;
  pack_rows(form.keys, k, form.block, page, first, h);
  pack_rows(form.values, v, form.block, page, first, h);
}

}  // namespace lpq::kv
