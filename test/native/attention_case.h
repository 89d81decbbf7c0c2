// A packed cache as formats/kv/spec.md describes it, with random codes, and attention over it in double precision with
// the bound that the decode kernels keep: for the program that plays them on the host, and the one that runs them on a
// device.
//
// The bound. u = 2^-11 is half a unit of f16. Scores: q times a group's scale is rounded to f16 once, so that a score
// errs by u sum |q| s code, what is below 2^-14 by 2^-25 a term; codes are exact. The tensor core aligns 17 terms to
// the largest and may drop what is below 2^-23 of it: (D/16) 17 2^-23 of the sum of magnitudes for codes and for zeros.
// Hence delta, times scale; weights err by exp(2 delta) - 1 and 2^-21 for 2^x and the exponents' own rounding (2^-23
// |score|). A weight is rounded to f16, for numerator and denominator alike, and once more times its scale: 3 u, or
// 2^-25 each where it is small; sums over tokens in the tensor core and in fp32: (tokens/16) 17 2^-23 + tokens 2^-24,
// of numerator and denominator; y is rounded to its type.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/attention/kv_shape.h"
#include "lpq/half.h"

namespace lpq::test {

struct KvCase {
  int bits, dims, key_group, value_group;
  int sequences, heads, kv_heads, splits;
  bool outer;  // heads outside tokens
  int blocks_a_page;
  std::vector<int> packed_blocks, tails;    // of each sequence; of turbomind tokens, not blocks
  int value_bits = 0;                       // 0: bits
  cuda::KvForm form = cuda::KvForm::kWide;  // kTokens and kWords say so; the others follow from the group
  int queries = 1;                          // newest tokens that ask
  int head_dims = 0;                        // of a head as it comes, 0: dims, as they are stored
  bool fit = false;                         // ends of groups are fitted as they are packed
  int own() const { return head_dims ? head_dims : dims; }
  int of_values() const { return value_bits ? value_bits : bits; }
  bool words() const { return form == cuda::KvForm::kWords; }
  bool by_token() const { return form == cuda::KvForm::kTokens; }
  int tile() const { return words() ? 64 : 512 / bits; }
  int block() const { return words() ? 64 : std::max(std::max(tile(), 512 / of_values()), by_token() ? 1 : key_group); }
  int run() const { return std::min(128, block()); }
};

inline double half_number(uint16_t v) { return lpq::f16_to_f32(v); }

// Where dim d of head h of token `in` of a page lies, by formats/kv/spec.md: byte of the word and place in it; byte of
// the scale (the zero lies `zero` bytes further). Of turbomind all four count from the page's begin.
struct KvPlaces {
  long long word, number;
  int place, zero;
};
// Numbers of tokens: [group of dims][head][run of tokens][scales, zeros].
inline long long token_number(const KvCase& c, int page_tokens, int group, int groups, int h, int in) {
  const long long line = 4ll * page_tokens;
  return (c.outer ? (1ll * h * groups + group) : (1ll * group * c.kv_heads + h)) * line + in / c.run() * c.run() * 4 +
         in % c.run() * 2;
}
inline KvPlaces word_place(const KvCase& c, int P, bool value, int in, int h, int d) {
  const long long key_row = c.dims * c.bits / 8, value_row = c.dims * c.of_values() / 8,
                  head = P * (key_row + value_row), row = value ? value_row : key_row;
  const int bits = value ? c.of_values() : c.bits, e = d % 8;
  return {h * head + (value ? P * key_row : 0) + in * row + (bits == 4 ? d / 8 * 4 + 2 * (e & 1) : d / 2 * 2),
          c.kv_heads * head + (2ll * h + value) * P * 4 + 4 * in, bits == 4 ? e >> 1 : d & 1, 2};
}
inline KvPlaces key_place(const KvCase& c, int P, int in, int h, int d) {
  if (c.words()) return word_place(c, P, false, in, h, d);
  const int R = 16 / c.bits, tile = 32 * R, H = c.kv_heads, D = c.dims, row = in / tile * 32 + in % 32;
  const long long word = (c.outer ? (1ll * h * (P / R) + row) : (1ll * row * H + h)) * 2 * D + 2 * d;
  if (c.by_token())
    return {word, token_number(c, P, d / c.key_group, D / c.key_group, h, in), in % tile / 32, 2 * c.run()};
  const int group = in / c.key_group;
  return {word,
          (c.outer ? (1ll * h * (P / c.key_group) + group) : (1ll * group * H + h)) * 4 * D + d / 2 * 8 + d % 2 * 2,
          in % tile / 32, 4};
}
inline KvPlaces value_place(const KvCase& c, int P, int in, int h, int d) {
  if (c.words()) return word_place(c, P, true, in, h, d);
  const int R = 16 / c.of_values(), chunk = std::min(c.dims, 128), in_chunk = chunk / R, H = c.kv_heads,
            row = c.dims / R;
  const long long word =
      ((c.outer ? (1ll * h * P + in) : (1ll * in * H + h)) * row + d / chunk * in_chunk + d % chunk % in_chunk) * 2;
  return {word, token_number(c, P, d / c.value_group, c.dims / c.value_group, h, in), d % chunk / in_chunk,
          2 * c.run()};
}
inline uint16_t word_at(const std::vector<uint8_t>& v, long long at) {
  return static_cast<uint16_t>(v[static_cast<size_t>(at)] | v[static_cast<size_t>(at + 1)] << 8);
}
inline void set_word(std::vector<uint8_t>& v, long long at, uint16_t w) {
  v[static_cast<size_t>(at)] = static_cast<uint8_t>(w), v[static_cast<size_t>(at + 1)] = static_cast<uint8_t>(w >> 8);
}

// Pages, table, queries and tails; K and V as numbers.
struct KvData {
  std::vector<uint8_t> keys, key_numbers, values, value_numbers;  // of turbomind keys alone
  long long keys_page, key_numbers_page, values_page, value_numbers_page;
  std::vector<int> table, lengths, tails;
  std::vector<uint16_t> q, tail_keys, tail_values;
  std::vector<float> sinks;  // of query heads, or none
  // Of each sequence [tokens][kv_heads * dims]: |scale * code| and number of keys, and numbers of values.
  std::vector<std::vector<double>> key_sizes, key_values, value_sizes, value_values;
  int block, page_tokens, table_pages, pages, room;
  cuda::KvDecodeArgs args{};
  float scale;

