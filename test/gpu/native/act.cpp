// Checks products of low-bit activations: act [--quick] [--act8]. Integers against 64-bit sums, bit by bit; e4m3
// against fp64.
#include "act_harness.h"
//
#include "cuda/gemm/families/w4ax_few.h"

using namespace lpq;
using namespace lpq::test;

namespace {

struct Case {
  int64_t m, n, k;
  int tokens, shared;  // as the kernel without wgmma cuts it
};

Params cut(const Case& c) {
  Params p;
  if (c.tokens) p.set("tokens", double(c.tokens));
  if (c.shared >= 0) p.set("shared", double(c.shared));
  return p;
}
// A case as the kernel of 8-bit activations cuts it, and cut at random.
std::vector<std::pair<const char*, Params>> ways(Device& device, const Case& c) {
  const int forms[][2] = {{16, 4}, {32, 4}, {64, 4}, {96, 4}, {128, 4}, {16, 8}, {32, 8}, {64, 8}};
  const auto& [tokens, width] = forms[between(0, 7)];
  const int64_t items = (c.n + 32 * width - 1) / (32 * width) * ((c.m + tokens - 1) / tokens), kb = (c.k + 127) / 128,
                most = std::min<int64_t>({kb, 8, device.backend().exec().device().multiprocessors / items});
  Params second = params({{"kernel", std::string("act8")}, {"tokens", double(tokens)}, {"width", double(width)}});
  if (most >= 2) {
    second.set("reduce", std::string(between(0, 1) ? "cluster" : "global"));
    second.set("blocks", double(items * between(2, static_cast<int>(most))));
  }
  Params alone = params({{"kernel", std::string("act8")}, {"tokens", 16.0}, {"width", 8.0}});
  alone.set("blocks", double((c.n + 255) / 256 * ((c.m + 15) / 16)));
  alone.set("reduce", std::string("global"));
  if ((c.n + 255) / 256 * ((c.m + 15) / 16) > device.backend().exec().device().multiprocessors)
    return {{"chosen", {}}, {"cut", second}};
  return {{"chosen", {}}, {"cut", second}, {"alone", alone}};
}
// y of gemm_act; cut as the kernel chooses where it has no such cut.
Tensor product(Device& device, const std::vector<Tensor>& in, const Case& c, DType store, const Params& how) {
  try {
    return device.run("gemm_act", in, {poisoned(store, {c.m, c.n})}, how)[0];
  } catch (const Failure& failure) {
    if (std::string(failure.what()).find("no tiling") == std::string::npos) throw;
    return device.run("gemm_act", in, {poisoned(store, {c.m, c.n})}, params({{"kernel", std::string("act8")}}))[0];
  }
}
std::string name_of(const char* kind, const Case& c, DType store) {
  return std::string(kind) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         " tokens " + std::to_string(c.tokens) + " shared " + std::to_string(c.shared) + " " +
         std::string(dtype_name(store));
}
Tensor bytes(DType dtype, std::vector<int64_t> shape, int low, int high) {
  Tensor t = allocate(dtype, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.data<int8_t>()[i] = static_cast<int8_t>(between(low, high));
  return t;
}
// What rounding to y's dtype gives.
double stored(DType dtype, float v) {
  return dtype == DType::f16 ? f16_to_f32(f32_to_f16(v)) : dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(v)) : v;
}

Tensor poisoned_bytes(const Tensor& like) {
  Tensor t = allocate(like.dtype, like.shape);
  if (t.bytes()) std::memset(t.raw(), 0x5d, t.bytes());
  return t;
}
void exactly(Report& report, const std::string& what, const Tensor& got, const std::vector<double>& want) {
  report.close(what, got, want, 0, 0);
}

// The kernel of integers: 8-bit weights (i8), 4-bit ones of one scale a row (r4) or with factors of groups (g4); sums
// are exact however they are cut.
void whole(Report& report, Device& device, const std::string& kind, int64_t m, int64_t n, int64_t k, const Params& how,
           const std::string& name, DType store) {
  const bool nibbles = kind != "i8";
  const int64_t kb = (k + 127) / 128, pitch = (n + 15) / 16 * 16;
  const Tensor x = bytes(DType::i8, {m, k}, -127, 127),
               codes = bytes(DType::i8, {n, k}, nibbles ? -8 : -128, nibbles ? 7 : 127),
               products = bytes(DType::i8, {n, k}, 0, 0), factors = bytes(DType::i8, {kb, pitch}, -15, 16);
  for (int64_t r = 0; r < n; ++r)
    for (int64_t i = 0; i < k; ++i)
      products.data<int8_t>()[r * k + i] = static_cast<int8_t>(
          codes.data<int8_t>()[r * k + i] * (kind == "g4" ? factors.data<int8_t>()[i / 128 * pitch + r] : 1));
  Tensor w = codes;
  if (nibbles) {
    const Tensor padded = bytes(DType::i8, {n, kb * 128}, 0, 0);
    for (int64_t r = 0; r < n; ++r) std::copy_n(codes.data<int8_t>() + r * k, k, padded.data<int8_t>() + r * kb * 128);
    w = comet_weights(padded.data<int8_t>(), n, kb * 128);
  }
  const Tensor sx = filled(DType::f32, {m},
                           [](int64_t) { return std::exp2(between(-8, -4)) * (1 + between(0, 7) / 8.0); }),
               sw = filled(DType::f32, {n},
                           [](int64_t) { return std::exp2(between(-9, -6)) * (1 + between(0, 1023) / 1024.0); }),
               bias = gaussian(DType::f32, {n});
  const auto sums = integer_products(x.data<int8_t>(), products.data<int8_t>(), m, n, k, 0, k);
  std::vector<double> want(sums.size());
  for (int64_t t = 0; t < m; ++t)
    for (int64_t r = 0; r < n; ++r) {
      const float factor = sx.data<float>()[t] * sw.data<float>()[r],
                  product = static_cast<float>(sums[static_cast<size_t>(t * n + r)]) * factor;
      want[static_cast<size_t>(t * n + r)] = stored(store, product + bias.data<float>()[r]);
    }
  Params all = how;
  std::vector<Tensor> in{x, sx, w, sw};
  if (kind == "g4") in.push_back(factors), all.set("groupScales", 1.0);
  in.push_back(bias);
  const auto out = device.run("gemm_act", in, {poisoned(store, {m, n})}, all);
  exactly(report,
          kind + " " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " + name + " " +
              std::string(dtype_name(store)),
          out[0], want);
}
// Every form, alone and with items that blocks share through the workspace and in clusters, at random shapes.
void whole_forms(Report& report, Device& device, bool quick) {
  const DType stores[] = {DType::f32, DType::f16, DType::bf16};
  const int multiprocessors = device.backend().exec().device().multiprocessors;
  int at = 0;
  struct Form {
    int tokens, width;
  };
  const Form forms[] = {{16, 8}, {32, 8}, {64, 8},  {96, 8},  {128, 8}, {16, 4}, {32, 4},
                        {64, 4}, {96, 4}, {128, 4}, {160, 4}, {192, 4}, {256, 4}};
  for (const char* kind : {"i8", "r4", "g4"}) {
    for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 40, 144},
                                  {7, 520, 1024},
                                  {16, 256, 128},
                                  {33, 300, 640},
                                  {130, 1000, 2048},
                                  {300, 513, 400},
                                  {515, 264, 768}})
      whole(report, device, kind, m, n, k, {}, "chosen", stores[at++ % 3]);
    for (const auto& [tokens, width] : forms)
      for (int variant = 0; variant < (quick ? 2 : 5); ++variant) {
        const int64_t m = between(1, tokens * (variant == 0 ? 1 : 2)), n = between(1, 900), k = 16 * between(24, 200),
                      items = (n + 32 * width - 1) / (32 * width) * ((m + tokens - 1) / tokens), kb = (k + 127) / 128;
        Params how = params({{"kernel", std::string("act8")}, {"tokens", double(tokens)}, {"width", double(width)}});
        std::string name = std::to_string(tokens) + "x" + std::to_string(width);
        if (variant > 0) {
          const bool cluster = variant % 2 == 1;
          const int64_t sharers =
              between(2, static_cast<int>(std::min<int64_t>({kb, cluster ? 8 : 12, multiprocessors / items})));
          how.set("reduce", std::string(cluster ? "cluster" : "global"));
          if (variant == 4) how.set("blocks", double(std::min<int64_t>(multiprocessors, items * kb)));
          else how.set("blocks", double(items * sharers));
          name += cluster        ? " cluster of " + std::to_string(sharers)
                  : variant == 4 ? " all"
                                 : " shared by " + std::to_string(sharers);
        }
        try {
          whole(report, device, kind, m, n, k, how, name, stores[at++ % 3]);
        } catch (const Failure& failure) {
          if (std::string(failure.what()).find("no tiling") == std::string::npos) throw;
          std::printf("      %s %s: no such cut\n", kind, name.c_str());
        }
      }
  }
  // The same bytes again, launches one behind the other.
  const Tensor x = bytes(DType::i8, {70, 2048}, -127, 127), w = bytes(DType::i8, {700, 2048}, -128, 127),
               sx = gaussian(DType::f32, {70}), sw = gaussian(DType::f32, {700});
  Tensor first;
  bool equal = true;
  for (int i = 0; i < 12; ++i) {
    const auto out = device.run("gemm_act", {x, sx, w, sw}, {poisoned(DType::f32, {70, 700})}, {});
    if (i == 0) first = out[0];
    else equal = equal && std::memcmp(first.raw(), out[0].raw(), first.bytes()) == 0;
  }
  report.that("integers: the same bytes again", equal);
}

