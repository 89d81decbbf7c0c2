// gemm_marlin and gemm_turbomind against double precision: what kernels --kernel marlin|turbomind runs.
//
// The bound. Code minus zero point is exact in the type of x, and so is its product with x in fp32. A sum of 32 k is
// two mma, each of which adds 16 products to what there is and may drop bits below 2^-23 of the largest of 17 terms: 2
// * 17 * 2^-23 < 2^-17 of A, the sum of |x| (|code - zero| s), and the same of sums of x, which count with |t + middle
// s|. Adding these up over K, warps and blocks in fp32 adds (K/32 + 64) 2^-24 A. Then one rounding to the type of y,
// and two of fp32 (bias). More than 16 tokens of f16 and integers: weights are rounded to f16 once, which adds the sum
// of |x| (2^-11 |w| + 2^-25), and each of K/16 mma adds to the sum so far, which A bounds too: K/16 * 17 * 2^-23 A at
// the very worst; K is 1312 at most but for few.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

#include "harness.h"
#include "layout_formats.h"
#include "repeat.h"

namespace lpq::test {

struct LayoutCase {
  bool marlin = true, floats = false, experts = false;
  int bits = 4;
  DType dtype = DType::f16, scale_dtype = DType::f16;
  int64_t m = 1, n = 1, k = 32, group = 128;
  bool zeros = false, order = false, bias = false, one_hot = false;
  int64_t hot = 0;
  std::vector<std::pair<const char*, double>> tiling;
};

struct LayoutWeights {
  std::vector<double> value,
      shift;                  // [n][k]: code minus what the kernel subtracts; what it adds besides, for each unit of x
  std::vector<double> scale;  // [n][k]
  std::vector<int32_t> order;
  Tensor packed, scales, zeros, permutation, bias;
};

inline double float_code(int bits, int code) {
  const int m = bits == 4 ? 1 : 3, bias = bits == 4 ? 1 : 7, e = code >> m & (bits == 4 ? 3 : 15),
            f = code & ((1 << m) - 1);
  const double size = e == 0 ? std::ldexp(f, 1 - bias - m) : std::ldexp((1 << m) + f, e - bias - m);
  return code >> (bits - 1) ? -size : size;
}

inline LayoutWeights make_layout_weights(const LayoutCase& c) {
  LayoutWeights w;
  const auto up = [](int64_t v, int64_t unit) { return (v + unit - 1) / unit * unit; };
  const int64_t np = up(c.n, c.marlin ? 256 : 64), kp = c.marlin ? up(c.k, 128) : c.k;
  const int64_t groups = c.group == 0 ? 1 : up(kp, c.group) / c.group, length = c.group == 0 ? kp : c.group;
  const int top = 1 << c.bits, middle = top / 2;
  std::vector<uint8_t> codes(static_cast<size_t>(np * kp), static_cast<uint8_t>(c.marlin && !c.zeros ? middle : 0));
  std::vector<uint16_t> scale(static_cast<size_t>(np * groups), 0);
  std::vector<uint8_t> exponent(scale.size(), 0), zero(scale.size(), 0);
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const size_t at = static_cast<size_t>(n * groups + g);
      const float s = static_cast<float>((0.5 + (random()() % 1000) / 1000.0) / (c.floats ? 1 : middle) *
                                         (random()() % 8 == 0 ? -1 : 1));
      scale[at] = c.scale_dtype == DType::bf16 ? f32_to_bf16(s) : f32_to_f16(s);
      exponent[at] = static_cast<uint8_t>(random()() % 50 == 0 ? 0 : 121 + random()() % 12);
      zero[at] = static_cast<uint8_t>(at % 5 == 0   ? top - 1
                                      : at % 5 == 1 ? 0
                                                    : random()() % static_cast<uint64_t>(top));
    }
  const size_t all = static_cast<size_t>(c.n * c.k);
  w.value.resize(all), w.shift.assign(all, 0), w.scale.resize(all);
  std::vector<uint32_t> pairs(scale.size(), 0);
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t k = 0; k < c.k; ++k) {
      int code;
      do code = static_cast<int>(random()() % static_cast<uint64_t>(top));
      while (c.floats && c.bits == 8 && (code & 127) == 127);
      codes[static_cast<size_t>(n * kp + k)] = static_cast<uint8_t>(code);
      const size_t at = static_cast<size_t>(n * groups + k / length), to = static_cast<size_t>(n * c.k + k);
      double s = c.scale_dtype == DType::bf16 ? bf16_to_f32(scale[at]) : f16_to_f32(scale[at]);
      if (c.floats && c.bits == 4) s = std::ldexp(1.0, exponent[at] - 127);
      w.scale[to] = s;
      if (c.floats) {
        w.value[to] = float_code(c.bits, code);
      } else if (c.marlin) {
        w.value[to] = code - (c.zeros ? zero[at] : middle);
      } else {
        const uint16_t t = f32_to_f16(static_cast<float>(-(double(zero[at]) * s)));
        pairs[at] = uint32_t{scale[at]} | uint32_t{t} << 16;
        w.value[to] = code - middle;
        w.shift[to] = f16_to_f32(t) + middle * s;
      }
    }
  const auto tensor = [](DType dtype, std::vector<int64_t> shape, const void* data) {
    Tensor made = allocate(dtype, std::move(shape));
    std::memcpy(made.raw(), data, made.bytes());
    return made;
  };
  const Form form = c.marlin ? Form::marlin : c.floats ? Form::operand_a : c.experts ? Form::experts : Form::operand_b;
  const std::vector<uint32_t> words = pack_fragments(codes, np, kp, c.bits, form);
  if (c.marlin) {
    w.packed = tensor(DType::i32, {kp / 16, np * c.bits / 2}, words.data());
    w.scales = tensor(DType::f16, {groups, np},
                      order_columns(scale, np, groups, groups == 1 ? marlin_channel_column : marlin_column).data());
    if (c.zeros)
      w.zeros = tensor(DType::i32, {groups, np * c.bits / 32}, pack_marlin_zeros(zero, np, groups, c.bits).data());
    if (c.order) {
      w.order.resize(static_cast<size_t>(c.k));
      std::iota(w.order.begin(), w.order.end(), 0);
      std::shuffle(w.order.begin(), w.order.end(), random());
      w.permutation = tensor(DType::i32, {c.k}, w.order.data());
    }
  } else {
    w.packed = tensor(DType::i32, {static_cast<int64_t>(words.size())}, words.data());
    if (!c.floats)
      w.scales = tensor(DType::f16, {groups, np, 2}, order_columns(pairs, np, groups, turbomind_column).data());
    else if (c.bits == 4)
      w.scales = tensor(DType::u8, {groups, np}, order_columns(exponent, np, groups, turbomind_column).data());
    else w.scales = tensor(c.scale_dtype, {groups, np}, order_columns(scale, np, groups, turbomind_column).data());
  }
  if (c.bias) w.bias = gaussian(c.dtype, {c.n});
  return w;
}

