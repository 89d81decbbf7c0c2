// gemm_sparse_marlin against double precision: what kernels --kernel sparse runs.
//
// The bound. Code less the middle one is exact in the type of x, and so is its product with x in fp32. One mma.sp adds
// 16 products and the sum so far and may drop bits below 2^-23 of the largest of the 17: over a group of 128 k that is
// 4 * 17 * 2^-23 < 2^-16 of A, the sum of |x w|. Whole rows (and 33 and more tokens of f16) add all of K/32 to one sum:
// K/32 * 17 * 2^-23 A. Groups, warps and blocks add up in fp32: (K/32 + 64) 2^-24 A. Then one rounding to the type of
// y, and two of fp32 (bias). Above 32 tokens of f16, groups: weights are rounded to f16 once, which adds the sum of |x|
// (2^-11 |w| + 2^-25).
#pragma once
#include "chain.h"
#include "layout_kernels.h"
#include "repeat.h"
#include "sparse_format.h"

namespace lpq::test {

struct SparseCase {
  int bits = 4;
  DType dtype = DType::f16;
  int64_t m = 1, n = 1, k = 32;
  bool channel = false, bias = false, one_hot = false;
  int64_t hot = 0;
  std::vector<std::pair<const char*, double>> tiling;
};
struct SparseWeights {
  std::vector<double> weight;  // [n][k]
  Tensor packed, metadata, scales, bias;
};

inline SparseWeights make_sparse(const SparseCase& c) {
  const auto up = [](int64_t v, int64_t unit) { return (v + unit - 1) / unit * unit; };
  const int64_t np = up(c.n, 256), kp = up(c.k, 128), groups = c.channel ? 1 : kp / 128;
  std::vector<int16_t> value;
  std::vector<uint8_t> stays;
  draw_sparse(random(), c.n, c.k, np, kp, c.bits, value, stays);
  const SparseBytes bytes = pack_sparse(value, stays, np, kp, c.bits);
  SparseWeights w;
  w.packed = allocate(DType::i32, {kp / 32, np * c.bits / 2});
  w.metadata = allocate(DType::i16, {kp / 32, 2 * np});
  w.scales = filled(DType::f16, {groups, np}, [](int64_t) { return 0.0; });
  std::memcpy(w.packed.raw(), bytes.words.data(), w.packed.bytes());
  std::memcpy(w.metadata.raw(), bytes.metadata.data(), w.metadata.bytes());
  std::vector<double> scale(static_cast<size_t>(np * groups), 0);
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t p = 0; p < np; ++p) {
      const int64_t n = groups == 1 ? p : sparse_scale_column(p);
      if (n >= c.n) continue;
      set(w.scales, g * np + p,
          (0.5 + (random()() % 1000) / 1000.0) / (1 << (c.bits - 1)) * (random()() % 8 == 0 ? -1 : 1));
      scale[static_cast<size_t>(g * np + n)] = get(w.scales, g * np + p);
    }
  w.weight.resize(static_cast<size_t>(c.n * c.k));
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t k = 0; k < c.k; ++k)
      w.weight[static_cast<size_t>(n * c.k + k)] =
          value[static_cast<size_t>(n * kp + k)] * scale[static_cast<size_t>((groups == 1 ? 0 : k / 128) * np + n)];
  if (c.bias) w.bias = gaussian(c.dtype, {c.n});
  return w;
}

inline Params sparse_params(const SparseCase& c) {
  Params p = params({{"bits", double(c.bits)}, {"groupSize", c.channel ? 0.0 : 128.0}, {"hasBias", double(c.bias)}});
  for (const auto& [name, value] : c.tiling) p.set(name, value);
  return p;
}
inline std::vector<Tensor> sparse_inputs(const SparseCase& c, const SparseWeights& w, const Tensor& x) {
  std::vector<Tensor> in = {x, w.packed, w.metadata, w.scales};
  if (c.bias) in.push_back(w.bias);
  return in;
}

