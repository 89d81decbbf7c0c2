// gemm_experts against double precision: every type, f16 and bf16, all tiles and every kernel of the device, experts
// of 0 to 100 rows, rows that no expert has, tails of N and of groups of K, zero points, bias; the same bytes every
// time.
//   lpq_gpu_experts [--small | --quick] [--without KERNEL] [filter]
//   lpq_gpu_experts --gates [--only WORD]
//   lpq_gpu_experts --time [--json FILE] [--tiles] [--only WORD]
// --gates: gate and up in one launch beside product and activation, timed.
// --small: few launches, none of them large, for compute-sanitizer. --time: beside a launch an expert, and cuBLAS by
// expert in 16 bits; --tiles: every kernel and tile, too; --only: shapes so named.
// The bounds are those of kernels.cpp.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "cuda/exec.h"
#include "ops/gemm_experts.h"
#include "packed_weights.h"

using namespace lpq;
using namespace lpq::test;

namespace {

struct Mixture {
  std::vector<int64_t> counts;  // rows of each expert
  int64_t before = 0, behind = 0;
  int tokens = 16;
  const char* kernel = "portable";
  int blocks = 0;
  Case of;       // m is not read; n: columns of y
  int gate = 0;  // of kGates

  int64_t rows() const { return gate ? 2 * ops::up_to(of.n, 32) : of.n; }  // of weights
};

double share(double x) { return 1 / (1 + std::exp(-x)); }
// Activations as gemm_experts names them; where there is a limit it is 0.75, and alpha 1.5.
struct Gate {
  const char* name;
  bool limited;
  double (*act)(double);
};
const Gate kGates[] = {
    {"none", false, nullptr},
    {"silu", false, [](double x) { return x * share(x); }},
    {"gelu", false, [](double x) { return x * std::erfc(-x * std::sqrt(0.5)) / 2; }},
    {"gelu_tanh", false,
     [](double x) {
       return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
     }},
    {"relu", false, [](double x) { return x > 0 ? x : 0; }},
    {"relu2", false, [](double x) { return x > 0 ? x * x : 0; }},
    {"quick_gelu", false, [](double x) { return x * share(1.702 * x); }},
    {"sigmoid", false, share},
    {"clamped", true, [](double x) { return x * share(1.5 * x); }},
    {"silu", true, [](double x) { return x * share(x); }},
};

Tensor stacked(const std::vector<Tensor>& parts) {
  std::vector<int64_t> shape = parts[0].shape;
  shape.insert(shape.begin(), static_cast<int64_t>(parts.size()));
  Tensor whole = allocate(parts[0].dtype, shape);
  for (size_t e = 0; e < parts.size(); ++e)
    std::memcpy(whole.raw() + e * parts[0].bytes(), parts[e].raw(), parts[0].bytes());
  return whole;
}

std::vector<int64_t> offsets_of(const Mixture& c) {
  std::vector<int64_t> offsets{c.before};
  for (int64_t count : c.counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

struct Product {
  std::vector<Tensor> in;
  std::vector<Weights> weights;
  Params params;
  int64_t m;
};

Product product_of(const Type& t, const Mixture& c) {
  Product p;
  Case drawn = c.of;
  drawn.n = c.rows();
  for (size_t e = 0; e < c.counts.size(); ++e) p.weights.push_back(make_weights(t, drawn));
  const std::vector<int64_t> offsets = offsets_of(c);
  p.m = offsets.back() + c.behind;
  const auto all = [&](Tensor Weights::* part) {
    std::vector<Tensor> parts;
    for (const Weights& w : p.weights) parts.push_back(w.*part);
    return stacked(parts);
  };
  // Rows that no expert has are NaN, which must not reach the others.
  const Tensor x = filled(c.of.dtype, {p.m, c.of.k}, [&](int64_t i) {
    const int64_t row = i / c.of.k;
    return row < c.before || row >= offsets.back() ? NAN : normal();
  });
  p.in = {x,
          filled(DType::i32, {static_cast<int64_t>(offsets.size())},
                 [&](int64_t i) { return static_cast<double>(offsets[static_cast<size_t>(i)]); }),
          all(&Weights::packed), all(&Weights::scales)};
  if (c.of.zeros) p.in.push_back(all(&Weights::zeros));
  if (c.of.bias) p.in.push_back(all(&Weights::bias));
  p.params = t.params;
  p.params.set("groupSize", double(c.of.group)), p.params.set("hasZeros", double(c.of.zeros != 0));
  p.params.set("hasBias", double(c.of.bias)), p.params.set("zero", c.of.zero);
  p.params.set("tokens", double(c.tokens)), p.params.set("kernel", c.kernel);
  const Gate& gate = kGates[c.gate];
  if (c.gate) p.params.set("gate", gate.name);
  if (gate.limited) p.params.set("limit", 0.75);
  if (std::string(gate.name) == "clamped") p.params.set("alpha", 1.5);
  if (c.blocks) p.params.set("blocks", double(c.blocks));
  return p;
}

struct Sum {
  double want, off;  // by which it may be off before it is rounded
};

// Row n of an expert's weights times row m of x.
Sum sum_of(const Type& t, const Mixture& c, const Product& p, const Weights& w, int64_t m, int64_t n) {
  const Case& of = c.of;
  const int64_t groups = of.group == 0 ? 1 : (of.k + of.group - 1) / of.group, length = of.group ? of.group : of.k;
  const bool integer = t.type.kind == QuantType::Kind::integer;
  const double lift = integer && t.type.is_signed ? 1 << (t.type.bits - 1) : 0,
               offset = !integer || of.dtype == DType::f16 ? 0
                        : t.type.bits == 8                 ? -128
                                                           : 128;
  const bool scaled = std::string(c.kernel) == "scaled", bf16 = of.dtype == DType::bf16;
  const double u = unit(of.dtype), roundings = of.zeros == 0 ? 1 : bf16 ? 3 : of.zeros == 2 ? 2 : 1;
  double want = 0, size = 0, rounded = 0;  // rounded: what rounding of weights may add
  for (int64_t k = 0; k < of.k; ++k) {
    const auto at = static_cast<size_t>(n * groups + k / length);
    const double x = get(p.in[0], m * of.k + k), v = w.value[static_cast<size_t>(n * of.k + k)], zero = w.zero[at];
    want += x * (v - zero) * w.scale[at];
    size += std::fabs(x) *
            (scaled ? std::fabs(v - zero) : std::fabs(v + lift + offset) + std::fabs(zero + lift + offset)) *
            w.scale[at];
    rounded +=
        std::fabs(x) *
        ((roundings * 1.02 * u * std::fabs(v - zero) + 2 * u * u * (std::fabs(v) + std::fabs(zero))) * w.scale[at] +
         (bf16 ? 0 : 0x1p-25 * (1 + std::fabs(v - zero))));
  }
  if (of.bias) want += get(w.bias, n), size += std::fabs(get(w.bias, n));
  const double sums = scaled ? rounded + size * (double(of.k) / 16 * 17 + 64) * 0x1p-23
                             : size * (0x1p-15 + (double(of.k) / 32 + 64) * 0x1p-24);
  return {want, sums};
}

// act(gate) up out of their sums. Slopes are at most 1.13, that of relu2 twice the number; what the kernel adds is that
// of test/native/experts-kernel.cpp.
Sum gated_of(const Gate& by, const Sum& gate, const Sum& up) {
  const std::string name = by.name;
  const double limit = by.limited ? 0.75 : INFINITY, x = std::min(gate.want, limit), act = by.act(x),
               line = std::clamp(up.want, -limit, limit) + (name == "clamped");
  const double slope = name == "relu2" ? 2 * (std::fabs(x) + gate.off) : 1.13,
               made = name == "relu2"     ? x * x * 0x1p-19
                      : name == "sigmoid" ? 0x1p-20
                                          : std::fabs(x) * 0x1p-20 + (name == "gelu" ? 3.1e-6 : 0),
               act_off = slope * gate.off + made, line_off = up.off + std::fabs(line) * 0x1p-23;
  return {act * line, act_off * std::fabs(line) + (std::fabs(act) + act_off) * line_off};
}

// The largest share of the bound that row m, column n of `got` uses; infinity where it is written and is nobody's.
double share_of(const Type& t, const Mixture& c, const Product& p, const Tensor& got, int64_t m, int64_t n) {
  const std::vector<int64_t> offsets = offsets_of(c);
  const double g = get(got, m * c.of.n + n);
  const auto expert = static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), m) - offsets.begin());
  if (expert == 0 || expert > c.counts.size()) return std::isnan(g) ? 0 : INFINITY;
  const Weights& w = p.weights[expert - 1];
  const Case& of = c.of;
  const double u = unit(of.dtype);
  const int64_t row = c.gate ? n / 8 * 16 + n % 8 : n;
  const Sum one = sum_of(t, c, p, w, m, row),
            made = c.gate ? gated_of(kGates[c.gate], one, sum_of(t, c, p, w, m, row + 8)) : one;
  const double want = made.want;
  const double bound = made.off + u * std::fabs(want) * 1.01 + least(of.dtype);
  // Beyond the largest f16 the answer is an infinity.
  if (of.dtype == DType::f16 && std::fabs(want) > 65504 - bound && std::isinf(g) && (g > 0) == (want > 0)) return 0;
  return std::isnan(g) ? INFINITY : std::fabs(g - want) / bound;
}