inline Params layout_params(const LayoutCase& c) {
  Params p = params({{"bits", double(c.bits)}, {"groupSize", double(c.group)}, {"hasBias", double(c.bias)}});
  if (c.marlin) {
    p.set("hasZeros", double(c.zeros)), p.set("hasOrder", double(c.order));
  } else {
    p.set("kind", std::string(c.floats ? "float" : "int")), p.set("signed", double(c.floats)),
        p.set("special", std::string(c.floats && c.bits == 8 ? "fn" : "none"));
    p.set("exponent", c.floats ? c.bits == 4 ? 2.0 : 4.0 : 0.0),
        p.set("mantissa", c.floats ? c.bits == 4 ? 1.0 : 3.0 : 0.0),
        p.set("bias", c.floats ? c.bits == 4 ? 1.0 : 7.0 : 0.0);
    p.set("experts", double(c.experts));
  }
  for (const auto& [name, value] : c.tiling) p.set(name, value);
  return p;
}

inline std::vector<Tensor> layout_inputs(const LayoutCase& c, const LayoutWeights& w, const Tensor& x) {
  std::vector<Tensor> in = {x, w.packed, w.scales};
  if (c.zeros && c.marlin) in.push_back(w.zeros);
  if (c.order) in.push_back(w.permutation);
  if (c.bias) in.push_back(w.bias);
  return in;
}