inline double check_sparse(Device& d, const SparseCase& c, const SparseWeights& w, std::string& where) {
  const Tensor x =
      c.one_hot ? filled(c.dtype, {c.m, c.k}, [&](int64_t i) { return i % c.k == (c.hot + i / c.k) % c.k ? 1.0 : 0.0; })
                : gaussian(c.dtype, {c.m, c.k});
  const Tensor got =
      d.run("gemm_sparse_marlin", sparse_inputs(c, w, x), {poisoned(c.dtype, {c.m, c.n})}, sparse_params(c))[0];
  const std::vector<double> xs = values(x);
  const bool rounded = c.m > 32 && c.dtype == DType::f16, long_sums = rounded || c.channel;
  double worst = 0;
  std::mutex lock;
  const auto column = [&](int64_t n) {
    for (int64_t m = 0; m < c.m; ++m) {
      double want = 0, size = 0, rounding = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double wv = w.weight[static_cast<size_t>(n * c.k + k)], xv = xs[static_cast<size_t>(m * c.k + k)];
        want += xv * wv, size += std::fabs(xv * wv), rounding += std::fabs(xv) * (0x1p-11 * std::fabs(wv) + 0x1p-25);
      }
      if (c.bias) want += get(w.bias, n), size += std::fabs(get(w.bias, n));
      const double tensor_core = long_sums ? (double(c.k) / 32 + 1) * 17 * 0x1p-23 : 0x1p-16;
      const double bound = size * (tensor_core + (double(c.k) / 32 + 64) * 0x1p-24) +
                           (rounded && !c.channel ? rounding : 0) + unit(c.dtype) * std::fabs(want) * 1.01 +
                           least(c.dtype);
      const double g = get(got, m * c.n + n), share = std::isnan(g) ? INFINITY : std::fabs(g - want) / bound;
      const std::lock_guard<std::mutex> hold(lock);
      if (share > worst) {
        worst = share;
        where = "at (" + std::to_string(m) + ", " + std::to_string(n) + ") got " + std::to_string(g) + " want " +
                std::to_string(want);
      }
    }
  };
  std::vector<std::thread> threads;
  const int64_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      for (int64_t n = worker; n < c.n; n += workers) column(n);
    });
  for (auto& thread : threads) thread.join();
  return worst;
}

