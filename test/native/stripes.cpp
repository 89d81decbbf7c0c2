// The kernel of MARLIN's and TurboMind's layouts (native/cuda/gemm/kernels/stripes.cuh), its own source, on the
// simulated device (simulator/): every form, f16 and bf16, every number of token tiles, cuts of the work, tails.
// Weights are packed by test/gpu/native/layout_formats.h, references are sums in double precision.
//
// The bound: sums of the simulated tensor core are rounded to fp32 once an instruction, so that K/16 + K/32 roundings
// and the few of the reductions, 2^-24 of the sum of magnitudes A each, come before the one to the type of y; where
// weights are rounded to f16 the sum of |x| (2^-11 |w| + 2^-25) is added.
#include <random>
#include <string>
#include "asynchronous.h"
#include "memory.h"

#include "../gpu/native/layout_formats.h"
#include "cuda/gemm/kernels/marlin.cuh"
#include "cuda/gemm/kernels/turbomind.cuh"

// The Tilus program `fragments`, compiled for kProgram below (stripes.test.ts).
#include "fragments_program.h"

using namespace lpq;
using namespace lpq::cuda;
using namespace lpq::test;

namespace {

std::mt19937_64 engine(5);
uint64_t draw(uint64_t below) { return engine() % below; }

struct Case {
  int m, n, k, group;  // group 0: one scale a row
  int log_n, log_k, stages, blocks;
  bool bias = false, experts = false;
};

// What the program's constants say: N, K and two groups, in MARLIN's form of 4 bits.
constexpr Case kProgram{40, 256, 256, 128, 1, 1, 4, 4};

long long checks = 0, failures = 0;

double float_number(int bits, int code) {
  const int m = bits == 4 ? 1 : 3, bias = bits == 4 ? 1 : 7, e = code >> m & (bits == 4 ? 3 : 15),
            f = code & ((1 << m) - 1);
  const double size = e == 0 ? std::ldexp(f, 1 - bias - m) : std::ldexp((1 << m) + f, e - bias - m);
  return code >> (bits - 1) ? -size : size;
}

template <class Form, int T, bool BF>
void run(const char* name, const Case& c, bool marlin, bool floats) {
  constexpr int bits = Form::kBits;
  const auto up = [](int64_t v, int64_t unit) { return (v + unit - 1) / unit * unit; };
  const int64_t np = up(c.n, marlin ? 256 : 64), kp = marlin ? up(c.k, 128) : c.k;
  const int64_t groups = c.group == 0 ? 1 : up(kp, c.group) / c.group, length = groups == 1 ? kp : c.group;
  const int top = 1 << bits, middle = top / 2;
  const auto to_half = [](float v) { return BF ? f32_to_bf16(v) : f32_to_f16(v); };
  const auto from_half = [](uint16_t v) { return BF ? bf16_to_f32(v) : f16_to_f32(v); };
  std::vector<uint8_t> codes(static_cast<size_t>(np * kp), static_cast<uint8_t>(marlin && !Form::kZeros ? middle : 0)),
      zero(static_cast<size_t>(np * groups)), exponent(zero.size());
  std::vector<uint16_t> scale(zero.size());
  std::vector<uint32_t> pair(zero.size());
  std::vector<double> weight(static_cast<size_t>(c.n) * c.k), size(weight.size());
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const size_t at = static_cast<size_t>(n * groups + g);
      scale[at] =
          f32_to_f16(static_cast<float>((0.5 + draw(1000) / 1000.0) / (floats ? 1 : middle) * (draw(8) ? 1 : -1)));
      exponent[at] = static_cast<uint8_t>(draw(30) ? 121 + draw(12) : 0);
      zero[at] = static_cast<uint8_t>(draw(static_cast<uint64_t>(top)));
      const float s = f16_to_f32(scale[at]);
      pair[at] = uint32_t{scale[at]} | uint32_t{f32_to_f16(-s * static_cast<float>(zero[at]))} << 16;
    }
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t k = 0; k < c.k; ++k) {
      int code;
      do code = static_cast<int>(draw(static_cast<uint64_t>(top)));
      while (floats && bits == 8 && (code & 127) == 127);
      codes[static_cast<size_t>(n * kp + k)] = static_cast<uint8_t>(code);
      const size_t at = static_cast<size_t>(n * groups + k / length), to = static_cast<size_t>(n * c.k + k);
      const double s = floats && bits == 4 ? std::ldexp(1.0, exponent[at] - 127) : f16_to_f32(scale[at]);
      if (floats) weight[to] = float_number(bits, code) * s, size[to] = std::fabs(weight[to]);
      else if (marlin) weight[to] = (code - (Form::kZeros ? zero[at] : middle)) * s, size[to] = std::fabs(weight[to]);
      else {
        const double t = f16_to_f32(static_cast<uint16_t>(pair[at] >> 16));
        weight[to] = code * s + t, size[to] = std::fabs((code - middle) * s) + std::fabs(t + middle * s);
      }
    }
  const test::Form form = marlin      ? test::Form::marlin
                          : floats    ? test::Form::operand_a
                          : c.experts ? test::Form::experts
                                      : test::Form::operand_b;
  Memory<uint32_t> packed(pack_fragments(codes, np, kp, bits, form));
  Memory<uint32_t> pairs(order_columns(pair, np, groups, turbomind_column));
  Memory<uint16_t> halves(order_columns(scale, np, groups,
                                        !marlin       ? turbomind_column
                                        : groups == 1 ? marlin_channel_column
                                                      : marlin_column));
  Memory<uint8_t> powers(order_columns(exponent, np, groups, turbomind_column));
  Memory<uint32_t> zeros(pack_marlin_zeros(zero, np, groups, bits));
  const int64_t pitch = up(c.k, 8);
  std::vector<uint16_t> xs(static_cast<size_t>(c.m * pitch), 0), biases(static_cast<size_t>(c.n));
  for (int i = 0; i < c.m; ++i)
    for (int k = 0; k < c.k; ++k)
      xs[static_cast<size_t>(i * pitch + k)] = to_half(static_cast<float>(static_cast<int>(draw(2001)) - 1000) / 512);
  for (uint16_t& b : biases) b = to_half(static_cast<float>(static_cast<int>(draw(2001)) - 1000) / 512);
  Memory<uint16_t> x(xs), bias(biases);
  constexpr uint16_t kPoison = 0xffd5;
  std::vector<uint16_t> y(static_cast<size_t>(c.m) * c.n + 64, kPoison);

  StripeArgs a{};
  a.weights = reinterpret_cast<unsigned char*>(packed.data());
  a.x = x.data(), a.y = y.data(), a.bias = c.bias ? bias.data() : nullptr;
  a.scales = reinterpret_cast<const unsigned char*>(Form::kFused          ? static_cast<void*>(pairs.data())
                                                    : floats && bits == 4 ? static_cast<void*>(powers.data())
                                                                          : halves.data());
  a.zeros = Form::kZeros ? reinterpret_cast<unsigned char*>(zeros.data()) : nullptr;
  a.magic = BF ? 0x43004300u : 0x64006400u;
  a.n_stride = c.experts ? kp / 16 * 64 * bits : 64 * bits;
  a.k_stride = c.experts ? 64 * bits : np / 32 * 64 * bits;
  a.m = c.m, a.n = c.n, a.k = static_cast<int>(pitch), a.n_pad = static_cast<int>(np), a.k_pad = static_cast<int>(kp);
  a.groups = static_cast<int>(groups), a.channel = marlin && groups == 1;
  a.group_shift = 30;
  for (int shift : {5, 6, 7})
    if (c.group == 1 << shift) a.group_shift = shift;
  a.log_n = c.log_n, a.log_k = c.log_k, a.stages = c.stages;
  // As stage_bytes() and shared_bytes() of stripes.cpp: what does not fit has fewer stages.
  const int64_t long_step = int64_t{16} * sub_tiles(bits) << c.log_k,
                rows = a.channel ? 1 : std::max<int64_t>(1, long_step >> a.group_shift);
  const int64_t stage = up(std::max<int64_t>(1, long_step / 64) * 8 * T * 128 +
                               (int64_t{128} * bits * sub_tiles(bits) << (c.log_n + c.log_k)) +
                               rows * ((64 * Form::kScaleBytes + (Form::kZeros ? 8 * bits : 0)) << c.log_n),
                           128);
  const int64_t given = int64_t{2048} * T * (std::max(1, 1 << c.log_k >> 1) << c.log_n);
  while (a.stages > 2 && a.stages * stage + given > simt::kShared) --a.stages;
  if (a.stages * stage + given > simt::kShared) std::abort();
  a.strips = static_cast<int>(up(np, 64 << c.log_n) / (64 << c.log_n));
  const int64_t step_k = int64_t{16} * sub_tiles(bits) << c.log_k;
  a.steps = static_cast<int>(up(kp, step_k) / step_k);
  a.batches = (c.m + 8 * T - 1) / (8 * T);
  const int tiles = a.strips * a.batches * a.steps;
  a.per = (tiles + c.blocks - 1) / c.blocks;
  const int blocks = (tiles + a.per - 1) / a.per;
  std::vector<float> partial(static_cast<size_t>(blocks) * (size_t{512} * T << c.log_n));
  std::vector<unsigned> counters(static_cast<size_t>(blocks), 0);
  a.partial = partial.data(), a.counters = counters.data();
  const auto bytes = [](const auto& memory) {
    return std::pair<const unsigned char*, size_t>(reinterpret_cast<const unsigned char*>(memory.words.data()),
                                                   memory.words.size() * 8 - 16);
  };
  simt::readable = {bytes(packed), bytes(pairs), bytes(halves), bytes(powers), bytes(zeros), bytes(x)};
  simt::begin(draw(1u << 30));
  const std::string error = simt::try_run(blocks, 32 << (c.log_n + c.log_k), blocks, simt::kShared, draw(1u << 30),
                                          [&] { gemm_stripes<Form, T, BF>(a); });

  const std::string text = std::string(name) + (BF ? " bf16 T" : " f16 T") + std::to_string(T) + " " +
                           std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " g" +
                           std::to_string(c.group) + " warps " + std::to_string(1 << c.log_n) + "x" +
                           std::to_string(1 << c.log_k) + " stages " + std::to_string(c.stages) + " blocks " +
                           std::to_string(blocks);
  const auto wrong = [&](const std::string& what) {
    if (++failures <= 20) std::printf("FAIL %s: %s\n", text.c_str(), what.c_str());
  };
  ++checks;
  if (!error.empty()) return wrong(error);
  Memory<uint16_t> other(std::vector<uint16_t>(static_cast<size_t>(c.m * c.n), kPoison));
  if (&c == &kProgram) {
    const auto raw = [](auto& memory) { return reinterpret_cast<unsigned char*>(memory.data()); };
    simt::begin(draw(1u << 30));
    const std::string fault = simt::try_run((c.m + 15) / 16 * (c.n / 64), 32, 1, simt::kShared, draw(1u << 30), [&] {
      fragments_kernel::fragments(raw(x), raw(packed), raw(halves), raw(other), c.m);
    });
    if (!fault.empty()) return wrong("the program: " + fault);
  }
  for (unsigned counter : counters)
    if (counter != 0) return wrong("a counter was left at " + std::to_string(counter));
  for (size_t i = static_cast<size_t>(c.m) * c.n; i < y.size(); ++i)
    if (y[i] != kPoison) return wrong("something was written behind y");
  constexpr bool kRounded = Form::kScaled && T >= 4;
  for (int i = 0; i < c.m; ++i)
    for (int n = 0; n < c.n; ++n) {
      double want = c.bias ? from_half(biases[static_cast<size_t>(n)]) : 0, all = std::fabs(want), rounding = 0;
      for (int k = 0; k < c.k; ++k) {
        const size_t at = static_cast<size_t>(n) * c.k + static_cast<size_t>(k);
        const double v = from_half(xs[static_cast<size_t>(i * pitch + k)]);
        want += v * weight[at], all += std::fabs(v) * size[at];
        if (kRounded) rounding += std::fabs(v) * (0x1p-11 * std::fabs(weight[at]) + 0x1p-25);
      }
      const double bound = all * (c.k / 16 + c.k / 32 + 64) * 0x1p-24 + rounding +
                           (BF ? 0x1p-8 : 0x1p-11) * std::fabs(want) * 1.01 + (BF ? 1e-40 : 0x1p-25);
      if (&c == &kProgram) {
        // Both round each weight once: sums in other orders and one rounding to f16 are all that tells them apart.
        const double apart =
            std::fabs(from_half(y[static_cast<size_t>(i * c.n + n)]) - from_half(other.data()[i * c.n + n]));
        ++checks;
        if (!(apart <= 2 * (bound - rounding))) return wrong("the program's result is another");
      }
      const uint16_t stored = y[static_cast<size_t>(i) * c.n + static_cast<size_t>(n)];
      const double got = from_half(stored);
      ++checks;
      if (stored == kPoison || !(std::fabs(got - want) <= bound))
        return wrong("at " + std::to_string(i) + ", " + std::to_string(n) + ": " + std::to_string(got) + ", not " +
                     std::to_string(want));
    }
}

