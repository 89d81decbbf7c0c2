// A packed cache of latents as formats/kv/spec.md describes it ("latent"), with random bytes, packing by its rule, and
// attention over it in double precision with the bound that the decode kernels keep: for the program that plays them on
// the host, and the one that runs them on a device.
//
// The bound. What a code stands for is rounded to f16 once, as here, so that both read the same numbers; products are
// exact. The tensor core aligns 17 terms to the largest and may drop what is below 2^-23 of it: a score errs by
// (W/16 17 + 8) 2^-23 sum |q k|, 8 for the sum of the parts that warps found, and its scale. Hence delta; weights err
// by exp(2 delta) - 1, and 2^-21 for 2^x and the exponents' own rounding (2^-23 |score|). A weight is rounded to f16 in
// the numerator: 2^-11, or 2^-25 of the largest where it is small. Sums over tokens: (tokens/16) 17 2^-23 + tokens
// 2^-24, of numerator and denominator; y is rounded to its type.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lpq/half.h"

namespace lpq::test {

struct LatentCase {
  int bits, group, latent, rotary, heads, queries, splits, page_tokens;
  std::vector<int> lengths;
  bool bf16 = false;  // queries
  int width() const { return latent + rotary; }
  int rows() const { return heads * queries; }
  int sequences() const { return static_cast<int>(lengths.size()); }
  int number_bytes() const { return bits == 16 ? 0 : latent / group * 4; }
  long long page_bytes() const {
    return static_cast<long long>(page_tokens) * (latent * bits / 8 + number_bytes() + 2 * rotary);
  }
  std::string name() const {
    return std::to_string(bits) + " bits, groups of " + std::to_string(group) + ", " + std::to_string(latent) + " + " +
           std::to_string(rotary) + " dims, " + std::to_string(heads) + " heads, " + std::to_string(queries) +
           " queries, " + std::to_string(splits) + " splits" + (bf16 ? ", bf16" : "");
  }
};

// A page's bytes, read and written by the rule of formats/kv/spec.md.
struct LatentPage {
  const LatentCase& c;
  uint8_t* bytes;
  uint8_t* number(int t, int d) const {
    return bytes + c.page_tokens * (c.latent * c.bits / 8) + t * c.number_bytes() + d / c.group * 4;
  }
  uint8_t* turned(int t, int r) const {
    return bytes + c.page_tokens * (c.latent * c.bits / 8 + c.number_bytes()) + 2 * (t * c.rotary + r);
  }
  // Number of dim d's first bit in the page.
  long long bit(int t, int d) const {
    const int of_word = 32 / c.bits;
    return 8ll * t * (c.latent * c.bits / 8) + d / of_word * 32 + (d & 1) * 16 + d % of_word / 2 * c.bits;
  }
  unsigned code(int t, int d) const {
    unsigned v = 0;
    for (int i = 0; i < c.bits; ++i) v |= (bytes[(bit(t, d) + i) / 8] >> (bit(t, d) + i) % 8 & 1u) << i;
    return v;
  }
  void set_code(int t, int d, unsigned v) const {
    for (int i = 0; i < c.bits; ++i) {
      uint8_t& byte = bytes[(bit(t, d) + i) / 8];
      const int at = static_cast<int>((bit(t, d) + i) % 8);
      byte = static_cast<uint8_t>((byte & ~(1 << at)) | ((v >> i & 1) << at));
    }
  }
  static uint16_t word(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }
  static void set_word(uint8_t* at, uint16_t v) {
    at[0] = static_cast<uint8_t>(v), at[1] = static_cast<uint8_t>(v >> 8);
  }
  // Rounded to f16: of what is exact in double precision, through fp32 toward odd, so that it is rounded once.
  double dim(int t, int d) const {
    if (d >= c.latent) return f16_to_f32(word(turned(t, d - c.latent)));
    if (c.bits == 16) return f16_to_f32(static_cast<uint16_t>(code(t, d)));
    const double exact = code(t, d) * static_cast<double>(f16_to_f32(word(number(t, d)))) +
                         static_cast<double>(f16_to_f32(word(number(t, d) + 2)));
    float near = static_cast<float>(exact);
    if (near != exact && !(std::bit_cast<uint32_t>(near) & 1))
      near = std::nextafter(near, exact > near ? INFINITY : -INFINITY);
    return f16_to_f32(f32_to_f16(near));
  }
  // Packs a token, c [latent] and then its rotary dims.
  void pack(int t, const uint16_t* latents, const uint16_t* rotary) const {
    for (int r = 0; r < c.rotary; ++r) set_word(turned(t, r), rotary[r]);
    if (c.bits == 16)
      for (int d = 0; d < c.latent; ++d) set_code(t, d, latents[d]);
    else
      for (int first = 0; first < c.latent; first += c.group) {
        float least = INFINITY, most = -INFINITY;
        for (int d = first; d < first + c.group; ++d)
          least = std::min(least, f16_to_f32(latents[d])), most = std::max(most, f16_to_f32(latents[d]));
        if (least == 0) least = 0;  // not -0
        const float top = static_cast<float>((1 << c.bits) - 1);
        const uint16_t scale = f32_to_f16((most - least) / top);
        set_word(number(t, first), scale), set_word(number(t, first) + 2, f32_to_f16(least));
        for (int d = first; d < first + c.group; ++d) {
          const float step = f16_to_f32(scale);
          set_code(t, d,
                   step > 0
                       ? static_cast<unsigned>(std::min(std::nearbyint((f16_to_f32(latents[d]) - least) / step), top))
                       : 0);
        }
      }
  }
};

inline std::vector<uint16_t> latent_halves_of(size_t count, uint64_t seed, bool bf16 = false) {
  std::mt19937_64 lot(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> v(count);
  for (uint16_t& x : v) x = bf16 ? f32_to_bf16(normal(lot)) : f32_to_f16(normal(lot));
  return v;
}

struct LatentData {
  std::vector<uint8_t> pages;
  std::vector<int> table;
  std::vector<uint16_t> q;
  int page_count = 0, table_pages = 1;
  float scale;
  std::vector<std::vector<double>> tokens;  // of each sequence, [length][width]

  LatentData(const LatentCase& c, uint64_t seed) : scale(static_cast<float>(1 / std::sqrt(c.width()))) {
    std::mt19937_64 lot(seed);
    std::vector<int> need;
    for (const int length : c.lengths) {
      need.push_back((length + c.page_tokens - 1) / c.page_tokens);
      page_count += need.back(), table_pages = std::max(table_pages, need.back());
    }
    page_count = std::max(page_count, 1);
    std::vector<int> order(static_cast<size_t>(page_count));
    for (int i = 0; i < page_count; ++i) order[static_cast<size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), lot);
    pages.resize(static_cast<size_t>(page_count * c.page_bytes()));
    for (uint8_t& byte : pages) byte = static_cast<uint8_t>(lot());
    table.assign(static_cast<size_t>(c.sequences() * table_pages), -1);
    q = latent_halves_of(static_cast<size_t>(c.sequences()) * static_cast<size_t>(c.rows() * c.width()), lot(), c.bf16);
    std::normal_distribution<float> normal;
    size_t next = 0;
    for (int b = 0; b < c.sequences(); ++b) {
      const int length = c.lengths[static_cast<size_t>(b)];
      for (int i = 0; i < need[static_cast<size_t>(b)]; ++i) {
        const int number = order[next++];
        table[static_cast<size_t>(b * table_pages + i)] = number;
        const LatentPage page = at(c, number);
        for (int t = 0; t < c.page_tokens; ++t) {
          // What lies behind the last token is no number.
          const bool there = i * c.page_tokens + t < length;
          for (int d = 0; d < c.latent; d += c.bits == 16 ? 1 : c.group) {
            if (c.bits == 16) {
              page.set_code(t, d, there ? f32_to_f16(normal(lot)) : 0x7e00);
              continue;
            }
            const float top = static_cast<float>((1 << c.bits) - 1), share = static_cast<float>(lot() % 1000) / 1000;
            LatentPage::set_word(page.number(t, d), there ? f32_to_f16((0.5f + share) * 4 / top) : 0x7e00);
            LatentPage::set_word(page.number(t, d) + 2, there ? f32_to_f16(-2 + normal(lot)) : 0xfc00);
          }
          for (int r = 0; r < c.rotary; ++r)
            LatentPage::set_word(page.turned(t, r), there ? f32_to_f16(normal(lot)) : 0x7e00);
        }
      }
    }
    read(c);
  }
  LatentPage at(const LatentCase& c, int number) { return {c, pages.data() + number * c.page_bytes()}; }
  // The tokens as numbers, of the bytes that are there.
  void read(const LatentCase& c) {
    tokens.clear();
    for (int b = 0; b < c.sequences(); ++b) {
      const int length = c.lengths[static_cast<size_t>(b)];
      std::vector<double> of(static_cast<size_t>(length) * static_cast<size_t>(c.width()));
      for (int t = 0; t < length; ++t)
        for (int d = 0; d < c.width(); ++d)
          of[static_cast<size_t>(t * c.width() + d)] =
              at(c, table[static_cast<size_t>(b * table_pages + t / c.page_tokens)]).dim(t % c.page_tokens, d);
      tokens.push_back(std::move(of));
    }
  }
};

// Row `row` (query * heads + head) of sequence b: y [latent], and how far it may be off. unit: of y's type.
inline void latent_expected(const LatentCase& c, const LatentData& data, int b, int row, double unit,
                            std::vector<double>& y, std::vector<double>& bound) {
  const std::vector<double>& tokens = data.tokens[static_cast<size_t>(b)];
  const int seen = std::max(0, c.lengths[static_cast<size_t>(b)] - c.queries + row / c.heads + 1), W = c.width();
  y.assign(static_cast<size_t>(c.latent), 0), bound.assign(static_cast<size_t>(c.latent), 1e-7);
  if (seen == 0) return;
  std::vector<double> weight(static_cast<size_t>(seen));
  double delta = 0, most = -INFINITY, largest_score = 0, total = 0;
  for (int t = 0; t < seen; ++t) {
    double score = 0, size = 0;
    for (int d = 0; d < W; ++d) {
      const uint16_t bits = data.q[static_cast<size_t>((b * c.rows() + row) * W + d)];
      const double q = f16_to_f32(c.bf16 ? f32_to_f16(bf16_to_f32(bits)) : bits),
                   term = q * tokens[static_cast<size_t>(t * W + d)];
      score += term, size += std::fabs(term);
    }
    weight[static_cast<size_t>(t)] = score * data.scale, most = std::max(most, score * data.scale);
    largest_score = std::max(largest_score, std::fabs(score * data.scale));
    delta = std::max(delta, (W / 16.0 * 17 + 8) * 0x1p-23 * size * data.scale);
  }
  for (double& w : weight) total += w = std::exp(w - most);
  const double weights = std::exp(2 * (delta + 0x1p-22 * 1.45 * largest_score)) - 1 + 0x1p-21,
               sums = 2 * (seen / 16.0 * 17 * 0x1p-23 + seen * 0x1p-24);
  for (int d = 0; d < c.latent; ++d) {
    double value = 0, size = 0, top = 0;
    for (int t = 0; t < seen; ++t) {
      const double v = tokens[static_cast<size_t>(t * W + d)], w = weight[static_cast<size_t>(t)] / total;
      value += w * v, size += w * std::fabs(v), top = std::max(top, std::fabs(v));
    }
    y[static_cast<size_t>(d)] = value;
    bound[static_cast<size_t>(d)] =
        1.05 * (2 * weights + 0x1p-11 + sums) * size + seen * top * 0x1p-25 / total + unit * std::fabs(value) + 1e-7;
  }
}

}  // namespace lpq::test
