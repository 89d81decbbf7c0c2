// gemm_packed against double precision: every type, f16 and bf16, every number of token tiles with tails, groups, zero
// points, bias, and every way of cutting the work. kernels [--quick] [--kernel
// stream|wide|scaled|hopper|large|portable] [filter]. With --kernel
// marlin or turbomind: the kernels of those layouts instead (layout_kernels.h), with sparse that of Sparse-MARLIN
// (sparse_kernels.h).
//
// The bound. A product x * pair is exact in fp32. One mma adds 16 products and the sum so far; the tensor core aligns
// them to the largest and may drop bits below 2^-23 of it (17 terms: 17 * 2^-23 of the largest magnitude among partial
// sums, which A, the sum of |x| (|pair| + |zero'|) scale over K, bounds). The first mma of a group starts from 0, and
// the sums with ones err
// alike: K/16 mmas of which each counts with its group's share of A, eight a group: 8 * 17 * 2^-23 A < 2^-15.8 A at
// worst. Adding up over groups, warps and blocks in fp32 adds (K/32 + 64) 2^-24 A. Then one rounding to the type of y,
// and two of fp32 (bias).
//
// The kernel of scaled weights (--kernel scaled) rounds w = (code - zero) scale to the type of x, u |w| and half of
// f16's least number; scales in bf16 times f16, and f16 zero points, add as much again (the difference is rounded, too;
// in bf16 it is made in two steps, both of which round), and scales and zero points that are split into two bf16 lose
// u^2 of themselves. It adds up all of K in one go: K/16 mmas, each of which may drop 17 * 2^-23 of the largest partial
// sum, A = sum of |x| |w|.
//
// --kernel large rounds weights: u |w| (twice with bf16 activations and f16 scales) and u |z s| where a zero point does
// not come off exactly, 2^-25 for each subnormal f16 (large.cuh).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "chain.h"
#include "cuda/exec.h"
#include "harness.h"
#include "layout_kernels.h"
#include "lpq/quant_type.h"
#include "packed_weights.h"
#include "repeat.h"
#include "sparse_kernels.h"

using namespace lpq;
using namespace lpq::test;

