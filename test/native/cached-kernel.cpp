// The kernel of attention over kept rows (native/cuda/attention/cached.cuh), run on the host by threads that the host
// plays: f16 and bf16, heads that fill the kernel's dims and such that do not, MHA, GQA and MQA, windows, caps, sinks,
// splits, one new token and many, slots in any order; against double precision, elementwise. Rows that no sequence has,
// and outputs, are full of NaN before.
//
// The bound. u = 2^-11 (bf16: 2^-8) is half a unit of the type. q times scale is rounded once, so a score errs by u sum
// |q k| scale, and by (D/16) 17 2^-23 of that sum in the tensor core; delta. Weights err by exp(2 delta) - 1 and what
// 2^x does; each is rounded to u of itself, or 2^-25 (bf16: nothing to speak of). Sums over tokens: (tokens/16 + 64) 17
// 2^-23. y is rounded to u.
#include <cstdio>
#include <random>
#include <string>

#include "asynchronous.h"
#include "cuda/attention/cached.cuh"

using namespace lpq::cuda;

namespace {

long long checks = 0, failures = 0;
double worst = 0;
uint64_t seed = 1;

struct Sequence {
  int slot, past, fresh;
};

template <int DIMS, bool BF>
void one(int heads, int kv_heads, int head_dim, int value_dim, int splits, std::vector<Sequence> sequences,
         int window = 0, float cap = 0, bool sinks = false, bool wide_q = true) {
  const std::string name = std::string(BF ? "bf16" : "f16") + " d" + std::to_string(head_dim) + "/" +
                           std::to_string(value_dim) + " heads " + std::to_string(heads) + "/" +
                           std::to_string(kv_heads) + " splits " + std::to_string(splits) + " window " +
                           std::to_string(window);
  std::mt19937_64 lot(++seed);
  std::normal_distribution<double> normal;
  const double u = BF ? 0x1p-8 : 0x1p-11, tiny = BF ? 0 : 0x1p-25;
  const int rows = 120, slots = 3, group = heads / kv_heads;
  std::vector<int> starts{0}, where, totals;
  int most = 0, longest = 0;
  for (const Sequence& s : sequences) {
    starts.push_back(starts.back() + s.fresh), where.push_back(s.slot), totals.push_back(s.past + s.fresh);
    most = std::max(most, s.fresh), longest = std::max(longest, s.past + s.fresh);
  }
  const int tokens = starts.back();
  std::vector<unsigned short> keys(static_cast<size_t>(slots * rows * kv_heads * head_dim), 0x7fff),
      values(static_cast<size_t>(slots * rows * kv_heads * value_dim), 0x7fff);
  for (const Sequence& s : sequences)
    for (int t = 0; t < s.past + s.fresh; ++t) {
      for (int i = 0; i < kv_heads * head_dim; ++i)
        keys[static_cast<size_t>((s.slot * rows + t) * kv_heads * head_dim + i)] =
            from_float<BF>(static_cast<float>(2 * normal(lot)));
      for (int i = 0; i < kv_heads * value_dim; ++i)
        values[static_cast<size_t>((s.slot * rows + t) * kv_heads * value_dim + i)] =
            from_float<BF>(static_cast<float>(normal(lot)));
    }
  std::vector<float> q(static_cast<size_t>(tokens * heads * head_dim)), sink(static_cast<size_t>(heads));
  std::vector<unsigned short> narrow_q(q.size()), y(static_cast<size_t>(tokens * heads * value_dim), 0x7fff);
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(2 * normal(lot)), narrow_q[i] = from_float<BF>(q[i]);
    if (!wide_q) q[i] = to_float<BF>(narrow_q[i]);
  }
  for (float& s : sink) s = static_cast<float>(2 * normal(lot));
  const double scale = 1 / std::sqrt(head_dim), log2e = 1.4426950408889634;
  CachedArgs a{};
  a.q = wide_q ? static_cast<const void*>(q.data()) : narrow_q.data(), a.wide_q = wide_q, a.keys = keys.data(),
  a.values = values.data();
  a.starts = starts.data(), a.slots = where.data(), a.totals = totals.data(), a.sinks = sinks ? sink.data() : nullptr,
  a.y = y.data();
  a.sequences = static_cast<int>(sequences.size()), a.tokens = tokens, a.slots_count = slots, a.rows = rows,
  a.heads = heads, a.kv_heads = kv_heads, a.group = group;
  a.head_dim = head_dim, a.value_dim = value_dim, a.window = window, a.query_tiles = (most * group + 7) / 8,
  a.splits = splits;
  a.scale = static_cast<float>(scale * log2e), a.cap = static_cast<float>(cap * log2e);
  const int tiles = a.sequences * kv_heads * a.query_tiles;
  std::vector<float> partial(static_cast<size_t>(tiles * splits * kCachedRecord<DIMS>), NAN);
  std::vector<unsigned> counters(static_cast<size_t>(tiles), 0);
  unsigned fault = 0;
  a.partial = partial.data(), a.counters = counters.data(), a.fault = &fault, a.early = static_cast<int>(seed & 1);
  ++checks;
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  try {
    simt::begin(seed);
    // Queries and the rows of new tokens come from the operation before.
    const std::vector<unsigned short> all_keys = keys, all_values = values, all_q = narrow_q;
    const std::vector<float> all_wide = q;
    const auto blank = [&](std::vector<unsigned short>& of, int width) {
      for (const Sequence& s : sequences)
        std::fill_n(of.begin() + (s.slot * rows + s.past) * width, s.fresh * width, 0x7fff);
    };
    simt::KernelBefore before{[&] {
                                blank(keys, kv_heads * head_dim), blank(values, kv_heads * value_dim);
                                std::fill(narrow_q.begin(), narrow_q.end(), 0x7fff), std::fill(q.begin(), q.end(), NAN);
                              },
                              [&] {
                                std::copy(all_keys.begin(), all_keys.end(), keys.begin());
                                std::copy(all_values.begin(), all_values.end(), values.begin());
                                std::copy(all_q.begin(), all_q.end(), narrow_q.begin()),
                                    std::copy(all_wide.begin(), all_wide.end(), q.begin());
                              }};
    simt::run(tiles * splits, 32 * CachedShape<DIMS>::kWarps, 1, CachedShape<DIMS>::kShared, seed, [&] {
      before.begin();
      cached_attention<CachedShape<DIMS>, BF>(a);
    });
    if (simt::kernel_before) return fail("nothing waits for the operation before");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  if (fault) return fail("a fault");
  for (const unsigned count : counters)
    if (count) return fail("a counter is left at " + std::to_string(count));
  for (size_t s = 0; s < sequences.size(); ++s)
    for (int f = 0; f < sequences[s].fresh; ++f)
      for (int h = 0; h < heads; ++h) {
        const int own = sequences[s].past + f, low = window > 0 ? std::max(0, own - window + 1) : 0, kv = h / group,
                  row = starts[s] + f;
        std::vector<double> score;
        double delta = 0, furthest = 0;
        for (int t = low; t <= own; ++t) {
          double sum = 0, size = 0;
          for (int d = 0; d < head_dim; ++d) {
            const double product =
                q[static_cast<size_t>((row * heads + h) * head_dim + d)] *
                static_cast<double>(to_float<BF>(
                    keys[static_cast<size_t>(((sequences[s].slot * rows + t) * kv_heads + kv) * head_dim + d)]));
            sum += product, size += std::fabs(product);
          }
          delta = std::max(delta, size * scale * (u + tiny + DIMS / 16 * 17 * 0x1p-23 + 0x1p-22));
          score.push_back(cap > 0 ? cap * std::tanh(sum * scale / cap) : sum * scale);
          furthest = std::max(furthest, std::fabs(score.back()));
        }
        double peak = sinks ? sink[static_cast<size_t>(h)] : -INFINITY, total = 0;
        for (const double x : score) peak = std::max(peak, x);
        for (double& x : score) total += x = std::exp(x - peak);
        if (sinks) total += std::exp(sink[static_cast<size_t>(h)] - peak);
        const double count = own - low + 1, off = std::expm1(2 * delta + 4 * furthest * 0x1p-22 + 0x1p-20) + u +
                                                  2 * (count / 16 + 64) * 17 * 0x1p-23;
        for (int d = 0; d < value_dim; ++d) {
          double want = 0, size = 0, all = 0;
          for (int t = low; t <= own; ++t) {
            const double v = to_float<BF>(
                values[static_cast<size_t>(((sequences[s].slot * rows + t) * kv_heads + kv) * value_dim + d)]);
            want += score[static_cast<size_t>(t - low)] / total * v,
                size += score[static_cast<size_t>(t - low)] / total * std::fabs(v), all += std::fabs(v);
          }
          const double bound = 1.05 * off * 2 * size + all * tiny / total + u * std::fabs(want) + 1e-7;
          const double got = to_float<BF>(y[static_cast<size_t>((row * heads + h) * value_dim + d)]),
                       share = std::fabs(got - want) / bound;
          if (!(share <= 1))
            return fail("sequence " + std::to_string(s) + ", token " + std::to_string(f) + ", head " +
                        std::to_string(h) + ", dim " + std::to_string(d) + " is " + std::to_string(got) + ", not " +
                        std::to_string(want) + " within " + std::to_string(bound));
          worst = std::max(worst, share);
        }
      }
}

template <bool BF>
void sweep() {
  one<128, BF>(8, 2, 128, 128, 2, {{2, 99, 1}, {0, 16, 1}, {1, 0, 1}});       // decode, GQA, a sequence of one token
  one<64, BF>(4, 2, 64, 64, 3, {{1, 40, 5}, {0, 0, 20}});                     // prompts beside pieces, tiles of columns
  one<64, BF>(2, 2, 24, 40, 1, {{0, 33, 1}, {2, 7, 2}}, 0, 5, false, false);  // MHA, narrow heads, capped, q of 16 bits
  one<256, BF>(12, 1, 192, 128, 2, {{0, 50, 1}});                         // MQA of latent attention's dims: two tiles
  one<128, BF>(4, 1, 96, 96, 2, {{1, 111, 1}, {2, 30, 3}}, 17, 0, true);  // a window and sinks
}

}  // namespace

int main() {
  sweep<false>();
  sweep<true>();
  std::printf("%lld caches, %lld failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures ? 1 : 0;
}
