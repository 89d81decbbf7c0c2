// Gradients of norms, activations, gates and the output, gathered columns and rounded inputs, against double precision
// that this program computes, elementwise; rounded inputs against the CPU's bytes. Shapes are random, with tails;
// outputs are full of NaN before. --small: for compute-sanitizer. --time: bytes a second of those that matter most.
// Exit code: failures.
//
// Bounds are sums of the roundings that lead to an element, u = 2^-24 each, with expf, expm1f and log1pf within 2 u,
// erfcf within 8 u.
#include <algorithm>

#include "../../native/norm_gradient.h"
#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

bool small = false;
Report report;
constexpr double u = 0x1p-24;

int64_t size(int64_t low, int64_t high) {
  return small ? between(low, std::min<int64_t>(high, low + 40)) : between(low, high);
}

struct Value {
  double want, bound;
};
struct Expected {
  std::vector<double> want, bound;
  void add(Value v) { want.push_back(v.want), bound.push_back(v.bound); }
};

void compare(const std::string& what, const Tensor& got, const Expected& expected) {
  double worst = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const size_t s = static_cast<size_t>(i);
    const double g = get(got, i), off = std::fabs(g - expected.want[s]) / (expected.bound[s] + 1e-34);
    const double share = std::isnan(off) ? INFINITY : off;
    if (share > worst) worst = share, at = i;
  }
  if (worst > 1)
    std::printf("      %.9g at %lld, not %.9g within %.3g\n", get(got, at), static_cast<long long>(at),
                expected.want[static_cast<size_t>(at)], expected.bound[static_cast<size_t>(at)]);
  report.that(what + " (" + std::to_string(worst).substr(0, 4) + ")", worst <= 1);
}

DType any_float() {
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
  return kTypes[between(0, 2)];
}

// accumulate: 0 no, 1 yes, 2 in place of dy.
void norm(Device& d, bool layer, int64_t rows, int64_t n, int64_t turns, bool weighted, int how) {
  rows *= turns;
  const double level = layer ? 1.5 : 0, offset = 0.5;
  const Tensor x = filled(DType::f32, {rows, n}, [&](int64_t) { return 3 * normal() + level; }),
               dy = gaussian(DType::f32, {rows, n}), w = gaussian(any_float(), {turns * n});
  const Tensor dx = how == 2 ? dy : how == 1 ? gaussian(DType::f32, {rows, n}) : poisoned(DType::f32, {rows, n});
  std::vector<double> gain = values(w);
  for (double& each : gain) each = weighted ? each + offset : 1;
  const NormGradients made =
      norm_gradients(layer, static_cast<size_t>(n), static_cast<size_t>(turns), static_cast<double>(1e-5f), values(x),
                     values(dy), gain, how == 1 ? values(dx) : std::vector<double>{});
  const Expected expected{made.want, made.bound};
  Params p = params({{"eps", 1e-5}, {"offset", offset}, {"accumulate", how == 1 ? 1.0 : 0.0}});
  if (layer) p.set("turns", static_cast<double>(turns));
  const std::string op = layer ? "layernorm_backward" : "rmsnorm_backward";
  const std::vector<Tensor> in = weighted ? std::vector<Tensor>{x, dy, w} : std::vector<Tensor>{x, dy};
  const auto got = d.run(op, in, {dx}, p)[0];
  compare(op + " " + std::to_string(rows) + " " + std::to_string(n) +
              (how == 1   ? " +="
               : how == 2 ? " in place"
                          : ""),
          got, expected);
}