std::string text(const Type& t, const Mixture& c) {
  std::string counts;
  for (int64_t count : c.counts) counts += (counts.empty() ? "" : ",") + std::to_string(count);
  return t.name + (c.of.dtype == DType::f16 ? " f16 " : " bf16 ") + counts + " x " + std::to_string(c.of.n) + " x " +
         std::to_string(c.of.k) + " g" + std::to_string(c.of.group) + " z" + std::to_string(c.of.zeros) + " " +
         c.kernel + " " + std::to_string(c.tokens) + (c.blocks ? " blocks " + std::to_string(c.blocks) : "") +
         (c.gate ? std::string(kGates[c.gate].limited ? " limited " : " ") + kGates[c.gate].name : "");
}

int checks = 0, failures = 0;
double worst = 0;

void fail(const std::string& what) {
  ++failures;
  std::printf("FAIL %s\n", what.c_str());
}

void check(Device& d, const Type& t, const Mixture& c, int runs) {
  ++checks;
  const Product p = product_of(t, c);
  Tensor got;
  try {
    for (int i = 0; i < runs; ++i) {
      const Tensor next = d.run("gemm_experts", p.in, {poisoned(c.of.dtype, {p.m, c.of.n})}, p.params)[0];
      if (i > 0 && std::memcmp(next.raw(), got.raw(), got.bytes()) != 0)
        return fail(text(t, c) + ": run " + std::to_string(i) + " gave other bytes");
      got = next;
    }
  } catch (const Failure& failure) {
    fail(text(t, c) + ": " + failure.code + ": " + failure.what());
    if (failure.code == "LPQ_CUDA_LOST") std::exit(1);
    return;
  }
  std::atomic<double> most{0};
  std::vector<std::thread> threads;
  const int64_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      double own = 0;
      for (int64_t m = worker; m < p.m; m += workers)
        for (int64_t n = 0; n < c.of.n; ++n) own = std::max(own, share_of(t, c, p, got, m, n));
      for (double seen = most; own > seen && !most.compare_exchange_weak(seen, own);) {
      }
    });
  for (auto& thread : threads) thread.join();
  if (most <= 1) worst = std::max(worst, most.load());
  else fail(text(t, c) + ": " + std::to_string(most) + " of the bound");
}