namespace {

const char* const kTiling[] = {"warpsN", "warpsK", "stages", "blocks", "slices", "overlap", "tokens", "width"};
std::string forced;  // the kernel that runs, or empty: the operation's choice

Params call_params(const Type& t, const Case& c) {
  Params p = t.params;
  if (!forced.empty()) p.set("kernel", forced);
  if (c.tiling.place("reduce") >= 0) p.set("reduce", test::word(c.tiling, "reduce"));
  p.set("groupSize", double(c.group));
  p.set("hasZeros", double(c.zeros != 0));
  p.set("hasBias", double(c.bias));
  p.set("zero", c.zero);
  for (const char* name : kTiling)
    if (test::number(c.tiling, name) > 0) p.set(name, test::number(c.tiling, name));
  if (c.tiling.place("overlap") >= 0) p.set("overlap", test::number(c.tiling, "overlap"));
  return p;
}

bool scaled_kernel(Device& d, const Type& t, DType dtype) {
  const bool integer = t.type.kind == QuantType::Kind::integer;
  if (!integer && dtype == DType::f16 &&
      (t.type.exponent > 5 || (t.type.exponent == 5 && t.type.special != QuantType::Special::ieee)))
    return false;
  return d.backend().exec().has_kernel("lpq_gemm_" + std::string(integer ? "int" : "float") +
                                       std::to_string(t.type.bits) +
                                       (dtype == DType::f16 ? "_f16_c16x2x1" : "_bf16_c16x2x1"));
}

// Tokens of a tile and packed blocks of a strip: the forms of the kernel of scaled weights.
constexpr std::pair<int, int> kForms[] = {{128, 8}, {256, 4}, {32, 8},  {64, 8},  {96, 8}, {32, 4},
                                          {64, 4},  {96, 4},  {128, 4}, {160, 4}, {192, 4}};

// Whether the operation, asked for no kernel, multiplies with rounded weights (families/scaled.cpp).
bool rounds_unasked(Device& d, const Type& t, const Case& c) {
  if (d.backend().exec().device().arch != 90 || !scaled_kernel(d, t, c.dtype)) return false;
  const bool integer = t.type.kind == QuantType::Kind::integer, bf16 = c.dtype == DType::bf16;
  if (!bf16 && c.scale_dtype == DType::bf16) return false;
  const double zero = c.zero + (integer && t.type.is_signed ? 1 << (t.type.bits - 1) : 0);
  const bool whole = zero == std::floor(zero) && zero >= 0;
  const bool constant =
      !integer || (c.zeros == 0 && whole && zero <= (bf16 ? static_cast<double>(1 << t.type.bits) : 1023.0));
  if (!d.backend().exec().has_kernel("lpq_gemm_" + std::string(integer ? "int" : "float") +
                                     std::to_string(t.type.bits) + (bf16 ? "_bf16_" : "_f16_") +
                                     (constant ? "c8x1x2" : "z8x1x2")))
    return c.m > 64;
  return c.m > (!integer && t.type.bits <= 4 ? 32 : 16);
}

// Returns the largest share of the bound that was used; `used` says where.
double check(Device& d, const Type& t, const Case& c, const Weights& w, std::string& where) {
  const Tensor x =
      c.one_hot ? filled(c.dtype, {c.m, c.k}, [&](int64_t i) { return i % c.k == (c.hot + i / c.k) % c.k ? 1.0 : 0.0; })
                : gaussian(c.dtype, {c.m, c.k});
  std::vector<Tensor> in = {x, w.packed, w.scales};
  if (c.zeros) in.push_back(w.zeros);
  if (c.bias) in.push_back(w.bias);
  const Tensor got = d.run("gemm_packed", in, {poisoned(c.dtype, {c.m, c.n})}, call_params(t, c))[0];
  const std::vector<double> xs = values(x);
  const int64_t groups = c.group == 0 ? 1 : (c.k + c.group - 1) / c.group, length = c.group == 0 ? c.k : c.group;
  const bool integer = t.type.kind == QuantType::Kind::integer;
  const double lift = integer && t.type.is_signed ? 1 << (t.type.bits - 1) : 0;
  const double offset = !integer || c.dtype == DType::f16 ? 0 : t.type.bits == 8 ? -128 : 128;
  const double u = unit(c.dtype);
  const bool scaled = forced == "scaled" || (forced.empty() && rounds_unasked(d, t, c)), bf16 = c.dtype == DType::bf16;
  // Up to 32 tokens of 4-bit integers the wide kernel may run instead, whose sums are of larger terms.
  const bool apart = !scaled || (forced.empty() && integer && t.type.bits == 4 && c.m <= 32);
  const double roundings = 1.02 * (c.zeros == 0 && c.zero == std::floor(c.zero) ? 1 : bf16 ? 3 : c.zeros == 2 ? 2 : 1);
  std::atomic<double> worst{0};
  std::mutex lock;
  std::vector<std::thread> threads;
  const int64_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      for (int64_t n = c.n * worker / workers; n < c.n * (worker + 1) / workers; ++n)
        for (int64_t m = 0; m < c.m; ++m) {
          double want = 0, size = 0, rounded = 0;
          for (int64_t g = 0; g < groups; ++g) {
            const double scale = w.scale[static_cast<size_t>(n * groups + g)],
                         zero = w.zero[static_cast<size_t>(n * groups + g)];
            double part = 0, a = 0, of_weights = 0;
            for (int64_t k = g * length; k < std::min(c.k, (g + 1) * length); ++k) {
              const double xv = xs[static_cast<size_t>(m * c.k + k)], v = w.value[static_cast<size_t>(n * c.k + k)];
              part += xv * (v - zero);
              a += std::fabs(xv) *
                   (apart ? std::fabs(v + lift + offset) + std::fabs(zero + lift + offset) : std::fabs(v - zero));
              if (scaled)
                of_weights +=
                    std::fabs(xv) *
                    ((roundings * u * std::fabs(v - zero) + 2 * u * u * (std::fabs(v) + std::fabs(zero))) * scale +
                     (bf16 ? 0 : 0x1p-25 * (1 + std::fabs(v - zero))));
            }
            want += part * scale;
            size += a * scale;
            rounded += of_weights;
            if (forced == "large")
              for (int64_t k = g * length; k < std::min(c.k, (g + 1) * length); ++k) {
                const double v = w.value[static_cast<size_t>(n * c.k + k)] - zero, z = zero + lift;
                const bool whole = z == std::trunc(z) && std::fabs(z) <= (c.dtype == DType::f16 ? 1000
                                                                          : t.type.bits < 4     ? 64
                                                                                                : 128);
                rounded += std::fabs(xs[static_cast<size_t>(m * c.k + k)]) *
                           (1.02 * u * scale *
                                (std::fabs(v) * (c.dtype == DType::bf16 && c.scale_dtype == DType::f16 ? 2 : 1) +
                                 (whole ? 0 : std::fabs(z))) +
                            2 * least(c.dtype));
              }
          }
          if (forced == "large") size = size * (1 + double(c.k) / 16);  // one sum of all of K, not of groups
          if (c.bias) {
            const double b = get(w.bias, n);
            want += b;
            size += std::fabs(b);
          }
          const double sums = forced == "large" ? size * (17 * 0x1p-23 + (double(c.k) / 32 + 64) * 0x1p-24)
                              : scaled          ? size * (double(c.k) / 16 * 17 + 64) * 0x1p-23
                                                : size * (0x1p-15 + (double(c.k) / 32 + 64) * 0x1p-24);
          const double bound = rounded + sums + u * std::fabs(want) * 1.01 + least(c.dtype);
          const double g = get(got, m * c.n + n);
          double share = std::isnan(g) ? INFINITY : std::fabs(g - want) / bound;
          // Beyond the largest f16 the answer is an infinity.
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

std::string text(const Type& t, const Case& c) {
  std::string s = t.name + (c.dtype == DType::f16 ? " f16" : " bf16") + " " + std::to_string(c.m) + "x" +
                  std::to_string(c.n) + "x" + std::to_string(c.k) + " g" + std::to_string(c.group) + " z" +
                  std::to_string(c.zeros);
  if (c.one_hot) s += " one-hot " + std::to_string(c.hot);
  if (c.tiling.place("reduce") >= 0) s += " " + test::word(c.tiling, "reduce");
  for (const char* name : kTiling)
    if (test::number(c.tiling, name) > 0)
      s += std::string(" ") + name + "=" + std::to_string(int(test::number(c.tiling, name)));
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, small = false;
  std::string filter;
  for (int i = 1; i < argc; ++i)
    if (!std::strcmp(argv[i], "--quick")) quick = true;
    else if (!std::strcmp(argv[i], "--small")) quick = small = true;  // for racecheck: few launches, none of them large
    else if (!std::strcmp(argv[i], "--kernel") && i + 1 < argc) forced = argv[++i];
    else filter = argv[i];
  Device d;
  if (forced == "marlin" || forced == "turbomind") return sweep_layout(d, forced, quick, small);
  if (forced == "sparse") return sweep_sparse(d, quick);
  int checks = 0, failures = 0;
  double worst = 0;
  // `refusable`: a cut whose sums may not fit shared memory.
  const auto one = [&](const Type& t, const Case& c, const Weights& w, bool refusable = false) {
    std::string where;
    double share = INFINITY;
    try {
      share = check(d, t, c, w, where);
    } catch (const Failure& failure) {
      where = failure.code + ": " + failure.what();
      if (refusable && where.find("no tiling of the kernel of scaled weights fits") != std::string::npos) return;
      if (failure.code == "LPQ_CUDA_LOST") {
        std::printf("FAIL %s: %s\n", text(t, c).c_str(), where.c_str());
        std::exit(1);
      }
    }
    ++checks;
    worst = std::max(worst, std::isinf(share) ? worst : share);
    if (!(share <= 1)) {
      ++failures;
      if (failures <= 60) std::printf("FAIL %s: %.3g of the bound, %s\n", text(t, c).c_str(), share, where.c_str());
    }
  };
  const auto list = all_types();
  int number_of_type = 0;
  for (const Type& t : list) {
    ++number_of_type;
    if (!filter.empty() && t.name.find(filter) == std::string::npos) continue;
    const bool integer = t.type.kind == QuantType::Kind::integer;
    if (forced == "wide" && !d.backend().exec().has_kernel("lpq_gemm_" + std::string(integer ? "int" : "float") +
                                                           std::to_string(t.type.bits) + "_bf16_m2_o"))
      continue;
    const double middle = integer && !t.type.is_signed ? 1 << (t.type.bits - 1) : 0;
    const int before = failures;
    for (DType dtype : {DType::f16, DType::bf16}) {
      // Floats whose exponents f16 does not hold: times f16 in the streaming and the portable kernel alone.
      if ((forced == "wide" || forced == "scaled" || forced == "hopper" || forced == "large") && dtype == DType::f16 &&
          !integer && (t.type.exponent > 5 || (t.type.exponent == 5 && t.type.special != QuantType::Special::ieee)))
        continue;
      if (forced == "scaled" && !scaled_kernel(d, t, dtype)) continue;
      // Hopper has kernels of its own and takes those of other devices for some types alone.
      if (forced == "large" && !d.backend().exec().has_kernel("lpq_large_" + std::string(integer ? "int" : "float") +
                                                              std::to_string(t.type.bits) +
                                                              (dtype == DType::f16 ? "_f16_t16" : "_bf16_t16")))
        continue;
      // Every weight by itself.
      Case c;
      c.dtype = dtype;
      c.scale_dtype = dtype == DType::f16 && forced != "large" ? DType::bf16 : DType::f16;
      c.one_hot = true;
      c.n = 70;
      c.k = 264;
      c.zero = middle;
      for (int64_t m : {64, 32, 16, 8}) {
        if (small) break;
        c.m = m;
        const Weights w = make_weights(t, c);
        for (c.hot = 0; c.hot < c.k; c.hot += m) one(t, c, w);
        if (quick) break;
      }
      // Sums: groups, zero points and bias over M with tails.
      c = Case();
      c.dtype = c.scale_dtype = dtype;
      for (int64_t group : {128, 64, 32, 0})
        for (int zeros = 0; zeros < (integer ? 3 : 1); ++zeros) {
          c.group = group;
          c.zeros = zeros;
          c.zero = zeros ? 0 : middle;
          c.bias = group != 128;
          c.n = between(1, 400);
          c.k = between(1, 90) * 8 + (group == 64 ? 3 : 0);
          const Weights w = make_weights(t, c);
          for (int64_t m : {1, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 70, 127, 129, 200, 255, 257, 1000}) {
            if ((quick && m % 8 != 1) || (m > 70 && forced != "wide" && forced != "scaled" && forced != "large") ||
                (m > 200 && forced != "scaled") || (quick && m > 200))
              continue;
            c.m = m;
            one(t, c, w);
          }
        }
      // Cuts: strips shared by many blocks, blocks with many strips.
      c = Case();
      c.dtype = c.scale_dtype = dtype;
      c.zero = middle;
      c.n = 520;
      c.k = 1288;
      const Weights w = make_weights(t, c);
      if (forced == "stream") {
        // Grids smaller than the strips, slices of K that are not alike (11 packed blocks), more slices than warps have
        // blocks, sums through the workspace and within clusters; 27 tokens in two passes, the second overlapping the
        // first unless told not to.
        for (int64_t m : {5, 16, 27})
          for (int slices : {1, 2, 3, 4, 8, 11})
            for (int blocks : {1, 16, 200})
              for (const char* reduce : {"global", "cluster"}) {
                if (!std::strcmp(reduce, "cluster") && slices != 1 && slices != 2 && slices != 4 && slices != 8)
                  continue;
                if (quick && (blocks == 16 || m == 5)) continue;
                c.m = m;
                c.tiling =
                    params({{"slices", double(slices)}, {"blocks", double(blocks)}, {"overlap", double(blocks != 16)}});
                c.tiling.set("reduce", std::string(reduce));
                one(t, c, w);
              }
        continue;
      }
      if (forced == "large") {
        // Every tile of tokens, whole and in runs that many blocks share.
        for (int tokens : {32, 64, 128})
          for (int blocks : {1, 3, 50, 132})
            for (int rounds : {1, 4}) {
              // Tiles that fill their waves are done whole, others in runs.
              if (quick && (tokens + blocks + rounds) % 3 != number_of_type % 3) continue;
              c.m = rounds * (tokens == 64 ? 150 : tokens == 32 ? 27 : 200);
              c.tiling = params({{"tokens", double(tokens)}, {"blocks", double(blocks)}});
              one(t, c, w);
            }
        continue;
      }
      if (forced == "wide") {
        // Every tile of tokens with strips of every kind of width, runs of steps that share items among many blocks and
        // those that hold many, rings of every length, and launches that overlap.
        int number_of_case = 0;
        for (int tokens : {16, 32, 64, 128})
          for (int width : {1, 3, 4, 7, 8, 13, 16})
            for (int blocks : {1, 2, 5, 11, 22, 60, 132}) {
              if (width > 8 && (tokens == 128 || t.type.bits > 4)) continue;
              const int turn = number_of_case++;
              if (quick && turn % 5 != number_of_type % 5) continue;
              c.m = turn % 3 == 0 ? tokens : turn % 3 == 1 ? 2 * tokens + 5 : tokens / 2 + 3;
              c.tiling = params({{"tokens", double(tokens)},
                                 {"width", double(width)},
                                 {"blocks", double(blocks)},
                                 {"stages", double(2 + turn % (t.type.bits > 4 ? 2 : 3))},
                                 {"overlap", double(turn % 2)}});
              one(t, c, w);
            }
        continue;
      }
      if (forced == "scaled") {
        // Every form that there is, whole items and those that blocks share, evenly and not, in rings of two stages and
        // more.
        int number_of_case = 0;
        const bool every_form = integer && t.type.bits >= 2 && t.type.bits <= 4;
        for (const auto& [tokens, width] : kForms)
          for (int blocks : {1, 2, 3, 5, 7, 11, 22, 60, 132})
            for (int64_t m : {17, 128, 133, 300, 1100}) {
              const int turn = number_of_case++;
              if ((!every_form && (turn >= 180 || tokens == 96)) || (quick && turn % 7 != number_of_type % 7)) continue;
              c.m = m;
              c.tiling = params({{"tokens", double(tokens)},
                                 {"width", double(width)},
                                 {"blocks", double(blocks)},
                                 {"stages", double(2 + turn % 2)},
                                 {"overlap", double(turn / 2 % 2)}});
              one(t, c, w);
            }
        // Clusters of every number of blocks, as far as their sums fit.
        for (const auto& [tokens, width] : kForms)
          for (int cluster : {2, 3, 4, 5, 6, 7, 8}) {
            const int turn = number_of_case++;
            const bool every = integer && t.type.bits >= 2 && t.type.bits <= 4;
            if ((!every && (tokens == 96 || (width == 4 && tokens != 256))) ||
                (quick && turn % 3 != number_of_type % 3) || cluster > (c.k + 127) / 128)
              continue;
            c.m = turn % 3 == 0 ? tokens : turn % 3 == 1 ? tokens / 2 + 3 : tokens + 5;
            const int64_t items = (c.n + 32 * width - 1) / (32 * width) * ((c.m + tokens - 1) / tokens);
            c.tiling = params({{"tokens", double(tokens)},
                               {"width", double(width)},
                               {"blocks", double(items * cluster)},
                               {"stages", 2.0},
                               {"overlap", double(turn % 2)}});
            c.tiling.set("reduce", std::string("cluster"));
            one(t, c, w, tokens > 64);
          }
        continue;
      }
      for (int64_t m : {5, 16, 27, 64})
        for (int blocks : {1, 3, 7, 19})
          for (int warps_n : {4, 8}) {
            if (quick && (blocks == 3 || warps_n == 2)) continue;
            c.m = m;
            c.tiling = params({{"blocks", double(blocks)},
                               {"warpsN", double(warps_n)},
                               {"warpsK", double(warps_n == 8 ? 1 : 2)},
                               {"stages", double(m > 32 ? 3 : 3 + blocks % 3)}});
            one(t, c, w);
          }
    }
    std::printf("%-8s %s\n", t.name.c_str(), failures == before ? "ok" : "FAIL");
    std::fflush(stdout);
  }
  // The first type asked for that has a kernel; u4 where all are.
  const auto asked = std::find_if(list.begin(), list.end(), [&](const Type& t) {
    if (filter.empty() ? t.name != "u4" : t.name.find(filter) == std::string::npos) return false;
    return t.type.kind == QuantType::Kind::integer || (t.type.exponent < 5 && t.type.bits > 3);
  });
  const Type& own = asked == list.end() ? list[3] : *asked;
  const bool own_integer = own.type.kind == QuantType::Kind::integer;
  const double own_middle = own_integer && !own.type.is_signed ? 1 << (own.type.bits - 1) : 0;
  const bool own_wide = d.backend().exec().has_kernel("lpq_gemm_" + std::string(own_integer ? "int" : "float") +
                                                      std::to_string(own.type.bits) + "_bf16_m2_o");
  const bool own_runs = forced == "wide" ? own_wide : forced == "scaled" ? scaled_kernel(d, own, DType::f16) : true;
  // The same bytes every time, and counters left at 0.
  for (const char* reduce : {"global", "cluster"}) {
    const Type& t = own_runs && forced != "large" ? own : list[3];
    Case c;
    c.m = 16, c.n = c.k = small ? 512 : 4096, c.zero = &t == &own ? own_middle : 8;
    if (forced == "wide" || forced == "scaled") c.m = !std::strcmp(reduce, "global") ? 48 : 200;
    if (forced == "stream") c.tiling = params({{"reduce", std::string(reduce)}, {"slices", 4.0}});
    const Weights w = make_weights(t, c);
    const Tensor x = gaussian(DType::f16, {c.m, c.k});
    const int runs = small ? 3 : 20;
    checks += runs;
    failures += other_bytes(d, "gemm_packed", {x, w.packed, w.scales}, call_params(t, c), c.m, c.n, runs);
  }
  // Each kernel's ways of adding up and kinds of zero points.
  Report refused;
  if (own_runs && (forced.empty() || forced == "stream" || forced == "scaled" || forced == "wide")) {
    const Type& t = own;
    const auto chain = [&](int64_t m, int zeros, const std::string& reduce) {
      Case c;
      c.m = m, c.n = c.k = small ? 512 : 2048, c.zeros = zeros, c.zero = zeros ? 0 : own_middle;
      if (!reduce.empty()) {
        c.tiling = params({{"slices", 4.0}});
        c.tiling.set("reduce", reduce);
      }
      const Weights w = make_weights(t, c);
      std::vector<Tensor> others = {w.packed, w.scales};
      if (zeros) others.push_back(w.zeros);
      check_chain(d,
                  {"M=" + std::to_string(m) + " zeros " + std::to_string(zeros) + " " + reduce, "gemm_packed",
                   call_params(t, c), gaussian(DType::f16, {m, c.k}, 0.02), others, 1},
                  refused);
    };
    for (int zeros = 0; zeros < (own_integer ? 3 : 1); ++zeros) {
      if (forced.empty() || forced == "stream")
        for (const char* reduce : {"global", "cluster"})
          for (int64_t m : {16, 27}) chain(m, zeros, reduce);
      // Sums of activations for the wide kernel's other zero points do not overlap.
      if (forced != "stream" && !(forced == "wide" && zeros == 2)) chain(48, zeros, ""), chain(200, zeros, "");
    }
  }
  // What the operation refuses.
  {
    const Type& t = list[3];
    Case c;
    c.m = 4, c.n = 64, c.k = 128;
    const Weights w = make_weights(t, c);
    const Tensor x = gaussian(DType::f16, {4, 128}), y = poisoned(DType::f16, {4, 64});
    const auto run = [&](std::vector<Tensor> in, Params p, const Tensor& out) {
      return [&d, in, p, out] { d.run("gemm_packed", in, {out}, p); };
    };
    Params p = call_params(t, c);
    refused.fails("weights of another width", "LPQ_NATIVE_ARGUMENT",
                  run({x, allocate(DType::u8, {2, 1, 512 * 3}), w.scales}, p, y));
    refused.fails("scales of another shape", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, allocate(DType::f16, {2, 2, 32})}, p, y));
    refused.fails("y of another type", "LPQ_NATIVE_ARGUMENT",
                  run({x, w.packed, w.scales}, p, poisoned(DType::bf16, {4, 64})));
    refused.fails("x in f32", "LPQ_NATIVE_ARGUMENT", run({gaussian(DType::f32, {4, 128}), w.packed, w.scales}, p, y));
    Params g = p;
    g.set("groupSize", 48.0);
    refused.fails("groups of 48", "LPQ_NATIVE_ARGUMENT", run({x, w.packed, w.scales}, g, y));
    Params f = list.back().params;
    f.set("zero", 3.0);
    f.set("groupSize", 128.0);
    Params unknown = p;
    unknown.set("warps", 8.0);
    refused.fails("a parameter that it does not know", "LPQ_NATIVE_PARAM", run({x, w.packed, w.scales}, unknown, y));
    refused.fails("a float with a zero point", "LPQ_NATIVE_ARGUMENT",
                  run({x, allocate(DType::u8, {2, 1, 512 * 8}), w.scales}, f, y));
    if (forced == "stream") {
      // 256 packed blocks along K of 16 tokens are 1 MiB: no multiprocessor holds half of that.
      Case far;
      far.m = 16, far.n = 32, far.k = 256 * 128;
      const Weights long_rows = make_weights(t, far);
      Params s = call_params(t, far);
      s.set("slices", 2.0);
      refused.fails("two slices of a long K", "LPQ_NATIVE_ARGUMENT",
                    run({gaussian(DType::f16, {16, far.k}), long_rows.packed, long_rows.scales}, s,
                        poisoned(DType::f16, {16, 32})));
      s.set("slices", 3.0);
      s.set("reduce", std::string("cluster"));
      refused.fails("three slices in a cluster", "LPQ_NATIVE_ARGUMENT",
                    run({gaussian(DType::f16, {16, far.k}), long_rows.packed, long_rows.scales}, s,
                        poisoned(DType::f16, {16, 32})));
    }
  }
  checks += refused.checks;
  failures += refused.failures;
  std::printf("%d checks, %d failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures != 0;
}
