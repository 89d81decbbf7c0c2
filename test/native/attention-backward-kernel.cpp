// The kernels of attention and of its gradient (native/cuda/nn/attention*.cuh), run on the
// host by threads that the host plays: every shape that is compiled, heads that fill the dims and such that do not,
// MHA, GQA and MQA, windows, caps, sinks, keys that are chosen, sequences with tails and empty ones; against double
// precision, elementwise (attention_gradient.h). Outputs and shared memory are full of NaN before, and so is what lies
// beside q, k, v and dy.
#include <cstdio>
#include <random>
#include <string>

#include "asynchronous.h"
#include "attention_gradient.h"
#include "cuda/nn/attention.cuh"
#include "cuda/nn/attention_backward.cuh"
#include "cuda/nn/attention_backward_f32.cuh"
#include "memory.h"

using namespace lpq::cuda;

namespace {

long long checks = 0, failures = 0;
double worst = 0;
uint64_t seed = 1;

void compare(const std::string& what, const std::vector<float>& got, const std::vector<double>& want,
             const std::vector<double>& bound) {
  for (size_t i = 0; i < got.size(); ++i) {
    const double share = std::fabs(got[i] - want[i]) / bound[i];
    if (share <= 1) {
      worst = std::max(worst, share);
      continue;
    }
    if (++failures <= 20)
      std::printf("FAIL %s has %.9g at %zu, not %.9g within %.3g\n", what.c_str(), static_cast<double>(got[i]), i,
                  want[i], bound[i]);
    return;
  }
}

struct Packed {
  std::vector<uint16_t> bits;
  std::vector<double> numbers;  // without what pads them
};
Packed packed(std::mt19937_64& lot, int rows, int width, int padded, double size) {
  std::normal_distribution<double> normal(0, size);
  Packed made;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < padded; ++c) {
      const uint16_t bits = c < width ? lpq::f32_to_bf16(static_cast<float>(normal(lot))) : uint16_t{0};
      made.bits.push_back(bits);
      if (c < width) made.numbers.push_back(lpq::bf16_to_f32(bits));
    }
  return made;
}

