// The solver, round-to-nearest and layout operations of the CUDA backend against the CPU's, on random problems with
// tails.
//   (no argument)  correctness; --small: tiny shapes only, for compute-sanitizer
// Exit code: failures. bench/native/bench_solver.cpp times the same operations.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <thread>

#include "harness.h"
#include "lpq/quant_type.h"

using namespace lpq;
using namespace lpq::test;

namespace {

bool small = false;
Report report;

struct Host {
  std::unique_ptr<Backend> backend = make_cpu_backend(8);
  std::vector<Tensor> run(const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                          const Params& p = {}) {
    Call call;
    call.in = in;
    call.out = out;
    call.params = p;
    backend->run(op, call);
    backend->drain();
    return out;
  }
};

// body(i) for i < count on every core.
void parallel(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned w = 0; w < std::max(1u, std::thread::hardware_concurrency()); ++w)
    threads.emplace_back([&] {
      for (int64_t i = next++; i < count; i = next++) body(i);
    });
  for (auto& thread : threads) thread.join();
}

Tensor copy(const Tensor& t) {
  Tensor c = allocate(t.dtype, t.shape);
  std::memcpy(c.raw(), t.raw(), t.bytes());
  return c;
}
bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

struct Type {
  const char* name;
  bool integer;
  int bits;
  bool is_signed;
  int exponent, mantissa, bias;
  const char* special;
};
constexpr Type kI4{"i4", true, 4, true, 0, 0, 0, "none"}, kI3{"i3", true, 3, true, 0, 0, 0, "none"},
    kI2{"i2", true, 2, true, 0, 0, 0, "none"};
constexpr Type kI8{"i8", true, 8, true, 0, 0, 0, "none"}, kU4{"u4", true, 4, false, 0, 0, 0, "none"},
    kU3{"u3", true, 3, false, 0, 0, 0, "none"};
constexpr Type kU1{"u1", true, 1, false, 0, 0, 0, "none"}, kU8{"u8", true, 8, false, 0, 0, 0, "none"},
    kF4{"f4e2m1", false, 4, true, 2, 1, 1, "none"};
constexpr Type kF6{"f6e3m2", false, 6, true, 3, 2, 3, "none"}, kF8{"f8e4m3", false, 8, true, 4, 3, 7, "fn"},
    kE5{"f8e5m2", false, 8, true, 5, 2, 15, "ieee"};
constexpr Type kE6{"f8e6m1", false, 8, true, 6, 1, 31, "none"};

Params type_params(const Type& t) {
  return params({{"kind", t.integer ? "int" : "float"},
                 {"bits", static_cast<double>(t.bits)},
                 {"signed", t.is_signed ? 1.0 : 0.0},
                 {"exponent", static_cast<double>(t.exponent)},
                 {"mantissa", static_cast<double>(t.mantissa)},
                 {"bias", static_cast<double>(t.bias)},
                 {"special", t.special}});
}
double constant_zero(const Type& t, bool symmetric) {
  return !symmetric || t.is_signed ? 0 : t.bits == 1 ? 0.5 : std::ldexp(1, t.bits - 1);
}

// A layer: inputs with a common component, channels of different sizes, a few outliers and, when asked for, a dead one.
struct Layer {
  int64_t n, k, groups;
  Tensor w, h, order, group;
  Layer(int64_t n_, int64_t k_, int64_t size, bool dead, DType dtype = DType::bf16)
      : n(n_), k(k_), groups((k_ + size - 1) / size) {
    const int64_t tokens = 2 * k + 7, modes = 8;
    std::vector<double> x(static_cast<size_t>(tokens * k)), basis(static_cast<size_t>(modes * k)),
        gain(static_cast<size_t>(k));
    for (double& b : basis) b = normal();
    for (double& g : gain) g = std::exp(0.7 * normal()) * (between(0, 40) == 0 ? 15 : 1);
    for (int64_t t = 0; t < tokens; ++t) {
      double mix[8];
      for (double& m : mix) m = 0.4 * normal();
      for (int64_t j = 0; j < k; ++j) {
        double v = normal();
        for (int64_t m = 0; m < modes; ++m) v += mix[m] * basis[static_cast<size_t>(m * k + j)];
        x[static_cast<size_t>(t * k + j)] = v * gain[static_cast<size_t>(j)];
      }
    }
    if (dead)
      for (int64_t t = 0; t < tokens; ++t) x[static_cast<size_t>(t * k + k / 3)] = 0;
    h = allocate(DType::f64, {k, k});
    parallel(k, [&](int64_t i) {
      std::vector<double> line(static_cast<size_t>(i + 1), 0.0);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j <= i; ++j)
          line[static_cast<size_t>(j)] += x[static_cast<size_t>(t * k + i)] * x[static_cast<size_t>(t * k + j)];
      for (int64_t j = 0; j <= i; ++j)
        h.data<double>()[i * k + j] = h.data<double>()[j * k + i] = line[static_cast<size_t>(j)];
    });
    w = gaussian(dtype, {n, k}, 0.03);
    std::vector<int32_t> list(static_cast<size_t>(k));
    std::iota(list.begin(), list.end(), 0);
    std::stable_sort(list.begin(), list.end(),
                     [&](int32_t a, int32_t b) { return get(h, a * k + a) > get(h, b * k + b); });
    order = filled(DType::i32, {k}, [&](int64_t j) { return list[static_cast<size_t>(j)]; });
    group = filled(DType::i32, {k}, [&](int64_t j) { return list[static_cast<size_t>(j)] / size; });
  }
};

struct Factored {
  Tensor u, m, dead, info;
};
std::vector<Tensor> factor_outputs(int64_t k) {
  return {poisoned(DType::f32, {k, k}), poisoned(DType::f32, {k, k}), allocate(DType::u8, {k}),
          poisoned(DType::f64, {3})};
}