  KvData(const KvCase& c, uint64_t seed) {
    std::mt19937_64 lot(seed);
    std::normal_distribution<double> normal;
    block = c.block(), page_tokens = block * c.blocks_a_page;
    const int H = c.kv_heads, D = c.dims, P = page_tokens, width = H * c.own();
    table_pages = 1, pages = 0, room = 1, scale = static_cast<float>(1.0 / std::sqrt(c.own()));
    std::vector<int> need;
    for (const int blocks : c.packed_blocks) {
      lengths.push_back(c.words() ? blocks : blocks * block);
      need.push_back((lengths.back() + P - 1) / P);
      table_pages = std::max(table_pages, need.back()), pages += need.back();
    }
    for (const int t : c.tails) room = std::max(room, t);
    pages = std::max(pages, 1), tails = c.tails;
    table.assign(static_cast<size_t>(c.sequences * table_pages), -1);
    std::vector<int> free(static_cast<size_t>(pages));
    for (int i = 0; i < pages; ++i) free[static_cast<size_t>(i)] = i;
    std::shuffle(free.begin(), free.end(), lot);
    size_t next = 0;
    for (int b = 0; b < c.sequences; ++b)
      for (int i = 0; i < need[static_cast<size_t>(b)]; ++i)
        table[static_cast<size_t>(b * table_pages + i)] = free[next++];
    const auto bytes = [&](std::vector<uint8_t>& v, long long page) {
      v.resize(static_cast<size_t>(page * pages));
      for (uint8_t& x : v) x = static_cast<uint8_t>(lot());
      return page;
    };
    // Every bit is drawn; then 16-bit numbers are laid over theirs.
    const long long key_row = D * c.bits / 8, value_row = D * c.of_values() / 8, key_bytes = P * H * key_row,
                    value_bytes = P * H * value_row;
    keys_page = bytes(keys, c.words() ? key_bytes + value_bytes + 8ll * H * P : key_bytes);
    key_numbers_page = values_page = value_numbers_page = keys_page;
    if (!c.words()) {
      values_page = bytes(values, value_bytes);
      key_numbers_page =
          bytes(key_numbers, c.by_token() ? 4ll * P * H * (D / c.key_group) : 4ll * P / c.key_group * H * D);
      value_numbers_page = bytes(value_numbers, 4ll * P * H * (D / c.value_group));
    }
    for (int p = 0; p < pages; ++p)
      for (int side = 0; side < 2; ++side)
        for (int in = 0; in < P; in += side || c.by_token() || c.words() ? 1 : c.key_group)
          for (int h = 0; h < H; ++h)
            for (int d = 0; d < D; d += side ? c.value_group : c.by_token() || c.words() ? c.key_group : 1) {
              const KvPlaces place = side ? value_place(c, P, in, h, d) : key_place(c, P, in, h, d);
              std::vector<uint8_t>& v = numbers_of(c, side);
              const long long at = p * (side ? value_numbers_page : key_numbers_page) + place.number;
              const int top = (1 << (side ? c.of_values() : c.bits)) - 1;
              set_word(v, at,
                       lpq::f32_to_f16(static_cast<float>((0.5 + static_cast<double>(lot() % 1000) / 1000) * 4 / top)));
              set_word(v, at + place.zero, lpq::f32_to_f16(static_cast<float>(-2 + normal(lot))));
            }
    // What lies behind the last token of turbomind is no number.
    if (c.words())
      for (int b = 0; b < c.sequences; ++b)
        for (int t = lengths[static_cast<size_t>(b)]; t < need[static_cast<size_t>(b)] * P; ++t)
          for (int h = 0; h < H; ++h)
            for (int side = 0; side < 2; ++side) {
              const KvPlaces place = word_place(c, P, side == 1, t % P, h, 0);
              const long long at = table[static_cast<size_t>(b * table_pages + t / P)] * keys_page + place.number;
              set_word(keys, at, 0x7e00), set_word(keys, at + 2, 0xfc00);
            }
    const auto halves = [&](std::vector<uint16_t>& v, long long n) {
      v.resize(static_cast<size_t>(n));
      for (uint16_t& x : v) x = lpq::f32_to_f16(static_cast<float>(normal(lot)));
    };
    halves(q, 1ll * c.sequences * c.queries * c.heads * c.own()), halves(tail_keys, 1ll * c.sequences * room * width),
        halves(tail_values, 1ll * c.sequences * room * width);
    read(c);
    place(c);
  }
  // K and V as numbers, of the bytes, lengths and tails that are there.
  void read(const KvCase& c) {
    const int H = c.kv_heads, D = c.own(), P = page_tokens, width = H * D;
    key_sizes.clear(), key_values.clear(), value_sizes.clear(), value_values.clear();
    for (int b = 0; b < c.sequences; ++b) {
      const int packed = lengths[static_cast<size_t>(b)], tail = tails[static_cast<size_t>(b)];
      std::vector<double> ks(static_cast<size_t>((packed + tail) * width)), kv(ks.size()), vs(ks.size()), vv(ks.size());
      for (int t = 0; t < packed + tail; ++t)
        for (int h = 0; h < H; ++h)
          for (int d = 0; d < D; ++d) {
            const size_t i = static_cast<size_t>((t * H + h) * D + d);
            if (t >= packed) {
              const size_t at = static_cast<size_t>((1ll * b * room + t - packed) * width + h * D + d);
              kv[i] = half_number(tail_keys[at]), vv[i] = half_number(tail_values[at]), ks[i] = 0,
              vs[i] = std::fabs(vv[i]);
              continue;
            }
            const int page = table[static_cast<size_t>(b * table_pages + t / P)], in = t % P;
            const auto read = [&](bool value, double& code, double& zero) {
              const KvPlaces at = value ? value_place(c, P, in, h, d) : key_place(c, P, in, h, d);
              const int bits = value ? c.of_values() : c.bits;
              const long long number = page * (value ? value_numbers_page : key_numbers_page) + at.number;
              const int n =
                  word_at(value && !c.words() ? values : keys, page * (value ? values_page : keys_page) + at.word) >>
                      bits * at.place &
                  ((1 << bits) - 1);
              code = n * half_number(word_at(numbers_of(c, value), number)),
              zero = half_number(word_at(numbers_of(c, value), number + at.zero));
            };
            double zero = 0;
            read(false, ks[i], zero), kv[i] = ks[i] + zero;
            read(true, vs[i], zero), vv[i] = vs[i] + zero, vs[i] += std::fabs(zero);
          }
      key_sizes.push_back(std::move(ks)), key_values.push_back(std::move(kv)), value_sizes.push_back(std::move(vs)),
          value_values.push_back(std::move(vv));
    }
  }
  std::vector<uint8_t>& numbers_of(const KvCase& c, bool value) {
    return c.words() ? keys : value ? value_numbers : key_numbers;
  }