bool has(Device& d, const Type& t, DType x, const char* kernel, int tokens) {
  const bool integer = t.type.kind == QuantType::Kind::integer;
  const bool split = !integer && x == DType::f16 &&
                     (t.type.exponent > 5 || (t.type.exponent == 5 && t.type.special != QuantType::Special::ieee));
  return d.backend().exec().has_kernel("lpq_experts_" + std::string(integer ? "int" : "float") +
                                       std::to_string(t.type.bits) +
                                       (split             ? "_wide"
                                        : x == DType::f16 ? "_f16"
                                                          : "_bf16") +
                                       (kernel[0] == 's'   ? "_c"
                                        : kernel[0] == 'w' ? "_m"
                                        : kernel[0] == 'h' ? "_h"
                                                           : "_t") +
                                       std::to_string(tokens / 8) +
                                       (kernel[0] == 's'   ? "x2"
                                        : kernel[0] == 'w' ? "_o"
                                                           : ""));
}

void sweep(Device& d, bool quick, bool small, const std::string& without, const std::string& filter) {
  const std::vector<int64_t> counts{0, 1, 15, 16, 17, 100, 0}, few{2, 0, 17, 1};
  for (const Type& t : all_types()) {
    if (!filter.empty() && t.name.find(filter) == std::string::npos) continue;
    if (small && filter.empty() && t.name != "u4" && t.name != "f6e3m2" && t.name != "f7e5m1") continue;
    const bool integer = t.type.kind == QuantType::Kind::integer, is_u4 = t.name == "u4";
    const double middle = integer && !t.type.is_signed ? 1 << (t.type.bits - 1) : 0;
    for (DType x : {DType::f16, DType::bf16})
      for (const char* kernel : {"scaled", "wide", "hopper", "portable"})
        for (int tokens : {16, 32, 64, 128}) {
          if (kernel == without || !has(d, t, x, kernel, tokens)) continue;
          Mixture c;
          c.tokens = tokens, c.kernel = kernel;
          c.of.dtype = x, c.of.scale_dtype = x;
          const auto one = [&](std::vector<int64_t> rows, int64_t n, int64_t k, int64_t group, int zeros, int blocks,
                               int runs = 1) {
            // Zero points that do not leave in the wide kernel's pairs exactly.
            if (kernel[0] == 'w' && (zeros == 2 || (zeros == 1 && x == DType::bf16))) zeros = 0;
            c.counts = std::move(rows), c.of.n = n, c.of.k = k, c.of.group = group, c.of.zeros = zeros;
            c.of.zero = zeros ? 0 : middle, c.blocks = blocks, c.of.bias = !c.of.bias;
            c.before = between(0, 3), c.behind = between(0, 3);
            check(d, t, c, runs);
          };
          one(few, 70, 264, 32, integer ? 1 : 0, 0);
          const int gates = static_cast<int>(std::size(kGates));
          for (int gate = 1; gate < gates; ++gate) {
            if (!is_u4 && (gate + t.type.bits) % 4) continue;
            c.gate = gate;
            one(small || gate > 1 ? few : counts, gate % 2 ? 70 : 150, 392, gate % 3 ? 128 : 64, 0, gate % 2 ? 5 : 0,
                2);
          }
          if (is_u4 && !small) c.gate = 1, one({150, 0, 20}, 148, 4096, 128, 0, 8, 20);
          c.gate = 0;
          one(small ? few : counts, 290, 648, 128, 0, 4);
          if (integer) one(few, 33, 200, 0, 2, 3);
          if (small || (quick && !is_u4)) continue;
          one(counts, 513, 1160, 64, integer ? 1 : 0, 0, 3);
          if (!is_u4) continue;
          // Scales in bf16 times f16 are rounded, too, in the kernel of scaled weights: not chosen there, and not here.
          if (kernel[0] != 's') c.of.scale_dtype = x == DType::f16 ? DType::bf16 : DType::f16;
          one(std::vector<int64_t>(200, 1), 96, 392, 128, 0, 0, 20);
          one({1000, 3, 0, 64, 65, 128}, 1024, 2048, 128, 0, 0, 20);
          one({150, 0, 20}, 296, 4096, 128, 0, 8, 20), one({150, 0, 20}, 40, 1024, 128, 0, 11, 20);
          one({0, 0, 1}, 40, 128, 128, 0, 0), one({0, 0, 0}, 40, 128, 128, 0, 0);
        }
  }
  // Offsets that lead out of x.
  const Type u4 = all_types()[3];
  Mixture c;
  c.counts = few, c.of.n = 64, c.of.k = 128;
  Product p = product_of(u4, c);
  p.params.set("kernel", has(d, u4, DType::f16, "wide", 16) ? "wide" : "portable");
  set(p.in[1], 2, 1);
  ++checks;
  try {
    d.run("gemm_experts", p.in, {poisoned(DType::f16, {p.m, 64})}, p.params);
    fail("offsets that do not ascend are taken");
  } catch (const Failure& failure) {
    if (failure.code != "LPQ_NATIVE_ARGUMENT") fail("offsets that do not ascend: " + failure.code);
  }
}

