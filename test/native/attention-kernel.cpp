// The decode kernels of packed keys and values (native/cuda/attention), run on the host by threads that the host plays:
// every width, head dim and group that is compiled, MHA, GQA and MQA, splits, pages out of order, heads inside and
// outside, empty sequences and exact tails of every length; against double precision, elementwise. Shared memory and
// outputs are full of NaN before.
#include <cstdio>
#include <limits>
#include <string>

#include "asynchronous.h"
#include "attention_case.h"
#include "cuda/attention/kv_decode.cuh"
#include "cuda/attention/kv_prefill.cuh"
#include "cuda/attention/kv_prefill_sm90.cuh"

using namespace lpq::cuda;
using namespace lpq::test;

namespace {

long long checks = 0, failures = 0;
double worst = 0;
uint64_t seed = 1;

// Every other case has sinks, about as large as the largest scores, and every third queries of bf16, which f16 holds.
struct Besides {
  std::vector<uint16_t> sinks, queries;
  Besides(const KvCase& c, KvData& data, KvDecodeArgs& a) {
    if (seed % 2)
      for (int h = 0; h < c.heads; ++h) {
        sinks.push_back(lpq::f32_to_bf16(static_cast<float>(h % 5)));
        data.sinks.push_back(static_cast<float>(h % 5));
      }
    if (seed % 3 == 0) {
      for (uint16_t& x : data.q) {
        queries.push_back(lpq::f32_to_bf16(lpq::f16_to_f32(x)));
        x = lpq::f32_to_f16(lpq::bf16_to_f32(queries.back()));
      }
      a.q = queries.data(), a.bf16_queries = 1;
    }
    a.sinks = sinks.empty() ? nullptr : sinks.data(), a.sinks_type = 2;
  }
};

// By so many warps, or pairs of them where those share units.
template <int KEYS, int VALUES, int DIMS, KvForm FORM, int QUERIES>
void of_queries(KvCase c, int workers) {
  c.bits = KEYS, c.value_bits = VALUES, c.dims = DIMS, c.form = FORM;
  KvData data(c, ++seed);
  using Shape = KvShape<KEYS, VALUES, DIMS, FORM, QUERIES>;
  const int warps = workers * Shape::kSharers;
  KvDecodeArgs a = data.args;
  Besides besides(c, data, a);
  std::vector<uint16_t>& narrow = besides.queries;
  a.query_tiles = (c.heads / c.kv_heads + QUERIES - 1) / QUERIES;
  a.joined = seed % 2 ? 2 : 16;  // runs of two splits, or all at once
  const int tiles = c.sequences * c.kv_heads * a.query_tiles, runs = kv_runs(a.splits, a.joined);
  std::vector<float> partial(static_cast<size_t>(tiles) * static_cast<size_t>(a.splits + runs) * Shape::kRecord, NAN),
      y(static_cast<size_t>(c.sequences * c.heads * c.own()), NAN);
  std::vector<unsigned> counters(static_cast<size_t>(tiles * (1 + runs)), 0);
  unsigned fault = 0;
  a.partial = partial.data(), a.counters = counters.data(), a.y = y.data(), a.store = kKvStoreF32, a.fault = &fault,
  a.early = static_cast<int>(seed & 1);
  const std::string name = "k" + std::to_string(KEYS) + " v" + std::to_string(VALUES) + " d" + std::to_string(c.own()) +
                           " of " + std::to_string(DIMS) + " form " + std::to_string(static_cast<int>(FORM)) + " g" +
                           std::to_string(c.key_group) + " heads " + std::to_string(c.heads) + "/" +
                           std::to_string(c.kv_heads) + " by " + std::to_string(QUERIES) + " splits " +
                           std::to_string(c.splits) + " warps " + std::to_string(warps);
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  ++checks;
  const int shared = std::max(warps * Shape::kStage, workers * Shape::kRecord * 4 + 16);
  try {
    simt::begin(++seed);
    // Queries and the tail come from the operation before.
    const std::vector<std::vector<uint16_t>*> late{narrow.empty() ? &data.q : &narrow, &data.tail_keys,
                                                   &data.tail_values};
    const std::vector<std::vector<uint16_t>> written{*late[0], data.tail_keys, data.tail_values};
    simt::KernelBefore before{[&] {
                                for (std::vector<uint16_t>* each : late) std::fill(each->begin(), each->end(), 0x7fff);
                              },
                              [&] {
                                for (size_t i = 0; i < late.size(); ++i)
                                  std::copy(written[i].begin(), written[i].end(), late[i]->begin());
                              }};
    simt::run(tiles * c.splits, 32 * warps, 1, shared, seed, [&] {
      before.begin();
      kv_decode<Shape>(a);
    });
    if (simt::kernel_before) return fail("nothing waits for the operation before");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  if (fault) return fail("a fault is told");
  for (const unsigned count : counters)
    if (count) return fail("a counter is left at " + std::to_string(count));
  std::vector<double> want, bound;
  for (int b = 0; b < c.sequences; ++b)
    for (int h = 0; h < c.heads; ++h) {
      kv_expected(c, data, b, h, 0x1p-24, want, bound);
      for (int d = 0; d < c.own(); ++d) {
        const double got = y[static_cast<size_t>((b * c.heads + h) * c.own() + d)],
                     share = std::fabs(got - want[static_cast<size_t>(d)]) / bound[static_cast<size_t>(d)];
        if (!(share <= 1))
          return fail("sequence " + std::to_string(b) + ", head " + std::to_string(h) + ", dim " + std::to_string(d) +
                      " is " + std::to_string(got) + ", not " + std::to_string(want[static_cast<size_t>(d)]) +
                      " within " + std::to_string(bound[static_cast<size_t>(d)]));
        worst = std::max(worst, share);
      }
    }
}

// By blocks of 8 and of 16 queries, whatever the group.
template <int KEYS, int VALUES, int DIMS, KvForm FORM>
void one(const KvCase& c, int warps) {
  of_queries<KEYS, VALUES, DIMS, FORM, 8>(c, warps);
  if constexpr (DIMS < 256) of_queries<KEYS, VALUES, DIMS, FORM, 16>(c, warps);
}

// Many queries, by either kernel: y is full of NaN before.
template <int KEYS, int VALUES, int DIMS, KvForm FORM>
void prefill(KvCase c, int queries, float sign = 1) {
  c.bits = KEYS, c.value_bits = VALUES, c.dims = DIMS, c.form = FORM, c.queries = queries;
  KvData data(c, ++seed);
  data.scale *= sign, data.args.scale *= sign;
  Besides besides(c, data, data.args);
  using Portable = PrefillTile<KEYS, VALUES, DIMS, FORM>;
  using Hopper = HopperTile<KEYS, VALUES, DIMS, FORM>;
  for (const bool wgmma : {false, true}) {
    KvDecodeArgs a = data.args;
    std::vector<float> y(static_cast<size_t>(c.sequences * c.queries * c.heads * c.own()), NAN);
    unsigned fault = 0;
    const int rows = wgmma ? kHopperRows<Hopper> : kPrefillRows<Portable>;
    a.query_tiles = (c.queries * (c.heads / c.kv_heads) + rows - 1) / rows;
    const int tiles = c.sequences * c.kv_heads * a.query_tiles;
    std::vector<float> partial(static_cast<size_t>(tiles * a.splits * (2 * rows + rows * DIMS)), NAN);
    std::vector<unsigned> counters(static_cast<size_t>(tiles), 0);
    a.y = y.data(), a.store = kKvStoreF32, a.fault = &fault, a.partial = partial.data(), a.counters = counters.data();
    const auto fail = [&](const std::string& what) {
      if (++failures <= 20)
        std::printf("FAIL prefill%s k%d v%d d%d of %d form %d g%d splits %d: %s\n", wgmma ? " by wgmma" : "", KEYS,
                    VALUES, c.own(), DIMS, static_cast<int>(FORM), c.key_group, c.splits, what.c_str());
    };
    ++checks;
    simt::begin(++seed);
    const std::string error =
        wgmma ? simt::try_run(tiles * a.splits, HopperShared<Hopper>::kThreads, 1, HopperShared<Hopper>::kBytes, seed,
                              [&] { kv_prefill_sm90<Hopper>(a); })
              : simt::try_run(tiles * a.splits, kPrefillWorkers, 1, kPrefillShared<Portable>, seed,
                              [&] { kv_prefill<Portable>(a); });
    if (!error.empty()) {
      fail(error);
      continue;
    }
    if (fault) fail("a fault is told");
    for (const unsigned count : counters)
      if (count) fail("a counter is left at " + std::to_string(count));
    double here = 0;
    std::vector<double> want, bound;
    for (int b = 0; b < c.sequences; ++b)
      for (int query = 0; query < c.queries; ++query)
        for (int h = 0; h < c.heads; ++h) {
          kv_expected(c, data, b, h, 0x1p-24, want, bound, query, true);
          for (int d = 0; d < c.own(); ++d) {
            const double got = y[static_cast<size_t>(((b * c.queries + query) * c.heads + h) * c.own() + d)],
                         share = std::fabs(got - want[static_cast<size_t>(d)]) / bound[static_cast<size_t>(d)];
            here = std::isnan(share) ? INFINITY : std::max(here, share);
          }
        }
    if (!(here <= 1)) fail(std::to_string(here) + " of the bound");
    else worst = std::max(worst, here);
  }
}

// Packed tokens that are no whole tiles: told by both kernels, and such a sequence is an empty one.
void half_a_tile() {
  KvCase c{4, 128, 128, 128, 1, 2, 1, 1, false, 1, {1}, {2}};
  c.queries = 2;
  for (const bool many : {false, true}) {
    KvData data(c, ++seed);
    KvDecodeArgs a = data.args;
    data.lengths[0] = 64;
    std::vector<float> y(static_cast<size_t>(c.queries * c.heads * c.own()), NAN);
    unsigned fault = 0, counter = 0;
    a.y = y.data(), a.store = kKvStoreF32, a.fault = &fault, a.counters = &counter, a.joined = 16;
    ++checks;
    simt::begin(++seed);
    using Shape = KvShape<4, 4, 128, KvForm::kWide, 8>;
    using Tile = PrefillTile<4, 4, 128, KvForm::kFine>;
    if (many) simt::run(1, kPrefillWorkers, 1, kPrefillShared<Tile>, seed, [&] { kv_prefill<Tile>(a); });
    else simt::run(1, 32, 1, Shape::kStage, seed, [&] { kv_decode<Shape>(a); });
    if (!fault && ++failures <= 20) std::printf("FAIL half a tile is not told\n");
  }
}

// Groups by the largest that there is, or of `group`.
KvCase of_group(int group, int dims, int sequences, int heads, int kv_heads, int splits, bool outer, int blocks_a_page,
                std::vector<int> blocks, std::vector<int> tails) {
  return {0,        0,      group, std::min(group, dims), sequences,         heads,
          kv_heads, splits, outer, blocks_a_page,         std::move(blocks), std::move(tails)};
}

// The case, of heads that are stored as the next size.
KvCase of_head(int head_dims, KvCase c) {
  c.head_dims = head_dims;
  return c;
}

template <int KEYS, int VALUES, int DIMS>
void sweep() {
  using F = KvForm;
  constexpr int whole = DIMS < 128 ? DIMS : 128;
  one<KEYS, VALUES, DIMS, F::kWide>(of_group(128, DIMS, 2, 8, 2, 2, false, 1, {3, 1}, {5, 0}), 3);
  one<KEYS, VALUES, DIMS, F::kFine>(of_group(32, DIMS, 1, 4, 2, 1, true, 2, {2}, {40}), 2);
  one<KEYS, VALUES, DIMS, F::kTokens>(of_group(whole, DIMS, 1, 4, 2, 2, true, 1, {2}, {17}), 2);
  if constexpr (KEYS != 2)
    one<KEYS, VALUES, DIMS, F::kWords>(of_group(DIMS, DIMS, 2, 4, 2, 2, false, 2, {131, 64}, {0, 3}), 2);
  one<KEYS, VALUES, DIMS, F::kFine>(of_group(64, DIMS, 1, 2, 1, 2, false, 1, {3}, {0}), 3);
  one<KEYS, VALUES, DIMS, F::kTokens>(of_group(32, DIMS, 1, 2, 1, 1, false, 2, {1}, {1}), 1);
  one<KEYS, VALUES, DIMS, F::kTokens>(of_group(64, DIMS, 1, 2, 2, 1, false, 1, {1}, {0}), 2);
}

template <int DIMS>
void prefills() {
  using F = KvForm;
  for (const int group : {32, 64, 128}) {
    const KvCase tail = of_group(group, DIMS, 1, 4, 2, 2, group == 32, 1, {3}, {9}),
                 two = of_group(group, DIMS, 2, 2, 1, 1, group != 32, 2, {2, 1}, {0, 40});
    prefill<2, 2, DIMS, F::kFine>(tail, 7), prefill<4, 4, DIMS, F::kFine>(two, 20);
    prefill<8, 8, DIMS, F::kFine>(tail, 33), prefill<8, 4, DIMS, F::kFine>(two, 3);
    if (group > DIMS) continue;
    prefill<2, 2, DIMS, F::kTokens>(two, 7), prefill<4, 4, DIMS, F::kTokens>(tail, 20);
    prefill<8, 8, DIMS, F::kTokens>(two, 33), prefill<8, 4, DIMS, F::kTokens>(tail, 3);
  }
  const KvCase words = of_group(DIMS, DIMS, 2, 4, 2, 2, false, 2, {131, 70}, {0, 0});
  prefill<4, 4, DIMS, F::kWords>(words, 50), prefill<8, 8, DIMS, F::kWords>(words, 9);
  prefill<8, 4, DIMS, F::kWords>(words, 2);
}

}  // namespace

int main() {
  sweep<4, 4, 128>();
  sweep<2, 2, 128>();
  sweep<8, 4, 64>();
  one<2, 2, 64, KvForm::kWide>(of_group(128, 64, 2, 8, 2, 2, false, 1, {3, 1}, {5, 0}),
                               3);  // two codes of a word fill the rows of an mma
#ifdef LPQ_ALL_FORMS
  sweep<2, 2, 64>(), sweep<4, 4, 64>(), sweep<8, 8, 64>(), sweep<8, 8, 128>(), sweep<8, 4, 128>(), sweep<2, 2, 256>(),
      sweep<4, 4, 256>(), sweep<8, 8, 256>(), sweep<8, 4, 256>(), sweep<2, 2, 512>(), sweep<4, 4, 512>(),
      sweep<8, 8, 512>(), sweep<8, 4, 512>();
#endif
  one<4, 4, 128, KvForm::kWide>(of_group(128, 128, 1, 2, 2, 3, false, 1, {9}, {1}), 4);  // MHA, more blocks than warps
  one<2, 2, 128, KvForm::kFine>(of_group(32, 128, 1, 20, 1, 2, false, 1, {2}, {0}), 2);  // MQA: three tiles of queries
  one<4, 4, 128, KvForm::kWide>(of_group(128, 128, 3, 2, 1, 2, false, 1, {0, 0, 1}, {0, 1, 127}),
                                2);                                                     // empty, one token
  one<4, 4, 64, KvForm::kWide>(of_group(128, 64, 1, 2, 2, 5, false, 1, {11}, {1}), 1);  // runs of splits
  for (const int group : {1, 3, 12, 64})  // one, some, and several blocks of every size
    one<4, 4, 64, KvForm::kWide>(of_group(128, 64, 1, group, 1, 2, false, 1, {2}, {3}), 2);
  one<8, 4, 64, KvForm::kWords>(of_group(64, 64, 3, 2, 1, 2, false, 1, {0, 1, 65}, {0, 0, 0}), 1);
  using F = KvForm;
  one<4, 4, 128, F::kWide>(of_head(80, of_group(128, 128, 2, 4, 2, 2, false, 1, {3, 0}, {5, 1})), 2);
  one<2, 2, 128, F::kFine>(of_head(96, of_group(32, 128, 1, 2, 2, 1, true, 1, {2}, {20})), 2);
  one<8, 4, 256, F::kTokens>(of_head(192, of_group(64, 256, 1, 2, 1, 2, false, 1, {2}, {3})), 2);
  one<4, 4, 128, F::kWords>(of_head(72, of_group(128, 128, 2, 2, 1, 1, false, 1, {70, 1}, {0, 0})), 1);
  // Of heads of 512 dims two warps share a unit.
  one<4, 4, 512, F::kWide>(of_group(128, 512, 2, 16, 1, 2, false, 1, {3, 0}, {40, 1}), 2);
  one<2, 2, 512, F::kTokens>(of_head(264, of_group(32, 512, 1, 20, 1, 1, true, 1, {1}, {9})), 1);
  one<8, 4, 512, F::kFine>(of_head(504, of_group(32, 512, 1, 2, 2, 3, true, 1, {3}, {17})), 2);
  one<8, 8, 512, F::kWords>(of_head(320, of_group(512, 512, 2, 8, 1, 2, false, 2, {131, 64}, {0, 3})), 2);
  prefill<4, 4, 128, F::kFine>(of_head(80, of_group(128, 128, 2, 4, 2, 2, false, 1, {2, 0}, {70, 3})), 21);
  prefill<8, 8, 256, F::kWords>(of_head(192, of_group(256, 256, 1, 2, 1, 1, false, 2, {70}, {0})), 3);
  // Few rows of heads of 256 dims over many tiles: a ring of three has no room for turns.
  prefill<4, 4, 256, F::kFine>(of_group(128, 256, 1, 4, 1, 1, false, 1, {4}, {33}), 7);
  // Of heads of 512 dims warps, or warpgroups, share rows: more of them than a block has, and splits.
  prefill<4, 4, 512, F::kFine>(of_group(128, 512, 1, 16, 1, 2, false, 1, {2}, {33}), 9);
  prefill<8, 8, 512, F::kWords>(of_head(320, of_group(512, 512, 1, 2, 1, 1, false, 2, {70}, {0})), 3);
  prefill<2, 2, 512, F::kTokens>(of_head(264, of_group(32, 512, 2, 2, 1, 1, true, 1, {1, 0}, {9, 3})), 4, -1);
  prefill<2, 2, 128, F::kTokens>(of_head(120, of_group(32, 128, 1, 2, 1, 1, true, 1, {1}, {9})), 12);
  // Packed and exact tokens, queries before the first token, splits of which some are empty.
  prefill<4, 4, 128, F::kFine>(of_group(128, 128, 2, 6, 2, 1, false, 1, {2, 0}, {70, 3}), 30);
  prefill<4, 4, 128, F::kFine>(of_group(32, 128, 1, 4, 1, 3, true, 2, {3}, {20}), 40, -1);
  prefill<2, 2, 64, F::kFine>(of_group(64, 64, 1, 2, 1, 1, true, 2, {1}, {1}), 5);
  prefill<2, 2, 128, F::kFine>(of_group(128, 128, 1, 2, 1, 2, false, 1, {2}, {30}), 70);
  prefill<8, 4, 128, F::kTokens>(of_group(64, 128, 1, 2, 2, 1, true, 1, {1}, {0}), 70);
  prefill<4, 4, 64, F::kWords>(of_group(64, 64, 2, 4, 1, 2, false, 1, {100, 1}, {0, 0}), 20);
  prefill<8, 8, 256, F::kWords>(of_group(256, 256, 1, 2, 1, 1, false, 2, {70}, {0}), 3);
#ifdef LPQ_ALL_FORMS
  prefills<64>(), prefills<128>(), prefills<256>(), prefills<512>();
#endif
  half_a_tile();
  std::printf("%lld caches, %lld failures, at most %.4f of the bound\n", checks, failures, worst);
  return failures ? 1 : 0;
}