// tr(E M E^T), E = (level - zero) scale - T, in double.
double objective(const Layer& l, const Tensor& t, const Tensor& m, const Tensor& level, const Tensor& scale,
                 const Tensor& zero) {
  std::vector<double> rows(static_cast<size_t>(l.n));
  parallel(l.n, [&](int64_t r) {
    std::vector<double> e(static_cast<size_t>(l.k));
    for (int64_t j = 0; j < l.k; ++j) {
      const int64_t g = r * l.groups + l.group.data<int32_t>()[j];
      e[static_cast<size_t>(j)] = (get(level, r * l.k + j) - get(zero, g)) * get(scale, g) - get(t, r * l.k + j);
    }
    double total = 0;
    for (int64_t i = 0; i < l.k; ++i) {
      double line = 0;
      const float* row = m.data<float>() + i * l.k;
      for (int64_t j = 0; j < l.k; ++j) line += e[static_cast<size_t>(j)] * row[j];
      total += e[static_cast<size_t>(i)] * line;
    }
    rows[static_cast<size_t>(r)] = total;
  });
  return std::accumulate(rows.begin(), rows.end(), 0.0);
}

double share_different(const Tensor& a, const Tensor& b) {
  int64_t different = 0;
  for (int64_t i = 0; i < a.elements(); ++i) different += get(a, i) != get(b, i);
  return static_cast<double>(different) / static_cast<double>(std::max<int64_t>(1, a.elements()));
}

void note(const std::string& what, double value) { std::printf("      %-58s %.3g\n", what.c_str(), value); }