// sigmoid(a) for an argument of `roundings`.
Value sigmoid(double a, double roundings) {
  const double s = 1 / (1 + std::exp(-a));
  return {s, u * (s * (1 - s) * (roundings * std::fabs(a) + 3) + 3 * s)};
}
// Of x sigmoid(a), a' the slope of a.
Value sigmoid_slope(double x, double a, double slope, double roundings) {
  const Value s = sigmoid(a, roundings);
  const double part = std::fabs(x * slope), rest = part * s.want * (1 - s.want),
               want = s.want + x * slope * s.want * (1 - s.want);
  return {want, s.bound + part * (s.bound + s.want * u) + (roundings + 5) * u * rest + u * std::fabs(want)};
}
Value gelu_share(double x) {
  const double z = -x * std::sqrt(0.5);
  return {0.5 * std::erfc(z), u * (std::fabs(z) * 3 * 0.5642 * std::exp(-z * z) + 8 * 0.5 * std::erfc(z))};
}
constexpr double kTwice = 1.5957691216057308, kCubic = 0.044715;

Value slope_of(const std::string& act, double x) {
  if (act == "silu") return sigmoid_slope(x, x, 1, 0);
  if (act == "quick_gelu") return sigmoid_slope(x, 1.702 * x, 1.702, 2);
  if (act == "gelu_tanh")
    return sigmoid_slope(x, kTwice * (x + kCubic * x * x * x), kTwice * (1 + 3 * kCubic * x * x), 8);
  if (act == "relu") return {x > 0 ? 1.0 : 0.0, 0};
  if (act == "relu2") return {std::max(0.0, 2 * x), 0};
  if (act == "sigmoid") {
    const Value s = sigmoid(x, 0);
    return {s.want * (1 - s.want), s.bound + 2 * u * s.want};
  }
  const Value share = gelu_share(x);
  const double bell = x * 0.3989422804014327 * std::exp(-0.5 * x * x);
  return {share.want + bell, share.bound + u * std::fabs(bell) * (x * x + 6) + u * std::fabs(share.want + bell)};
}
Value value_of(const std::string& act, double x) {
  const auto times = [&](Value s) { return Value{x * s.want, std::fabs(x) * (s.bound + 2 * u * s.want)}; };
  if (act == "silu") return times(sigmoid(x, 0));
  if (act == "quick_gelu") return times(sigmoid(1.702 * x, 2));
  if (act == "gelu_tanh") return times(sigmoid(kTwice * (x + kCubic * x * x * x), 8));
  if (act == "relu") return {std::max(x, 0.0), 0};
  if (act == "relu2") return {x > 0 ? x * x : 0, u * x * x};
  return act == "sigmoid" ? sigmoid(x, 0) : times(gelu_share(x));
}
// A product with exact factors.
Value product(Value v, double by, int roundings) {
  return {v.want * by, std::fabs(by) * (v.bound + roundings * u * (std::fabs(v.want) + v.bound))};
}

struct Gate {
  Tensor gate, up, dy;
  explicit Gate(int64_t count)
      : gate(gaussian(DType::f32, {count}, 4)),
        up(gaussian(DType::f32, {count}, 3)),
        dy(gaussian(DType::f32, {count})) {}
};
// place: 0 apart, 1 dgate is dy, 2 dup is dy.
void gates(Device& d, const std::string& op, int64_t count, const Params& p, int place,
           const std::function<std::pair<Value, Value>(double, double, double)>& of) {
  const Gate g(count);
  Expected gate, up;
  for (int64_t i = 0; i < count; ++i) {
    const auto [a, b] = of(get(g.gate, i), get(g.up, i), get(g.dy, i));
    gate.add(a), up.add(b);
  }
  const auto got =
      d.run(op, {g.gate, g.up, g.dy},
            {place == 1 ? g.dy : poisoned(DType::f32, {count}), place == 2 ? g.dy : poisoned(DType::f32, {count})}, p);
  const std::string name = op + " " + (p.place("act") >= 0 ? word(p, "act") + " " : "") + std::to_string(count);
  compare(name + " dgate", got[0], gate);
  compare(name + " dup", got[1], up);
}

