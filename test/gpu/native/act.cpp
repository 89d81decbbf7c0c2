// Checks products of low-bit activations: act [--quick]. Integers against 64-bit sums, bit by bit; e4m3 against fp64.
#include "act_harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

struct Case {
  int64_t m, n, k;
  int tokens, cluster, shared, stages;
};

Params cut(const Case& c) {
  Params p;
  if (c.tokens) p.set("tokens", double(c.tokens));
  if (c.cluster) p.set("cluster", double(c.cluster));
  if (c.stages) p.set("stages", double(c.stages));
  if (c.shared >= 0) p.set("shared", double(c.shared));
  return p;
}
std::string name_of(const char* kind, const Case& c, DType store) {
  return std::string(kind) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " tokens " + std::to_string(c.tokens) + " cluster " +
         std::to_string(c.cluster) + " shared " + std::to_string(c.shared) + " " + std::string(dtype_name(store));
}
Tensor bytes(DType dtype, std::vector<int64_t> shape, int low, int high) {
  Tensor t = allocate(dtype, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.data<int8_t>()[i] = static_cast<int8_t>(between(low, high));
  return t;
}
// What rounding to y's dtype gives.
double stored(DType dtype, float v) { return dtype == DType::f16 ? f16_to_f32(f32_to_f16(v)) : dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(v)) : v; }

void exactly(Report& report, const std::string& what, const Tensor& got, const std::vector<double>& want) { report.close(what, got, want, 0, 0); }

void integers(Report& report, Device& device, const Case& c, DType store) {
  const Tensor x = bytes(DType::i8, {c.m, c.k}, -127, 127), w = bytes(DType::i8, {c.n, c.k}, -128, 127);
  const Tensor sx = filled(DType::f32, {c.m}, [](int64_t) { return std::exp2(between(-8, -4)) * (1 + between(0, 7) / 8.0); });
  const Tensor sw = filled(DType::f32, {c.n}, [](int64_t) { return std::exp2(between(-9, -6)) * (1 + between(0, 1023) / 1024.0); }), bias = gaussian(DType::f32, {c.n});
  const auto sums = integer_products(x.data<int8_t>(), w.data<int8_t>(), c.m, c.n, c.k, 0, c.k);
  std::vector<double> want(sums.size());
  for (int64_t t = 0; t < c.m; ++t)
    for (int64_t r = 0; r < c.n; ++r) {
      const float factor = sx.data<float>()[t] * sw.data<float>()[r], product = static_cast<float>(sums[static_cast<size_t>(t * c.n + r)]) * factor;
      want[static_cast<size_t>(t * c.n + r)] = stored(store, product + bias.data<float>()[r]);
    }
  const auto out = device.run("gemm_act", {x, sx, w, sw, bias}, {poisoned(store, {c.m, c.n})}, cut(c));
  exactly(report, name_of("i8", c, store), out[0], want);
}

void floats(Report& report, Device& device, const Case& c, DType store) {
  const auto codes = [](std::vector<int64_t> shape) {
    Tensor t = allocate(DType::f8_e4m3, std::move(shape));
    for (int64_t i = 0; i < t.elements(); ++i) {
      uint8_t code = static_cast<uint8_t>(between(0, 255));
      if ((code & 127) == 127) code ^= 1;  // no NaN
      t.data<uint8_t>()[i] = code;
    }
    return t;
  };
  const Tensor x = codes({c.m, c.k}), w = codes({c.n, c.k});
  const Tensor sx = filled(DType::f32, {c.m}, [](int64_t) { return std::exp2(between(-12, -8)); }), sw = filled(DType::f32, {c.n}, [](int64_t) { return std::exp2(between(-8, -6)) * 1.25; });
  std::vector<double> want(static_cast<size_t>(c.m * c.n)), size(want.size());
  const double* const value = e4m3_values();
  parallel(c.m, [&](int64_t t) {
    for (int64_t r = 0; r < c.n; ++r) {
      double sum = 0, most = 0;
      for (int64_t b = 0; b < c.k; b += 128) {
        // Bound: each of the 4 instructions of 128 k aligns its products and the sum so far with the largest of them and drops what lies
        // beyond 13 fraction bits: (32 + 1) 2^-13 of the largest at most, which the sum of magnitudes of the 128 covers.
        double sizes = 0;
        for (int64_t i = b; i < std::min(c.k, b + 128); ++i) {
          const double p = value[x.data<uint8_t>()[t * c.k + i]] * value[w.data<uint8_t>()[r * c.k + i]];
          sum += p, sizes += std::fabs(p);
        }
        most += sizes;
      }
      const double scale = double(sx.data<float>()[t]) * sw.data<float>()[r];
      want[static_cast<size_t>(t * c.n + r)] = sum * scale, size[static_cast<size_t>(t * c.n + r)] = most * scale;
    }
  });
  const auto out = device.run("gemm_act", {x, sx, w, sw}, {poisoned(store, {c.m, c.n})}, cut(c));
  // As shares of the sum of magnitudes, so that one bound serves all.
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double got = get(out[0], static_cast<int64_t>(i)), rounding = unit(store) * std::fabs(want[i]) + least(store);
    const double share = std::isnan(got) ? INFINITY : std::max(0.0, std::fabs(got - want[i]) - rounding) / size[i];
    worst = std::max(worst, share);
  }
  std::printf("      worst error of e4m3 sums: 2^%.1f of the sum of magnitudes\n", std::log2(worst));
  report.that(name_of("f8", c, store), worst <= 0x1p-11);
}

