// latent_decode, latent_pack, latent_append: the bytes of CUDA's operations of those names (formats/kv/spec.md), in
// closed formulas; attention in fp64.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "cpu/kv/grid.h"
#include "lpq/half.h"
#include "ops/latent.h"

namespace lpq::kv {
namespace {

uint16_t get(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }
void put(uint8_t* at, uint16_t v) { at[0] = static_cast<uint8_t>(v), at[1] = static_cast<uint8_t>(v >> 8); }

struct Latents {
  const ops::LatentForm& f;

  uint8_t* page(int32_t number) const { return reinterpret_cast<uint8_t*>(f.pages->raw()) + number * f.bytes(); }
  // The first bit of the code of dim d among a token's: words of 32 bits hold 32 / b dims, even ones from bit 0, odd
  // ones from bit 16.
  int64_t bit(int64_t d) const {
    const int64_t each = 32 / f.bits, in = d % each;
    return d / each * 32 + in % 2 * 16 + in / 2 * f.bits;
  }

  // That tokens first .. first + count of a sequence have pages.
  void require_pages(const int32_t* table, int64_t table_pages, int64_t first, int64_t count) const {
    require(first >= 0 && first + count <= table_pages * f.page_tokens, "the table has too few pages");
    if (count > 0)
      for (int64_t i = first / f.page_tokens; i * f.page_tokens < first + count; ++i)
        require(table[i] >= 0 && table[i] < f.pages->dim(0),
                "the table names page " + std::to_string(table[i]) + ", which is none");
  }

  void pack(const uint16_t* c, const uint16_t* rope, int32_t number, int64_t t) const {
    uint8_t *const to = page(number), *const codes = to + t * f.row(),
                   *const pairs = to + f.numbers() + t * f.number_row();
    for (int64_t r = 0; r < f.rotary; ++r) {
      finite_half(rope[r]);
      put(to + f.rope() + 2 * (t * f.rotary + r), rope[r]);
    }
    if (f.exact()) {
      for (int64_t d = 0; d < f.latent; ++d) finite_half(c[d]), put(codes + 2 * d, c[d]);
      return;
    }
    std::fill_n(codes, f.row(), uint8_t{0});
    for (int64_t g = 0; g < f.latent / f.group; ++g) {
      const uint16_t* const own = c + g * f.group;
      float low = finite_half(own[0]), high = low;
      for (int64_t d = 1; d < f.group; ++d) {
        const float v = finite_half(own[d]);
        low = std::min(low, v), high = std::max(high, v);
      }
      const Group group(low + 0.0f, high, static_cast<float>((1 << f.bits) - 1));  // -0 is stored as 0
      put(pairs + 4 * g, group.scale), put(pairs + 4 * g + 2, group.zero);
      for (int64_t d = 0; d < f.group; ++d) {
        const int64_t at = bit(g * f.group + d);
        codes[at / 8] = static_cast<uint8_t>(codes[at / 8] | group.code(f16_to_f32(own[d])) << at % 8);
      }
    }
  }

  // Token t of a page: the latent as the kernels read it (code * scale + zero, rounded to f16 once), then rotary dims.
  void row(int32_t number, int64_t t, double* to) const {
    const uint8_t *const from = page(number), *const codes = from + t * f.row(),
                         *const pairs = from + f.numbers() + t * f.number_row(),
                         *const turned = from + f.rope() + 2 * t * f.rotary;
    for (int64_t r = 0; r < f.rotary; ++r) to[f.latent + r] = f16_to_f32(get(turned + 2 * r));
    if (f.exact()) {
      for (int64_t d = 0; d < f.latent; ++d) to[d] = f16_to_f32(get(codes + 2 * d));
      return;
    }
    const int64_t each = 32 / f.bits;
    const uint32_t mask = (1u << f.bits) - 1;
    for (int64_t d = 0; d < f.latent; d += each) {  // a word, of one group
      const int64_t g = d / f.group;
      const double scale = f16_to_f32(get(pairs + 4 * g)), zero = f16_to_f32(get(pairs + 4 * g + 2));
      const uint8_t* const at = codes + d / each * 4;
      const uint32_t even = get(at), odd = get(at + 2);
      for (int64_t i = 0; i < each / 2; ++i) {
        // Exact in fp64; fp32 holds 19 of its bits, so that the second rounding could meet a tie of the first: to f16
        // at once.
        to[d + 2 * i] = to_half((even >> i * f.bits & mask) * scale + zero);
        to[d + 2 * i + 1] = to_half((odd >> i * f.bits & mask) * scale + zero);
      }
    }
  }

  // A number of fp64 to the nearest of f16, ties to even, without overflow to infinity among what a cache holds: adding
  // 1.5 * 2^52 units of its last place rounds to those.
  static double to_half(double v) {
    const uint64_t power = std::max<uint64_t>(std::bit_cast<uint64_t>(v) >> 52 & 0x7ff, 1023 - 14);
    const double units = std::bit_cast<double>((power + 42) << 52 | uint64_t{1} << 51);
    return v + units - units;
  }
};

void pack(Call& call, Exec& exec) {
  const ops::LatentPack of(call);
  const Latents latents{of.form};
  const int32_t* const table = of.table.data<int32_t>();
  latents.require_pages(table, of.table.dim(0), of.first, of.c.dim(0));
  exec.pool.parallel_for(of.c.dim(0), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = of.first + i;
      latents.pack(of.c.data<uint16_t>() + i * of.form.latent, of.rope.data<uint16_t>() + i * of.form.rotary,
                   table[t / of.form.page_tokens], t % of.form.page_tokens);
    }
  });
}
LPQ_OP(pack, "latent_pack");