struct Shape {
  const char* name;
  int64_t experts, per_token, n, k;
};
const Shape kShapes[] = {{"Mixtral 8x7B, gate and up", 8, 2, 28672, 4096},   {"Mixtral 8x7B, down", 8, 2, 4096, 14336},
                         {"Qwen3 30B-A3B, gate and up", 128, 8, 1536, 2048}, {"Qwen3 30B-A3B, down", 128, 8, 2048, 768},
                         {"GPT-OSS 120B, gate and up", 128, 4, 5760, 2880},  {"DeepSeek V3, down", 256, 8, 7168, 2048},
                         {"Phi-3.5-MoE, gate and up", 16, 2, 12800, 4096},   {"OLMoE, down", 64, 8, 2048, 1024}};

// Times of one set of tensors: u4, groups of 128, f16; tokens spread evenly at random.
class Comparison {
 public:
  // The product of gate and up with its gate in one launch beside two: µs.
  void gates(const Shape& s) {
    const int64_t nb = (s.n + 31) / 32, kb = (s.k + 127) / 128;
    const Tensor weights = noise(DType::u8, {s.experts, nb, kb, 2048}),
                 scales = noise(DType::f16, {s.experts, nb, kb, 32});
    Params packed = ops::type_params(ops::type_named("u4"));
    packed.set("groupSize", 128.0), packed.set("zero", 8.0), packed.set("hasZeros", 0.0), packed.set("hasBias", 0.0);
    Params fused = packed;
    fused.set("gate", "silu");
    for (int64_t tokens : {1, 16, 64, 4096}) {
      const int64_t rows = tokens * s.per_token;
      const Tensor x = noise(DType::f16, {rows, s.k}), both = exec_.allocate(DType::f16, {rows, s.n}),
                   y = exec_.allocate(DType::f16, {rows, s.n / 2});
      std::vector<std::pair<std::string, Call>> one, two;
      const int draws = tokens <= 16 ? 24 : 4;
      for (int draw = 0; draw < draws; ++draw) {
        const std::vector<int64_t> offsets = routed(s, tokens);
        const Tensor there = d_.backend().upload(filled(DType::i32, {s.experts + 1}, [&](int64_t i) {
          return static_cast<double>(offsets[static_cast<size_t>(i)]);
        }));
        one.push_back({"gemm_experts", Call{{x, there, weights, scales}, {y}, fused}});
        two.push_back({"gemm_experts", Call{{x, there, weights, scales}, {both}, packed}});
        two.push_back({"gated_activation",
                       Call{{both, both}, {y}, {{"act", "silu"}, {"first", 0.0}, {"upFirst", double(s.n / 2)}}}});
      }
      const auto micros = [&](std::vector<std::pair<std::string, Call>>& calls) {
        std::vector<double> times = d_.backend().time(calls, Timing{9, 0, true});
        std::sort(times.begin(), times.end());
        return times[times.size() / 2] * 1e6 / draws;
      };
      // In turns: the clock falls under load.
      double best_one = INFINITY, best_two = INFINITY;
      for (int round = 0; round < 3; ++round)
        best_one = std::min(best_one, micros(one)), best_two = std::min(best_two, micros(two));
      std::printf("%-28s %5lld tokens  gated %9.1f us  product and gate %9.1f us (%.3f)\n", s.name,
                  static_cast<long long>(tokens), best_one, best_two, best_two / best_one);
      std::fflush(stdout);
    }
  }