void activations(Device& d) {
  for (const char* act : {"silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid"})
    for (const int64_t count : {4 * size(1, 20000), 4 * size(1, 3000) + 1}) {
      const Params p = params({{"act", std::string(act)}});
      const Tensor x = gaussian(DType::f32, {count}, 4), dy = gaussian(DType::f32, {count});
      Expected expected;
      for (int64_t i = 0; i < count; ++i) expected.add(product(slope_of(act, get(x, i)), get(dy, i), 1));
      compare(std::string("activation_backward ") + act + " " + std::to_string(count),
              d.run("activation_backward", {x, dy}, {count % 4 ? dy : poisoned(DType::f32, {count})}, p)[0], expected);
      gates(d, "gated_activation_backward", count, p, static_cast<int>(between(0, 2)),
            [&](double g, double up, double dy_of) {
              return std::pair{product(slope_of(act, g), up * dy_of, 3), product(value_of(act, g), dy_of, 2)};
            });
    }
}

void limited(Device& d, bool swiglu, int64_t count) {
  const double alpha = swiglu ? static_cast<double>(1.702f) : 1, limit = 3.5, more = swiglu ? 1 : 0;
  Params p = params({{"limit", limit}});
  if (swiglu) p.set("alpha", 1.702);
  gates(d, swiglu ? "clamped_swiglu_backward" : "limited_gate_backward", count, p, static_cast<int>(between(0, 2)),
        [&](double x, double b, double dy) {
          const double g = std::min(x, limit), line = std::clamp(b, -limit, limit) + more;
          const Value s = sigmoid(alpha * g, 1);
          const double at = alpha * g, factor = 1 + at * (1 - s.want);
          const double of_factor = std::fabs(at) * (s.bound + 3 * u) + u * std::fabs(factor);
          const Value slope{s.want * factor, s.bound * std::fabs(factor) + (s.want + s.bound) * of_factor};
          const Value none{0, 0};
          return std::pair{x > limit ? none : product(slope, line * dy, 4),
                           std::fabs(b) > limit ? none : product(s, g * dy, 2)};
        });
}

void xielu(Device& d, int64_t count) {
  const auto one = [&](double v) { return filled(any_float(), {1}, [&](int64_t) { return v; }); };
  const Tensor x = gaussian(DType::f32, {count}, 2), dy = gaussian(DType::f32, {count}), positive = one(0.7),
               negative = one(-0.4), beta = one(0.5), eps = one(-1e-6);
  const auto softplus = [](double v) { return std::log1p(std::exp(v)); };
  const double above = softplus(get(positive, 0)), line = get(beta, 0), below = line + softplus(get(negative, 0));
  Expected expected;
  for (int64_t i = 0; i < count; ++i) {
    const double v = get(x, i), bent = v > 0 ? 2 * above * v : below * (v < get(eps, 0) ? std::expm1(v) : -1);
    expected.add(product({bent + line, u * (12 * std::fabs(bent) + std::fabs(bent + line))}, get(dy, i), 1));
  }
  compare("xielu_backward " + std::to_string(count),
          d.run("xielu_backward", {x, positive, negative, beta, eps, dy},
                {count % 4 ? dy : poisoned(DType::f32, {count})})[0],
          expected);
}

void soft_cap(Device& d, int64_t count, double cap) {
  const Tensor y = filled(DType::f32, {count}, [&](int64_t) { return 30 * std::tanh(normal()); }),
               dy = gaussian(DType::f32, {count});
  const double scale = static_cast<double>(0.3f);
  Expected expected;
  for (int64_t i = 0; i < count; ++i) {
    const double share = cap > 0 ? get(y, i) / cap : 0, rest = 1 - share * share;
    expected.add(product({rest, u * (5 * share * share + std::fabs(rest))}, scale * get(dy, i), 2));
  }
  compare("soft_cap_backward " + std::to_string(count) + (cap > 0 ? "" : " without a cap"),
          d.run("soft_cap_backward", {y, dy}, {count % 4 ? dy : poisoned(DType::f32, {count})},
                params({{"scale", 0.3}, {"cap", cap}}))[0],
          expected);
}