inline double check_layout(Device& d, const LayoutCase& c, const LayoutWeights& w, std::string& where) {
  const Tensor x =
      c.one_hot ? filled(c.dtype, {c.m, c.k}, [&](int64_t i) { return i % c.k == (c.hot + i / c.k) % c.k ? 1.0 : 0.0; })
                : gaussian(c.dtype, {c.m, c.k});
  const Tensor got = d.run(c.marlin ? "gemm_marlin" : "gemm_turbomind", layout_inputs(c, w, x),
                           {poisoned(c.dtype, {c.m, c.n})}, layout_params(c))[0];
  std::vector<double> xs = values(x);
  if (c.order) {
    const std::vector<double> plain = xs;
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        xs[static_cast<size_t>(m * c.k + k)] = plain[static_cast<size_t>(m * c.k + w.order[static_cast<size_t>(k)])];
  }
  std::atomic<double> worst{0};
  std::mutex lock;
  std::vector<std::thread> threads;
  const int64_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      for (int64_t n = c.n * worker / workers; n < c.n * (worker + 1) / workers; ++n)
        for (int64_t m = 0; m < c.m; ++m) {
          double want = 0, size = 0, rounding = 0;
          for (int64_t k = 0; k < c.k; ++k) {
            const size_t at = static_cast<size_t>(n * c.k + k);
            const double xv = xs[static_cast<size_t>(m * c.k + k)];
            want += xv * (w.value[at] * w.scale[at] + w.shift[at]);
            size += std::fabs(xv) * (std::fabs(w.value[at] * w.scale[at]) + std::fabs(w.shift[at]));
            rounding += std::fabs(xv) * (0x1p-11 * std::fabs(w.value[at] * w.scale[at] + w.shift[at]) + 0x1p-25);
          }
          if (c.bias) {
            want += get(w.bias, n);
            size += std::fabs(get(w.bias, n));
          }
          const bool scaled = c.m > 16 && c.dtype == DType::f16 && !c.floats;
          const double tensor_core = scaled ? double(c.k) / 16 * 17 * 0x1p-23 : 0x1p-17;
          const double bound = size * (tensor_core + (double(c.k) / 32 + 64) * 0x1p-24) + (scaled ? rounding : 0) +
                               unit(c.dtype) * std::fabs(want) * 1.01 + least(c.dtype);
          const double g = get(got, m * c.n + n);
          double share = std::isnan(g) ? INFINITY : std::fabs(g - want) / bound;
          if (c.dtype == DType::f16 && std::fabs(want) > 65504 - bound && std::isinf(g) && (g > 0) == (want > 0))
            share = 0;
          if (share > worst.load()) {
            const std::lock_guard<std::mutex> hold(lock);
            if (share > worst.load()) {
              worst = share;
              where = "at (" + std::to_string(m) + ", " + std::to_string(n) + ") got " + std::to_string(g) + " want " +
                      std::to_string(want);
            }
          }
        }
    });
  for (auto& thread : threads) thread.join();
  return worst;
}