template <class Form, bool BF>
void sweep(const char* name, bool marlin, bool floats) {
  const int long_group = marlin ? 0 : 128;
  // Warps along N and K, columns shared by blocks, blocks with many columns, tails of N, K and tokens.
  run<Form, 1, BF>(name, {5, 300, 704, 128, 1, 2, 4, 5, true, false}, marlin, floats);
  run<Form, 1, BF>(name, {8, 70, 1024, 32, 0, 4, 3, 2, false, false}, marlin, floats);
  run<Form, 1, BF>(name, {1, 130, 512, 64, 2, 0, 2, 3, false, !marlin && !floats}, marlin, floats);
  run<Form, 2, BF>(name, {13, 530, 416, 64, 2, 2, 4, 3, true, !marlin && !floats}, marlin, floats);
  run<Form, 2, BF>(name, {40, 100, 256, long_group, 1, 1, 4, 4, false, false}, marlin, floats);
  run<Form, 4, BF>(name, {29, 140, 608, 32, 0, 3, 4, 3, true, false}, marlin, floats);
  run<Form, 4, BF>(name, {20, 300, 384, 128, 1, 1, 2, 2, false, false}, marlin, floats);
  run<Form, 8, BF>(name, {61, 150, 352, 32, 1, 2, 3, 4, false, !marlin && !floats}, marlin, floats);
  run<Form, 8, BF>(name, {100, 70, 256, marlin ? 0 : 64, 3, 0, 3, 2, true, false}, marlin, floats);
  if (marlin)
    run<Form, 8, BF>(name, {33, 260, Form::kZeros ? 256 : 203, Form::kZeros ? 0 : 64, 1, 1, 4, 7, false, false}, marlin,
                     floats);
}

}  // namespace