void output_error(Device& d, int64_t rows, int64_t n, bool in_place) {
  const Tensor y = gaussian(DType::f32, {rows, n}), target = gaussian(DType::f32, {rows, n});
  Expected dy, sums;
  for (int64_t t = 0; t < rows; ++t) {
    double sum = 0;
    for (int64_t i = t * n; i < (t + 1) * n; ++i) {
      const double e = static_cast<double>(y.data<float>()[i] - target.data<float>()[i]);
      dy.add({e, 0}), sum += e * e;
    }
    sums.add({sum, 2 * static_cast<double>(n + 2) * 0x1p-53 * sum});
  }
  const auto got =
      d.run("output_error", {y, target}, {in_place ? y : poisoned(DType::f32, y.shape), poisoned(DType::f64, {rows})});
  const std::string name = "output_error " + std::to_string(rows) + " " + std::to_string(n);
  compare(name + " dy", got[0], dy);
  compare(name + " sums", got[1], sums);
}

struct Probabilities {
  std::vector<double> p;
  double most = -INFINITY, log_sum, range;
  Probabilities(const Tensor& logits, int64_t first, int64_t n) {
    double sum = 0, least = INFINITY;
    for (int64_t i = first; i < first + n; ++i)
      most = std::max(most, get(logits, i)), least = std::min(least, get(logits, i));
    for (int64_t i = first; i < first + n; ++i) p.push_back(std::exp(get(logits, i) - most)), sum += p.back();
    for (double& each : p) each /= sum;
    log_sum = most + std::log(sum), range = most - least;
  }
};
// near: logits that are the target's, shifted, but for a little.
void divergence(Device& d, int64_t rows, int64_t n, bool near, bool in_place) {
  const Tensor target = gaussian(DType::f32, {rows, n}, 3);
  const Tensor logits = filled(DType::f32, {rows, n},
                               [&](int64_t i) { return near ? get(target, i) + 20 + 0.01 * normal() : 3 * normal(); });
  const double factor = 0.25, threads = static_cast<double>(std::min<int64_t>(1024, 32 * ((n + 127) / 128)));
  // Of the sum of exponentials: each of them, sums of four, and new maxima, at most one a step.
  const double steps = std::ceil(static_cast<double>(n) / threads);
  Expected gradient, sums;
  for (int64_t t = 0; t < rows; ++t) {
    const Probabilities q(logits, t * n, n), p(target, t * n, n);
    const double of_q = u * (8 + 2 * steps + 2 * q.range), of_p = u * (8 + 2 * steps + 2 * p.range);
    const double common = get(target, t * n) - get(logits, t * n);
    double loss = q.log_sum - p.log_sum, apart = 0, size_of = 0;
    for (int64_t i = 0; i < n; ++i) {
      const size_t s = static_cast<size_t>(i);
      const double a = get(logits, t * n + i), b = get(target, t * n + i);
      loss += p.p[s] * (b - a);
      apart += p.p[s] * std::fabs(b - a - common), size_of += p.p[s] * (std::fabs(b - a) + std::fabs(b - a - common));
      const double eq = q.p[s] * (u * (q.most - a + 5) + of_q), ep = p.p[s] * (u * (p.most - b + 5) + of_p);
      const double want = factor * (q.p[s] - p.p[s]);
      gradient.add({want, factor * (eq + ep) + 2 * u * std::fabs(want)});
    }
    sums.add({loss, apart * (u * (p.range + 10) + of_p) + u * size_of + of_q + of_p + u * std::fabs(common) + 1e-12});
  }
  const auto got = d.run("divergence", {logits, target},
                         {in_place ? logits : poisoned(DType::f32, logits.shape), poisoned(DType::f64, {rows})},
                         params({{"factor", factor}}));
  const std::string name = "divergence " + std::to_string(rows) + " " + std::to_string(n) + (near ? " near" : "");
  compare(name + " dlogits", got[0], gradient);
  compare(name + " sums", got[1], sums);
  const auto equal =
      d.run("divergence", {target, target}, {poisoned(DType::f32, target.shape), poisoned(DType::f64, {rows})});
  bool nothing = true;
  for (int64_t i = 0; i < target.elements(); ++i) nothing = nothing && get(equal[0], i) == 0;
  for (int64_t t = 0; t < rows; ++t) nothing = nothing && get(equal[1], t) == 0;
  report.that(name + ", equal ones", nothing);
}

