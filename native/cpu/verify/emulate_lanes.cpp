// A kernel's program of lanes over strips of a module: registers must be those of the canonical values, outputs as near
// to sums in double precision as the roundings on the way allow.
#include <cmath>
#include <sstream>

#include "cpu/verify/emulation.h"
#include "cpu/verify/half.h"
#include "cpu/verify/stream.h"
#include "cpu/verify/warp.h"

namespace lpq::verify {
namespace {

constexpr double u = 0x1p-11, h = 0x1p-25;  // of a rounding to fp16: relative, and absolute where subnormal

// A weight as its codes, scale and zero point say, and as a kernel's registers hold it.
struct Weight {
  double value, off;  // exact, and how far from its product with 1 the kernel may be
  uint16_t held;
};

// A program, the packed tensors it reads, and what was quantized: scales and zeros F16 [N, G] in canonical order, of
// codes as they are stored, and codes U8 [N, K stream].
struct LaneKernel : Arguments {
  CodeType type = CodeType::read(*this);
  int64_t np = at_least(1, "np"), kp = at_least(1, "kp"), group = at_least(1, "group"), k = at_least(0, "k");
  const Tensor& scales = input("scales", {DType::f16}, {-1, -1});
  const Tensor& zeros = input("zeros", {DType::f16}, scales.shape);
  const Tensor& codes = input("codes", {DType::u8}, {scales.dim(0), ceil_div(k * type.bits, 8)});
  const Tensor* order = input_if(flag("hasOrder"), "order", {DType::i32}, {k});
  uint32_t flip = static_cast<uint32_t>(integer("flip", 0));
  LaneProgram program{text("program"), text("tensors")};
  LaneData data{};
  std::vector<Lanes> begin{};  // variables before the first tile
  uint32_t strip = program.given("strip"), step = program.given("step");
  bool fused = false, plain = false;
  double e = 0x1p-24 * static_cast<double>(kp), gamma = e / (1 - e), own = static_cast<double>(kp + 4) * 0x1p-53;
  Strips strips{*this};

  explicit LaneKernel(const Call& call) : Arguments(call, "verify_emulate_lanes") {
    std::istringstream names(text("tensors"));
    for (std::string name; names >> name;) data.tensors.push_back(&input("a packed tensor"));
    for (uint32_t c = 0; c < 1u << type.bits; ++c)
      data.numbers.push_back(half_from_float(static_cast<float>(type.value(c))));
    for (const char* name : {"groups", "hasZeros", "zeroBits", "experts"}) give(name, integer(name, 0));
    give("zero", half_from_float(real("zero", 0)));
    give("bits", type.bits), give("integer", type.integer), give("np", np), give("groupSize", group);
    done();
    require(scales.dim(1) * group >= k, "there are scales of all groups");
    if (order) checked_order(*order);
    const uint32_t counts[2] = {program.given("strips"), program.given("steps")};
    for (const char* name : {"lane", "row", "col"}) {
      Lanes each{{}, false, true};
      for (uint32_t i = 0; i < kLanes; ++i) each.lane[i] = i;
      put(program.given(name), each);
    }
    const uint32_t said[5] = {program.given("features"), program.given("depth"), program.given("tokens"),
                              program.given("fused"), program.given("plain")};
    for (const char* name : {"features", "depth", "tokens", "fused", "plain"}) give(name, 0);
    Warp header(data, begin, {});
    header.run(program.header, 0);
    begin = header.slots;
    const auto says = [&](int i) { return int64_t{begin[said[i]].at(0)}; };
    data.tile_n = says(0), data.tile_k = says(1), data.tokens = static_cast<int>(says(2));
    fused = says(3) != 0, plain = says(4) != 0;
    require(data.tile_n > 0 && data.tile_k > 0 && data.tile_n <= 256 && data.tile_k <= 256,
            "a tile is 1 to 256 by 1 to 256");
    require(data.tokens == 8 || data.tokens == 16, "there are 8 or 16 tokens");
    require(np % data.tile_n == 0 && kp % data.tile_k == 0, "the padded shape is whole tiles");
    put(counts[0], Lanes{{static_cast<uint32_t>(np / data.tile_n)}});
    put(counts[1], Lanes{{static_cast<uint32_t>(kp / data.tile_k)}});
  }
  void put(uint32_t slot, const Lanes& value) {
    begin.resize(program.slots, Lanes{{}, true, false});
    begin[slot] = value;
  }
  void give(const char* name, int64_t value) {
    require(value >= 0 && value <= 0xffffffff, std::string(name) + " has 32 bits");
    put(program.given(name), Lanes{{static_cast<uint32_t>(value)}});
  }