  Comparison(Device& d, bool tiles) : d_(d), exec_(d.backend().exec()), tiles_(tiles) {
    cuda::check(cuda::driver().context_set(exec_.context()), "context");
    Tensor host = allocate(DType::u64, {8 << 20});  // as f16 numbers between 0.5 and 2 in size
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<uint64_t>()[i] = (lpq::test::random()() & 0x87ff87ff87ff87ffull) | 0x3800380038003800ull;
    noise_ = d.backend().upload(host);
    d.settle();
  }

  void run(const Shape& s, std::ostream& json, bool& first) {
    const int64_t nb = (s.n + 31) / 32, kb = (s.k + 127) / 128, groups = (s.k + 127) / 128;
    const Tensor weights = noise(DType::u8, {s.experts, nb, kb, 2048}),
                 scales = noise(DType::f16, {s.experts, nb, groups, 32}),
                 dense = noise(DType::f16, {s.experts, s.n, s.k});
    Params packed = ops::type_params(ops::type_named("u4"));
    packed.set("groupSize", 128.0), packed.set("zero", 8.0), packed.set("hasZeros", 0.0), packed.set("hasBias", 0.0);
    for (int64_t tokens : {1, 4, 16, 64, 256, 1024, 4096}) {
      const int64_t rows = tokens * s.per_token;
      const Tensor x = noise(DType::f16, {rows, s.k}), y = exec_.allocate(DType::f16, {rows, s.n});
      std::vector<std::pair<std::string, Call>> together, each, cublas;
      double bytes = 0;
      // Several draws of experts, so that few tokens' weights do not stay in the cache.
      const int draws = tokens <= 16 ? 24 : 4;
      for (int draw = 0; draw < draws; ++draw) {
        const std::vector<int64_t> offsets = routed(s, tokens);
        const Tensor there = d_.backend().upload(filled(DType::i32, {s.experts + 1}, [&](int64_t i) {
          return static_cast<double>(offsets[static_cast<size_t>(i)]);
        }));
        together.push_back({"gemm_experts", Call{{x, there, weights, scales}, {y}, packed}});
        for (int64_t e = 0; e < s.experts; ++e) {
          const int64_t from = offsets[static_cast<size_t>(e)], count = offsets[static_cast<size_t>(e + 1)] - from;
          if (count == 0) continue;
          const Tensor own_x = part(x, from, {count, s.k}, s.k), own_y = part(y, from, {count, s.n}, s.n);
          each.push_back(
              {"gemm_packed",
               Call{{own_x, part(weights, e, {nb, kb, 2048}), part(scales, e, {nb, groups, 32})}, {own_y}, packed}});
          cublas.push_back({"linear", Call{{own_x, part(dense, e, {s.n, s.k})}, {own_y}, {}}});
          bytes += static_cast<double>(weights.bytes() + scales.bytes()) / static_cast<double>(s.experts);
        }
      }
      const auto micros = [&](std::vector<std::pair<std::string, Call>>& calls) {
        std::vector<double> times = d_.backend().time(calls, Timing{9, 0, true});
        std::sort(times.begin(), times.end());
        return times[times.size() / 2] * 1e6 / draws;
      };
      // In turns: the clock falls under load.
      std::vector<double> own_times, apart_times, dense_times;
      for (int round = 0; round < 3; ++round)
        own_times.push_back(micros(together)), apart_times.push_back(micros(each)),
            dense_times.push_back(micros(cublas));
      const auto middle = [](std::vector<double>& times) {
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
      };
      const double us = middle(own_times), apart = middle(apart_times), dense_us = middle(dense_times);
      std::printf("%-28s %5lld tokens %9.1f us %5.2f TB/s  by expert %9.1f (%.2f)  cuBLAS by expert %9.1f (%.2f)",
                  s.name, static_cast<long long>(tokens), us, bytes / draws / us / 1e6, apart, apart / us, dense_us,
                  dense_us / us);
      std::string forms;
      struct Form {
        const char* kernel;
        int tokens, width;
      };
      for (const Form& form : {Form{"hopper", 16, 0},
                               {"wide", 16, 8},
                               {"wide", 16, 16},
                               {"wide", 32, 8},
                               {"wide", 32, 16},
                               {"wide", 64, 8},
                               {"hopper", 64, 0},
                               {"scaled", 128, 0}}) {
        if (!tiles_) break;
        for (auto& [name, call] : together) {
          call.params.set("kernel", form.kernel), call.params.set("tokens", double(form.tokens));
          call.params.set("width", double(form.width));
        }
        const double form_us = micros(together);
        const std::string tile = std::to_string(form.tokens) + (form.width ? "x" + std::to_string(form.width) : "");
        std::printf("  %c%s %.1f", form.kernel[0], tile.c_str(), form_us);
        forms +=
            std::string(forms.empty() ? "" : ", ") + "\"" + form.kernel + " " + tile + "\": " + std::to_string(form_us);
      }
      std::printf("\n");
      std::fflush(stdout);
      json << (first ? "\n  " : ",\n  ") << "{\"shape\": \"" << s.name << "\", \"experts\": " << s.experts
           << ", \"perToken\": " << s.per_token << ", \"n\": " << s.n << ", \"k\": " << s.k
           << ", \"tokens\": " << tokens << ", \"us\": " << us << ", \"bytes\": " << bytes / draws
           << ", \"by_expert_us\": " << apart << ", \"cublas_us\": " << dense_us;
      if (tiles_) json << ", \"forms\": {" << forms << "}";
      json << "}";
      first = false;
    }
  }