void masked(Device& d) {
  const int64_t n = 300;
  const Tensor logits = gaussian(DType::f32, {1, n}),
               target = filled(DType::f32, {1, n}, [](int64_t i) { return i % 3 == 0 ? -INFINITY : normal(); });
  const auto got = d.run("divergence", {logits, target}, {poisoned(DType::f32, {1, n}), poisoned(DType::f64, {1})});
  const Probabilities q(logits, 0, n);
  double sum = 0, loss = q.log_sum;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(get(target, i));
  for (int64_t i = 0; i < n; ++i)
    if (i % 3) loss += std::exp(get(target, i)) / sum * (get(target, i) - get(logits, i));
  loss -= std::log(sum);
  report.that("divergence of a target with logits of -infinity", std::fabs(get(got[1], 0) - loss) < 1e-5);
}

void gather(Device& d, int64_t rows, int64_t n) {
  const Tensor x = gaussian(DType::f32, {rows, n}),
               order = filled(DType::i32, {n}, [&](int64_t) { return static_cast<double>(between(0, n - 1)); });
  const Tensor got = d.run("gather_columns", {x, order}, {poisoned(DType::f32, {rows, n})})[0];
  bool same = true;
  for (int64_t i = 0; i < rows * n; ++i)
    same = same && get(got, i) == get(x, i / n * n + static_cast<int64_t>(get(order, i % n)));
  report.that("gather_columns " + std::to_string(rows) + " " + std::to_string(n), same);
  set(order, n / 2, static_cast<double>(between(0, 1) ? n : -1));
  report.fails("gather_columns of a column that is not there", "LPQ_NATIVE_ARGUMENT",
               [&] { d.run("gather_columns", {x, order}, {poisoned(DType::f32, {rows, n})}); });
}

void round_inputs(Device& d, Backend& host, const Params& type, int64_t length, const char* scales, double global) {
  const int64_t rows = size(1, 30), groups = size(1, 40), k = groups * length;
  Params p = type;
  p.set("groupSize", static_cast<double>(length)), p.set("scaleDtype", std::string(scales));
  if (std::string(scales) == "f8_e4m3" && global != 1) p.set("global", global);
  // Of all sizes, some groups of zeros, some of subnormal numbers, some whose largest is a power of two.
  const Tensor x = filled(DType::f32, {rows, k}, [&](int64_t i) {
    const int64_t kind = i / length % 9;
    const double size_of = std::exp2(static_cast<double>(i / length % 31) - 15);
    return kind == 3   ? 0
           : kind == 5 ? normal() * 1e-40
           : kind == 7 ? (normal() > 0 ? size_of : -0.0)
                       : normal() * size_of;
  });
  Call call;
  call.in = {x}, call.out = {poisoned(DType::f32, {rows, k})}, call.params = p;
  const Tensor want = call.out[0];
  host.run("round_inputs", call);
  const bool in_place = between(0, 1);
  const Tensor got = d.run("round_inputs", {x}, {in_place ? x : poisoned(DType::f32, {rows, k})}, p)[0];
  report.that("round_inputs " + word(p, "kind") + std::to_string(static_cast<int>(number(p, "bits"))) + " by " +
                  std::to_string(length) + " " + scales,
              std::memcmp(want.raw(), got.raw(), got.bytes()) == 0);
  set(x, between(0, rows * k - 1), between(0, 1) ? NAN : INFINITY);
  report.fails("round_inputs of what is not finite", "LPQ_NATIVE_NUMERICS",
               [&] { d.run("round_inputs", {x}, {poisoned(DType::f32, {rows, k})}, p); });
}