Tensor e4m3_codes(std::vector<int64_t> shape) {
  Tensor t = allocate(DType::f8_e4m3, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) {
    uint8_t code = static_cast<uint8_t>(between(0, 255));
    if ((code & 127) == 127) code ^= 1;  // no NaN
    t.data<uint8_t>()[i] = code;
  }
  return t;
}

void floats(Report& report, Device& device, const Case& c, DType store) {
  const Tensor x = e4m3_codes({c.m, c.k}), w = e4m3_codes({c.n, c.k});
  const Tensor sx = filled(DType::f32, {c.m}, [](int64_t) { return std::exp2(between(-12, -8)); }),
               sw = filled(DType::f32, {c.n}, [](int64_t) { return std::exp2(between(-8, -6)) * 1.25; });
  std::vector<double> want(static_cast<size_t>(c.m * c.n)), size(want.size());
  const double* const value = e4m3_values();
  parallel(c.m, [&](int64_t t) {
    for (int64_t r = 0; r < c.n; ++r) {
      // An instruction aligns 32 products and the sum so far with the largest of them and drops what lies beyond 13
      // fraction bits of
      // it: 33 times 2^-13 of the largest at most. fp32 takes over after 128.
      double sum = 0, most = 0, running = 0, largest = 0;
      for (int64_t i = 0; i < c.k; ++i) {
        if (i % 32 == 0) {
          most += 33 * largest;
          if (i % 128 == 0) running = 0;
          largest = std::fabs(running);
        }
        const double p = value[x.data<uint8_t>()[t * c.k + i]] * value[w.data<uint8_t>()[r * c.k + i]];
        sum += p, running += p, largest = std::max(largest, std::fabs(p));
      }
      most += 33 * largest;
      const double scale = double(sx.data<float>()[t]) * sw.data<float>()[r];
      want[static_cast<size_t>(t * c.n + r)] = sum * scale, size[static_cast<size_t>(t * c.n + r)] = most * scale;
    }
  });
  for (const auto& [way, how] : ways(device, c)) {
    const Tensor out = product(device, {x, sx, w, sw}, c, store, how);
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double got = get(out, static_cast<int64_t>(i)), rounding = unit(store) * std::fabs(want[i]) + least(store);
      const double share = std::isnan(got) ? INFINITY : std::max(0.0, std::fabs(got - want[i]) - rounding) / size[i];
      worst = std::max(worst, share);
    }
    std::printf("      worst error of e4m3 sums: %.3f of 2^-13 a product\n", worst * 8192);
    report.that(std::string(way) + " " + name_of("f8", c, store), worst <= 0x1p-13);
  }
}