  // Its column in the canonical order.
  int64_t column(int64_t of_k) const { return order ? order->data<int32_t>()[of_k] : of_k; }
  // As it is stored.
  uint32_t code(int64_t n, int64_t at_column) const {
    const uint32_t code = stream_get(codes.data<uint8_t>() + n * codes.dim(1), at_column, type.bits) ^ flip;
    return code & static_cast<uint32_t>(data.numbers.size() - 1);
  }
  Weight weight(int64_t n, int64_t g, uint32_t code) const {
    const int64_t at = n * scales.dim(1) + g;
    const uint16_t q = data.numbers[code], s = scales.data<uint16_t>()[at], z = zeros.data<uint16_t>()[at];
    const double scale = half_value(s), shift = half_value(z), less = type.value(code) - shift;
    if (fused)
      return summed(less * scale, u * (std::fabs(less * scale) + (2 + u) * std::fabs(shift * scale)) + 3 * h,
                    half_fma(q, s, half_from_float(-(half_value(z) * half_value(s)))));
    const uint16_t held = half_sub(q, z);
    const double first = half_value(held) == less ? 0 : u * std::fabs(less) + h;
    if (plain) return summed(less, first, held);
    const double value = less * scale, before = first * std::fabs(scale);
    return summed(value, before + u * (std::fabs(value) + before) + h, half_mul(held, s));
  }
  // A weight whose roundings take it `off` away: 2^-24 for each of K fused steps in fp32, (K + 4) 2^-53 for the
  // reference's own sum.
  Weight summed(double value, double off, uint16_t held) const {
    return {value, off + gamma * (std::fabs(value) + off) + own * std::fabs(value), held};
  }
};

// Sums of a strip in double precision, [features][tokens]: exact, and how far the kernel's before its last rounding may
// be from them.
struct Reference {
  std::vector<double> exact, off;
  explicit Reference(size_t count) : exact(count), off(count) {}