int main() {
  sweep<MarlinForm<4, false, false>, false>("marlin u4", true, false);
  run<MarlinForm<4, false, false>, 4, false>("marlin u4 and the program", kProgram, true, false);
  sweep<MarlinForm<8, false, true>, false>("marlin u8 zeros", true, false);
  sweep<MarlinForm<4, true, true>, true>("marlin u4 zeros", true, false);
  sweep<TurboMindInteger<4, false>, false>("turbomind u4", false, false);
  sweep<TurboMindInteger<8, true>, true>("turbomind u8", false, false);
  sweep<TurboMindFloat<4, false>, false>("turbomind fp4", false, true);
  sweep<TurboMindFloat<8, true>, true>("turbomind fp8", false, true);
#ifdef LPQ_ALL_FORMS
  sweep<MarlinForm<4, false, true>, false>("marlin u4 zeros", true, false);
  sweep<MarlinForm<8, false, false>, false>("marlin u8", true, false);
  sweep<MarlinForm<4, true, false>, true>("marlin u4", true, false);
  sweep<MarlinForm<8, true, false>, true>("marlin u8", true, false);
  sweep<MarlinForm<8, true, true>, true>("marlin u8 zeros", true, false);
  sweep<TurboMindInteger<8, false>, false>("turbomind u8", false, false);
  sweep<TurboMindInteger<4, true>, true>("turbomind u4", false, false);
  sweep<TurboMindFloat<8, false>, false>("turbomind fp8", false, true);
  sweep<TurboMindFloat<4, true>, true>("turbomind fp4", false, true);
#endif
  std::printf("%lld checks, %lld failures\n", checks, failures);
  return failures != 0;
}