template <int HD, int VD, int ROW_KEYS, bool RESIDENT, int KEYS, int QUERIES>
void one(int heads, int kv_heads, int head_dim, int value_dim, const std::vector<int>& lengths, int window = 0,
         double cap = 0, bool sinks = false) {
  std::mt19937_64 lot(++seed);
  std::vector<int> starts{0};
  std::vector<AttentionTask> tasks;
  for (const int length : lengths) {
    for (int query = 0; query < length; query += kTaskQueries) tasks.push_back({starts.back(), length, query});
    starts.push_back(starts.back() + length);
  }
  const int tokens = starts.back(), room = tokens / kTaskQueries + static_cast<int>(lengths.size()),
            count = static_cast<int>(tasks.size());
  // Scores of a few units, as they are in log2.
  const Packed q = packed(lot, tokens * heads, head_dim, HD, 2.5 / std::sqrt(head_dim)),
               k = packed(lot, tokens * kv_heads, head_dim, HD, 1),
               v = packed(lot, tokens * kv_heads, value_dim, VD, 1), dy = packed(lot, tokens * heads, value_dim, VD, 1);
  Memory<uint16_t> q_memory(q.bits), k_memory(k.bits), v_memory(v.bits), dy_memory(dy.bits);
  std::vector<float> sink;
  for (int h = 0; sinks && h < heads; ++h) sink.push_back(static_cast<float>(h % 3) - 0.5f);
  const std::vector<float> nan(static_cast<size_t>(tokens * heads * std::max(head_dim, value_dim)), NAN);
  std::vector<float> dq(nan.begin(), nan.begin() + tokens * heads * head_dim),
      dk(nan.begin(), nan.begin() + tokens * kv_heads * head_dim),
      dv(nan.begin(), nan.begin() + tokens * kv_heads * value_dim);
  Memory<float> rows(std::vector<float>(static_cast<size_t>(heads * room * kTaskQueries * 2), NAN));
  AttentionGradient a{};
  a.q = reinterpret_cast<const lpq::bf16*>(q_memory.data()), a.k = reinterpret_cast<const lpq::bf16*>(k_memory.data()),
  a.v = reinterpret_cast<const lpq::bf16*>(v_memory.data()),
  a.dy = reinterpret_cast<const lpq::bf16*>(dy_memory.data());
  a.rows = reinterpret_cast<float2*>(rows.data()), a.dq = dq.data(), a.dk = dk.data(), a.dv = dv.data();
  a.tasks = tasks.data(), a.count = &count, a.sinks = sinks ? sink.data() : nullptr, a.sinks_type = 0;
  a.room = room, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim, a.value_dim = value_dim;
  a.window = window, a.scale = 0.37f, a.cap = static_cast<float>(cap / std::log(2.0));
  const std::string name = std::to_string(HD) + "/" + std::to_string(VD) + " of " + std::to_string(head_dim) + "/" +
                           std::to_string(value_dim) + " heads " + std::to_string(heads) + "/" +
                           std::to_string(kv_heads) + " window " + std::to_string(window) + " tokens " +
                           std::to_string(tokens);
  ++checks;
  const auto fail = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", name.c_str(), what.c_str());
  };
  const auto bytes_of = [](auto& memory, size_t bytes) {
    return std::pair{reinterpret_cast<const unsigned char*>(memory.data()), bytes};
  };
  simt::readable = {bytes_of(q_memory, q.bits.size() * 2), bytes_of(k_memory, k.bits.size() * 2),
                    bytes_of(v_memory, v.bits.size() * 2), bytes_of(dy_memory, dy.bits.size() * 2),
                    bytes_of(rows, static_cast<size_t>(heads * room * kTaskQueries) * 8)};
  simt::begin(seed);
  std::string told = simt::try_run(heads * room, 128, 1, RowsShape<HD, VD, ROW_KEYS, RESIDENT>::kShared, seed, [&] {
    const int block = static_cast<int>(blockIdx.x);
    gradient_by_rows<HD, VD, ROW_KEYS, RESIDENT>(a, block % heads, block / heads);
  });
  if (!told.empty()) return fail("rows: " + told);
  simt::begin(seed);
  told = simt::try_run(kv_heads * room * kTaskQueries / KEYS, 128, 1, ColumnsShape<HD, VD, KEYS, QUERIES>::kShared,
                       seed, [&] {
                         const int block = static_cast<int>(blockIdx.x);
                         gradient_by_columns<HD, VD, KEYS, QUERIES>(a, block % kv_heads, block / kv_heads);
                       });
  if (!told.empty()) return fail("columns: " + told);

  // And attention itself, of the same operands, where its kernel takes heads of one width.
  std::vector<float> y(nan.begin(), nan.begin() + tokens * heads * value_dim);
  if constexpr (HD == VD) {
    constexpr int kKeys = HD == 256 ? 32 : 64;
    simt::begin(seed);
    told = simt::try_run(heads * room, 128, 1, (kTaskQueries + 4 * kKeys) * HD * 2, seed, [&] {
      const int block = static_cast<int>(blockIdx.x);
      flash<lpq::bf16, float, HD, kKeys>(a.q, a.k, a.v, y.data(), a.tasks, a.count, heads, kv_heads, value_dim, window,
                                         a.cap, a.sinks, 0, block % heads, block / heads);
    });
    if (!told.empty()) return fail("attention: " + told);
  }

  lpq::test::GradientCase c{heads,
                            kv_heads,
                            head_dim,
                            value_dim,
                            std::log(2.0),
                            static_cast<double>(a.scale),
                            cap,
                            starts,
                            {sink.begin(), sink.end()},
                            [&](int, int t, int, int key) { return window == 0 || key > t - window; },
                            true};
  const lpq::test::ExpectedGradients expected(c, q.numbers, k.numbers, v.numbers, dy.numbers);
  compare(name + " dq", dq, expected.want.dq, expected.bound.dq);
  compare(name + " dk", dk, expected.want.dk, expected.bound.dk);
  compare(name + " dv", dv, expected.want.dv, expected.bound.dv);
  if constexpr (HD == VD) compare(name + " y", y, expected.want.y, expected.bound.y);
}