void append(Call& call, Exec&) {
  const ops::LatentAppend of(call);
  const Latents latents{of.form};
  const int64_t table_pages = of.table.dim(1);
  int32_t* const lengths = of.lengths.data<int32_t>();
  for (int64_t b = 0; b < of.sequences; ++b)
    latents.require_pages(of.table.data<int32_t>() + b * table_pages, table_pages, lengths[b], 1);
  for (int64_t b = 0; b < of.sequences; ++b) {
    const int64_t t = lengths[b];
    latents.pack(of.c.data<uint16_t>() + b * of.form.latent, of.rope.data<uint16_t>() + b * of.form.rotary,
                 of.table.data<int32_t>()[b * table_pages + t / of.form.page_tokens], t % of.form.page_tokens);
    ++lengths[b];
  }
}
LPQ_OP(append, "latent_append");

constexpr int64_t kRows = 32;  // queries times heads that read their tokens together, at most

// The rows first .. of sequence b: queries times heads. Every sum runs over dims, or over tokens, in ascending order,
// so that it does not matter how rows are shared among threads.
void attend(const ops::LatentDecode& of, const Latents& latents, int64_t b, int64_t first, int64_t count) {
  const ops::LatentForm& f = of.form;
  const int64_t rows = of.heads * of.queries, width = f.width(), length = of.lengths.data<int32_t>()[b];
  const int32_t* const table = of.table.data<int32_t>() + b * of.table.dim(1);
  const auto seen = [&](int64_t n) { return std::max<int64_t>(0, length - of.queries + (first + n) / of.heads + 1); };
  const int64_t tokens = seen(count - 1);
  const auto size = [](int64_t a, int64_t c) { return static_cast<size_t>(a * c); };
  std::vector<double> q(size(width, count)), scores(size(tokens, count)), sums(size(count, f.latent)),
      total(size(count, 1)), row(size(width, 1));
  const uint16_t* const asked = of.q.data<uint16_t>() + (b * rows + first) * width;
  for (int64_t n = 0; n < count; ++n)
    for (int64_t d = 0; d < width; ++d) {
      const uint16_t x = asked[n * width + d];
      q[size(d, count) + static_cast<size_t>(n)] =
          f16_to_f32(of.q.dtype == DType::bf16 ? f32_to_f16(bf16_to_f32(x)) : x);
    }
  for (int64_t t = 0; t < tokens; ++t) {
    double* const s = scores.data() + t * count;
    latents.row(table[t / f.page_tokens], t % f.page_tokens, row.data());
    for (int64_t d = 0; d < width; ++d) {
      const double *const each = q.data() + d * count, x = row[static_cast<size_t>(d)];
      for (int64_t n = 0; n < count; ++n) s[n] += each[n] * x;
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    double *const s = scores.data() + n, most = -INFINITY;
    for (int64_t t = 0; t < seen(n); ++t) most = std::max(most, s[t * count] *= of.scale);
    for (int64_t t = 0; t < tokens; ++t) {
      s[t * count] = t < seen(n) ? std::exp(s[t * count] - most) : 0;
      total[static_cast<size_t>(n)] += s[t * count];
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    latents.row(table[t / f.page_tokens], t % f.page_tokens, row.data());
    for (int64_t n = 0; n < count; ++n) {
      double* const y = sums.data() + n * f.latent;
      const double weight = scores[size(t, count) + static_cast<size_t>(n)];
      for (int64_t d = 0; d < f.latent; ++d) y[d] += weight * row[static_cast<size_t>(d)];
    }
  }
  for (int64_t n = 0; n < count; ++n)
    for (int64_t d = 0; d < f.latent; ++d) {
      const double sum = sums[size(n, f.latent) + static_cast<size_t>(d)], all = total[static_cast<size_t>(n)];
      const float v = all > 0 ? static_cast<float>(sum / all) : 0.0f;
      const int64_t at = (b * rows + first + n) * f.latent + d;
      if (of.y.dtype == DType::f32) of.y.data<float>()[at] = v;
      else of.y.data<uint16_t>()[at] = of.y.dtype == DType::bf16 ? f32_to_bf16(v) : f32_to_f16(v);
    }
}

void decode(Call& call, Exec& exec) {
  const ops::LatentDecode of(call);
  const Latents latents{of.form};
  const int64_t table_pages = of.table.dim(1), rows = of.heads * of.queries;
  for (int64_t b = 0; b < of.sequences; ++b)
    latents.require_pages(of.table.data<int32_t>() + b * table_pages, table_pages, 0, of.lengths.data<int32_t>()[b]);
  if (of.sequences == 0) return;
  // Few rows are shared among threads, each of which reads the tokens then.
  const int64_t shares = (exec.pool.size() + of.sequences - 1) / of.sequences,
                together = std::clamp<int64_t>((rows + shares - 1) / shares, 1, kRows),
                runs = (rows + together - 1) / together;
  exec.pool.parallel_for(of.sequences * runs, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % runs * together;
      attend(of, latents, i / runs, first, std::min(together, rows - first));
    }
  });
}
LPQ_OP(decode, "latent_decode");

}  // namespace
}  // namespace lpq::kv