// Returns the exit status.
inline int sweep_sparse(Device& d, bool quick) {
  int checks = 0, failures = 0;
  double worst = 0;
  const auto one = [&](const SparseCase& c, const SparseWeights& w) {
    std::string where;
    double share = INFINITY;
    try {
      share = check_sparse(d, c, w, where);
    } catch (const Failure& failure) {
      where = failure.code + ": " + failure.what();
    }
    ++checks;
    worst = std::max(worst, std::isinf(share) ? worst : share);
    if (share <= 1) return;
    if (++failures <= 40) {
      std::string s = "u" + std::to_string(c.bits) + (c.dtype == DType::f16 ? " f16 " : " bf16 ") +
                      std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
                      (c.channel ? " channel" : "");
      for (const auto& [name, value] : c.tiling)
        s += std::string(" ") + name + "=" + std::to_string(static_cast<int>(value));
      std::printf("FAIL %s: %.3g of the bound, %s\n", s.c_str(), share, where.c_str());
    }
    if (where.rfind("LPQ_CUDA", 0) == 0) std::exit(1);
  };
  for (int bits : {4, 8})
    for (DType dtype : {DType::f16, DType::bf16}) {
      const int before = failures;
      SparseCase base;
      base.bits = bits, base.dtype = dtype;
      // Every weight by itself.
      SparseCase c = base;
      c.one_hot = true;
      c.n = 300, c.k = 256;
      for (int64_t m : {64, 32, 16, 8}) {
        c.m = m;
        const SparseWeights w = make_sparse(c);
        for (c.hot = 0; c.hot < c.k; c.hot += m) one(c, w);
        if (quick) break;
      }
      for (int variant = 0; variant < 4; ++variant) {
        c = base;
        c.channel = variant % 2 == 1;
        c.bias = variant >= 2;
        c.n = variant == 3 ? 8 * between(1, 90) : between(1, 700), c.k = 4 * between(1, 300);
        const SparseWeights w = make_sparse(c);
        for (int64_t m : {1, 7, 8, 9, 16, 17, 31, 33, 64, 100}) {
          if (quick && m % 8 != 1) continue;
          c.m = m;
          one(c, w);
        }
      }
      // Cuts: columns of tiles shared by many blocks, blocks with many columns.
      c = base;
      c.n = 530, c.k = 1416;
      const SparseWeights w = make_sparse(c);
      for (int64_t m : {5, 16, 27, 130})
        for (int blocks : {1, 3, 19, 132})
          for (int log_n : {0, 1, 2, 3}) {
            if (quick && (blocks == 3 || log_n == 1)) continue;
            c.m = m;
            c.tiling = {{"blocks", double(blocks)}, {"warpsN", double(1 << log_n)}, {"stages", 2.0}};
            if (log_n < 2 || m > 16 || bits == 8) c.tiling.push_back({"warpsK", double(4 >> std::min(log_n, 2))});
            one(c, w);
          }
      std::printf("sparse u%d %s %s\n", bits, dtype == DType::f16 ? "f16" : "bf16", failures == before ? "ok" : "FAIL");
      std::fflush(stdout);
    }
  // The same bytes every time, and counters left at 0.
  {
    SparseCase c;
    c.m = 16, c.n = 4096, c.k = 4096;
    const SparseWeights w = make_sparse(c);
    const Tensor x = gaussian(DType::f16, {c.m, c.k});
    const int runs = quick ? 5 : 20;
    checks += runs;
    failures += other_bytes(d, "gemm_sparse_marlin", sparse_inputs(c, w, x), sparse_params(c), c.m, c.n, runs);
  }
  Report refused;
  for (int64_t m : {16, 48}) {
    SparseCase c;
    c.m = m, c.n = 2048, c.k = 2048;
    const SparseWeights w = make_sparse(c);
    check_chain(d,
                {"M=" + std::to_string(m),
                 "gemm_sparse_marlin",
                 sparse_params(c),
                 gaussian(DType::f16, {m, c.k}, 0.02),
                 {w.packed, w.metadata, w.scales},
                 2},
                refused);
  }
  {
    SparseCase c;
    c.m = 4, c.n = 64, c.k = 256;
    const SparseWeights w = make_sparse(c);
    const Tensor x = gaussian(DType::f16, {4, 256}), y = poisoned(DType::f16, {4, 64});
    const auto run = [&](std::vector<Tensor> in, Params p, const Tensor& out) {
      return [&d, in, p, out] { d.run("gemm_sparse_marlin", in, {out}, p); };
    };
    Params p = sparse_params(c), g = p;
    g.set("groupSize", 64.0);
    refused.fails("groups of 64", "LPQ_NATIVE_ARGUMENT", run({x, w.packed, w.metadata, w.scales}, g, y));
    refused.fails("weights of another size", "LPQ_NATIVE_ARGUMENT",
                  run({x, allocate(DType::i32, {8, 256}), w.metadata, w.scales}, p, y));
    refused.fails("metadata of half a tile", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, allocate(DType::i16, {8, 576}), w.scales}, p, y));
    refused.fails("scales of another shape", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, w.metadata, allocate(DType::f16, {1, 256})}, p, y));
    refused.fails("y of another type", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, w.metadata, w.scales}, p, poisoned(DType::bf16, {4, 64})));
  }
  checks += refused.checks, failures += refused.failures;
  std::printf("sparse: %d checks, %d failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures != 0;
}

}  // namespace lpq::test
