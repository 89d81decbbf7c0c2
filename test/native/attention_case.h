// A packed cache as formats/kv/spec.md describes it, with random codes, and attention over it in double precision with the bound
// that the decode kernels keep: for the program that plays them on the host, and the one that runs them on a device.
//
// The bound. u = 2^-11 is half a unit of f16. Scores: q times a group's scale is rounded to f16 once, so that a score errs by
// u sum |q| s code, what is below 2^-14 by 2^-25 a term; codes are exact. The tensor core aligns 17 terms to the largest and may drop what
// is below 2^-23 of it: (D/16) 17 2^-23 of the sum of magnitudes for codes and for zeros. Hence delta, times scale; weights err by
// exp(2 delta) - 1 and 2^-21 for 2^x and the exponents' own rounding (2^-23 |score|). A weight times its scale is rounded to f16: u, or 2^-25
// where it is small; sums over tokens in the tensor core and in fp32: (tokens/16) 17 2^-23 + tokens 2^-24, of numerator and
// denominator; y is rounded to its type.
#pragma once
#include <algorithm>
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
  bool outer;                         // heads outside tokens
  int blocks_a_page;
  std::vector<int> packed_blocks, tails;  // of each sequence
};

inline double half_number(uint16_t v) { return lpq::f16_to_f32(v); }

// Where dim d of head h of token `in` of a page lies, by formats/kv/spec.md: byte of the word and place in it; byte of the scale (the zero
// lies `zero` bytes further).
struct KvPlace {
  long long word, number;
  int place, zero;
};
inline KvPlace key_place(const KvCase& c, const cuda::KvDecodeArgs& a, int page, int in, int h, int d) {
  const int R = 16 / c.bits, tile = 32 * R;
  return {page * a.keys_page + 1ll * (in / tile * 32 + in % 32) * a.key_row + 1ll * h * a.key_head + 2 * d,
          page * a.key_numbers_page + 1ll * (in / c.key_group) * a.key_number_row + 1ll * h * a.key_number_head + d / 2 * 8 + d % 2 * 2, in % tile / 32, 4};
}
inline KvPlace value_place(const KvCase& c, const cuda::KvDecodeArgs& a, int page, int in, int h, int d) {
  const int R = 16 / c.bits, chunk = std::min(c.dims, 128), in_chunk = chunk / R, run = std::min(128, std::max(32 * R, c.key_group));
  return {page * a.values_page + 1ll * in * a.value_row + 1ll * h * a.value_head + 2 * (d / chunk * in_chunk + d % chunk % in_chunk),
          page * a.value_numbers_page + 1ll * (d / c.value_group) * a.value_number_group + 1ll * h * a.value_number_head + in / run * run * 4 + in % run * 2, d % chunk / in_chunk, 2 * run};
}
inline uint16_t word_at(const std::vector<uint8_t>& v, long long at) { return static_cast<uint16_t>(v[static_cast<size_t>(at)] | v[static_cast<size_t>(at + 1)] << 8); }

// Pages, table, queries and tails; K and V as numbers.
struct KvData {
  std::vector<uint8_t> keys, key_numbers, values, value_numbers;
  std::vector<int> table, lengths, tails;
  std::vector<uint16_t> q, tail_keys, tail_values;
  // Of each sequence [tokens][kv_heads * dims]: |scale * code| and number of keys, and numbers of values.
  std::vector<std::vector<double>> key_sizes, key_values, value_sizes, value_values;
  int tile, block, page_tokens, table_pages, pages, room;
  cuda::KvDecodeArgs args{};
  float scale;