 private:
  // The arguments of a launch, as kv_form.cpp makes them.
  void place(const KvCase& c) {
    const int H = c.kv_heads, D = c.dims, P = page_tokens, R = 16 / c.bits;
    const bool o = c.outer;
    cuda::KvDecodeArgs& a = args;
    a.keys = keys.data(), a.values = values.data(), a.key_numbers = key_numbers.data(),
    a.value_numbers = value_numbers.data();
    a.keys_page = keys_page, a.values_page = values_page, a.key_numbers_page = key_numbers_page,
    a.value_numbers_page = value_numbers_page;
    a.key_row = 2 * D * (o ? 1 : H), a.key_head = o ? 2 * D * P / R : 2 * D;
    a.key_number_row = 4 * D * (o ? 1 : H), a.key_number_head = o ? 4 * D * P / c.key_group : 4 * D;
    if (c.by_token()) a.key_number_head = o ? 4 * P * (D / c.key_group) : 4 * P, a.key_number_row = 4 * P * (o ? 1 : H);
    a.value_row = D * c.of_values() / 8 * (o ? 1 : H),
    a.value_head = o ? D * c.of_values() / 8 * P : D * c.of_values() / 8;
    a.value_number_head = o ? 4 * P * (D / c.value_group) : 4 * P, a.value_number_group = 4 * P * (o ? 1 : H);
    if (c.words()) {
      const int key_row = D * c.bits / 8, value_row = D * c.of_values() / 8;
      a.values = keys.data() + P * key_row,
      a.key_numbers = keys.data() + static_cast<long long>(H) * P * (key_row + value_row),
      a.value_numbers = a.key_numbers + 4 * P;
      a.key_row = key_row, a.value_row = value_row, a.key_head = a.value_head = P * (key_row + value_row),
      a.key_number_head = a.value_number_head = 8 * P;
    }
    a.head_dims = c.own(), a.page_tokens = P, a.table_pages = table_pages, a.pages = pages, a.heads = c.heads,
    a.kv_heads = H, a.queries = c.queries;
    a.query_tiles = (c.heads / H + 7) / 8, a.splits = c.splits, a.room = room, a.run = c.run(),
    a.key_group = c.key_group, a.value_group = c.value_group;
    a.key_bits = c.bits, a.value_bits = c.of_values(), a.by_token = c.by_token() || c.words(), a.words = c.words();
    a.page_units = P / c.tile() * (c.words() ? 1 : 2),
    a.page_shift = c.blocks_a_page == 1 ? -1 : std::countr_zero(static_cast<unsigned>(a.page_units));
    a.scale = scale * 1.44269504f;
    a.q = q.data(), a.table = table.data(), a.lengths = lengths.data(), a.tail_keys = tail_keys.data(),
    a.tail_values = tail_values.data(), a.tails = tails.data();
  }
};

// y and its bound for query head `head` of sequence b, whose newest `queries` tokens ask; `unit`: of y's type.
// rounded: keys and values are made halves, not scores and weights; u of keys and values each.
inline void kv_expected(const KvCase& c, const KvData& data, int b, int head, double unit, std::vector<double>& y,
                        std::vector<double>& bound, int query = 0, bool rounded = false) {
  const int D = c.own(), H = c.kv_heads, kv = head / (c.heads / H), top = (1 << c.bits) - 1,
            value_top = (1 << c.of_values()) - 1;
  const size_t s = static_cast<size_t>(b);
  const int tokens = data.lengths[s] + data.tails[s] - c.queries + query + 1;
  y.assign(static_cast<size_t>(D), 0), bound.assign(static_cast<size_t>(D), 1e-30);
  if (tokens <= 0) return;
  std::vector<double> score(static_cast<size_t>(tokens));
  double delta = 0, most = -INFINITY, furthest = 0;
  for (int t = 0; t < tokens; ++t) {
    double sum = 0, codes = 0, all = 0, q_all = 0;
    for (int d = 0; d < D; ++d) {
      const size_t at = static_cast<size_t>((t * H + kv) * D + d);
      const double q = half_number(data.q[static_cast<size_t>(((b * c.queries + query) * c.heads + head) * D + d)]),
                   k = data.key_values[s][at], size = data.key_sizes[s][at];
      sum += q * k, codes += std::fabs(q) * size, all += std::fabs(q) * (size + std::fabs(k - size)), q_all += top;
    }
    const double error = (rounded ? all : codes) * 0x1p-11 + q_all * 0x1p-25 +
                         all * (c.dims / 16 * 17 * 0x1p-23 + c.dims * 0x1p-24 + 0x1p-22);
    score[static_cast<size_t>(t)] = sum * data.scale;
    delta = std::max(delta, error * std::fabs(data.scale)), most = std::max(most, score[static_cast<size_t>(t)]),
    furthest = std::max(furthest, std::fabs(score[static_cast<size_t>(t)]));
  }
  if (!data.sinks.empty()) most = std::max<double>(most, data.sinks[static_cast<size_t>(head)]);
  double total = data.sinks.empty() ? 0 : std::exp(data.sinks[static_cast<size_t>(head)] - most);
  for (double& x : score) total += x = std::exp(x - most);
  const double weights = std::expm1(2 * delta + 4 * furthest * 0x1p-22 + 0x1p-20),
               sums = 2 * (tokens / 16.0 * 17 * 0x1p-23 + tokens * 0x1p-24 + 64 * 0x1p-24);
  for (int d = 0; d < D; ++d) {
    double value = 0, size = 0, largest = 0;
    for (int t = 0; t < tokens; ++t) {
      const size_t at = static_cast<size_t>((t * H + kv) * D + d);
      const double w = score[static_cast<size_t>(t)] / total;
      value += w * data.value_values[s][at], size += w * data.value_sizes[s][at],
          largest = std::max(largest, data.value_sizes[s][at]);
    }
    y[static_cast<size_t>(d)] = value;
    bound[static_cast<size_t>(d)] = 1.05 * (2 * weights + (rounded ? 0x1p-10 : 3 * 0x1p-11) + sums) * size +
                                    tokens * (value_top + (rounded ? 0 : 2 * largest)) * 0x1p-25 / total +
                                    unit * std::fabs(value) + 1e-7;
  }
}

}  // namespace lpq::test