void nibbles(Report& report, Device& device, const Case& c, DType store) {
  const Tensor x = bytes(DType::i8, {c.m, c.k}, -127, 127), codes = bytes(DType::i8, {c.n, c.k}, -8, 7), w = comet_weights(codes.data<int8_t>(), c.n, c.k);
  const int64_t kb = c.k / 128, pitch = (c.n + 3) / 4 * 4;
  const Tensor sx = filled(DType::f32, {c.m}, [](int64_t) { return std::exp2(between(-8, -4)) * (1 + between(0, 7) / 8.0); });
  const Tensor sw = filled(DType::f32, {kb, pitch}, [](int64_t) { return std::exp2(between(-9, -6)) * (1 + between(0, 1023) / 1024.0); }), bias = gaussian(DType::f32, {c.n});
  std::vector<float> sums(static_cast<size_t>(c.m * c.n));
  std::vector<double> size(sums.size());
  for (int64_t b = 0; b < kb; ++b) {
    const auto part = integer_products(x.data<int8_t>(), codes.data<int8_t>(), c.m, c.n, c.k, b * 128, b * 128 + 128);
    for (size_t i = 0; i < sums.size(); ++i) {
      const float scale = sw.data<float>()[b * pitch + static_cast<int64_t>(i) % c.n];
      sums[i] = std::fma(static_cast<float>(part[i]), scale, sums[i]);
      size[i] += std::fabs(double(part[i]) * scale);
    }
  }
  std::vector<double> want(sums.size());
  bool same = true;
  const auto out = device.run("gemm_act", {x, sx, w, sw, bias}, {poisoned(store, {c.m, c.n})}, cut(c));
  double worst = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const int64_t t = static_cast<int64_t>(i) / c.n, r = static_cast<int64_t>(i) % c.n;
    const float y = sums[i] * (sx.data<float>()[t] * 1.0f) + bias.data<float>()[r];
    const double got = get(out[0], static_cast<int64_t>(i));
    same = same && got == stored(store, y);
    // Shared items add the sums of runs, in fp32: each addition and fma is within 2^-24 of the magnitudes that went in.
    const double bound = (kb + 8) * 0x1p-24 * (size[i] * sx.data<float>()[t] + std::fabs(bias.data<float>()[r])) + unit(store) * std::fabs(y) + least(store);
    worst = std::max(worst, std::isnan(got) ? INFINITY : std::fabs(got - y) / bound);
  }
  if (c.shared == 0) report.that(name_of("w4 bit by bit", c, store), same);
  else report.that(name_of("w4", c, store), worst <= 1);
}

}  // namespace

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Device device;
  Report report;
  std::vector<Case> cases = {{1, 256, 128, 0, 0, 0, 0}, {5, 40, 256, 0, 0, 0, 0}, {16, 520, 1024, 16, 1, -1, 0}, {33, 300, 640, 64, 1, 3, 2}, {200, 513, 384, 128, 1, 0, 0}, {300, 264, 768, 128, 2, -1, 0}};
  if (!quick) {
    for (int tokens : {16, 32, 64, 128})
      for (int cluster : {1, 2})
        for (int shared : {0, 1, 7, 1000}) cases.push_back({between(1, 3 * tokens), between(1, 900), 128 * between(1, 12), tokens, cluster, shared, static_cast<int>(between(0, 1)) * 3});
    cases.push_back({260, 9000, 256, 128, 0, -1, 0});
    cases.push_back({130, 1024, 4096, 0, 0, -1, 0});
  }
  const DType stores[] = {DType::f32, DType::f16, DType::bf16};
  int at = 0;
  for (const Case& c : cases) {
    const DType store = stores[at++ % 3];
    integers(report, device, c, store);
    floats(report, device, c, store);
    nibbles(report, device, c, store);
  }
  integers(report, device, {37, 130, 144, 0, 0, -1, 0}, DType::f32);  // K that no 128 divides
  floats(report, device, {37, 130, 144, 0, 0, -1, 0}, DType::f16);
  // The same bytes again.
  const Case same{70, 700, 2048, 64, 1, 1000, 0};
  const Tensor x = bytes(DType::i8, {same.m, same.k}, -127, 127), w = bytes(DType::i8, {same.n, same.k}, -8, 7), packed = comet_weights(w.data<int8_t>(), same.n, same.k);
  const Tensor sx = gaussian(DType::f32, {same.m}), sw = gaussian(DType::f32, {same.k / 128, same.n});
  Tensor first;
  bool equal = true;
  for (int i = 0; i < (quick ? 2 : 12); ++i) {
    const auto out = device.run("gemm_act", {x, sx, packed, sw}, {poisoned(DType::f32, {same.m, same.n})}, cut(same));
    if (i == 0) first = out[0];
    else equal = equal && std::memcmp(first.raw(), out[0].raw(), first.bytes()) == 0;
  }
  report.that("the same bytes again", equal);
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures ? 1 : 0;
} catch (const Failure& failure) {
  std::printf("FAIL %s: %s\n", failure.code.c_str(), failure.what());
  return 1;
}