  KvData(const KvCase& c, uint64_t seed) {
    std::mt19937_64 lot(seed);
    std::normal_distribution<double> normal;
    const int R = 16 / c.bits;
    tile = 32 * R, block = std::max(tile, c.key_group), page_tokens = block * c.blocks_a_page;
    const int run = std::min(128, block), H = c.kv_heads, D = c.dims, P = page_tokens, width = H * D, top = (1 << c.bits) - 1;
    table_pages = 1, pages = 0, room = 1, scale = static_cast<float>(1.0 / std::sqrt(D));
    std::vector<int> need;
    for (const int blocks : c.packed_blocks) {
      need.push_back((blocks * block + P - 1) / P);
      table_pages = std::max(table_pages, need.back()), pages += need.back();
      lengths.push_back(blocks * block);
    }
    for (const int t : c.tails) room = std::max(room, t);
    pages = std::max(pages, 1), tails = c.tails;
    table.assign(static_cast<size_t>(c.sequences * table_pages), -1);
    std::vector<int> free(static_cast<size_t>(pages));
    for (int i = 0; i < pages; ++i) free[static_cast<size_t>(i)] = i;
    std::shuffle(free.begin(), free.end(), lot);
    size_t next = 0;
    for (int b = 0; b < c.sequences; ++b)
      for (int i = 0; i < need[static_cast<size_t>(b)]; ++i) table[static_cast<size_t>(b * table_pages + i)] = free[next++];
    const auto bytes = [&](std::vector<uint8_t>& v, long long page) {
      v.resize(static_cast<size_t>(page * pages));
      for (uint8_t& x : v) x = static_cast<uint8_t>(lot());
      return page;
    };
    // Every bit is drawn; then 16-bit numbers are laid over theirs.
    args.keys_page = bytes(keys, 2ll * P / R * width), args.values_page = bytes(values, 2ll * P * width / R);
    args.key_numbers_page = bytes(key_numbers, 4ll * P / c.key_group * width);
    args.value_numbers_page = bytes(value_numbers, 4ll * P * H * (D / c.value_group));
    const bool o = c.outer;
    args.key_row = 2 * D * (o ? 1 : H), args.key_head = o ? 2 * D * P / R : 2 * D;
    args.key_number_row = 4 * D * (o ? 1 : H), args.key_number_head = o ? 4 * D * P / c.key_group : 4 * D;
    args.value_row = D * c.bits / 8 * (o ? 1 : H), args.value_head = o ? D * c.bits / 8 * P : D * c.bits / 8;
    args.value_number_head = o ? 4 * P * (D / c.value_group) : 4 * P, args.value_number_group = 4 * P * (o ? 1 : H);
    const auto put = [&](std::vector<uint8_t>& v, long long at, double x) {
      const uint16_t h = lpq::f32_to_f16(static_cast<float>(x));
      v[static_cast<size_t>(at)] = static_cast<uint8_t>(h), v[static_cast<size_t>(at + 1)] = static_cast<uint8_t>(h >> 8);
    };
    for (int p = 0; p < pages; ++p)
      for (int h = 0; h < H; ++h) {
        for (int g = 0; g < P / c.key_group; ++g)
          for (int d = 0; d < D; ++d) {
            const long long at = p * args.key_numbers_page + 1ll * g * args.key_number_row + 1ll * h * args.key_number_head + d / 2 * 8 + d % 2 * 2;
            put(key_numbers, at, (0.5 + static_cast<double>(lot() % 1000) / 1000) * 4 / top), put(key_numbers, at + 4, -2 + normal(lot));
          }
        for (int g = 0; g < D / c.value_group; ++g)
          for (int t = 0; t < P; ++t) {
            const long long at = p * args.value_numbers_page + 1ll * g * args.value_number_group + 1ll * h * args.value_number_head + t / run * run * 4 + t % run * 2;
            put(value_numbers, at, (0.5 + static_cast<double>(lot() % 1000) / 1000) * 4 / top), put(value_numbers, at + 2 * run, -2 + normal(lot));
          }
      }
    const auto halves = [&](std::vector<uint16_t>& v, long long n) {
      v.resize(static_cast<size_t>(n));
      for (uint16_t& x : v) x = lpq::f32_to_f16(static_cast<float>(normal(lot)));
    };
    halves(q, 1ll * c.sequences * c.heads * D), halves(tail_keys, 1ll * c.sequences * room * width), halves(tail_values, 1ll * c.sequences * room * width);
    for (int b = 0; b < c.sequences; ++b) {
      const int packed = lengths[static_cast<size_t>(b)], tail = tails[static_cast<size_t>(b)];
      std::vector<double> ks(static_cast<size_t>((packed + tail) * width)), kv(ks.size()), vs(ks.size()), vv(ks.size());
      for (int t = 0; t < packed + tail; ++t)
        for (int h = 0; h < H; ++h)
          for (int d = 0; d < D; ++d) {
            const size_t i = static_cast<size_t>((t * H + h) * D + d);
            if (t >= packed) {
              const size_t at = static_cast<size_t>((1ll * b * room + t - packed) * width + h * D + d);
              kv[i] = half_number(tail_keys[at]), vv[i] = half_number(tail_values[at]), ks[i] = 0, vs[i] = std::fabs(vv[i]);
              continue;
            }
            const int page = table[static_cast<size_t>(b * table_pages + t / P)], in = t % P;
            const KvPlace kp = key_place(c, args, page, in, h, d), vp = value_place(c, args, page, in, h, d);
            ks[i] = (word_at(keys, kp.word) >> c.bits * kp.place & top) * half_number(word_at(key_numbers, kp.number));
            kv[i] = ks[i] + half_number(word_at(key_numbers, kp.number + kp.zero));
            const int vc = word_at(values, vp.word) >> c.bits * vp.place & top;
            const double s = half_number(word_at(value_numbers, vp.number)), z = half_number(word_at(value_numbers, vp.number + vp.zero));
            vs[i] = vc * s + std::fabs(z), vv[i] = vc * s + z;
          }
      key_sizes.push_back(std::move(ks)), key_values.push_back(std::move(kv)), value_sizes.push_back(std::move(vs)), value_values.push_back(std::move(vv));
    }
    args.page_tokens = P, args.table_pages = table_pages, args.heads = c.heads, args.kv_heads = H;
    args.query_tiles = (c.heads / H + 7) / 8, args.splits = c.splits, args.room = room;
    args.scale = scale * 1.44269504f;
  }
};