void nibbles(Report& report, Device& device, const Case& c, DType store) {
  const Tensor x = bytes(DType::i8, {c.m, c.k}, -127, 127), codes = bytes(DType::i8, {c.n, c.k}, -8, 7),
               w = comet_weights(codes.data<int8_t>(), c.n, c.k);
  const int64_t kb = c.k / 128, pitch = (c.n + 3) / 4 * 4;
  const Tensor sx =
      filled(DType::f32, {c.m}, [](int64_t) { return std::exp2(between(-8, -4)) * (1 + between(0, 7) / 8.0); });
  const Tensor sw = filled(DType::f32, {kb, pitch},
                           [](int64_t) { return std::exp2(between(-9, -6)) * (1 + between(0, 1023) / 1024.0); }),
               bias = gaussian(DType::f32, {c.n});
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
  for (const auto& [way, how] : ways(device, c)) {
    const Tensor out = product(device, {x, sx, w, sw, bias}, c, store, how);
    bool same = true;
    double worst = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t t = static_cast<int64_t>(i) / c.n, r = static_cast<int64_t>(i) % c.n;
      const float y = sums[i] * (sx.data<float>()[t] * 1.0f) + bias.data<float>()[r];
      const double got = get(out, static_cast<int64_t>(i));
      same = same && got == stored(store, y);
      // Shared items add the sums of runs, in fp32: each addition and fma is within 2^-24 of the magnitudes that went
      // in.
      const double bound = (kb + 8) * 0x1p-24 * (size[i] * sx.data<float>()[t] + std::fabs(bias.data<float>()[r])) +
                           unit(store) * std::fabs(y) + least(store);
      worst = std::max(worst, std::isnan(got) ? INFINITY : std::fabs(got - y) / bound);
    }
    // A block that shares no item adds up as the CPU does.
    const bool alone = std::string(way) == "alone";
    report.that(std::string(way) + " " + name_of(alone ? "w4 bit by bit" : "w4", c, store), alone ? same : worst <= 1);
  }
}