// sqrt of the sum over rows of x M x^T.
double metric_norm(const std::vector<double>& x, int64_t rows, int64_t k, const Tensor& m) {
  std::vector<double> parts(static_cast<size_t>(rows));
  parallel(rows, [&](int64_t r) {
    double total = 0;
    for (int64_t i = 0; i < k; ++i) {
      double line = 0;
      for (int64_t j = 0; j < k; ++j)
        line += x[static_cast<size_t>(r * k + j)] * static_cast<double>(m.data<float>()[i * k + j]);
      total += x[static_cast<size_t>(r * k + i)] * line;
    }
    parts[static_cast<size_t>(r)] = total;
  });
  return std::sqrt(std::max(0.0, std::accumulate(parts.begin(), parts.end(), 0.0)));
}
std::vector<double> apart(const Tensor& a, const Tensor& b) {
  std::vector<double> x(static_cast<size_t>(a.elements()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = get(a, static_cast<int64_t>(i)) - get(b, static_cast<int64_t>(i));
  return x;
}
// What a correction moves outputs by, E M E^T, must be right to 2^-12 of what it moves them by itself: planes are
// 2^-21, and U^T U may enlarge that by the root of its condition, at most 2^10 with damping of 1 % here.
void target_error(const std::string& name, const Tensor& m, int64_t n, int64_t k, const Tensor& got, const Tensor& want,
                  const std::vector<double>& change) {
  const double error = metric_norm(apart(got, want), n, k, m), size = metric_norm(change, n, k, m);
  note(name + ", H-norm of the error over the change's", error / size);
  report.that(name + ", H-norm", error <= 0x1p-12 * size);
}
void correction_error(const std::string& name, const Layer& l, const Tensor& m, const Tensor& got, const Tensor& want,
                      double elementwise) {
  target_error(name, m, l.k, l.k, got, want, values(want));
  double most = 0;
  for (int64_t i = 0; i < l.k * l.k; ++i) most = std::max(most, std::fabs(get(want, i)));
  report.close(name + ", elements", got, values(want), most * elementwise, elementwise);
}

// Problems of one call, of two heights and three beginnings: the codes that each alone gets, and all that moved.
void check_side_by_side(const std::string& name, Device& d, const Layer& l, const Tensor& t, const Tensor& m,
                        const Tensor& scale, const Tensor& zero, const Tensor& level, const Params& sweep) {
  const int64_t half = (l.n + 1) / 2;
  const auto top = [&](const Tensor& whole) {
    return filled(DType::f32, {half, whole.dim(1)}, [&](int64_t i) { return static_cast<float>(get(whole, i)); });
  };
  std::vector<Tensor> in, out, alone;
  double moved = 0;
  for (const bool all : {true, false, true}) {
    const std::vector<Tensor> problem = {all ? t : top(t), m, all ? scale : top(scale), all ? zero : top(zero),
                                         l.group};
    // The third begins where the first ends.
    const Tensor begin = in.size() == 10 ? alone[0] : all ? level : top(level);
    const auto one = d.run("gptq_descend", problem, {copy(begin), poisoned(DType::f64, {1})}, sweep);
    in.insert(in.end(), problem.begin(), problem.end());
    out.push_back(copy(begin));
    alone.push_back(one[0]);
    moved += get(one[1], 0);
  }
  out.push_back(poisoned(DType::f64, {1}));
  const auto together = d.run("gptq_descend", in, out, sweep);
  for (size_t i = 0; i < alone.size(); ++i)
    report.that(name + ": descend side by side, problem " + std::to_string(i), same_bytes(together[i], alone[i]));
  report.that(name + ": descend side by side, changed", get(together[alone.size()], 0) == moved);
}

// Everything from the factorisation to the stored scales. Each operation gets the CPU's inputs, so differences do not
// add up; at the end the whole is run on either device.
void solver(Device& d, Host& host, const Type& type, bool symmetric, bool both, int64_t n, int64_t k, int64_t size,
            bool dead, DType scale_dtype) {
  const Layer l(n, k, size, dead);
  const std::string name = std::string(type.name) + (symmetric ? " sym " : " asym ") + std::to_string(n) + "x" +
                           std::to_string(k) + " g" + std::to_string(size);
  const Params tp = type_params(type);
  const auto with = [&](Params p, std::initializer_list<std::pair<const char*, Params::Value>> more) {
    for (const auto& [key, value] : more) p.set(key, value);
    return p;
  };

  const Params damp = params({{"damp", 0.01}});
  const auto want = host.run("gptq_factor", {l.h, l.order}, factor_outputs(k), damp);
  const auto got = d.run("gptq_factor", {l.h, l.order}, factor_outputs(k), damp);
  const Tensor &u = want[0], &m = want[1], &dead_flags = want[2];
  report.that(name + ": factor, M", same_bytes(got[1], m) && same_bytes(got[2], dead_flags));
  report.close(name + ": factor, info", got[3], values(want[3]), 0, 1e-12);
  // f64 factorisations of a matrix of condition < 1e7 agree to 1e-9, then both round to f32.
  double most = 0;
  for (int64_t i = 0; i < k * k; ++i) most = std::max(most, std::fabs(get(u, i)));
  report.close(name + ": factor, U", got[0], values(u), most * 1e-9, 0x1p-22);
  if (k > 128) {
    // The last products of planes: 2^-21 of the terms, of which rows of U keep at least 1 in 2^5.
    const auto planes =
        d.run("gptq_factor", {l.h, l.order}, factor_outputs(k), params({{"damp", 0.01}, {"splitFrom", 129.0}}));
    report.that(name + ": factor of planes, M", same_bytes(planes[1], m));
    report.close(name + ": factor of planes, U", planes[0], values(u), most * 0x1p-16, 0x1p-16);
  }
  {
    // From f32: the same with H rounded.
    Tensor narrow = filled(DType::f32, {k, k}, [&](int64_t i) { return get(l.h, i); });
    const auto from = d.run("gptq_factor", {narrow, l.order}, factor_outputs(k), damp);
    report.close(name + ": factor of an f32 H, M", from[1], values(m), 0, 0x1p-22);
  }

  const auto target_outputs = [&] {
    return std::vector<Tensor>{poisoned(DType::f32, {n, k}), poisoned(DType::f64, {2})};
  };
  const auto t_want = host.run("gptq_target", {l.w, l.order, dead_flags}, target_outputs(), params({{"alpha", 0.0}}));
  const auto t_got = d.run("gptq_target", {l.w, l.order, dead_flags}, target_outputs(), params({{"alpha", 0.0}}));
  const Tensor& t = t_want[0];
  report.that(name + ": target", same_bytes(t_got[0], t) && same_bytes(t_got[1], t_want[1]));
  {
    const Tensor drift =
        filled(DType::f64, {k, k}, [&](int64_t i) { return get(l.h, i) * 0.05 * std::sin(static_cast<double>(i)); });
    const auto a =
        host.run("gptq_target", {l.w, l.order, dead_flags, drift, u}, target_outputs(), params({{"alpha", 0.25}}));
    const auto b =
        d.run("gptq_target", {l.w, l.order, dead_flags, drift, u}, target_outputs(), params({{"alpha", 0.25}}));
    double size_of = 0;
    for (int64_t i = 0; i < n * k; ++i) size_of = std::max(size_of, std::fabs(get(a[0], i)));
    report.close(name + ": target with alpha", b[0], values(a[0]), size_of * 0x1p-16,
                 0x1p-16);  // 2^-21 of terms that cancel, drift being noise, to 2^-5 of themselves
    const auto matrix = [&] { return std::vector<Tensor>{poisoned(DType::f32, {k, k})}; };
    const Tensor b_want = host.run("gptq_correction", {drift, l.order, u}, matrix())[0],
                 b_got = d.run("gptq_correction", {drift, l.order, u}, matrix())[0];
    const auto c =
        d.run("gptq_target", {l.w, l.order, dead_flags, b_want}, target_outputs(), params({{"alpha", 0.25}}));
    report.close(name + ": target with a correction", c[0], values(a[0]), size_of * 0x1p-16,
                 0x1p-16);  // 2^-21 of terms that cancel, drift being noise, to 2^-5 of themselves
    correction_error(name + ": correction", l, m, b_got, b_want, 0x1p-15);
    std::vector<double> change(static_cast<size_t>(n * k));
    for (int64_t i = 0; i < n * k; ++i) change[static_cast<size_t>(i)] = get(a[0], i) - get(t, i);
    target_error(name + ": target", m, n, k, b[0], a[0], change);
    const Tensor h_lower = filled(DType::f64, {k, k}, [&](int64_t i) { return i % k > i / k ? NAN : get(l.h, i); });
    const Tensor cross = filled(DType::f64, {k, k}, [&](int64_t i) { return get(l.h, i) + get(drift, i); });
    const auto drifted = [&](auto& on) {
      const Tensor c = copy(cross);
      return on.run("cross_drift", {h_lower, c}, {c}, params({{"scale", 0.3}}))[0];
    };
    report.that(name + ": drift", same_bytes(drifted(host), drifted(d)));
  }

  const bool coarse = scale_dtype == DType::f8_e8m0 || scale_dtype == DType::f8_e4m3;
  const double unit = scale_dtype == DType::f8_e4m3 ? 1.0 / 512 / 448 : 1;
  const Params clip = with(tp, {{"symmetric", symmetric ? 1.0 : 0.0},
                                {"constantZero", constant_zero(type, symmetric)},
                                {"steps", 76.0},
                                {"bothSigns", both ? 1.0 : 0.0},
                                {"scaleDtype", coarse ? std::string(dtype_name(scale_dtype)) : "f32"},
                                {"scaleUnit", unit}});
  const auto grids = [&] {
    return std::vector<Tensor>{poisoned(DType::f32, {n, l.groups}), poisoned(DType::f32, {n, l.groups})};
  };
  const auto clip_want = host.run("gptq_clip", {t, m, l.group}, grids(), clip);
  const auto clip_got = d.run("gptq_clip", {t, m, l.group}, grids(), clip);
  const Tensor &scale = clip_want[0], &zero = clip_want[1];
  {
    // The choice of the device must cost what the CPU's costs, to the precision of 11-bit operands (clip.cu).
    double worst = 0, sum_want = 0, sum_got = 0;
    int64_t other = 0;
    std::vector<std::vector<int64_t>> members(static_cast<size_t>(l.groups));
    for (int64_t j = 0; j < k; ++j) members[static_cast<size_t>(l.group.data<int32_t>()[j])].push_back(j);
    const auto cost = [&](int64_t row, int64_t g, const Tensor& s, const Tensor& z) {
      const auto& columns = members[static_cast<size_t>(g)];
      const QuantType qt = test::type_of(tp);
      const float sc = s.data<float>()[row * l.groups + g], ze = z.data<float>()[row * l.groups + g];
      std::vector<double> e;
      for (int64_t j : columns) {
        const float x = t.data<float>()[row * k + j] / sc;
        // nearest level by search
        double best = INFINITY, level = 0;
        for (uint32_t code = 0; code < qt.codes(); ++code) {
          const float v = qt.decode(code);
          if (std::isnan(v)) continue;
          const double apart = std::fabs(static_cast<double>(v) - ze - x);
          if (apart < best) best = apart, level = v;
        }
        e.push_back((level - ze) * sc - t.data<float>()[row * k + j]);
      }
      double total = 0;
      for (size_t b0 = 0; b0 < columns.size(); b0 += 128)
        for (size_t a = b0; a < std::min(b0 + 128, columns.size()); ++a)
          for (size_t b = b0; b < std::min(b0 + 128, columns.size()); ++b)
            total += e[a] * e[b] * m.data<float>()[columns[a] * k + columns[b]];
      return total;
    };
    for (int64_t row = 0; row < std::min<int64_t>(n, 40); ++row)
      for (int64_t g = 0; g < l.groups; ++g) {
        const bool equal = get(scale, row * l.groups + g) == get(clip_got[0], row * l.groups + g) &&
                           get(zero, row * l.groups + g) == get(clip_got[1], row * l.groups + g);
        other += !equal;
        const double a = cost(row, g, scale, zero), b = equal ? a : cost(row, g, clip_got[0], clip_got[1]);
        sum_want += a;
        sum_got += b;
        worst = std::max(worst, a > 0 ? b / a - 1 : b > 0 ? 1 : 0);
      }
    note(name + ": clip, share chosen otherwise",
         static_cast<double>(other) / static_cast<double>(std::min<int64_t>(n, 40) * l.groups));
    note(name + ": clip, worst cost over the CPU's", worst);
    report.that(name + ": clip", worst < 2e-3 && sum_got < sum_want * 1.0002);
  }

  const auto levels = [&] { return std::vector<Tensor>{poisoned(DType::f32, {n, k})}; };
  const auto solve_want = host.run("gptq_solve", {t, u, scale, zero, l.group}, levels(), tp);
  const auto solve_got = d.run("gptq_solve", {t, u, scale, zero, l.group}, levels(), tp);
  const double before = objective(l, t, m, solve_want[0], scale, zero),
               before_got = objective(l, t, m, solve_got[0], scale, zero);
  // A code near a tie that goes the other way moves later ones of its row; few rows may be touched at all.
  int64_t rows_different = 0;
  for (int64_t r = 0; r < n; ++r)
    rows_different += std::memcmp(solve_want[0].data<float>() + r * k, solve_got[0].data<float>() + r * k,
                                  static_cast<size_t>(k) * 4) != 0;
  note(name + ": solve, share of codes different", share_different(solve_want[0], solve_got[0]));
  note(name + ": solve, objective over the CPU's", before_got / before - 1);
  // Ties: a row has k targets, each within 1e-4 of a step from a tie with probability 2e-4.
  report.that(name + ": solve", static_cast<double>(rows_different) <=
                                        3 + static_cast<double>(n) * std::min(1.0, 4e-4 * static_cast<double>(k)) &&
                                    before_got < before * 1.01);

  for (const int passes : {3, 1}) {
    Tensor level_want = copy(solve_want[0]), level_got = copy(solve_want[0]);
    const Params p = with(tp, {{"sweeps", 2.0}});  // passes are those of tensor cores
    const auto a = host.run("gptq_descend", {t, m, scale, zero, l.group}, {level_want, poisoned(DType::f64, {1})}, p);
    const auto b = d.run("gptq_descend", {t, m, scale, zero, l.group}, {level_got, poisoned(DType::f64, {1})},
                         with(p, {{"passes", static_cast<double>(passes)}}));
    const double after = objective(l, t, m, a[0], scale, zero), after_got = objective(l, t, m, b[0], scale, zero);
    const std::string label = name + ": descend, " + std::to_string(passes) + " passes";
    note(label + ", share of codes different", share_different(a[0], b[0]));
    note(label + ", objective over the CPU's", after_got / after - 1);
    note(label + ", objective over the start", after_got / before);
    report.that(label, after_got <= before * (1 + 1e-9) && after_got < after * 1.003);
    report.close(label + ", changed", b[1], values(a[1]), 8, passes == 3 ? 0.02 : 0.04);
  }
  check_side_by_side(name, d, l, t, m, scale, zero, solve_want[0], with(tp, {{"sweeps", 2.0}}));

  if (!coarse) {
    Tensor scale_want = copy(scale), scale_got = copy(scale);
    const auto a =
        host.run("gptq_refit", {t, m, solve_want[0], zero, l.group}, {scale_want, poisoned(DType::f64, {1})});
    const auto b = d.run("gptq_refit", {t, m, solve_want[0], zero, l.group}, {scale_got, poisoned(DType::f64, {1})});
    double worst = 0;
    for (int64_t i = 0; i < n * l.groups; ++i) worst = std::max(worst, std::fabs(get(b[0], i) / get(a[0], i) - 1));
    const double after = objective(l, t, m, solve_want[0], a[0], zero),
                 after_got = objective(l, t, m, solve_want[0], b[0], zero);
    note(name + ": refit, largest relative difference of a scale", worst);
    note(name + ": refit, objective over the CPU's", after_got / after - 1);
    note(name + ": refit, objective over the start", after_got / before);
    report.that(name + ": refit", after_got <= before * (1 + 1e-9) && after_got < after * (1 + 1e-4));
    report.close(name + ": refit, rows", b[1], values(a[1]), 2, 0.02);
  }
  // Scales of two levels: both devices start from the CPU's, on the grid.
  if (!coarse && symmetric && type.bits == 4 && type.integer)
    for (const DType dtype : {DType::f16, DType::f32}) {
      const Params how = params({{"twoLevel", std::string(dtype_name(dtype))}});
      const Tensor energy = filled(DType::f32, {n, l.groups}, [](int64_t i) { return 1 + i % 3; });
      Tensor start = copy(scale);
      host.run("two_level_scales", {energy}, {start}, params({{"scaleDtype", std::string(dtype_name(dtype))}}));
      const std::vector<Tensor> in{t, m, solve_want[0], zero, l.group};
      const double from = objective(l, t, m, solve_want[0], start, zero);
      const auto a = host.run("gptq_refit", in, {copy(start), poisoned(DType::f64, {1})}, how);
      const auto b = d.run("gptq_refit", in, {copy(start), poisoned(DType::f64, {1})}, how);
      const double after = objective(l, t, m, solve_want[0], a[0], zero),
                   after_got = objective(l, t, m, solve_want[0], b[0], zero);
      // A row is whole factors of its own number where what `two_level_scales` makes of it, with any price, is itself.
      const auto again = host.run("two_level_scales", {energy}, {copy(b[0])},
                                  params({{"scaleDtype", std::string(dtype_name(dtype))}}));
      const std::string label = name + ": refit of two levels, " + std::string(dtype_name(dtype));
      note(label + ", objective over the CPU's", after_got / after - 1);
      note(label + ", objective over the start", after_got / from);
      note(label + ", share of scales different", share_different(a[0], b[0]));
      report.that(label, after_got <= from * (1 + 1e-9) && after_got < after * (1 + 1e-3));
      report.that(label + ", on the grid", same_bytes(again[0], b[0]));
      report.close(label + ", rows", b[1], values(a[1]), 2, 0.02);
    }

  const auto codes = [&] { return std::vector<Tensor>{poisoned(DType::u8, {n, k})}; };
  report.that(name + ": encode", same_bytes(host.run("gptq_encode", {solve_want[0], l.order}, codes(), tp)[0],
                                            d.run("gptq_encode", {solve_want[0], l.order}, codes(), tp)[0]));
  for (const DType stored :
       coarse ? std::vector<DType>{scale_dtype} : std::vector<DType>{DType::f16, DType::bf16, DType::f32}) {
    const auto out = [&] {
      return std::vector<Tensor>{allocate(stored, {n, l.groups}), poisoned(DType::f32, {n, l.groups}),
                                 poisoned(DType::f64, {2})};
    };
    const auto a = host.run("gptq_store_scales", {scale}, out(), params({{"unit", unit}})),
               b = d.run("gptq_store_scales", {scale}, out(), params({{"unit", unit}}));
    report.that(name + ": store_scales " + std::string(dtype_name(stored)),
                same_bytes(a[0], b[0]) && same_bytes(a[1], b[1]) && same_bytes(a[2], b[2]));
  }
  if (!coarse) {
    // Scales that a dtype cannot hold, or only as a subnormal.
    const double odd[] = {0.0, 1e-30, -1e-9, 3e-8, -6e-6, 1e-5, 7e4, -1e39, 1.0, -0.3333};
    const Tensor edge = filled(DType::f32, {5, 2}, [&](int64_t i) { return odd[i]; });
    for (const DType stored : {DType::f16, DType::bf16, DType::f32}) {
      const auto out = [&] {
        return std::vector<Tensor>{allocate(stored, {5, 2}), poisoned(DType::f32, {5, 2}), poisoned(DType::f64, {2})};
      };
      const auto a = host.run("gptq_store_scales", {edge}, out(), params({{"unit", 1.0}})),
                 b = d.run("gptq_store_scales", {edge}, out(), params({{"unit", 1.0}}));
      report.that(name + ": store_scales, edges, " + std::string(dtype_name(stored)),
                  same_bytes(a[0], b[0]) && same_bytes(a[1], b[1]) && same_bytes(a[2], b[2]));
    }
  }
  const Tensor q = filled(DType::f32, {n, k}, [&](int64_t i) { return get(l.w, i) + 0.004 * normal(); }),
               w32 = filled(DType::f32, {n, k}, [&](int64_t i) { return get(l.w, i); });
  const auto e_want = host.run("module_error", {w32, q, l.h}, {poisoned(DType::f64, {2})}),
             e_got = d.run("module_error", {w32, q, l.h}, {poisoned(DType::f64, {2})});
  // n rows of k^2 terms, each off by about 2^-12 at random.
  report.close(name + ": module_error", e_got[0], values(e_want[0]), 0, 1e-3);
}

void whole(Device& d, Host& host, const Type& type, bool symmetric, int64_t n, int64_t k, int64_t size) {
  const Layer l(n, k, size, true);
  const Params tp = type_params(type);
  double result[2];
  for (int which = 0; which < 2; ++which) {
    const auto run = [&](const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                         const Params& p) { return which ? d.run(op, in, out, p) : host.run(op, in, out, p); };
    const auto f = run("gptq_factor", {l.h, l.order}, factor_outputs(k), params({{"damp", 0.01}}));
    const Tensor t = run("gptq_target", {l.w, l.order, f[2]}, {poisoned(DType::f32, {n, k}), poisoned(DType::f64, {2})},
                         params({{"alpha", 0.0}}))[0];
    Params clip = tp, sweep = tp;
    clip.set("symmetric", symmetric ? 1.0 : 0.0);
    clip.set("constantZero", constant_zero(type, symmetric));
    clip.set("steps", 76.0);
    clip.set("bothSigns", symmetric && type.integer ? 1.0 : 0.0);
    sweep.set("sweeps", 1.0);
    auto grid = run("gptq_clip", {t, f[1], l.group},
                    {poisoned(DType::f32, {n, l.groups}), poisoned(DType::f32, {n, l.groups})}, clip);
    Tensor level = run("gptq_solve", {t, f[0], grid[0], grid[1], l.group}, {poisoned(DType::f32, {n, k})}, tp)[0];
    for (int round = 0; round < 5; ++round) {
      grid[0] =
          run("gptq_refit", {t, f[1], level, grid[1], l.group}, {copy(grid[0]), poisoned(DType::f64, {1})}, {})[0];
      level =
          run("gptq_descend", {t, f[1], grid[0], grid[1], l.group}, {copy(level), poisoned(DType::f64, {1})}, sweep)[0];
    }
    result[which] = objective(l, t, f[1], level, grid[0], grid[1]);
  }
  const std::string name = std::string("whole ") + type.name + " " + std::to_string(n) + "x" + std::to_string(k);
  note(name + ": objective over the CPU's", result[1] / result[0] - 1);
  report.that(name, result[1] < result[0] * 1.01 && result[1] > result[0] * 0.97);
}

void rtn(Device& d, Host& host, const Type& type, DType w_dtype, DType scale_dtype, std::optional<DType> zeros,
         bool global, int64_t n, int64_t k, int64_t length, bool bad) {
  const std::string name = std::string("rtn ") + type.name + " " + std::string(dtype_name(w_dtype)) + " " +
                           std::string(dtype_name(scale_dtype)) + (zeros ? " asym" : "") + (global ? " global" : "") +
                           (bad ? " bad" : "");
  Tensor w = gaussian(w_dtype, {n, k}, 0.05);
  for (int64_t i = 0; i < length; ++i) set(w, i, 0);                                 // a group of zeros
  for (int64_t i = 0; i < length && n > 2; ++i) set(w, 2 * k + i, 1e-7 * normal());  // a scale below f16's
  for (int64_t i = 0; i < length && n > 1; ++i) set(w, k + i, 0.5 * static_cast<double>(between(-4, 4)));  // ties
  if (bad) set(w, n * k - 3, INFINITY), set(w, n * k / 2, NAN);
  Params p = type_params(type);
  p.set("groupSize", static_cast<double>(length));
  p.set("zero", constant_zero(type, !zeros));
  p.set("symmetric", zeros ? 0.0 : 1.0);
  p.set("global", global ? 1.0 : 0.0);
  const int64_t bytes = (k * type.bits + 7) / 8;
  const auto out = [&] {
    std::vector<Tensor> list{poisoned(DType::u8, {n, bytes}), allocate(scale_dtype, {n, k / length}),
                             poisoned(DType::f64, {9})};
    if (zeros) list.push_back(allocate(*zeros, {n, k / length}));
    return list;
  };
  const auto a = host.run("rtn", {w}, out(), p), b = d.run("rtn", {w}, out(), p);
  report.that(name + ": codes", same_bytes(a[0], b[0]));
  report.that(name + ": scales", same_bytes(a[1], b[1]) && (!zeros || same_bytes(a[3], b[3])));
  report.close(name + ": stats", b[2], values(a[2]), 0, 1e-9);

  const auto codes_out = [&] { return std::vector<Tensor>{poisoned(DType::u8, {n, k})}; };
  const Params bits = params({{"bits", static_cast<double>(type.bits)}});
  const Tensor codes = host.run("unpack_codes", {a[0]}, codes_out(), bits)[0];
  report.that(name + ": unpack", same_bytes(codes, d.run("unpack_codes", {a[0]}, codes_out(), bits)[0]));
  report.that(name + ": pack",
              same_bytes(a[0], d.run("pack_codes", {codes}, {poisoned(DType::u8, {n, bytes})}, bits)[0]));
  Params back = type_params(type);
  back.set("blockN", 1.0);
  back.set("blockK", static_cast<double>(length));
  back.set("zero", constant_zero(type, !zeros));
  back.set("hasZeros", zeros ? 1.0 : 0.0);
  back.set("global", global ? get(a[2], 6) : 1.0);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<Tensor> in{codes, a[1]};
    if (zeros) in.push_back(a[3]);
    report.that(name + ": dequantize " + std::string(dtype_name(dtype)),
                same_bytes(host.run("dequantize", in, {poisoned(dtype, {n, k})}, back)[0],
                           d.run("dequantize", in, {poisoned(dtype, {n, k})}, back)[0]));
    Params indexed = back;
    indexed.set("hasGroup", 1.0);
    in.push_back(filled(DType::i32, {k}, [&](int64_t) { return static_cast<double>(between(0, k / length - 1)); }));
    report.that(name + ": dequantize by index",
                same_bytes(host.run("dequantize", in, {poisoned(dtype, {n, k})}, indexed)[0],
                           d.run("dequantize", in, {poisoned(dtype, {n, k})}, indexed)[0]));
  }
}

// Two-level scales, and rounding with scales that are given: the CPU's bytes.
void two_levels(Device& d, Host& host, DType w_dtype, DType scale_dtype, int64_t n, int64_t k, int64_t length) {
  const std::string name = "two levels " + std::string(dtype_name(w_dtype)) + " " +
                           std::string(dtype_name(scale_dtype)) + " " + std::to_string(n) + "x" + std::to_string(k);
  const int64_t groups = k / length;
  const Tensor w = filled(w_dtype, {n, k}, [&](int64_t) { return std::exp2(between(-6, -3)) * normal(); }),
               group = filled(DType::i32, {k}, [&](int64_t j) { return static_cast<double>(j / length); }),
               m = filled(DType::f32, {k, k}, [&](int64_t) { return std::fabs(normal()); }),
               scale = filled(DType::f32, {n, groups}, [&](int64_t) { return 0.01 * normal() + 1e-4; });
  for (int64_t i = 0; i < length; ++i) set(w, i, 0);          // a group of zeros
  for (int64_t i = 0; i < k && n > 1; ++i) set(w, k + i, 0);  // a row of them
  for (const bool metric : {false, true}) {
    std::vector<Tensor> in{w, group};
    if (metric) in.push_back(m);
    const auto energy = [&](auto& on) {
      return on.run("group_energy", in, {poisoned(DType::f32, {n, groups})}, {})[0];
    };
    const Tensor want = energy(host);
    report.that(name + (metric ? ": energy in a metric" : ": energy"), same_bytes(want, energy(d)));
    const Params how = params({{"scaleDtype", std::string(dtype_name(scale_dtype))}});
    report.that(name + ": scales", same_bytes(host.run("two_level_scales", {want}, {copy(scale)}, how)[0],
                                              d.run("two_level_scales", {want}, {copy(scale)}, how)[0]));
  }
  Params p = type_params(kI4);
  p.set("groupSize", static_cast<double>(length));
  p.set("symmetric", 1.0);
  p.set("given", 1.0);
  const Tensor given = filled(scale_dtype, {n, groups}, [&](int64_t) { return std::exp2(between(-8, -4)); });
  const auto out = [&] {
    return std::vector<Tensor>{poisoned(DType::u8, {n, k / 2}), copy(given), poisoned(DType::f64, {9})};
  };
  const auto a = host.run("rtn", {w}, out(), p), b = d.run("rtn", {w}, out(), p);
  report.that(name + ": codes of given scales",
              same_bytes(a[0], b[0]) && same_bytes(given, b[1]) && same_bytes(given, a[1]));
}

// rows x columns elements as tiles of 16 x 16 with permuted digits, and as columns of a bitstream whose words lie
// apart.
void layouts(Device& d, Host& host, int bits, bool streamed, bool ordered) {
  const int64_t rows = 64, columns = 96, real_rows = 59, real_columns = streamed ? 96 : 90;
  const std::string name =
      "layout " + std::to_string(bits) + " bits" + (streamed ? " streamed" : "") + (ordered ? " ordered" : "");
  for (const bool tiled : {true, false}) {
    Params p = params({{"bits", static_cast<double>(bits)},
                       {"columns", static_cast<double>(real_columns)},
                       {"streamed", streamed ? 1.0 : 0.0},
                       {"pad", 1.0},
                       {"bias", bits <= 8 ? 3.0 : 0.0}});
    std::vector<double> dims, sizes, strides, stream;
    const auto mode = [&](int dim, int64_t size, int64_t stride, bool in_stream) {
      dims.push_back(dim), sizes.push_back(static_cast<double>(size)), strides.push_back(static_cast<double>(stride)),
          stream.push_back(in_stream);
    };
    int64_t out_bits;
    if (tiled) {
      const int64_t b = bits;
      mode(0, rows / 16, 16 * columns * b, false), mode(0, 2, 128 * b, false), mode(0, 8, b, false);
      mode(1, columns / 16, 256 * b, false), mode(1, 16, 8 * b, false);
      out_bits = rows * columns * b;
    } else {
      // GPTQ's: down each column a stream of 32-bit words, rows of words side by side.
      mode(0, rows, bits, true);
      mode(1, columns, 32, false);
      p.set("unit", 32.0);
      p.set("unitStride", static_cast<double>(32 * columns));
      out_bits = rows * bits * columns;
    }
    p.set("modeDims", dims), p.set("modeSizes", sizes), p.set("modeStrides", strides), p.set("modeStream", stream);
    const int64_t row_bytes = (real_columns * bits + 7) / 8;
    const DType element = bits <= 8 ? DType::u8 : bits == 16 ? DType::i16 : DType::i32;
    Tensor matrix = allocate(element, {real_rows, streamed ? row_bytes : real_columns});
    for (size_t i = 0; i < matrix.bytes(); ++i)
      reinterpret_cast<uint8_t*>(matrix.raw())[i] = static_cast<uint8_t>(between(0, 255));
    if (bits < 8 && !streamed)
      for (int64_t i = 0; i < matrix.elements(); ++i)
        matrix.data<uint8_t>()[i] &= static_cast<uint8_t>((1 << bits) - 1);
    std::vector<Tensor> in{matrix};
    if (ordered) {
      std::vector<int32_t> list(static_cast<size_t>(real_columns));
      std::iota(list.begin(), list.end(), 0);
      std::shuffle(list.begin(), list.end(), lpq::test::random());
      in.push_back(filled(DType::i32, {real_columns}, [&](int64_t i) { return list[static_cast<size_t>(i)]; }));
    }
    const auto out = [&] { return std::vector<Tensor>{poisoned(DType::u8, {out_bits / 8})}; };
    const Tensor a = host.run("layout_pack", in, out(), p)[0], b = d.run("layout_pack", in, out(), p)[0];
    report.that(name + (tiled ? " tiles" : " stream") + ": pack", same_bytes(a, b));
    const auto back = [&] {
      Tensor t = allocate(matrix.dtype, matrix.shape);
      std::memset(t.raw(), 0xa5, t.bytes());
      return std::vector<Tensor>{t};
    };
    report.that(name + (tiled ? " tiles" : " stream") + ": unpack",
                same_bytes(host.run("layout_unpack", {a}, back(), p)[0], d.run("layout_unpack", {a}, back(), p)[0]));
  }
}

void refusals(Device& d) {
  const Layer l(4, 32, 16, false);
  const Tensor h = copy(l.h);
  set(h, 5 * 32 + 5, NAN);
  report.fails("factor: NaN", "LPQ_NATIVE_NUMERICS",
               [&] { d.run("gptq_factor", {h, l.order}, factor_outputs(32), params({{"damp", 0.01}})); });
  const Tensor order = copy(l.order);
  set(order, 3, get(order, 4));
  report.fails("factor: not a permutation", "LPQ_NATIVE_ARGUMENT",
               [&] { d.run("gptq_factor", {l.h, order}, factor_outputs(32), params({{"damp", 0.01}})); });
  report.fails("correction: a column that is not there", "LPQ_NATIVE_ARGUMENT", [&] {
    const Tensor wrong = copy(l.order);
    set(wrong, 0, 99);
    d.run("gptq_correction", {l.h, wrong, filled(DType::f32, {32, 32}, [](int64_t) { return 1; })},
          {poisoned(DType::f32, {32, 32})});
  });
  const Tensor wrong = poisoned(DType::f64, {16, 16});
  report.fails("drift: shapes", "LPQ_NATIVE_ARGUMENT", [&] { d.run("cross_drift", {l.h, wrong}, {wrong}); });
  const Tensor group = copy(l.group), t = gaussian(DType::f32, {4, 32}),
               scale = filled(DType::f32, {4, 2}, [](int64_t) { return 0.1; }),
               zero = filled(DType::f32, {4, 2}, [](int64_t) { return 0; });
  set(group, 7, 2);
  const Tensor m = filled(DType::f32, {32, 32}, [](int64_t i) { return i % 33 == 0 ? 1 : 0; });
  report.fails("solve: a group too many", "LPQ_NATIVE_ARGUMENT", [&] {
    d.run("gptq_solve", {t, m, scale, zero, group}, {poisoned(DType::f32, {4, 32})}, type_params(kI4));
  });
  for (int64_t j = 0; j < 32; ++j) set(group, j, j < 20 ? 0 : 1);
  report.fails("refit: groups of different lengths", "LPQ_NATIVE_ARGUMENT",
               [&] { d.run("gptq_refit", {t, m, t, zero, group}, {copy(scale), poisoned(DType::f64, {1})}); });
  report.fails("encode: a column that is not there", "LPQ_NATIVE_ARGUMENT", [&] {
    const Tensor wrong = copy(l.order);
    set(wrong, 0, 99);
    d.run("gptq_encode", {t, wrong}, {poisoned(DType::u8, {4, 32})}, type_params(kI4));
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) small |= std::string(argv[i]) == "--small";
  Device d;
  Host host;
  if (small) {
    solver(d, host, kI4, true, true, 35, 192, 64, true, DType::f16);
    solver(d, host, kU3, false, false, 18, 150, 50, false, DType::f16);
    solver(d, host, kF4, true, false, 17, 96, 32, false, DType::f8_e8m0);
    rtn(d, host, kI4, DType::bf16, DType::f16, {}, false, 9, 96, 32, false);
    two_levels(d, host, DType::bf16, DType::f16, 5, 384, 128);
    rtn(d, host, kU3, DType::f16, DType::f16, DType::u8, false, 5, 60, 20, true);
    layouts(d, host, 4, true, true);
    layouts(d, host, 3, false, false);
    refusals(d);
  } else {
    solver(d, host, kI4, true, true, 203, 640, 128, true, DType::f16);
    solver(d, host, kU4, false, false, 130, 768, 128, false, DType::f16);
    solver(d, host, kI3, true, true, 97, 1100, 1100, true, DType::f16);  // per channel
    solver(d, host, kU3, false, false, 70, 576, 64, false, DType::bf16);
    solver(d, host, kI2, true, true, 65, 544, 32, false, DType::f16);
    solver(d, host, kU4, false, false, 33, 400, 80, true, DType::f16);  // pieces are filled up
    solver(d, host, kI8, true, true, 40, 520, 260, false, DType::f16);
    solver(d, host, kU1, true, false, 40, 256, 64, false, DType::f16);
    solver(d, host, kI4, true, true, 20, 2080, 16, false, DType::f16);    // more groups than a refit block takes
    solver(d, host, kI3, true, true, 2200, 256, 64, false, DType::f16);   // more rows
    solver(d, host, kI4, true, true, 12800, 128, 32, false, DType::f16);  // 32 rows a warp
    solver(d, host, kF4, true, false, 50, 384, 32, false, DType::f8_e8m0);
    solver(d, host, kF4, true, false, 50, 384, 16, true, DType::f8_e4m3);
    solver(d, host, kF6, true, false, 50, 384, 128, false, DType::f16);
    solver(d, host, kF8, true, false, 30, 256, 128, false, DType::f16);
    solver(d, host, kE5, true, false, 30, 256, 128, false, DType::f16);
    solver(d, host, kE6, true, false, 30, 256, 128, false, DType::bf16);
    whole(d, host, kI4, true, 256, 1024, 128);
    whole(d, host, kU3, false, 256, 1024, 128);
    whole(d, host, kI2, true, 256, 1024, 64);
    for (const DType w : {DType::bf16, DType::f16, DType::f32}) {
      two_levels(d, host, w, DType::f16, 37, 640, 128);
      two_levels(d, host, w, DType::f32, 11, 1152, 128);
      rtn(d, host, kI4, w, DType::f16, {}, false, 37, 640, 128, false);
      rtn(d, host, kU4, w, DType::f16, DType::u8, false, 21, 630, 70, false);
      rtn(d, host, kU3, w, DType::bf16, DType::f16, false, 21, 637, 637, false);
      rtn(d, host, kI8, w, DType::f32, DType::i16, false, 11, 513, 27, false);
      rtn(d, host, kU1, w, DType::f16, {}, false, 11, 515, 103, false);
      rtn(d, host, kF4, w, DType::f8_e8m0, {}, false, 31, 672, 32, false);
      rtn(d, host, kF4, w, DType::f8_e4m3, {}, true, 31, 672, 16, false);
      rtn(d, host, kF6, w, DType::f16, {}, false, 31, 672, 32, true);
      rtn(d, host, kF8, w, DType::f8_e8m0, {}, false, 13, 256, 32, false);
      rtn(d, host, kE5, w, DType::f16, {}, false, 13, 256, 32, false);
      rtn(d, host, kE6, w, DType::bf16, {}, false, 13, 256, 32, false);
      rtn(d, host, kU8, w, DType::f16, DType::u8, false, 13, 256, 32, false);
    }
    for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32})
      for (const bool ordered : {false, true}) {
        layouts(d, host, bits, false, ordered);
        if (bits <= 8) layouts(d, host, bits, true, ordered);
      }
    refusals(d);
  }
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures;
}