// In fp32. block > 0: of the runs of so many tokens, of two choices, the own one and every third.
template <int DIMS>
void in_fp32(int heads, int kv_heads, int head_dim, int value_dim, const std::vector<int>& lengths, int window = 0,
             double cap = 0, bool sinks = false, int block = 0) {
  std::mt19937_64 lot(++seed);
  std::normal_distribution<double> normal;
  std::vector<int> starts{0};
  for (const int length : lengths) starts.push_back(starts.back() + length);
  const int tokens = starts.back(), one = 1, choices = block ? 2 : 1, top = block ? tokens / block + 1 : 0,
            words = (tokens + 31) / 32;
  const auto made = [&](int width) {
    std::vector<float> list(static_cast<size_t>(tokens * width));
    for (float& x : list) x = static_cast<float>(normal(lot));
    return list;
  };
  Memory<float> q(made(heads * head_dim)), k(made(kv_heads * head_dim)), v(made(kv_heads * value_dim)),
      dy(made(heads * value_dim));
  std::vector<float> sink, dq(static_cast<size_t>(tokens * heads * head_dim), NAN),
      dk(static_cast<size_t>(tokens * kv_heads * head_dim), NAN),
      dv(static_cast<size_t>(tokens * kv_heads * value_dim), NAN);
  for (int h = 0; sinks && h < heads; ++h) sink.push_back(static_cast<float>(h % 3) - 0.5f);
  const auto chosen = [&](int t, int choice, int run) { return run == t / block || (run + choice) % 3 == 0; };
  std::vector<int> selected;
  std::vector<unsigned> seen(static_cast<size_t>(tokens * choices * words), 0);
  for (size_t s = 0; block && s < lengths.size(); ++s)
    for (int t = 0; t < lengths[s]; ++t)
      for (int c = 0; c < choices; ++c) {
        const size_t list = static_cast<size_t>((starts[s] + t) * choices + c);
        for (int run = top - 1; run >= 0; --run) {
          const bool names = run <= t / block && chosen(t, c, run);
          selected.push_back(names ? run : -1);
          if (names) seen[list * static_cast<size_t>(words) + static_cast<size_t>(run / 32)] |= 1u << run % 32;
        }
      }
  std::vector<float2> rows(static_cast<size_t>(tokens * heads), {NAN, NAN});
  ChainedGradient a{q.data(),
                    k.data(),
                    v.data(),
                    dy.data(),
                    starts.data(),
                    &one,
                    block ? selected.data() : nullptr,
                    sinks ? sink.data() : nullptr,
                    seen.data(),
                    rows.data(),
                    dq.data(),
                    dk.data(),
                    dv.data(),
                    static_cast<int>(lengths.size()),
                    tokens,
                    heads,
                    kv_heads,
                    head_dim,
                    value_dim,
                    window,
                    0,
                    choices,
                    top,
                    block ? block : 1,
                    words,
                    head_dim % 4 == 0 && value_dim % 4 == 0,
                    static_cast<float>(1.7 / std::sqrt(head_dim)),
                    static_cast<float>(cap)};
  const std::string name = "fp32 of " + std::to_string(head_dim) + "/" + std::to_string(value_dim);
  ++checks;
  const int shared = 16 * (head_dim + value_dim);
  std::string told = simt::try_run((tokens * heads + 3) / 4, 128, 1, shared, seed,
                                   [&] { chained_by_rows<DIMS>(a, static_cast<int>(blockIdx.x)); });
  if (told.empty())
    told = simt::try_run((tokens * kv_heads + 3) / 4, 128, 1, shared, seed,
                         [&] { chained_by_columns<DIMS>(a, static_cast<int>(blockIdx.x)); });
  if (!told.empty()) {
    ++failures;
    std::printf("FAIL %s: %s\n", name.c_str(), told.c_str());
    return;
  }
  lpq::test::GradientCase c{heads,
                            kv_heads,
                            head_dim,
                            value_dim,
                            static_cast<double>(a.scale),
                            static_cast<double>(a.scale),
                            cap,
                            starts,
                            {sink.begin(), sink.end()},
                            [&](int, int t, int head, int key) {
                              return block ? chosen(t, head / (heads / choices), key / block)
                                           : window == 0 || key > t - window;
                            },
                            false};
  const auto wide = [](Memory<float>& from, int count) {
    return std::vector<double>(from.data(), from.data() + count);
  };
  const auto qs = wide(q, tokens * heads * head_dim), ks = wide(k, tokens * kv_heads * head_dim),
             vs = wide(v, tokens * kv_heads * value_dim), dys = wide(dy, tokens * heads * value_dim);
  const lpq::test::ExpectedGradients expected(c, qs, ks, vs, dys);
  compare(name + " dq", dq, expected.want.dq, expected.bound.dq);
  compare(name + " dk", dk, expected.want.dk, expected.bound.dk);
  compare(name + " dv", dv, expected.want.dv, expected.bound.dv);
}

}  // namespace

int main() {
  one<64, 64, 64, true, 64, 64>(4, 2, 64, 64, {70, 0, 5});
  one<64, 64, 64, true, 64, 64>(2, 2, 37, 20, {1, 66}, 0, 3);           // MHA, narrow heads, capped
  one<64, 64, 64, true, 64, 64>(3, 1, 64, 64, {130, 65}, 19, 0, true);  // MQA, a window and sinks
  one<128, 128, 64, true, 64, 64>(4, 2, 128, 128, {65, 30});
  one<128, 128, 64, true, 64, 64>(2, 1, 96, 96, {100}, 70, 4, true);
  one<192, 128, 32, false, 64, 32>(2, 2, 192, 128, {75, 3});
  one<192, 128, 32, false, 64, 32>(2, 1, 130, 33, {67}, 34);
  one<256, 256, 16, false, 32, 32>(2, 1, 256, 256, {40, 66});
  one<256, 256, 16, false, 32, 32>(1, 1, 200, 250, {97}, 33, 2, true);
  in_fp32<4>(4, 2, 64, 40, {70, 0, 5});
  in_fp32<4>(3, 1, 37, 20, {66, 1}, 19, 3, true);
  in_fp32<18>(2, 1, 576, 512, {20});
  in_fp32<4>(4, 2, 32, 32, {67, 30}, 0, 0, false, 1);
  in_fp32<8>(4, 1, 192, 33, {50}, 0, 5, false, 4);
  std::printf("%lld gradients, %lld failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures ? 1 : 0;
}