// 4-bit weights times e4m3: the tensor core's cuts as in `floats`, each group times its scale, and the fp32 chain over
// groups.
void nibble_floats(Report& report, Device& device, const Case& c, DType store) {
  const Tensor x = e4m3_codes({c.m, c.k}), codes = bytes(DType::i8, {c.n, c.k}, -8, 7),
               w = comet_weights(codes.data<int8_t>(), c.n, c.k);
  const int64_t kb = c.k / 128, pitch = (c.n + 3) / 4 * 4;
  const Tensor sx =
      filled(DType::f32, {c.m}, [](int64_t) { return std::exp2(between(-12, -8)) * (1 + between(0, 7) / 8.0); });
  const Tensor sw = filled(DType::f32, {kb, pitch},
                           [](int64_t) { return std::exp2(between(-9, -6)) * (1 + between(0, 1023) / 1024.0); }),
               bias = gaussian(DType::f32, {c.n});
  for (const auto& [way, how] : ways(device, c)) {
    const Tensor out = product(device, {x, sx, w, sw, bias}, c, store, how);
    const double* const value = e4m3_values();
    std::vector<double> worst(static_cast<size_t>(c.m));
    parallel(c.m, [&](int64_t t) {
      for (int64_t r = 0; r < c.n; ++r) {
        double sum = 0, cuts = 0, chain = 0;
        for (int64_t b = 0; b < kb; ++b) {
          double part = 0, most = 0;
          for (int64_t i = b * 128; i < b * 128 + 128; i += 32) {
            double largest = std::fabs(part);
            for (int64_t j = i; j < i + 32; ++j) {
              const double p = value[x.data<uint8_t>()[t * c.k + j]] * codes.data<int8_t>()[r * c.k + j];
              part += p, largest = std::max(largest, std::fabs(p));
            }
            most += 33 * largest;
          }
          const double scale = sw.data<float>()[b * pitch + r];
          sum += part * scale, cuts += most * scale, chain += std::fabs(part * scale) + most * scale * 0x1p-13;
        }
        const double factor = sx.data<float>()[t], want = sum * factor + bias.data<float>()[r];
        const double bound = 0x1p-13 * cuts * factor +
                             (kb + 8) * 0x1p-24 * (chain * factor + std::fabs(bias.data<float>()[r])) +
                             2 * unit(store) * std::fabs(want) + least(store);
        const double got = get(out, t * c.n + r);
        worst[static_cast<size_t>(t)] =
            std::max(worst[static_cast<size_t>(t)], std::isnan(got) ? INFINITY : std::fabs(got - want) / bound);
      }
    });
    const double most = *std::max_element(worst.begin(), worst.end());
    std::printf("      4-bit weights by e4m3: %.3f of the bound\n", most);
    report.that(std::string(way) + " " + name_of("w4 by e4m3", c, store), most <= 1);
  }
}

// The CPU's operation of that name.
void on_cpu(const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out) {
  static ThreadPool pool(8);
  static std::atomic<int64_t> done{0}, total{0};
  Exec exec{pool, done, total};
  Call call;
  call.in = in, call.out = out;
  op_table().at(op)(call, exec);
}
bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

void tokens(Report& report, Device& device, int64_t m, int64_t k, DType x_type, DType codes) {
  Tensor x = filled(x_type, {m, k}, [&](int64_t i) {
    return i / k == 0 ? 0 : i / k == 1 ? 1e-30 * normal() : normal() * std::exp2(between(-6, 6));
  });
  const Tensor want = allocate(codes, {m, k}), scales = allocate(DType::f32, {m});
  on_cpu("quantize_tokens", {x}, {want, scales});
  Tensor poison = allocate(codes, {m, k});
  std::memset(poison.raw(), 0x7f, poison.bytes());
  const auto got = device.run("quantize_tokens", {x}, {poison, poisoned(DType::f32, {m})});
  report.that("quantize_tokens " + std::string(dtype_name(x_type)) + " to " + std::string(dtype_name(codes)) + " " +
                  std::to_string(m) + "x" + std::to_string(k) + ": the CPU's bytes",
              same_bytes(got[0], want) && same_bytes(got[1], scales));
}