  void add(size_t at, size_t tokens, const double* x, const double* magnitude, const Weight& w) {
    double* __restrict sum = &exact[at], * __restrict may = &off[at];
    const double value = w.value, least = w.off;
    for (size_t t = 0; t < tokens; ++t) sum[t] += x[t] * value;
    for (size_t t = 0; t < tokens; ++t) may[t] += magnitude[t] * least;
  }
};

void compare(const LaneKernel& kernel, const Reference& sums, const Warp& warp, int64_t strip, WorstOutput& worst) {
  for (int64_t f = 0; f < kernel.data.tile_n; ++f) {
    const int64_t n = strip * kernel.data.tile_n + f;
    const bool inside = n < kernel.scales.dim(0);
    for (int t = 0; t < kernel.data.tokens; ++t) {
      const auto at = static_cast<size_t>(f * kernel.data.tokens + t);
      double exact = sums.exact[at], bound = sums.off[at];
      if (!std::isfinite(exact)) continue;  // a code that is no number: the registers were compared
      bound += u * (std::fabs(exact) + bound) + h;
      uint16_t y = half_from_float(warp.sums[at]);
      if (!warp.scales.empty()) y = half_mul(y, warp.scales[at]);
      if (kernel.plain) {  // fp16(fp16(sum) s)
        const double s = inside ? half_value(kernel.scales.data<uint16_t>()[n]) : 0;
        exact *= s, bound *= std::fabs(s);
        bound += u * (std::fabs(exact) + bound) + h;
      }
      worst.see(t, n, half_value(y), exact, bound);
    }
  }
}

// Inputs: scales, zeros, codes, order I32 [K] if hasOrder, then the packed tensors that `tensors` names, as the program
// reads them. Params: program (its text), tensors; type, np, kp, k, group (k of one scale), groups (stored ones), zero
// (of all, where there are no packed ones), flip; strips, seed. Outputs: registers I64 [5], the first weight in a
// register that is another than the canonical one (row n, canonical column, fp16 bits); outputs F64 [7]: count, m, n,
// got, expected, bound of outputs off by more than the bound, and the largest error / bound.
void emulate_lanes(Call& call, Exec& exec) {
  LaneKernel kernel(call);
  const int64_t tile_n = kernel.data.tile_n, tile_k = kernel.data.tile_k, n_true = kernel.scales.dim(0);
  const int tokens = kernel.data.tokens;
  std::vector<float> x = activations(kernel.strips.seed, tokens * kernel.kp);  // [K][tokens], 0 beyond K
  std::fill(x.begin() + tokens * std::min(kernel.k, kernel.kp), x.end(), 0.0f);
  kernel.data.activations = x.data();
  const std::vector<double> exact(x.begin(), x.end());
  std::vector<double> magnitude(exact);
  for (double& each : magnitude) each = std::fabs(each);
  kernel.strips.run(exec, kernel.np / tile_n, [&](int64_t strip, Wrong& wrong, WorstOutput& worst) {
    std::vector<uint16_t> held(static_cast<size_t>(tile_n * tile_k));
    int64_t step = 0;
    Warp warp(kernel.data, kernel.begin, [&](int64_t f, int64_t c, uint16_t got) {
      const int64_t n = strip * tile_n + f, k = step * tile_k + c;
      if (n >= n_true || k >= kernel.k) return;
      const uint16_t want = held[static_cast<size_t>(f * tile_k + c)];
      if (got != want) wrong.see(n, kernel.column(k), got, want);
    });
    warp.slots[kernel.strip] = Lanes{{static_cast<uint32_t>(strip)}};
    Reference sums(static_cast<size_t>(tile_n * tokens));
    // Of each feature and code in the group that it was last met in, where a group has more weights than there are
    // codes.
    const int codes = kernel.group > 1 << kernel.type.bits ? kernel.type.bits : 0;
    std::vector<std::pair<int64_t, Weight>> met(static_cast<size_t>(tile_n) << codes, {-1, {}});
    for (; step < kernel.kp / tile_k; ++step) {
      for (int64_t c = 0; c < tile_k && step * tile_k + c < kernel.k; ++c) {
        const int64_t k = step * tile_k + c, g = k / kernel.group, column = kernel.column(k);
        const auto at = static_cast<size_t>(k * tokens);
        for (int64_t f = 0; f < tile_n && strip * tile_n + f < n_true; ++f) {
          const uint32_t code = kernel.code(strip * tile_n + f, column);
          auto& [group, w] = met[static_cast<size_t>(f) << codes | (codes ? code : 0)];
          if (group != g || !codes) group = g, w = kernel.weight(strip * tile_n + f, g, code);
          held[static_cast<size_t>(f * tile_k + c)] = w.held;
          sums.add(static_cast<size_t>(f * tokens), static_cast<size_t>(tokens), &exact[at], &magnitude[at], w);
        }
      }
      warp.slots[kernel.step] = Lanes{{static_cast<uint32_t>(step)}};
      warp.run(kernel.program.tile, step);
    }
    warp.run(kernel.program.finish, 0);
    compare(kernel, sums, warp, strip, worst);
  });
}
LPQ_OP(emulate_lanes, "verify_emulate_lanes");

}  // namespace
}  // namespace lpq::verify