// y and its bound for query head `head` of sequence b; `unit`: of y's type.
inline void kv_expected(const KvCase& c, const KvData& data, int b, int head, double unit, std::vector<double>& y, std::vector<double>& bound) {
  const int D = c.dims, H = c.kv_heads, kv = head / (c.heads / H), top = (1 << c.bits) - 1;
  const size_t s = static_cast<size_t>(b);
  const int tokens = data.lengths[s] + data.tails[s];
  y.assign(static_cast<size_t>(D), 0), bound.assign(static_cast<size_t>(D), 1e-30);
  if (tokens == 0) return;
  std::vector<double> score(static_cast<size_t>(tokens));
  double delta = 0, most = -INFINITY, furthest = 0;
  for (int t = 0; t < tokens; ++t) {
    double sum = 0, codes = 0, all = 0, q_all = 0;
    for (int d = 0; d < D; ++d) {
      const size_t at = static_cast<size_t>((t * H + kv) * D + d);
      const double q = half_number(data.q[static_cast<size_t>((b * c.heads + head) * D + d)]), k = data.key_values[s][at], size = data.key_sizes[s][at];
      sum += q * k, codes += std::fabs(q) * size, all += std::fabs(q) * (size + std::fabs(k - size)), q_all += top;
    }
    const double error = codes * 0x1p-11 + q_all * 0x1p-25 + all * (D / 16 * 17 * 0x1p-23 + D * 0x1p-24 + 0x1p-22);
    score[static_cast<size_t>(t)] = sum * data.scale;
    delta = std::max(delta, error * data.scale), most = std::max(most, score[static_cast<size_t>(t)]), furthest = std::max(furthest, std::fabs(score[static_cast<size_t>(t)]));
  }
  double total = 0;
  for (double& x : score) total += x = std::exp(x - most);
  const double weights = std::expm1(2 * delta + 4 * furthest * 0x1p-22 + 0x1p-20), sums = 2 * (tokens / 16.0 * 17 * 0x1p-23 + tokens * 0x1p-24 + 64 * 0x1p-24);
  for (int d = 0; d < D; ++d) {
    double value = 0, size = 0;
    for (int t = 0; t < tokens; ++t) {
      const size_t at = static_cast<size_t>((t * H + kv) * D + d);
      const double w = score[static_cast<size_t>(t)] / total;
      value += w * data.value_values[s][at], size += w * data.value_sizes[s][at];
    }
    y[static_cast<size_t>(d)] = value;
    bound[static_cast<size_t>(d)] = 1.05 * (2 * weights + 0x1p-11 + sums) * size + tokens * top * 0x1p-25 / total + unit * std::fabs(value) + 1e-7;
  }
}

}  // namespace lpq::test