// Codes that a norm and a gate make of their outputs are those of quantize_tokens.
void codes_beside(Report& report, Device& device, int64_t m, int64_t k, DType y_type, DType x_type, DType codes) {
  const auto random = [&](DType type, int64_t columns) {
    return filled(type, {m, columns}, [&](int64_t) { return 3 * normal(); });
  };
  const auto room = [&](std::vector<Tensor> before) {
    Tensor poison = allocate(codes, {m, k});
    std::memset(poison.raw(), 0x7f, poison.bytes());
    before.push_back(poison), before.push_back(poisoned(DType::f32, {m}));
    return before;
  };
  const auto check = [&](const std::string& op, const Tensor& x, const Tensor& got, const Tensor& scales) {
    const auto want = device.run("quantize_tokens", {x}, room({}));
    report.that(op + " " + std::string(dtype_name(y_type)) + " to " + std::string(dtype_name(x_type)) + " and " +
                    std::string(dtype_name(codes)) + " " + std::to_string(m) + "x" + std::to_string(k),
                same_bytes(got, want[0]) && same_bytes(scales, want[1]));
  };
  const Tensor h = random(DType::f32, k), gain = filled(DType::bf16, {k}, [&](int64_t) { return normal(); });
  for (const char* kind : {"rms", "layer"}) {
    const auto norm = device.run("add_norm", {h, random(y_type, k), gain}, room({h, poisoned(x_type, {m, k})}),
                                 params({{"kind", std::string(kind)}, {"eps", 1e-5}}));
    check(std::string("codes beside add_norm, ") + kind, norm[1], norm[2], norm[3]);
  }
  if (y_type != x_type) return;
  const Tensor both = random(x_type, 2 * k);
  const auto gate =
      device.run("gated_activation", {both, both}, room({poisoned(x_type, {m, k})}),
                 params({{"act", std::string("silu")}, {"first", 0.0}, {"upFirst", static_cast<double>(k)}}));
  check("codes beside gated_activation", gate[0], gate[1], gate[2]);
}

// Numbers of codes, and products scaled by what is left of the scales: the CPU's bytes.
void widened(Report& report, Device& device, int64_t m, int64_t k, DType type, DType codes_type) {
  const bool integer = codes_type == DType::i8;
  Tensor codes = bytes(DType::i8, {m, k}, -128, 127);
  for (int64_t i = 0; !integer && i < codes.elements(); ++i)
    if ((codes.data<int8_t>()[i] & 127) == 127) codes.data<int8_t>()[i] = 1;  // no NaN
  codes.dtype = codes_type;
  const Tensor scales = filled(DType::f32, {m}, [](int64_t i) {
    return i == 1 ? 0 : std::exp2(between(-12, 3)) * (1 + between(0, 1023) / 1024.0);
  });
  const std::string what = std::string(dtype_name(codes_type)) + " to " + std::string(dtype_name(type)) + " " +
                           std::to_string(m) + "x" + std::to_string(k);
  const Tensor x = allocate(type, {m, k}), rest = allocate(DType::f32, {m});
  on_cpu("widen_tokens", {codes, scales}, {x, rest});
  const auto out = device.run("widen_tokens", {codes, scales}, {poisoned(type, {m, k}), poisoned(DType::f32, {m})});
  report.that("widen_tokens " + what, same_bytes(out[0], x) && same_bytes(out[1], rest));
  const Tensor y = filled(type, {m, k}, [](int64_t) { return normal(); }), bias = gaussian(DType::f32, {k}),
               want = allocate(type, {m, k});
  std::memcpy(want.raw(), y.raw(), y.bytes());
  on_cpu("scale_tokens", {rest, bias}, {want});
  report.that("scale_tokens " + what, same_bytes(device.run("scale_tokens", {rest, bias}, {y})[0], want));
}