void rounded(Device& d) {
  const auto host = make_cpu_backend(2);
  const auto integer = [](int bits) {
    return params({{"kind", std::string("int")}, {"bits", static_cast<double>(bits)}, {"signed", 1.0}});
  };
  const auto floating = [](int bits, int exponent, int mantissa, int bias, const char* special) {
    return params({{"kind", std::string("float")},
                   {"bits", static_cast<double>(bits)},
                   {"signed", 1.0},
                   {"exponent", static_cast<double>(exponent)},
                   {"mantissa", static_cast<double>(mantissa)},
                   {"bias", static_cast<double>(bias)},
                   {"special", std::string(special)}});
  };
  for (const Params& type : {integer(8), integer(4), integer(2), floating(4, 2, 1, 1, "none"),
                             floating(6, 3, 2, 3, "none"), floating(8, 4, 3, 7, "fn"), floating(8, 5, 2, 15, "ieee")})
    for (const char* scales : {"f32", "f16", "bf16", "f8_e8m0", "f8_e4m3"})
      for (const int64_t length :
           {int64_t{16}, int64_t{32}, int64_t{128}, int64_t{4} << between(0, 5), between(1, 200)})
        round_inputs(d, *host, type, length, scales, between(0, 1) ? 1 : static_cast<double>(0.0123f));
}

void timed(Device& d, const std::string& name, const std::string& op, const std::vector<Tensor>& in,
           const std::vector<Tensor>& out, const Params& p, double bytes) {
  std::vector<double> seconds;
  Call call;
  call.in = in, call.out = out, call.params = p;
  // So many calls a pass that launches and events cost nothing. What may report a fault copies from the host.
  const int calls_of = bytes < 1e9 ? 20 : 2;
  const bool graph = op != "gather_columns" && op != "round_inputs";
  d.queue().enqueue("time", [&] {
    std::vector<std::pair<std::string, Call>> calls(static_cast<size_t>(calls_of), {op, call});
    seconds = d.backend().time(calls, Timing{.passes = 9, .seconds = 0, .graph = graph});
  });
  const Queue::Outcome outcome = d.settle();
  if (!outcome.ok) throw Failure(outcome.code, outcome.detail);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2] / calls_of;
  std::printf("%-52s %9.4f ms %8.1f GB/s\n", name.c_str(), median * 1e3, bytes / median * 1e-9);
}

