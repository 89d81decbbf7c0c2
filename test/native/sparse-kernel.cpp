// The kernel of Sparse-MARLIN's layout (native/cuda/gemm/kernels/sparse.cuh), its own source, on the simulated device
// (simulator/): 4 and 8 bits, f16 and bf16, every number of token tiles, cuts of the work, tails. Weights are packed by
// test/gpu/native/sparse_format.h, references are sums in double precision.
//
// The bound: sums of the simulated tensor core are rounded to fp32 once an instruction, K/32 of them, and once a group,
// then come the few roundings of the reductions, 2^-24 of the sum of magnitudes each, and the one to the type of y;
// where weights are rounded to f16 the sum of |x| (2^-11 |w| + 2^-25) is added.
#include <array>
#include <random>
#include <string>
#include "asynchronous.h"
#include "memory.h"

#include "../gpu/native/sparse_format.h"
#include "cuda/gemm/kernels/sparse.cuh"

using namespace lpq;
using namespace lpq::cuda;
using namespace lpq::test;

namespace {

std::mt19937_64 engine(11);
uint64_t draw(uint64_t below) { return engine() % below; }

struct Case {
  int m, n, k;
  bool channel;
  int log_n, log_k, stages, blocks;
  bool bias = false;
};

long long checks = 0, failures = 0;

template <int Bits, int T, bool BF, bool Bulk>
void run_one(Case c) {
  const auto up = [](int64_t v, int64_t unit) { return (v + unit - 1) / unit * unit; };
  const int64_t np = up(c.n, 64), kp = up(c.k, 128), groups = c.channel ? 1 : kp / 128;
  const auto to_half = [](float v) { return BF ? f32_to_bf16(v) : f32_to_f16(v); };
  const auto from_half = [](uint16_t v) { return BF ? bf16_to_f32(v) : f16_to_f32(v); };
  std::vector<int16_t> value;
  std::vector<uint8_t> stays;
  draw_sparse(engine, c.n, c.k, np, kp, Bits, value, stays);
  const SparseBytes bytes = pack_sparse(value, stays, np, kp, Bits);
  std::vector<uint16_t> scale(static_cast<size_t>(np * groups), 0), stored(scale.size());
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t g = 0; g < groups; ++g)
      scale[static_cast<size_t>(g * np + n)] =
          f32_to_f16(static_cast<float>((0.5 + draw(1000) / 1000.0) / (1 << (Bits - 1)) * (draw(8) ? 1 : -1)));
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t p = 0; p < np; ++p)
      stored[static_cast<size_t>(g * np + p)] =
          scale[static_cast<size_t>(g * np + (c.channel ? p : sparse_scale_column(p)))];
  Memory<uint32_t> words(bytes.words);
  Memory<uint16_t> metadata(bytes.metadata), scales(stored);
  const int64_t pitch = up(c.k, Bulk ? 64 : 8);
  std::vector<uint16_t> xs(static_cast<size_t>(c.m * pitch), 0), biases(static_cast<size_t>(c.n));
  for (int i = 0; i < c.m; ++i)
    for (int k = 0; k < c.k; ++k)
      xs[static_cast<size_t>(i * pitch + k)] = to_half(static_cast<float>(static_cast<int>(draw(2001)) - 1000) / 512);
  for (uint16_t& b : biases) b = to_half(static_cast<float>(static_cast<int>(draw(2001)) - 1000) / 512);
  Memory<uint16_t> x(xs), bias(biases);
  constexpr uint16_t kPoison = 0xffd5;
  Memory<uint16_t> y(std::vector<uint16_t>(static_cast<size_t>(c.m) * static_cast<size_t>(c.n) + 64, kPoison));

  SparseArgs a{};
  a.weights = reinterpret_cast<unsigned char*>(words.data()),
  a.metadata = reinterpret_cast<unsigned char*>(metadata.data());
  a.x = x.data(), a.y = y.data(), a.bias = c.bias ? bias.data() : nullptr;
  a.scales = reinterpret_cast<unsigned char*>(scales.data());
  a.magic = BF ? 0x43004300u : 0x64006400u;
  a.m = c.m, a.n = c.n, a.k = static_cast<int>(pitch), a.n_pad = static_cast<int>(np), a.k_pad = static_cast<int>(kp),
  a.channel = c.channel;
  a.vectors = c.n % 8 == 0;
  // What does not fit has fewer stages or warps.
  while (c.log_k > 0 && sparse_shared(Bits, T, c.log_n, c.log_k, 2).total > simt::kShared) --c.log_k;
  while (c.stages > 2 && sparse_shared(Bits, T, c.log_n, c.log_k, c.stages).total > simt::kShared) --c.stages;
  a.log_n = c.log_n, a.log_k = c.log_k, a.stages = c.stages;
  if (sparse_shared(Bits, T, c.log_n, c.log_k, a.stages).total > simt::kShared) std::abort();
  a.strips = static_cast<int>(up(np, 64 << c.log_n) / (64 << c.log_n)),
  a.steps = static_cast<int>(up(kp, 128 << c.log_k) / (128 << c.log_k));
  a.batches = (c.m + 8 * T - 1) / (8 * T);
  const int tiles = a.strips * a.batches * a.steps;
  a.per = (tiles + c.blocks - 1) / c.blocks;
  const int blocks = (tiles + a.per - 1) / a.per;
  std::vector<float> partial(static_cast<size_t>(2 * blocks) * (size_t{512} * T << c.log_n), NAN);
  std::vector<unsigned> counters(static_cast<size_t>(a.strips * a.batches), 0);
  a.partial = partial.data(), a.counters = counters.data();
  const auto area = [](const auto& memory, size_t bytes) {
    return std::pair<const unsigned char*, size_t>(reinterpret_cast<const unsigned char*>(memory.words.data()), bytes);
  };
  simt::readable = {area(words, bytes.words.size() * 4), area(metadata, bytes.metadata.size() * 2),
                    area(scales, stored.size() * 2), area(x, xs.size() * 2)};
  // As sparse.cpp describes them.
  SparseMaps maps{};
  const auto box = [](TensorMap& map, const void* base, uint32_t element, std::array<int64_t, 3> dims,
                      std::array<int64_t, 2> strides, std::array<int, 3> size, bool swizzle) {
    simt::BoxMap b{static_cast<const unsigned char*>(base), {}, {}, {}, static_cast<uint16_t>(element), swizzle};
    for (size_t i = 0; i < 3; ++i)
      b.dims[i] = static_cast<uint64_t>(dims[i]), b.box[i] = static_cast<uint32_t>(size[i]);
    for (size_t i = 0; i < 2; ++i) b.strides[i] = static_cast<uint64_t>(strides[i]);
    static_assert(sizeof(b) <= sizeof(map));
    std::memcpy(&map, &b, sizeof(b));
  };
  const int across = 1 << c.log_n, down = 1 << c.log_k;
  box(maps.x, a.x, 2, {64, c.m, pitch / 64}, {pitch * 2, 128}, {64, 8 * T, 2 * down}, true);
  box(maps.weights, a.weights, 8, {16 * Bits, np / 64, kp / 32}, {128 * Bits, np / 64 * 128 * Bits},
      {16 * Bits, across, 4 * down}, false);
  box(maps.metadata, a.metadata, 8, {32, np / 64, kp / 32}, {256, np / 64 * 256}, {32, across, 4 * down}, false);
  box(maps.scales, a.scales, 2, {64, np / 64, groups}, {128, np / 64 * 128}, {64, across, down}, false);
  simt::begin(engine());
  const std::string error =
      simt::try_run(blocks, (32 << (c.log_n + c.log_k)) + (Bulk ? 128 : 0), blocks, simt::kShared, engine(), [&] {
        if constexpr (Bulk) gemm_sparse_tma<Bits, T, BF>(a, maps);
        else gemm_sparse<Bits, T, BF>(a);
      });

  const std::string text = std::string(Bulk ? "bulk " : "") + "u" + std::to_string(Bits) + (BF ? " bf16 T" : " f16 T") +
                           std::to_string(T) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" +
                           std::to_string(c.k) + (c.channel ? " channel" : "") + " warps " +
                           std::to_string(1 << c.log_n) + "x" + std::to_string(1 << c.log_k) + " stages " +
                           std::to_string(a.stages) + " blocks " + std::to_string(blocks);
  const auto wrong = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", text.c_str(), what.c_str());
  };
  ++checks;
  if (!error.empty()) return wrong(error);
  for (unsigned counter : counters)
    if (counter != 0) return wrong("a counter was left at " + std::to_string(counter));
  for (size_t i = static_cast<size_t>(c.m) * static_cast<size_t>(c.n);
       i < static_cast<size_t>(c.m) * static_cast<size_t>(c.n) + 64; ++i)
    if (y.data()[i] != kPoison) return wrong("something was written behind y");
  constexpr bool kRounded = T == 8 && !BF;
  for (int i = 0; i < c.m; ++i)
    for (int n = 0; n < c.n; ++n) {
      double want = c.bias ? from_half(biases[static_cast<size_t>(n)]) : 0, all = std::fabs(want), rounding = 0;
      for (int k = 0; k < c.k; ++k) {
        const double w = double(value[static_cast<size_t>(n * kp + k)]) *
                         f16_to_f32(scale[static_cast<size_t>((c.channel ? 0 : k / 128) * np + n)]);
        const double v = from_half(xs[static_cast<size_t>(i * pitch + k)]);
        want += v * w, all += std::fabs(v * w);
        if (kRounded && !c.channel) rounding += std::fabs(v) * (0x1p-11 * std::fabs(w) + 0x1p-25);
      }
      const double bound = all * (c.k / 32 + c.k / 128 + 64) * 0x1p-24 + rounding +
                           (BF ? 0x1p-8 : 0x1p-11) * std::fabs(want) * 1.01 + (BF ? 1e-40 : 0x1p-25);
      const uint16_t got16 = y.data()[static_cast<size_t>(i) * static_cast<size_t>(c.n) + static_cast<size_t>(n)];
      const double got = from_half(got16);
      ++checks;
      if (got16 == kPoison || !(std::fabs(got - want) <= bound))
        return wrong("at " + std::to_string(i) + ", " + std::to_string(n) + ": " + std::to_string(got) + ", not " +
                     std::to_string(want));
    }
}