// W4Ax: activations quantized on both, then products against 64-bit sums and their fp32 chain.
// W4Ax; two_level: weights with whole factors of groups and one scale a row.
void mixed(Report& report, Device& device, const Case& c, double share, bool ordered, bool two_level, DType store) {
  const int64_t kb = c.k / 128, x_pitch = (c.m + 3) / 4 * 4, w_pitch = (c.n + 3) / 4 * 4;
  const Tensor bits = allocate(DType::u8, {kb}), clip = allocate(DType::f32, {kb}), blocks = allocate(DType::i32, {kb}),
               order = allocate(DType::i32, {c.k});
  int eights = 0, fours = 0;
  for (int64_t b = 0; b < kb; ++b) {
    const bool four = double(between(0, 999)) / 1000 < share;
    bits.data<uint8_t>()[b] = four ? 4 : 8;
    clip.data<float>()[b] = four ? 0.85f : 1.0f;
    blocks.data<int32_t>()[b] = four ? ~fours++ : eights++;
  }
  for (int64_t i = 0; i < c.k; ++i) order.data<int32_t>()[i] = static_cast<int32_t>(i);
  for (int64_t i = c.k - 1; i > 0; --i) std::swap(order.data<int32_t>()[i], order.data<int32_t>()[between(0, i)]);
  const Tensor x = gaussian(DType::f32, {c.m, c.k});
  std::vector<Tensor> in{x, bits, clip, blocks}, plain{x, bits, clip};
  if (ordered) in.push_back(order), plain.push_back(order);
  const Tensor x8 = allocate(DType::i8, {c.m, 128 * eights}), x4 = allocate(DType::u8, {c.m, 64 * fours}),
               sx = allocate(DType::f32, {kb, x_pitch});
  std::memset(sx.raw(), 0, sx.bytes());
  on_cpu("quantize_comet", in, {x8, x4, sx});
  const Tensor zero_scales = allocate(DType::f32, {kb, x_pitch});
  std::memset(zero_scales.raw(), 0, zero_scales.bytes());
  const auto q = device.run("quantize_comet", in, {poisoned_bytes(x8), poisoned_bytes(x4), zero_scales});
  report.that(name_of("quantize_comet: the CPU's bytes,", c, store),
              same_bytes(q[0], x8) && same_bytes(q[1], x4) && same_bytes(q[2], sx));
  const Tensor codes = allocate(DType::i8, {c.m, c.k}), token_scales = allocate(DType::f32, {c.m, kb});
  on_cpu("quantize_activations", plain, {codes, token_scales});
  const auto both = device.run("quantize_activations", plain, {poisoned_bytes(codes), poisoned(DType::f32, {c.m, kb})});
  report.that(name_of("quantize_activations: the CPU's bytes,", c, store),
              same_bytes(both[0], codes) && same_bytes(both[1], token_scales));

  const Tensor w_codes = bytes(DType::i8, {c.n, c.k}, -8, 7), w = comet_weights(w_codes.data<int8_t>(), c.n, c.k),
               bias = gaussian(DType::f32, {c.n});
  const int64_t f_pitch = (c.n + 15) / 16 * 16;
  const Tensor factors = bytes(DType::i8, {kb, f_pitch}, -15, 16), weights = bytes(DType::i8, {c.n, c.k}, 0, 0);
  for (int64_t r = 0; r < c.n; ++r)
    for (int64_t i = 0; i < c.k; ++i)
      weights.data<int8_t>()[r * c.k + i] = static_cast<int8_t>(
          w_codes.data<int8_t>()[r * c.k + i] * (two_level ? factors.data<int8_t>()[i / 128 * f_pitch + r] : 1));
  const Tensor sw = filled(DType::f32, two_level ? std::vector<int64_t>{c.n} : std::vector<int64_t>{kb, w_pitch},
                           [](int64_t) { return std::exp2(between(-9, -6)) * (1 + between(0, 1023) / 1024.0); });
  std::vector<float> sums(static_cast<size_t>(c.m * c.n));
  std::vector<double> size(sums.size());
  for (int64_t b = 0; b < kb; ++b) {
    const auto part =
        integer_products(codes.data<int8_t>(), weights.data<int8_t>(), c.m, c.n, c.k, b * 128, b * 128 + 128);
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t t = static_cast<int64_t>(i) / c.n, r = static_cast<int64_t>(i) % c.n;
      const float scale =
          token_scales.data<float>()[t * kb + b] * (two_level ? 1.0f : sw.data<float>()[b * w_pitch + r]);
      sums[i] = std::fma(static_cast<float>(part[i]), scale, sums[i]);
      size[i] += std::fabs(double(part[i]) * scale);
    }
  }
  if (c.m <= 16 && !two_level) {
    // The order that native/cuda/gemm/kernels/w4ax_few.cuh states: parts of K, of every so many blocks each.
    const auto& device_facts = device.backend().exec().device();
    const int64_t split =
        cuda::plan_few(device_facts.multiprocessors, device_facts.shared_per_block, c.m, c.n, kb).split;
    std::vector<double> want(sums.size());
    std::vector<std::vector<int64_t>> parts;
    for (int64_t b = 0; b < kb; ++b) {
      const auto part =
          integer_products(codes.data<int8_t>(), w_codes.data<int8_t>(), c.m, c.n, c.k, b * 128, b * 128 + 128);
      parts.emplace_back(part.begin(), part.end());
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t t = static_cast<int64_t>(i) / c.n, r = static_cast<int64_t>(i) % c.n;
      float all = 0;
      for (int64_t warp = 0; warp < split; ++warp) {
        float sum = 0;
        for (int64_t b = warp; b < kb; b += split)
          sum = std::fma(static_cast<float>(parts[static_cast<size_t>(b)][i]),
                         token_scales.data<float>()[t * kb + b] * sw.data<float>()[b * w_pitch + r], sum);
        all += sum;
      }
      want[i] = stored(store, all + bias.data<float>()[r]);
    }
    Params few;
    few.set("kernel", std::string("few"));
    exactly(report, name_of("w4ax of few tokens, bit by bit,", c, store),
            device.run("gemm_comet", {x8, x4, sx, blocks, w, sw, bias}, {poisoned(store, {c.m, c.n})}, few)[0], want);
  }
  // The same activations with all blocks in bytes.
  const Tensor in_bytes = allocate(DType::i32, {kb}), no_nibbles = allocate(DType::u8, {c.m, 0}),
               all = allocate(DType::i8, {c.m, c.k});
  for (int64_t b = 0; b < kb; ++b) in_bytes.data<int32_t>()[b] = static_cast<int32_t>(b);
  std::vector<Tensor> whole = in;
  whole[3] = in_bytes;
  on_cpu("quantize_comet", whole, {all, no_nibbles, sx});
  const auto b8 = device.run("quantize_comet", whole, {poisoned_bytes(all), no_nibbles, zero_scales});
  report.that(name_of("quantize_comet in bytes: the CPU's,", c, store),
              same_bytes(b8[0], all) && same_bytes(b8[2], sx));
  const auto check = [&](const std::string& by, const std::vector<Tensor>& given, const Params& how, bool exact) {
    Tensor out;
    Params all = how;
    if (two_level) all.set("groupScales", 1.0);
    try {
      out = device.run("gemm_comet", given, {poisoned(store, {c.m, c.n})}, all)[0];
    } catch (const Failure& failure) {
      if (std::string(failure.what()).find("no tiling") == std::string::npos) throw;
      return;
    }
    double worst = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t r = static_cast<int64_t>(i) % c.n;
      const float row = two_level ? sw.data<float>()[r] : 1.0f, y = sums[i] * row + bias.data<float>()[r];
      const double got = get(out, static_cast<int64_t>(i)),
                   bound = exact ? 0
                                 : (kb + 8) * 0x1p-24 * (size[i] * row + std::fabs(bias.data<float>()[r])) +
                                       unit(store) * std::fabs(y) + least(store);
      const double off = std::fabs(got - (exact ? stored(store, y) : y));
      worst = std::max(worst, std::isnan(got) ? INFINITY : bound > 0 ? off / bound : off > 0 ? INFINITY : 0);
    }
    report.that(name_of((std::string(two_level ? "two-level " : "") + "w4ax by " + by + " " + std::to_string(fours) +
                         " of " + std::to_string(kb) + " blocks of 4 bits" + (exact ? ", bit by bit" : ""))
                            .c_str(),
                        c, store),
                worst <= 1);
  };
  std::vector<Tensor> nibbles{x8, x4, sx, blocks, w, sw}, bytes_alone{all, no_nibbles, sx, in_bytes, w, sw};
  for (auto* each : {&nibbles, &bytes_alone}) {
    if (two_level) each->push_back(factors);
    each->push_back(bias);
  }
  for (auto [way, how] : ways(device, c)) {
    how.set("kernel", std::string("act8"));
    const bool exact = std::string(way) == "alone";
    check(std::string("act8, ") + way, nibbles, how, exact);
    check(std::string("act8 in bytes, ") + way, bytes_alone, how, exact);
  }
  // Tiles of which sums of 128 are scaled a unit of tokens at a time.
  for (const int tokens : {192, 256}) {
    const int64_t items = (c.n + 127) / 128 * ((c.m + tokens - 1) / tokens);
    if (!two_level || items > device.backend().exec().device().multiprocessors) continue;
    check("act8 in units, " + std::to_string(tokens), bytes_alone,
          params({{"kernel", std::string("act8")},
                  {"tokens", double(tokens)},
                  {"width", 4.0},
                  {"blocks", double(items)},
                  {"reduce", std::string("global")}}),
          true);
    if (kb > 1 && 2 * items <= device.backend().exec().device().multiprocessors)
      check("act8 in units, shared, " + std::to_string(tokens), bytes_alone,
            params({{"kernel", std::string("act8")},
                    {"tokens", double(tokens)},
                    {"width", 4.0},
                    {"blocks", double(2 * items)},
                    {"reduce", std::string(between(0, 1) ? "cluster" : "global")}}),
            false);
  }
  // On Hopper mma.sync's s4 product is emulated, exactly.
  if (c.tokens == 32) return;
  Params how = cut(c);
  how.set("kernel", std::string("mma"));
  // The kernel without wgmma multiplies scales of both levels first, and rounds them.
  check("mma", nibbles, how, c.shared == 0 && !two_level);
}

}  // namespace

