// What packing keys and values has to store (formats/kv/spec.md), code by code and number by number, for the program
// that plays the kernels on the host and the one that runs them on a device.
#pragma once
#include <tuple>
#include <utility>

#include "attention_case.h"

namespace lpq::test {

// f16 [tokens, kv_heads * own dims]: of very unequal sizes, one dim in a head constant, one of zeros of both signs and
// what is above.
inline std::vector<uint16_t> pack_input(const KvCase& c, int tokens, uint64_t seed) {
  std::mt19937_64 lot(seed);
  std::normal_distribution<double> normal;
  const int width = c.kv_heads * c.own();
  std::vector<uint16_t> x(static_cast<size_t>(tokens) * static_cast<size_t>(width));
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t d = i % static_cast<size_t>(c.own()), t = i / static_cast<size_t>(width);
    double v = (1 + 7.0 * (i % 13 == 0)) * normal(lot);
    if (d == 9) v = 0.25;
    // Multiples of a power of two make many quotients halves.
    if (d % 8 == 3 || t % 8 == 5) v = std::round(4 * v) / 8;
    if (d == 11 || t % 16 == 7) v = lot() % 3 ? std::fabs(v) : lot() % 2 ? -0.0 : 0.0;
    x[i] = lpq::f32_to_f16(static_cast<float>(v));
  }
  return x;
}

struct KvPages {
  std::vector<uint8_t> keys, key_numbers, values, value_numbers;
  explicit KvPages(const KvData& d)
      : keys(d.keys), key_numbers(d.key_numbers), values(d.values), value_numbers(d.value_numbers) {}
};

// A grid from `low` to `high` on numbers x: the stored step, codes, and the sum of squared differences.
struct PackGrid {
  float low, step;
  std::vector<int> codes;
  double error = 0;
  PackGrid(const std::vector<float>& x, float low, float high, int top)
      : low(low), step(lpq::f16_to_f32(lpq::f32_to_f16((high - low) / static_cast<float>(top)))) {
    for (const float v : x) {
      const float steps = step > 0 ? (v - low) / step : 0;
      codes.push_back(static_cast<int>(std::nearbyint(std::clamp(steps, 0.0f, static_cast<float>(top)))));
      const double off = codes.back() * static_cast<double>(step) + low - v;
      error += off * off;
    }
  }
};

// Ends of a group, by "Fitted ends" of formats/kv/spec.md.
inline std::pair<float, float> pack_ends(const std::vector<float>& x, float low, float high, int top) {
  const auto half = [](double v) { return lpq::f16_to_f32(lpq::f32_to_f16(static_cast<float>(v))); };
  const double range = static_cast<double>(high) - low, n = static_cast<double>(x.size());
  std::pair<float, float> best{low, high};
  double least = INFINITY;
  for (int start = 0; start < 25; ++start) {
    std::pair<double, double> ends{low + 0.025 * (start / 5) * range, high - 0.025 * (start % 5) * range};
    for (int round = 0; round < 3; ++round) {
      const float first = half(ends.first), last = half(ends.second);
      if (!std::isfinite(first) || !std::isfinite(last) || first >= last) break;
      const PackGrid grid(x, first, last, top);
      if (grid.error < least) least = grid.error, best = {first, last};
      double C = 0, Q = 0, O = 0, W = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double code = grid.codes[i], o = static_cast<double>(x[i]) - low;
        C += code, Q += code * code, O += o, W += code * o;
      }
      if (n * Q == C * C) break;
      const double slope = (n * W - C * O) / (n * Q - C * C);
      ends.first = (O - slope * C) / n + low, ends.second = ends.first + top * slope;
    }
  }
  return best;
}

// Stores `tokens` tokens of x (keys, or values), of which token 0 goes to token `first` of sequence `sequence`.
inline void pack_expected(const KvCase& c, const KvData& d, KvPages& to, const uint16_t* x, int tokens, bool value,
                          int sequence, int first) {
  const int H = c.kv_heads, D = c.dims, bits = value ? c.of_values() : c.bits, top = (1 << bits) - 1;
  const bool by_token = value || c.by_token() || c.words();
  const int group = value ? c.value_group : c.key_group;
  const auto at = [&](int token, int h, int dim) {
    return dim >= c.own() ? 0.0f : lpq::f16_to_f32(x[static_cast<size_t>((1ll * token * H + h) * c.own() + dim)]);
  };
  for (int t0 = 0; t0 < tokens; t0 += by_token ? 1 : group)
    for (int h = 0; h < H; ++h)
      for (int d0 = 0; d0 < D; d0 += by_token ? group : 1) {
        const auto element = [&](int n) { return by_token ? at(t0, h, d0 + n) : at(t0 + n, h, d0); };
        float low = element(0), high = low;
        for (int n = 1; n < group; ++n) low = std::min(low, element(n)), high = std::max(high, element(n));
        std::vector<float> elements;
        for (int n = 0; n < group; ++n) elements.push_back(element(n));
        if (c.fit) std::tie(low, high) = pack_ends(elements, low, high, top);
        const uint16_t scale = lpq::f32_to_f16((high - low) / static_cast<float>(top));
        const PackGrid grid(elements, low, high, top);
        for (int n = 0; n < group; ++n) {
          const int t = by_token ? t0 : t0 + n, i = by_token ? d0 + n : d0;
          const int code = grid.codes[static_cast<size_t>(n)];
          const long long page = d.table[static_cast<size_t>(sequence * d.table_pages + (first + t) / d.page_tokens)];
          const KvPlaces place = value ? value_place(c, d.page_tokens, (first + t) % d.page_tokens, h, i)
                                       : key_place(c, d.page_tokens, (first + t) % d.page_tokens, h, i);
          std::vector<uint8_t>&codes = value && !c.words() ? to.values : to.keys, &numbers = c.words() ? to.keys
                                                                                             : value ? to.value_numbers
                                                                                                     : to.key_numbers;
          const long long word = page * (value ? d.values_page : d.keys_page) + place.word,
                          number = page * (value ? d.value_numbers_page : d.key_numbers_page) + place.number;
          set_word(codes, word,
                   static_cast<uint16_t>((word_at(codes, word) & ~(top << bits * place.place)) |
                                         code << bits * place.place));
          set_word(numbers, number, scale), set_word(numbers, number + place.zero, lpq::f32_to_f16(low));
        }
      }
}

}  // namespace lpq::test