void times(Device& d) {
  const auto filled_on = [&](std::vector<int64_t> shape) {
    const Tensor host = allocate(DType::f32, shape);
    float* at = host.data<float>();
    uint64_t state = test::random()();
    for (int64_t i = 0; i < host.elements(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      at[i] = static_cast<float>(static_cast<int64_t>(state >> 33) - (int64_t{1} << 30)) * 0x1p-29f;
    }
    return d.backend().upload(host);
  };
  const auto empty = [&](std::vector<int64_t> shape) { return d.backend().allocate(DType::f32, std::move(shape)); };
  const int64_t rows = 4096, width = 4096, wide = 14336;
  {
    const Tensor gate = filled_on({rows, wide}), up = filled_on({rows, wide}), dy = filled_on({rows, wide});
    const Tensor dgate = empty({rows, wide}), dup = empty({rows, wide});
    const double bytes = 4.0 * static_cast<double>(rows * wide);
    for (const char* act : {"silu", "gelu", "gelu_tanh"})
      timed(d, std::string("gated_activation_backward ") + act + " 4096 14336", "gated_activation_backward",
            {gate, up, dy}, {dgate, dup}, params({{"act", std::string(act)}}), 5 * bytes);
    timed(d, "clamped_swiglu_backward 4096 14336", "clamped_swiglu_backward", {gate, up, dy}, {dgate, dup},
          params({{"alpha", 1.702}, {"limit", 7.0}}), 5 * bytes);
    timed(d, "activation_backward silu 4096 14336", "activation_backward", {gate, dy}, {dgate},
          params({{"act", std::string("silu")}}), 3 * bytes);
  }
  {
    const Tensor x = filled_on({rows, width}), dy = filled_on({rows, width}), dx = filled_on({rows, width}),
                 w = d.backend().upload(gaussian(DType::bf16, {width}));
    const Tensor sums = d.backend().allocate(DType::f64, {rows}),
                 order = d.backend().upload(
                     filled(DType::i32, {width}, [&](int64_t i) { return static_cast<double>((i * 1237) % width); }));
    const double bytes = 4.0 * static_cast<double>(rows * width);
    timed(d, "rmsnorm_backward 4096 4096", "rmsnorm_backward", {x, dy, w}, {dx}, params({{"eps", 1e-5}}), 3 * bytes);
    timed(d, "rmsnorm_backward 4096 4096 +=", "rmsnorm_backward", {x, dy, w}, {dx},
          params({{"eps", 1e-5}, {"accumulate", 1.0}}), 4 * bytes);
    timed(d, "layernorm_backward 4096 4096", "layernorm_backward", {x, dy, w}, {dx}, params({{"eps", 1e-5}}),
          3 * bytes);
    timed(d, "output_error 4096 4096", "output_error", {x, dy}, {dx, sums}, {}, 3 * bytes);
    timed(d, "gather_columns 4096 4096", "gather_columns", {x, order}, {dx}, {}, 2 * bytes);
    timed(d, "round_inputs int4 by 128 4096 4096", "round_inputs", {x}, {dx},
          params({{"kind", std::string("int")},
                  {"bits", 4.0},
                  {"signed", 1.0},
                  {"groupSize", 128.0},
                  {"scaleDtype", std::string("f32")}}),
          2 * bytes);
  }
  const int64_t vocabulary = 128256;
  const Tensor logits = filled_on({rows, vocabulary}), target = filled_on({rows, vocabulary});
  const Tensor dlogits = empty({rows, vocabulary}), sums = d.backend().allocate(DType::f64, {rows});
  timed(d, "divergence 4096 128256 (of 3 transfers)", "divergence", {logits, target}, {dlogits, sums}, {},
        12.0 * static_cast<double>(rows * vocabulary));
}

void all(Device& d) {
  for (const bool layer : {false, true}) {
    // Rows of warps and of blocks, held and not, and such as are too wide to hold.
    for (const int64_t n : {int64_t{1}, int64_t{4}, int64_t{128}, 4 * size(2, 128), size(2, 512), int64_t{512},
                            int64_t{516}, 4 * size(129, 2000), 2 * size(300, 3000) + 1})
      for (int how = 0; how < 3; ++how)
        norm(d, layer, size(1, 20), n, layer ? between(1, 3) : 1, how != 1 || between(0, 1), how);
    norm(d, layer, 3, 4096, 1, true, 1);
    if (small) continue;
    norm(d, layer, 2, 16384, 1, true, 0);
    norm(d, layer, 2, 16388, 1, true, 1);
    norm(d, layer, 2, 20001, 1, false, 2);
  }
  activations(d);
  for (const int64_t count : {int64_t{0}, 4 * size(1, 20000), 4 * size(1, 5000) + 3}) {
    limited(d, true, count), limited(d, false, count);
    xielu(d, count);
    soft_cap(d, count, 30), soft_cap(d, count, 0);
  }
  for (const int64_t n : {int64_t{1}, 4 * size(1, 2000), 4 * size(1, 500) + 1, int64_t{1024}})
    for (const bool in_place : {false, true}) {
      output_error(d, size(1, 20), n, in_place);
      for (const bool near : {false, true}) divergence(d, size(1, 8), n, near, in_place);
      gather(d, size(1, 20), n);
    }
  output_error(d, 0, 8, false);
  if (!small) divergence(d, 3, 128256, false, true), divergence(d, 2, 50257, true, false), gather(d, 2, 70000);
  masked(d);
  rounded(d);
}

}  // namespace

int main(int count, char** arguments) {
  bool time = false;
  for (int i = 1; i < count; ++i) {
    small = small || std::string(arguments[i]) == "--small";
    time = time || std::string(arguments[i]) == "--time";
  }
  try {
    Device d;
    std::printf("%s, compute capability %d\n", d.backend().facts().name.c_str(), d.backend().facts().arch);
    if (time) times(d);
    else all(d);
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 100;
  }
  if (!time) std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures;
}