int main(int argc, char** argv) try {
  bool quick = false, only_act8 = false;
  for (int i = 1; i < argc; ++i) (std::string(argv[i]) == "--act8" ? only_act8 : quick) = true;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Device device;
  Report report;
  std::vector<Case> cases = {{1, 256, 128, 0, 0},   {5, 40, 256, 0, 0},      {16, 520, 1024, 16, -1},
                             {33, 300, 640, 64, 3}, {200, 513, 384, 128, 0}, {300, 264, 768, 128, -1},
                             {9, 4400, 256, 0, -1}, {3, 6500, 384, 0, -1}};
  if (!quick) {
    for (int tokens : {16, 32, 64, 128})
      for (int shared : {0, 1, 7, 1000})
        for (int again = 0; again < 2; ++again)
          cases.push_back({between(1, 3 * tokens), between(1, 900), 128 * between(1, 12), tokens, shared});
    cases.push_back({260, 9000, 256, 128, -1});
    cases.push_back({130, 1024, 4096, 0, -1});
    for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 4096, 4096},
                                  {8, 6144, 4096},
                                  {16, 1000, 14336},
                                  {9, 28680, 2048},
                                  {16, 3000, 28672},
                                  {5, 70, 128 * 37}})
      cases.push_back({m, n, k, 0, -1});
  }
  const DType stores[] = {DType::f32, DType::f16, DType::bf16};
  whole_forms(report, device, quick);
  if (only_act8) {
    std::printf("%d checks, %d failures\n", report.checks, report.failures);
    return report.failures ? 1 : 0;
  }
  int at = 0;
  for (const Case& c : cases) {
    const DType store = stores[at++ % 3];
    floats(report, device, c, store);
    nibbles(report, device, c, store);
    nibble_floats(report, device, c, store);
    for (const bool two_level : {false, true})
      mixed(report, device, c, at % 4 == 0 ? 1.0 : at % 4 == 1 ? 0.0 : 0.6, at % 2 == 0, two_level, store);
  }
  for (DType x : stores)
    for (DType codes : {DType::i8, DType::f8_e4m3})
      for (const auto& [m, k] :
           {std::pair<int64_t, int64_t>{3, 1}, {5, 130}, {4, 129}, {9, 4096}, {2, 40000}, {400, 1040}}) {
        tokens(report, device, m, k, x, codes);
        widened(report, device, m, k, x, codes);
        if (x == DType::f32) continue;
        codes_beside(report, device, m, k, x, x, codes);
        codes_beside(report, device, m, k, DType::f32, x, codes);
      }
  for (const char* op : {"quantize_tokens"})
    report.fails(std::string(op) + ": NaN", "LPQ_NATIVE_NUMERICS", [&] {
      device.run(op, {filled(DType::f16, {2, 64}, [](int64_t i) { return i == 70 ? NAN : 1; })},
                 {allocate(DType::i8, {2, 64}), allocate(DType::f32, {2})});
    });
  floats(report, device, {37, 130, 144, 0, -1}, DType::f16);  // K that no 128 divides
  // The same bytes again.
  const Case same{70, 700, 2048, 64, 1000};
  const Tensor x = bytes(DType::i8, {same.m, same.k}, -127, 127), w = bytes(DType::i8, {same.n, same.k}, -8, 7),
               packed = comet_weights(w.data<int8_t>(), same.n, same.k);
  const Tensor sx = gaussian(DType::f32, {same.m}), sw = gaussian(DType::f32, {same.k / 128, same.n});
  Tensor first;
  bool equal = true;
  for (int i = 0; i < (quick ? 2 : 12); ++i) {
    const auto out = device.run("gemm_act", {x, sx, packed, sw}, {poisoned(DType::f32, {same.m, same.n})},
                                params({{"tokens", 64.0}}));
    if (i == 0) first = out[0];
    else equal = equal && std::memcmp(first.raw(), out[0].raw(), first.bytes()) == 0;
  }
  for (const double v : values(first)) equal = equal && std::isfinite(v);
  report.that("the same bytes again", equal);
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures ? 1 : 0;
} catch (const Failure& failure) {
  std::printf("FAIL %s: %s\n", failure.code.c_str(), failure.what());
  return 1;
}
