// The decode kernels of packed keys and values (native/cuda/attention), run on the host by threads that the host plays: every
// width, head dim and group that is compiled, MHA, GQA and MQA, splits, pages out of order, heads inside and outside, empty sequences and
// exact tails of every length; against double precision, elementwise. Shared memory and outputs are full of NaN before.
#define LPQ_SIMT "simt_attention.h"
#include <cstdio>
#include <limits>
#include <string>

#include "attention_case.h"
#include "cuda/attention/kv_decode.cuh"
#include "cuda/attention/kv_pack.cuh"

using namespace lpq::cuda;
using namespace lpq::test;

namespace {

long long checks = 0, failures = 0;
double worst = 0;
uint64_t seed = 1;

template <int BITS, int DIMS, int KEY_GROUP, int VALUE_GROUP>
void one(int sequences, int heads, int kv_heads, int splits, bool outer, int blocks_a_page, std::vector<int> blocks, std::vector<int> tails) {
  const KvCase c{BITS, DIMS, KEY_GROUP, VALUE_GROUP, sequences, heads, kv_heads, splits, outer, blocks_a_page, blocks, tails};
  KvData data(c, ++seed);
  using Shape = KvShape<BITS, DIMS, KEY_GROUP, VALUE_GROUP>;
  KvDecodeArgs a = data.args;
  const int tiles = sequences * kv_heads * a.query_tiles;
  std::vector<float> partial(static_cast<size_t>(tiles) * static_cast<size_t>(a.splits) * kKvRecord<DIMS>, NAN), y(static_cast<size_t>(sequences * heads * DIMS), NAN);
  a.q = data.q.data(), a.keys = data.keys.data(), a.key_numbers = data.key_numbers.data(), a.values = data.values.data(), a.value_numbers = data.value_numbers.data();
  a.table = data.table.data(), a.lengths = data.lengths.data(), a.partial = partial.data();
  a.tail_keys = data.tail_keys.data(), a.tail_values = data.tail_values.data(), a.tails = data.tails.data();
  std::vector<unsigned> counters(static_cast<size_t>(tiles), 0);
  a.counters = counters.data(), a.y = y.data(), a.wide = 1;
  const std::string name = "u" + std::to_string(BITS) + " d" + std::to_string(DIMS) + " g" + std::to_string(KEY_GROUP) + "/" + std::to_string(VALUE_GROUP) + " heads " + std::to_string(heads) + "/" +
                           std::to_string(kv_heads) + " splits " + std::to_string(splits);
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  ++checks;
  try {
    simt::copies.clear();
    simt::run(tiles * splits, 32 * Shape::kWarps, 1, Shape::kShared, seed, [&] { kv_decode<Shape>(a); });
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  for (const unsigned count : counters)
    if (count) return fail("a counter is left at " + std::to_string(count));
  std::vector<double> want, bound;
  for (int b = 0; b < sequences; ++b)
    for (int h = 0; h < heads; ++h) {
      kv_expected(c, data, b, h, 0x1p-24, want, bound);
      for (int d = 0; d < DIMS; ++d) {
        const double got = y[static_cast<size_t>((b * heads + h) * DIMS + d)], share = std::fabs(got - want[static_cast<size_t>(d)]) / bound[static_cast<size_t>(d)];
        if (!(share <= 1)) return fail("sequence " + std::to_string(b) + ", head " + std::to_string(h) + ", dim " + std::to_string(d) + " is " + std::to_string(got) + ", not " + std::to_string(want[static_cast<size_t>(d)]) + " within " + std::to_string(bound[static_cast<size_t>(d)]));
        worst = std::max(worst, share);
      }
    }
}

// Two blocks packed at the second of three, compared with codes and numbers made one by one; nothing else may change.
template <int bits, int dims>
void packed(int key_group, int value_group, bool outer) {
  const KvCase c{bits, dims, key_group, value_group, 1, 2, 2, 1, outer, 1, {3}, {0}};
  KvData data(c, ++seed);
  const int H = c.kv_heads, D = dims, block = data.block, top = (1 << bits) - 1, width = H * D;
  std::mt19937_64 lot(seed);
  std::normal_distribution<double> normal;
  std::vector<uint16_t> x[2];
  for (auto& side : x) {
    side.resize(static_cast<size_t>(2 * block * width));
    for (size_t i = 0; i < side.size(); ++i) side[i] = lpq::f32_to_f16(static_cast<float>(i % static_cast<size_t>(D) == 9 ? 0.25 : (1 + 7.0 * (i % 13 == 0)) * normal(lot)));
  }
  const auto keys = data.keys, key_numbers = data.key_numbers, values = data.values, value_numbers = data.value_numbers;
  KvPackArgs a{x[0].data(), x[1].data(), data.table.data(), data.keys.data(), data.key_numbers.data(), data.values.data(), data.value_numbers.data(), data.args, block, block, key_group, value_group,
               std::min(128, block)};
  const int shared = (2 * block * (D + 2) + 15) / 16 * 16 + 16 * std::max(block / key_group * D, D / value_group * block);
  ++checks;
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL pack u%d d%d g%d/%d: %s\n", bits, dims, key_group, value_group, what.c_str());
  };
  try {
    simt::run(2 * 2 * H, kPackThreads, 1, shared, seed, [&] { kv_pack<bits, dims>(a); });
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  // What should stand there: bytes as they were, then every field set.
  auto want_keys = keys, want_key_numbers = key_numbers, want_values = values, want_value_numbers = value_numbers;
  const auto set16 = [](std::vector<uint8_t>& v, long long at, uint16_t w) { v[static_cast<size_t>(at)] = static_cast<uint8_t>(w), v[static_cast<size_t>(at + 1)] = static_cast<uint8_t>(w >> 8); };
  for (int t = 0; t < 2 * block; ++t)
    for (int h = 0; h < H; ++h)
      for (int d = 0; d < D; ++d)
        for (int side = 0; side < 2; ++side) {
          const auto at = [&](int token, int dim) { return lpq::f16_to_f32(x[side][static_cast<size_t>((token * H + h) * D + dim)]); };
          float low = INFINITY, high = -INFINITY;
          for (int i = 0; i < (side ? value_group : key_group); ++i) {
            const float v = side ? at(t, d / value_group * value_group + i) : at(t / key_group * key_group + i, d);
            low = std::min(low, v), high = std::max(high, v);
          }
          const uint16_t scale = lpq::f32_to_f16((high - low) / static_cast<float>(top));
          const float s = lpq::f16_to_f32(scale);
          const int code = s > 0 ? static_cast<int>(std::nearbyint(std::min((at(t, d) - low) / s, static_cast<float>(top)))) : 0;
          const int page = data.table[static_cast<size_t>((t + block) / data.page_tokens)], in = (t + block) % data.page_tokens;
          const KvPlace p = side ? value_place(c, data.args, page, in, h, d) : key_place(c, data.args, page, in, h, d);
          auto& codes = side ? want_values : want_keys;
          const int mask = top << bits * p.place;
          set16(codes, p.word, static_cast<uint16_t>((word_at(codes, p.word) & ~mask) | code << bits * p.place));
          set16(side ? want_value_numbers : want_key_numbers, p.number, scale);
          set16(side ? want_value_numbers : want_key_numbers, p.number + p.zero, lpq::f32_to_f16(low));
        }
  if (data.keys != want_keys) fail("keys");
  if (data.key_numbers != want_key_numbers) fail("numbers of keys");
  if (data.values != want_values) fail("values");
  if (data.value_numbers != want_value_numbers) fail("numbers of values");
}

template <int BITS, int DIMS>
void sweep() {
  constexpr int whole = DIMS < 128 ? DIMS : 128;
  one<BITS, DIMS, 128, whole>(2, 8, 2, 2, false, 1, {3, 1}, {5, 0});
  one<BITS, DIMS, 32, 32>(1, 4, 2, 1, true, 2, {2}, {64});
}

}  // namespace

int main() {
  sweep<4, 128>();
  sweep<2, 128>();
  sweep<8, 128>();
  sweep<4, 64>();
  sweep<2, 64>();
  sweep<8, 64>();
  sweep<4, 256>();
  sweep<2, 256>();
  sweep<8, 256>();
  one<4, 128, 128, 128>(1, 2, 2, 3, false, 1, {9}, {1});        // MHA, more blocks than warps
  one<2, 128, 32, 32>(1, 20, 1, 2, false, 1, {2}, {0});         // MQA: three tiles of queries
  one<4, 64, 128, 64>(3, 2, 1, 2, false, 1, {0, 0, 1}, {0, 1, 127});  // empty, one token
  packed<4, 128>(128, 128, false);
  packed<2, 128>(32, 32, true);
  packed<8, 64>(128, 64, false);
  packed<2, 64>(128, 64, false);
  packed<4, 256>(32, 128, true);
  std::printf("%lld caches, %lld failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures ? 1 : 0;
}