template <int Bits, int T, bool BF>
void run(const Case& c) {
  run_one<Bits, T, BF, false>(c);
  run_one<Bits, T, BF, true>(c);
}

template <int Bits, bool BF>
void sweep() {
  // Warps along N and K, columns shared by blocks, blocks with many columns, tails of N, K and tokens.
  run<Bits, 1, BF>({5, 300, 704, false, 1, 2, 4, 5, true});
  run<Bits, 1, BF>({8, 70, 1024, false, 0, 3, 3, 2, false});
  run<Bits, 1, BF>({1, 136, 512, true, 2, 0, 2, 3, false});
  run<Bits, 2, BF>({13, 530, 412, false, 2, 2, 4, 3, true});
  run<Bits, 2, BF>({40, 200, 256, false, 1, 1, 6, 4, false});
  run<Bits, 2, BF>({16, 64, 1280, false, 0, 0, 5, 7, false});
  run<Bits, 4, BF>({29, 140, 608, false, 0, 2, 3, 3, true});
  run<Bits, 4, BF>({20, 304, 384, true, 1, 1, 2, 2, false});
  run<Bits, 8, BF>({61, 150, 352, false, 1, 1, 2, 4, false});
  run<Bits, 8, BF>({100, 72, 256, false, 3, 0, 2, 2, true});
}

}  // namespace

int main() {
  sweep<4, false>();
  sweep<4, true>();
  sweep<8, false>();
  sweep<8, true>();
  std::printf("%lld checks, %lld failures\n", checks, failures);
  return failures != 0;
}