inline std::string layout_text(const LayoutCase& c) {
  std::string s = std::string(c.marlin ? "marlin " : "turbomind ") + (c.floats ? "f" : "u") + std::to_string(c.bits) +
                  (c.dtype == DType::f16 ? " f16 " : " bf16 ") + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" +
                  std::to_string(c.k) + " g" + std::to_string(c.group) + (c.zeros ? " zeros" : "") +
                  (c.order ? " order" : "") + (c.bias ? " bias" : "") + (c.experts ? " experts" : "") +
                  (c.one_hot ? " one-hot " + std::to_string(c.hot) : "");
  for (const auto& [name, value] : c.tiling)
    s += std::string(" ") + name + "=" + std::to_string(static_cast<int>(value));
  return s;
}

// Returns the exit status.
inline int sweep_layout(Device& d, const std::string& layout, bool quick, bool small) {
  const bool marlin = layout == "marlin";
  int checks = 0, failures = 0, fewer = 0;
  double worst = 0;
  const auto one = [&](LayoutCase c, const LayoutWeights& w) {
    std::string where;
    double share = INFINITY;
    // A ring that does not fit is refused; the case then runs with the longest that does.
    const auto stages = [&]() -> double& {
      static double none = 0;
      for (auto& [name, value] : c.tiling)
        if (std::string(name) == "stages") return value;
      return none = 0;
    };
    try {
      for (;; --stages(), ++fewer) try {
          share = check_layout(d, c, w, where);
          break;
        } catch (const Failure& failure) {
          if (stages() <= 2 || std::string(failure.what()).find("stages do not fit shared memory") == std::string::npos)
            throw;
        }
    } catch (const Failure& failure) {
      where = failure.code + ": " + failure.what();
      if (failure.code.rfind("LPQ_CUDA", 0) == 0) {
        std::printf("FAIL %s: %s\n", layout_text(c).c_str(), where.c_str());
        std::exit(1);
      }
    }
    ++checks;
    worst = std::max(worst, std::isinf(share) ? worst : share);
    if (!(share <= 1) && ++failures <= 40)
      std::printf("FAIL %s: %.3g of the bound, %s\n", layout_text(c).c_str(), share, where.c_str());
  };
  for (int bits : {4, 8})
    for (int kind = 0; kind < 2; ++kind)  // marlin: without and with zero points; turbomind: integers and floats
      for (DType dtype : {DType::f16, DType::bf16}) {
        const int before = failures;
        LayoutCase base;
        base.marlin = marlin, base.bits = bits, base.dtype = dtype;
        base.zeros = marlin && kind == 1, base.floats = !marlin && kind == 1;
        if (base.floats && bits == 8) base.scale_dtype = dtype;
        // Every weight by itself.
        LayoutCase c = base;
        c.one_hot = true;
        c.n = 300, c.k = 256, c.group = 64;
        for (int64_t m : {64, 32, 16, 8}) {
          if (small) break;
          c.m = m;
          const LayoutWeights w = make_layout_weights(c);
          for (c.hot = 0; c.hot < c.k; c.hot += m) one(c, w);
          if (quick) break;
        }
        // Sums: groups, bias, order and experts over M with tails.
        for (int64_t group : {128, 64, 32, 0}) {
          if ((group == 0 && !marlin) || (small && group == 64)) continue;
          for (int variant = 0; variant < 2; ++variant) {
            c = base;
            c.group = group;
            c.bias = variant == 1;
            c.order = marlin && variant == 1;
            c.experts = !marlin && !c.floats && variant == 1;
            if (c.floats && bits == 8 && variant == 1) c.scale_dtype = dtype == DType::f16 ? DType::bf16 : DType::f16;
            c.n = between(1, 700);
            c.k = marlin ? between(1, 90) * 8 + (group == 64 ? 3 : 0) : between(1, 20) * 32;
            if (marlin && group == 0 && c.zeros)
              c.k = between(1, 6) * 128;  // a row's own zero point cannot stand in the padding
            if (marlin && group == 32 && variant == 0) c.k = 128;
            const LayoutWeights w = make_layout_weights(c);
            for (int64_t m : {1, 7, 8, 9, 16, 17, 31, 33, 64, 100}) {
              if (quick && m % 8 != 1) continue;
              c.m = m;
              one(c, w);
            }
          }
        }
        if (!quick) {
          c = base;
          c.m = 1000, c.n = 200, c.k = 384;
          const LayoutWeights w = make_layout_weights(c);
          one(c, w);
        }
        // Cuts: columns of tiles shared by many blocks, blocks with many columns, all warps along N.
        c = base;
        c.n = 530, c.k = 1312;
        c.group = 32;
        const LayoutWeights w = make_layout_weights(c);
        for (int64_t m : {5, 16, 27, 130}) {
          c.m = m;
          for (int blocks : {1, 3, 19, 132})
            for (int log_n : {0, 1, 2, 3}) {
              if ((quick && (blocks == 3 || log_n == 1)) || (small && (blocks == 1 || m > 27))) continue;
              c.tiling = {{"blocks", double(blocks)},
                          {"warpsN", double(1 << log_n)},
                          {"stages", double(2 + (blocks + log_n) % 3)}};
              one(c, w);
            }
          c.tiling = {{"warpsN", 8.0}, {"warpsK", 1.0}};
          one(c, w);
        }
        std::printf("%s %s%d%s %s %s\n", layout.c_str(), base.floats ? "f" : "u", bits, base.zeros ? " zeros" : "",
                    dtype == DType::f16 ? "f16" : "bf16", failures == before ? "ok" : "FAIL");
        std::fflush(stdout);
      }
  // The same bytes every time, and counters left at 0.
  {
    LayoutCase c;
    c.marlin = marlin;
    c.m = 16, c.n = c.k = small ? 512 : 4096;
    const LayoutWeights w = make_layout_weights(c);
    const Tensor x = gaussian(DType::f16, {c.m, c.k});
    const int runs = small ? 3 : 20;
    checks += runs;
    failures += other_bytes(d, marlin ? "gemm_marlin" : "gemm_turbomind", layout_inputs(c, w, x), layout_params(c), c.m,
                            c.n, runs);
  }
  Report refused;
  {
    LayoutCase c;
    c.marlin = marlin;
    c.m = 4, c.n = 64, c.k = 256;
    const LayoutWeights w = make_layout_weights(c);
    const Tensor x = gaussian(DType::f16, {4, 256}), y = poisoned(DType::f16, {4, 64});
    const std::string op = marlin ? "gemm_marlin" : "gemm_turbomind";
    const auto run = [&](std::vector<Tensor> in, Params p, const Tensor& out) {
      return [&d, in, p, out, op] { d.run(op, in, {out}, p); };
    };
    Params p = layout_params(c);
    refused.fails(
        "weights of another size", "LPQ_NATIVE_ARGUMENT",
        run({x, allocate(DType::i32, marlin ? std::vector<int64_t>{8, 512} : std::vector<int64_t>{100}), w.scales}, p,
            y));
    refused.fails("scales of another shape", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, allocate(DType::f16, {2, 32})}, p, y));
    refused.fails("y of another type", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, w.scales}, p, poisoned(DType::bf16, {4, 64})));
    Params g = p;
    g.set("groupSize", 48.0);
    refused.fails("groups of 48", "LPQ_NATIVE_ARGUMENT", run({x, w.packed, w.scales}, g, y));
    if (marlin) {
      LayoutCase o = c;
      o.order = true;
      Tensor bad = filled(DType::i32, {256}, [](int64_t i) { return i == 7 ? 256.0 : double(i); });
      refused.fails("a permutation beyond K", "LPQ_NATIVE_ARGUMENT",
                    run({x, w.packed, w.scales, bad}, layout_params(o), y));
    }
  }
  checks += refused.checks;
  failures += refused.failures;
  std::printf("%s: %d checks, %d failures, %d rings one stage shorter than asked for, at most %.2f of the bound\n",
              layout.c_str(), checks, failures, fewer, worst);
  return failures != 0;
}

}  // namespace lpq::test