 private:
  Tensor noise(DType dtype, std::vector<int64_t> shape) {
    Tensor t = d_.backend().allocate(dtype, std::move(shape));
    for (size_t at = 0, shift = 0; at < t.bytes(); ++shift) {
      const size_t from = shift * 4096 % (noise_.bytes() / 2), bytes = std::min(t.bytes() - at, noise_.bytes() - from);
      exec_.copy(t.raw() + at, noise_.raw() + from, bytes);
      at += bytes;
    }
    return t;
  }
  // What begins at part `at` of a tensor, parts of `size` elements: of `shape`, or of as many as that has.
  static Tensor part(const Tensor& whole, int64_t at, std::vector<int64_t> shape, int64_t size = 0) {
    Tensor one = whole;
    one.shape = std::move(shape);
    one.offset += static_cast<size_t>(at * (size ? size : one.elements())) * dtype_bytes(whole.dtype);
    return one;
  }
  static std::vector<int64_t> routed(const Shape& s, int64_t tokens) {
    std::vector<int64_t> offsets(static_cast<size_t>(s.experts + 1)), order(static_cast<size_t>(s.experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int64_t>(e);
    for (int64_t i = 0; i < tokens; ++i) {
      std::shuffle(order.begin(), order.end(), lpq::test::random());
      for (int64_t j = 0; j < s.per_token; ++j) ++offsets[static_cast<size_t>(order[static_cast<size_t>(j)] + 1)];
    }
    for (size_t e = 0; e < order.size(); ++e) offsets[e + 1] += offsets[e];
    return offsets;
  }
  Device& d_;
  cuda::CudaExec& exec_;
  const bool tiles_;
  Tensor noise_;
};

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, small = false, time = false, tiles = false, gates = false;
  std::string filter, out, only, without;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") quick = true;
    else if (word == "--small") quick = small = true;
    else if (word == "--time") time = true;
    else if (word == "--tiles") tiles = true;
    else if (word == "--gates") gates = true;
    else if (word == "--json" && i + 1 < argc) out = argv[++i];
    else if (word == "--only" && i + 1 < argc) only = argv[++i];
    else if (word == "--without" && i + 1 < argc) without = argv[++i];
    else filter = word;
  }
  try {
    Device d;
    if (gates) {
      Comparison comparison(d, false);
      std::printf("%s; u4, groups of 128, f16, silu\n", d.backend().exec().device().name.c_str());
      for (const Shape& s : kShapes)
        if (std::string(s.name).find(only) != std::string::npos &&
            std::string(s.name).find("gate and up") != std::string::npos)
          comparison.gates(s);
      return 0;
    }
    if (time) {
      std::ostringstream json;
      bool first = true;
      Comparison comparison(d, tiles);
      std::printf("%s; u4, groups of 128, f16\n", d.backend().exec().device().name.c_str());
      for (const Shape& s : kShapes)
        if (std::string(s.name).find(only) != std::string::npos) comparison.run(s, json, first);
      if (!out.empty())
        std::ofstream(out) << "{\"device\": \"" << d.backend().exec().device().name << "\", \"rows\": [" << json.str()
                           << "\n]}\n";
      return 0;
    }
    sweep(d, quick, small, without, filter);
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 100;
  }
  std::printf("%d products, %d failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures != 0;
}
