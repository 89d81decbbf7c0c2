// Every forward operation of the CUDA backend against double precision, on random shapes with tails. `--small` keeps
// shapes tiny, for compute-sanitizer. Exit code: failures.
#include <algorithm>
#include <chrono>

#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

bool small = false;
Report report;
std::string text(const char* what, std::initializer_list<int64_t> dims, DType dtype) {
  std::string s = what;
  for (int64_t d : dims) s += " " + std::to_string(d);
  return s + " " + std::string(dtype_name(dtype));
}
int64_t size(int64_t low, int64_t high) {
  return small ? between(low, std::min<int64_t>(high, low + 40)) : between(low, high);
}
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

void linear(Device& d, DType x_type, DType w_type, DType y_type, bool bias, bool accumulate) {
  const int64_t m = size(1, 300), k = size(8, 700), n = size(1, 500);
  const Tensor x = gaussian(x_type, {m, k}), w = gaussian(w_type, {n, k}, 0.05), b = gaussian(w_type, {n});
  const Tensor y = accumulate ? gaussian(y_type, {m, n}) : poisoned(y_type, {m, n});
  std::vector<double> want(static_cast<size_t>(m * n));
  double most = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = accumulate ? get(y, i * n + j) : 0, size_of = 0;
      for (int64_t c = 0; c < k; ++c) {
        sum += get(x, i * k + c) * get(w, j * k + c);
        size_of += std::fabs(get(x, i * k + c) * get(w, j * k + c));
      }
      want[static_cast<size_t>(i * n + j)] = sum + (bias ? get(b, j) : 0);
      most = std::max(most, size_of);
    }
  // Sums of k products in fp32 in any order: k 2^-24 of their sizes, a few times less in practice; then y's rounding
  // (twice with a bias). Weights of another type than x are rounded to x's.
  const double converted = w_type == x_type || x_type == DType::f32 ? 0 : most * unit(x_type);
  std::vector<Tensor> in = {x, w};
  if (bias) in.push_back(b);
  const auto got = d.run("linear", in, {y}, params({{"accumulate", accumulate ? 1.0 : 0.0}}));
  report.close(text("linear", {m, k, n}, x_type) + (bias ? " bias" : "") + (accumulate ? " +=" : ""), got[0], want,
               most * static_cast<double>(k) * 0x1p-24 + converted + 4 * unit(y_type), 2 * unit(y_type));
}

void norm(Device& d, DType x_type, DType y_type, int64_t rows, int64_t c, bool in_place) {
  const Tensor x = gaussian(x_type, {rows, c}, 3), w = gaussian(DType::bf16, {c});
  const Tensor y = in_place ? x : poisoned(y_type, {rows, c});
  std::vector<double> want(static_cast<size_t>(rows * c));
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < c; ++j) sum += get(x, i * c + j) * get(x, i * c + j);
    for (int64_t j = 0; j < c; ++j)
      want[static_cast<size_t>(i * c + j)] = get(x, i * c + j) / std::sqrt(sum / c + 1e-5) * (get(w, j) + 0.5);
  }
  const auto got = d.run("rmsnorm", {x, w}, {y}, params({{"eps", 1e-5}, {"offset", 0.5}}));
  report.close(text("rmsnorm", {rows, c}, y_type), got[0], want, least(y_type), unit(y_type) + 0x1p-20);
}

void layer_norm(Device& d, DType x_type, DType y_type, int64_t rows, int64_t c, int64_t turns, int vectors) {
  rows *= turns;
  const Tensor x = filled(x_type, {rows, c}, [](int64_t) { return 3 * normal() + 10; });
  const Tensor w = gaussian(DType::bf16, {turns, c}), b = gaussian(DType::f32, {turns, c}),
               y = poisoned(y_type, {rows, c});
  std::vector<double> want(static_cast<size_t>(rows * c));
  for (int64_t i = 0; i < rows; ++i) {
    double mean = 0, square = 0;
    for (int64_t j = 0; j < c; ++j) mean += get(x, i * c + j) / static_cast<double>(c);
    for (int64_t j = 0; j < c; ++j) square += std::pow(get(x, i * c + j) - mean, 2);
    const double factor = 1 / std::sqrt(square / static_cast<double>(c) + 1e-5);
    for (int64_t j = 0; j < c; ++j) {
      const int64_t at = i % turns * c + j;
      want[static_cast<size_t>(i * c + j)] =
          (get(x, i * c + j) - mean) * factor * (vectors > 0 ? get(w, at) : 1) + (vectors > 1 ? get(b, at) : 0);
    }
  }
  std::vector<Tensor> in = {x};
  if (vectors > 0) in.push_back(w);
  if (vectors > 1) in.push_back(b);
  const auto got = d.run("layernorm", in, {y}, params({{"eps", 1e-5}, {"turns", static_cast<double>(turns)}}));
  // The mean, about 10, is good to some units of 2^-24 of itself, a third of that in deviations, times a weight of up
  // to 5.
  report.close(text("layernorm", {rows, c, turns, vectors}, y_type), got[0], want, 5 * 64 * 0x1p-24,
               unit(y_type) + 0x1p-19);
}

// h + y * scale, and its norm: the sum is exact to one rounding of fp32, the norm as above.
void add_norm(Device& d, DType y_type, DType x_type, int64_t rows, int64_t c, bool layer, int vectors) {
  const Tensor h = gaussian(DType::f32, {rows, c}, 3), y = gaussian(y_type, {rows, c}, 2),
               w = gaussian(DType::bf16, {c}), b = gaussian(DType::f32, {c});
  const double scale = 0.37, offset = layer ? 0 : 0.5;
  std::vector<double> sums(static_cast<size_t>(rows * c)), want(sums.size());
  for (int64_t i = 0; i < rows; ++i) {
    double mean = 0, square = 0;
    for (int64_t j = i * c; j < (i + 1) * c; ++j) {
      sums[static_cast<size_t>(j)] = get(h, j) + get(y, j) * static_cast<double>(static_cast<float>(scale));
      mean += layer ? sums[static_cast<size_t>(j)] / static_cast<double>(c) : 0;
    }
    for (int64_t j = i * c; j < (i + 1) * c; ++j) square += std::pow(sums[static_cast<size_t>(j)] - mean, 2);
    const double factor = 1 / std::sqrt(square / static_cast<double>(c) + 1e-5);
    for (int64_t j = i * c; j < (i + 1) * c; ++j)
      want[static_cast<size_t>(j)] =
          (sums[static_cast<size_t>(j)] - mean) * factor * (vectors > 0 ? get(w, j - i * c) + offset : 1) +
          (vectors > 1 ? get(b, j - i * c) : 0);
  }
  std::vector<Tensor> in = {h, y};
  if (vectors > 0) in.push_back(w);
  if (vectors > 1) in.push_back(b);
  const auto got = d.run(
      "add_norm", in, {h, poisoned(x_type, {rows, c})},
      params({{"kind", std::string(layer ? "layer" : "rms")}, {"eps", 1e-5}, {"scale", scale}, {"offset", offset}}));
  report.close(text("add_norm, the sum", {rows, c}, y_type), got[0], sums, 0, 0x1p-23);
  // The mean and the sum err by some units of 2^-24 of deviations up to 5 times a weight of up to 5.
  report.close(text(layer ? "add_norm, layer" : "add_norm, rms", {rows, c, vectors}, x_type), got[1], want,
               5 * 64 * 0x1p-24 + least(x_type), unit(x_type) + 0x1p-19);
}

// Columns of one matrix give what matrices of their own do, by the same arithmetic: equal bits.
void columns(Device& d, DType type) {
  const int heads = 6, kv = 2, hd = static_cast<int>(2 * between(8, 60)),
            rotary = static_cast<int>(2 * between(1, hd / 2));
  const int64_t t = 7, qw = heads * hd, kw = kv * hd, width = qw + 2 * kw;
  const Tensor whole = gaussian(type, {t, width}, 2), cosines = gaussian(DType::f32, {50, rotary / 2}),
               sines = gaussian(DType::f32, {50, rotary / 2});
  const Tensor positions = filled(DType::i32, {t}, [&](int64_t) { return static_cast<double>(between(0, 49)); });
  const auto list = [](std::vector<double> values) {
    return filled(DType::i32, {static_cast<int64_t>(values.size())},
                  [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  };
  const Tensor starts = list({0, 3, 3, 7}), slots = list({2, 1, 0}), totals = list({3, 5, 9});
  const auto part = [&](int64_t first, int64_t wide) {
    return d.run("slice_columns", {whole}, {poisoned(type, {t, wide})},
                 params({{"first", static_cast<double>(first)}}))[0];
  };
  const Tensor q = part(0, qw), k = part(qw, kw), v = part(qw + kw, kw);
  const auto same = [&](const char* what, const Tensor& a, const Tensor& b) {
    report.that(text(what, {hd, rotary}, type),
                a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
  };
  const double D = hd;
  for (const bool halves : {true, false})
    for (DType kept : {type, DType::f16}) {
      const std::string style = halves ? "half" : "interleaved";
      const auto turned = [&](const Tensor& x, double count) {
        return d.run(
            "rope", {x, cosines, sines, positions}, {x},
            params({{"heads", count}, {"headDim", D}, {"rotary", static_cast<double>(rotary)}, {"style", style}}))[0];
      };
      const Tensor want = turned(q, heads);
      const Tensor keys = gaussian(kept, {3, 10, kw}), rows_v = gaussian(kept, {3, 10, kw});
      const auto got = d.run("rope_append", {whole, whole, whole, starts, slots, totals, cosines, sines, positions},
                             {poisoned(type, {t, qw}), keys, rows_v},
                             params({{"heads", static_cast<double>(heads)},
                                     {"kvHeads", static_cast<double>(kv)},
                                     {"headDim", D},
                                     {"rotary", static_cast<double>(rotary)},
                                     {"style", style},
                                     {"qFirst", 0.0},
                                     {"kFirst", static_cast<double>(qw)},
                                     {"vFirst", static_cast<double>(qw + kw)}}));
      same("rope_append, q", got[0], want);
      // Keys turn in fp32 on their way, where rope would round them to 16 bits first: against double precision.
      const int64_t row_of[] = {20, 21, 22, 5, 6, 7, 8};  // slot 2 from 0 on; slot 0 from 5 on
      std::vector<double> turned_keys = values(keys), kept_values = values(rows_v);
      for (int64_t i = 0; i < t; ++i)
        for (int64_t c = 0; c < kw; ++c) {
          const int64_t at = row_of[i] * kw + c, p = c % hd, half = rotary / 2, base = i * kw + c - p;
          double value = get(k, i * kw + c);
          if (p < rotary) {
            const int64_t pair = halves ? p % half : p / 2, one = base + (halves ? pair : 2 * pair),
                          two = base + (halves ? pair + half : 2 * pair + 1);
            const int64_t place = static_cast<int64_t>(get(positions, i)) * half + pair;
            const bool second = halves ? p >= half : p % 2 == 1;
            value = second ? get(k, two) * get(cosines, place) + get(k, one) * get(sines, place)
                           : get(k, one) * get(cosines, place) - get(k, two) * get(sines, place);
          }
          turned_keys[static_cast<size_t>(at)] = value;
          kept_values[static_cast<size_t>(at)] = get(v, i * kw + c);
        }
      report.close(text("rope_append, keys", {hd, rotary}, kept), got[1], turned_keys, 2e-5, unit(kept) * 1.01);
      report.close(text("rope_append, values", {hd}, kept), got[2], kept_values, least(kept), unit(kept));
    }
  // With norms of heads: what rmsnorm and rope give, which round to `type` in between: twice half a unit of at most 30
  // (5 deviations, a weight of 6), each brought into two sums.
  const Tensor q_norm = gaussian(DType::bf16, {hd}), k_norm = gaussian(DType::f32, {hd});
  Tensor rows_q = q;
  rows_q.shape = {t * heads, hd};
  Tensor normed_q = d.run("rmsnorm", {rows_q, q_norm}, {rows_q}, params({{"eps", 1e-5}, {"offset", 1.0}}))[0];
  normed_q.shape = q.shape;
  const auto half_turn = params({{"heads", static_cast<double>(heads)},
                                 {"headDim", D},
                                 {"rotary", static_cast<double>(rotary)},
                                 {"style", std::string("half")}});
  const auto wanted = d.run("rope", {normed_q, cosines, sines, positions}, {normed_q}, half_turn)[0];
  const auto with_norms =
      d.run("rope_append", {whole, whole, whole, starts, slots, totals, cosines, sines, positions, q_norm, k_norm},
            {poisoned(DType::f32, {t, qw}), gaussian(DType::f32, {3, 10, kw}), gaussian(DType::f32, {3, 10, kw})},
            params({{"heads", static_cast<double>(heads)},
                    {"kvHeads", static_cast<double>(kv)},
                    {"headDim", D},
                    {"rotary", static_cast<double>(rotary)},
                    {"style", std::string("half")},
                    {"qFirst", 0.0},
                    {"kFirst", static_cast<double>(qw)},
                    {"vFirst", static_cast<double>(qw + kw)},
                    {"eps", 1e-5},
                    {"offset", 1.0}}));
  report.close(text("rope_append with norms", {hd, rotary}, type), with_norms[0], values(wanted),
               4 * 30 * unit(type) + 1e-4, 0);
  const Tensor begin = list({0, 3, 7});
  const auto attention = params(
      {{"heads", static_cast<double>(heads)}, {"kvHeads", static_cast<double>(kv)}, {"headDim", D}, {"scale", 0.2}});
  auto firsts = attention;
  firsts = params({{"heads", static_cast<double>(heads)},
                   {"kvHeads", static_cast<double>(kv)},
                   {"headDim", D},
                   {"scale", 0.2},
                   {"qFirst", 0.0},
                   {"kFirst", static_cast<double>(qw)},
                   {"vFirst", static_cast<double>(qw + kw)}});
  same("attention of columns", d.run("attention", {whole, whole, whole, begin}, {poisoned(type, {t, qw})}, firsts)[0],
       d.run("attention", {q, k, v, begin}, {poisoned(type, {t, qw})}, attention)[0]);
  const Tensor gain = gaussian(DType::bf16, {hd});
  Tensor rows = k;
  rows.shape = {t * kv, hd};
  const auto normed =
      d.run("rmsnorm", {whole, gain}, {whole},
            params({{"eps", 1e-5}, {"first", static_cast<double>(qw)}, {"runs", static_cast<double>(kv)}}));
  const auto alone = d.run("rmsnorm", {rows, gain}, {rows}, params({{"eps", 1e-5}}));
  bool equal = true;
  for (int64_t i = 0; i < t; ++i)
    for (int64_t c = 0; c < width; ++c)
      equal = equal && get(normed[0], i * width + c) ==
                           (c >= qw && c < qw + kw ? get(alone[0], i * kw + c - qw) : get(whole, i * width + c));
  report.that(text("rmsnorm of columns", {hd}, type), equal);
  for (const int64_t wide : {int64_t{77}, int64_t{256}}) {
    const Tensor both = gaussian(type, {t, 2 * wide}, 3);
    const auto half = [&](int64_t first) {
      return d.run("slice_columns", {both}, {poisoned(type, {t, wide})},
                   params({{"first", static_cast<double>(first)}}))[0];
    };
    const auto act = params({{"act", std::string("silu")}});
    same("gated_activation of columns",
         d.run("gated_activation", {both, both}, {poisoned(type, {t, wide})},
               params({{"act", std::string("silu")}, {"first", 0.0}, {"upFirst", static_cast<double>(wide)}}))[0],
         d.run("gated_activation", {half(0), half(wide)}, {poisoned(type, {t, wide})}, act)[0]);
    const auto first = d.run("place_columns", {half(0)}, {poisoned(type, {t, 2 * wide})}, params({{"first", 0.0}}))[0];
    same("place_columns",
         d.run("place_columns", {half(wide)}, {first}, params({{"first", static_cast<double>(wide)}}))[0], both);
  }
}

// Operations that Llama does not use.
void others(Device& d) {
  for (DType type : kTypes) {
    for (const char* act : {"relu", "relu2", "quick_gelu", "sigmoid", "gelu_tanh"}) {
      const int64_t n = size(1, 5000);
      const Tensor x = gaussian(type, {n}, 3), y = poisoned(type, {n});
      const std::string name = act;
      std::vector<double> want(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        const double v = get(x, i), up = std::max(v, 0.0);
        want[static_cast<size_t>(i)] =
            name == "relu"         ? up
            : name == "relu2"      ? up * up
            : name == "quick_gelu" ? v / (1 + std::exp(-1.702 * v))
            : name == "sigmoid"    ? 1 / (1 + std::exp(-v))
                                   : 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
      }
      report.close(text(act, {n}, type), d.run("activation", {x}, {y}, params({{"act", name}}))[0], want, 1e-6,
                   unit(type) + 4e-6);
    }
    for (const auto& [vectors, turns] : {std::pair{0, 1}, {1, 4}, {2, 1}, {2, 3}}) {
      layer_norm(d, DType::f32, type, size(1, 40), size(1, 700), turns, vectors);
      layer_norm(d, type, type, size(1, 40), 128, turns, vectors);
    }
    const int64_t rows = size(1, 100), columns = size(2, 300), first = columns / 3,
                  width = columns - first - columns / 4;
    const Tensor x = gaussian(type, {rows, columns});
    std::vector<double> cut, turned;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = first; c < first + width; ++c) cut.push_back(get(x, r * columns + c));
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) turned.push_back(get(x, r * columns + c));
    report.close(text("slice_columns", {rows, columns, first, width}, type),
                 d.run("slice_columns", {x}, {poisoned(type, {rows, width})},
                       params({{"first", static_cast<double>(first)}}))[0],
                 cut, 0, 0);
    report.close(text("transpose", {rows, columns}, type),
                 d.run("transpose", {x}, {poisoned(type, {columns, rows})})[0], turned, 0, 0);
  }
  for (const double cap : {0.0, 5.0, 50.0}) {
    const int64_t n = size(1, 5000);
    const Tensor x = gaussian(DType::f32, {n}, 30);
    std::vector<double> want(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const double v = get(x, i) * 0.7;
      want[static_cast<size_t>(i)] = cap > 0 ? cap * std::tanh(v / cap) : v;
    }
    const auto got = d.run("soft_cap", {x}, {poisoned(DType::f32, {n})}, params({{"scale", 0.7}, {"cap", cap}}));
    report.close(text("soft_cap", {n, static_cast<int64_t>(cap)}, DType::f32), got[0], want, 1e-30, 0x1p-20);
  }
}

void attention(Device& d, DType in_type, DType y_type, int heads, int kv_heads, int hd, int vd, int window,
               std::vector<int64_t> lengths, double cap = 0) {
  std::vector<int64_t> starts = {0};
  for (int64_t length : lengths) starts.push_back(starts.back() + length);
  const int64_t tokens = starts.back();
  const Tensor q = gaussian(in_type, {tokens, heads * hd}), k = gaussian(in_type, {tokens, kv_heads * hd}),
               v = gaussian(in_type, {tokens, kv_heads * vd});
  const Tensor y = poisoned(y_type, {tokens, heads * vd});
  const double scale = 1.3 / std::sqrt(hd);
  std::vector<double> want(static_cast<size_t>(tokens * heads * vd));
  double most_score = 0;
  for (size_t s = 0; s + 1 < starts.size(); ++s)
    for (int64_t t = starts[s]; t < starts[s + 1]; ++t)
      for (int h = 0; h < heads; ++h) {
        const int64_t first = window > 0 ? std::max(starts[s], t - window + 1) : starts[s];
        const int kv = h / (heads / kv_heads);
        std::vector<double> p(static_cast<size_t>(t + 1 - first));
        double peak = -INFINITY, sum = 0;
        for (int64_t i = first; i <= t; ++i) {
          double dot = 0;
          for (int c = 0; c < hd; ++c) dot += get(q, (t * heads + h) * hd + c) * get(k, (i * kv_heads + kv) * hd + c);
          const double score = cap > 0 ? cap * std::tanh(dot * scale / cap) : dot * scale;
          p[static_cast<size_t>(i - first)] = score;
          peak = std::max(peak, score);
          most_score = std::max(most_score, std::fabs(dot * scale));
        }
        for (double& e : p) sum += e = std::exp(e - peak);
        for (int c = 0; c < vd; ++c) {
          double out = 0;
          for (int64_t i = first; i <= t; ++i)
            out += p[static_cast<size_t>(i - first)] * get(v, (i * kv_heads + kv) * vd + c);
          want[static_cast<size_t>((t * heads + h) * vd + c)] = out / sum;
        }
      }
  std::vector<double> at(starts.begin(), starts.end());
  const Tensor starts_tensor =
      filled(DType::i32, {static_cast<int64_t>(starts.size())}, [&](int64_t i) { return at[static_cast<size_t>(i)]; });
  const auto got = d.run("attention", {q, k, v, starts_tensor}, {y},
                         params({{"heads", static_cast<double>(heads)},
                                 {"kvHeads", static_cast<double>(kv_heads)},
                                 {"headDim", static_cast<double>(hd)},
                                 {"valueDim", static_cast<double>(vd)},
                                 {"scale", scale},
                                 {"window", static_cast<double>(window)},
                                 {"softCap", cap}}));
  // q, k, v and the shares are rounded to y's type: a score moves by up to u of sum |q k| scale <= ~3 most_score here,
  // which moves an output by that much times |v| (up to 5 here); the shares' and v's own rounding add u, y's u.
  const double u = unit(y_type);
  const double moved = y_type == DType::f32 ? 32 * u * (1 + most_score) : u * 3 * most_score;
  report.close(text(cap > 0 ? "attention, capped" : "attention", {heads, kv_heads, hd, vd, window, tokens}, y_type),
               got[0], want, 5 * moved + 5 * u, 2 * u);
}

void moments(Device& d, DType x_type, DType h_type, int64_t rows, int64_t k, double weight) {
  const Tensor a = gaussian(x_type, {rows, k}), b = gaussian(x_type, {rows, k}),
               h = filled(h_type, {k, k}, [&](int64_t i) {
                 const int64_t r = i / k, c = i % k;
                 return static_cast<double>((std::min(r, c) * 7 + std::max(r, c)) % 11);  // symmetric
               });
  for (const bool cross : {false, true}) {
    const Tensor& other = cross ? b : a;
    std::vector<double> want = values(h), av = values(a), bv = values(other);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < k; ++j)
          want[static_cast<size_t>(i * k + j)] +=
              weight * av[static_cast<size_t>(t * k + i)] * bv[static_cast<size_t>(t * k + j)];
    const Tensor sum = filled(h_type, {k, k}, [&](int64_t i) { return get(h, i); });
    std::vector<Tensor> in = cross ? std::vector<Tensor>{a, b, sum} : std::vector<Tensor>{a, sum};
    auto got = d.run(cross ? "cross_accumulate" : "gram_accumulate", in, {sum}, params({{"weight", weight}}));
    if (!cross) {
      got = d.run("gram_finish", {got[0]}, {got[0]});
      std::vector<double> expected(static_cast<size_t>(k));
      for (int64_t i = 0; i < k; ++i) expected[static_cast<size_t>(i)] = get(got[0], i * k + i);
      report.close(text("diagonal", {k}, h_type), d.run("diagonal", {got[0]}, {poisoned(DType::f64, {k})})[0], expected,
                   0, 0);
    }
    // rows products of size about weight, added in fp32 in any order.
    const double size_of = weight * static_cast<double>(rows) * 4 + 11;
    report.close(text(cross ? "cross" : "gram", {rows, k}, x_type) + " into " + std::string(dtype_name(h_type)), got[0],
                 want, size_of * (static_cast<double>(rows) / 16 + 4) * 0x1p-24, 0x1p-22);
  }
}

void elementwise(Device& d) {
  for (DType type : kTypes)
    for (const char* act : {"silu", "gelu", "gelu_tanh"}) {
      const int64_t n = size(1, 5000);
      const Tensor g = gaussian(type, {n}, 3), u = gaussian(type, {n});
      std::vector<double> want(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        const double x = get(g, i);
        const double a = act == std::string("silu") ? x / (1 + std::exp(-x))
                         : act == std::string("gelu")
                             ? 0.5 * x * std::erfc(-x / std::sqrt(2.0))
                             : 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        want[static_cast<size_t>(i)] = a * get(u, i);
      }
      const auto got = d.run("gated_activation", {g, u}, {g}, params({{"act", std::string(act)}}));
      report.close(text(act, {n}, type), got[0], want, 1e-6, unit(type) + 4e-6);
    }
  for (DType from : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (DType to : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const int64_t n = 4 * size(1, 500) + (from == to ? 0 : between(0, 3));
      const Tensor x = gaussian(from, {n}, 100), y = poisoned(to, {n});
      const auto got = d.run("cast", {x}, {y});
      if (from == DType::f64 && (to == DType::f16 || to == DType::bf16)) {
        report.close(text("cast f64", {n}, to), got[0], values(x), 1e-7, unit(to));
        continue;
      }
      bool same = true;
      for (int64_t i = 0; i < n; ++i) {
        set(y, i, get(x, i));
        same = same && get(y, i) == get(got[0], i);
      }
      report.that(text(("cast " + std::string(dtype_name(from)) + " to").c_str(), {n}, to), same);
    }
  const int64_t n = size(1, 3000);
  const Tensor a = gaussian(DType::f32, {n}), b = gaussian(DType::f32, {n});
  std::vector<double> want(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) want[static_cast<size_t>(i)] = get(a, i) + get(b, i) * 0.25;
  report.close(text("add", {n}, DType::f32), d.run("add", {a, b}, {a}, params({{"scale", 0.25}}))[0], want, 1e-7,
               0x1p-23);
  const auto zeroed = d.run("zero", {}, {poisoned(DType::f64, {n})});
  report.close("zero", zeroed[0], std::vector<double>(static_cast<size_t>(n)), 0, 0);
}

void tokens(Device& d) {
  for (DType type : kTypes) {
    const int64_t t = size(1, 90), v = size(2, 300), c = size(1, 400);
    const Tensor ids = filled(DType::i32, {t}, [&](int64_t) { return static_cast<double>(between(0, v - 1)); });
    const Tensor table = gaussian(type, {v, c});
    std::vector<double> want(static_cast<size_t>(t * c));
    for (int64_t i = 0; i < t * c; ++i)
      want[static_cast<size_t>(i)] = get(table, static_cast<int64_t>(get(ids, i / c)) * c + i % c) * 2;
    report.close(text("embedding", {t, v, c}, type),
                 d.run("embedding", {ids, table}, {poisoned(DType::f32, {t, c})}, params({{"scale", 2.0}}))[0], want, 0,
                 0);

    for (const bool halves : {true, false}) {
      const int heads = static_cast<int>(between(1, 5)), hd = static_cast<int>(2 * between(2, 40)),
                rotary = static_cast<int>(2 * between(1, hd / 2));
      const Tensor x = gaussian(type, {t, heads * hd}), cosines = gaussian(DType::f32, {50, rotary / 2}),
                   sines = gaussian(DType::f32, {50, rotary / 2});
      const Tensor positions = filled(DType::i32, {t}, [&](int64_t) { return static_cast<double>(between(0, 49)); });
      std::vector<double> rotated = values(x);
      for (int64_t i = 0; i < t; ++i)
        for (int h = 0; h < heads; ++h)
          for (int p = 0; p < rotary / 2; ++p) {
            const int64_t base = (i * heads + h) * hd, one = base + (halves ? p : 2 * p),
                          two = base + (halves ? p + rotary / 2 : 2 * p + 1);
            const int64_t row = static_cast<int64_t>(get(positions, i)) * (rotary / 2) + p;
            const double cs = get(cosines, row), sn = get(sines, row), u = get(x, one), w = get(x, two);
            rotated[static_cast<size_t>(one)] = u * cs - w * sn;
            rotated[static_cast<size_t>(two)] = w * cs + u * sn;
          }
      report.close(text("rope", {t, heads, hd, rotary}, type),
                   d.run("rope", {x, cosines, sines, positions}, {x},
                         params({{"heads", static_cast<double>(heads)},
                                 {"headDim", static_cast<double>(hd)},
                                 {"rotary", static_cast<double>(rotary)},
                                 {"style", std::string(halves ? "half" : "interleaved")}}))[0],
                   rotated, 2e-6, unit(type) * 1.01);
    }
  }
  const int64_t t = size(1, 60), v = size(2, 4000);
  const Tensor logits = gaussian(DType::f32, {t, v}, 4),
               targets = filled(DType::i32, {t},
                                [&](int64_t i) { return i % 5 == 3 ? -1.0 : static_cast<double>(between(0, v - 1)); });
  std::vector<double> want(static_cast<size_t>(t));
  for (int64_t i = 0; i < t; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < v; ++j) sum += std::exp(get(logits, i * v + j));
    want[static_cast<size_t>(i)] =
        get(targets, i) < 0 ? 0 : std::log(sum) - get(logits, i * v + static_cast<int64_t>(get(targets, i)));
  }
  report.close(text("nll", {t, v}, DType::f64),
               d.run("neg_log_likelihood", {logits, targets}, {poisoned(DType::f64, {t})})[0], want, 1e-11, 1e-12);
  report.fails("embedding: an id outside the table", "LPQ_NATIVE_ARGUMENT", [&] {
    d.run("embedding", {filled(DType::i32, {2}, [](int64_t i) { return 7.0 * i; }), gaussian(DType::f32, {5, 3})},
          {poisoned(DType::f32, {2, 3})});
  });
}

void routing(Device& d) {
  for (const auto& [experts, k] : {std::pair<int64_t, int64_t>{8, 2}, {128, 8}, {61, 5}, {3, 3}}) {
    const int64_t t = size(1, 700), c = size(1, 200);
    Tensor logits = gaussian(DType::f32, {t, experts}, 2);
    for (int64_t i = 0; i < t * experts; i += 3) set(logits, i, std::round(get(logits, i)));  // ties
    std::vector<double> index(static_cast<size_t>(t * k)), share(static_cast<size_t>(t * k));
    for (int64_t i = 0; i < t; ++i) {
      std::vector<int64_t> order(static_cast<size_t>(experts));
      for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int64_t>(e);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return get(logits, i * experts + a) > get(logits, i * experts + b);
      });
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += std::exp(get(logits, i * experts + order[static_cast<size_t>(j)]));
      for (int64_t j = 0; j < k; ++j) {
        index[static_cast<size_t>(i * k + j)] = static_cast<double>(order[static_cast<size_t>(j)]);
        share[static_cast<size_t>(i * k + j)] =
            std::exp(get(logits, i * experts + order[static_cast<size_t>(j)])) / sum;
      }
    }
    auto routed = d.run("route_top_k", {logits}, {poisoned(DType::i32, {t, k}), poisoned(DType::f32, {t, k})},
                        params({{"k", static_cast<double>(k)}, {"normalize", 1.0}}));
    report.close(text("route_top_k indices", {t, experts, k}, DType::i32), routed[0], index, 0, 0);
    report.close(text("route_top_k weights", {t, experts, k}, DType::f32), routed[1], share, 1e-7, 4e-6);

    std::vector<double> rows, offsets = {0};
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t i = 0; i < t * k; ++i)
        if (index[static_cast<size_t>(i)] == static_cast<double>(e)) rows.push_back(static_cast<double>(i));
      offsets.push_back(static_cast<double>(rows.size()));
    }
    auto grouped =
        d.run("group_by_expert", {routed[0]}, {poisoned(DType::i32, {t * k}), poisoned(DType::i32, {experts + 1})},
              params({{"experts", static_cast<double>(experts)}}));
    report.close(text("group_by_expert rows", {t * k, experts}, DType::i32), grouped[0], rows, 0, 0);
    report.close(text("group_by_expert offsets", {t * k, experts}, DType::i32), grouped[1], offsets, 0, 0);

    for (DType type : kTypes) {
      const Tensor x = gaussian(type, {t, c});
      std::vector<double> gathered(static_cast<size_t>(t * k * c));
      for (int64_t m = 0; m < t * k; ++m)
        for (int64_t j = 0; j < c; ++j)
          gathered[static_cast<size_t>(m * c + j)] =
              get(x, static_cast<int64_t>(rows[static_cast<size_t>(m)]) / k * c + j);
      const auto got = d.run("gather_rows", {x, grouped[0]}, {poisoned(type, {t * k, c})},
                             params({{"divide", static_cast<double>(k)}}));
      report.close(text("gather_rows", {t * k, c}, type), got[0], gathered, 0, 0);
      const Tensor y = gaussian(DType::f32, {t, c});
      std::vector<double> sums = values(y);
      for (int64_t m = 0; m < t * k; ++m)
        for (int64_t j = 0; j < c; ++j) {
          const auto row = static_cast<int64_t>(rows[static_cast<size_t>(m)]);
          sums[static_cast<size_t>(row / k * c + j)] += get(routed[1], row) * gathered[static_cast<size_t>(m * c + j)];
        }
      report.close(text("scatter_add_rows", {t * k, c}, type),
                   d.run("scatter_add_rows", {got[0], grouped[0], routed[1], y}, {y},
                         params({{"divide", static_cast<double>(k)}}))[0],
                   sums, static_cast<double>(k) * 8 * 0x1p-24, 0x1p-23);
    }
  }
  Tensor bad = gaussian(DType::f32, {4, 8});
  set(bad, 13, NAN);
  report.fails("route_top_k: NaN", "LPQ_NATIVE_NUMERICS", [&] {
    d.run("route_top_k", {bad}, {poisoned(DType::i32, {4, 2}), poisoned(DType::f32, {4, 2})},
          params({{"k", 2.0}, {"normalize", 0.0}}));
  });
}

void factor(Device& d) {
  for (int64_t n : {int64_t{1}, size(2, 60), size(100, 300)}) {
    const Tensor x = gaussian(DType::f64, {n + 5, n}), a = allocate(DType::f64, {n, n});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = i == j ? 0.1 : 0;
        for (int64_t r = 0; r < n + 5; ++r) sum += get(x, r * n + i) * get(x, r * n + j);
        set(a, i * n + j, sum);
      }
    const auto got = d.run("cholesky", {a}, {a, poisoned(DType::i32, {1})});
    Tensor product = allocate(DType::f64, {n, n});
    bool lower = true;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < n; ++c) sum += get(got[0], i * n + c) * get(got[0], j * n + c);
        set(product, i * n + j, sum);
        lower = lower && (j <= i || get(got[0], i * n + j) == 0);
      }
    report.close(text("cholesky", {n}, DType::f64), product, values(a), 1e-10, 1e-12);
    report.that("cholesky: zero above the diagonal, info 0", lower && get(got[1], 0) == 0);
  }
  const Tensor a = filled(DType::f64, {3, 3}, [](int64_t i) { return i == 8 ? -1.0 : i % 4 == 0 ? 1.0 : 0.0; });
  report.that("cholesky: info names the column",
              get(d.run("cholesky", {a}, {a, poisoned(DType::i32, {1})})[1], 0) == 3);
}

void memory(Device&) {
  Device d(size_t{256} << 20);
  auto& backend = d.backend();
  report.fails("vram limit", "LPQ_CUDA_MEMORY", [&] { (void)backend.allocate(DType::u8, {int64_t{300} << 20}); });
  {
    std::vector<Tensor> held;
    for (int i = 0; i < 40; ++i) held.push_back(backend.allocate(DType::u8, {between(1, 6 << 20)}));
    for (int round = 0; round < 2000; ++round)
      held[static_cast<size_t>(between(0, 39))] = backend.allocate(DType::u8, {between(1, 3 << 20)});
  }
  const Tensor large = backend.allocate(DType::u8, {int64_t{250} << 20});
  report.that("blocks join again: 250 of 256 MiB in one piece",
              large.raw() != nullptr && backend.allocator().usage().peak_reserved <= size_t{256} << 20);
  const auto usage = backend.allocator().usage();
  report.that("usage counts", usage.used >= size_t{250} << 20 && usage.reserved <= size_t{256} << 20);
}

void traffic(Device& d) {
  // Uploads of many sizes into memory that is in use, each read back: the lanes keep their order with the compute
  // stream.
  bool same = true;
  for (int round = 0; round < (small ? 4 : 30); ++round) {
    const int64_t n = between(1, small ? 3000 : 20'000'000) + (round % 3 == 0 && !small ? 16'777'216 : 0);
    const Tensor host = allocate(DType::i32, {n});
    for (int64_t i = 0; i < n; ++i)
      host.data<int32_t>()[i] = static_cast<int32_t>(i * 2654435761u + static_cast<uint32_t>(round));
    Tensor device = d.backend().upload(host), sum = d.backend().allocate(DType::f32, {n});
    Call call;
    call.in = {device};
    call.out = {sum};
    d.queue().enqueue("cast", std::move(call));
    device = {};
    const Tensor back = d.download(sum);
    for (int64_t i = 0; i < n; ++i) same = same && back.data<float>()[i] == static_cast<float>(host.data<int32_t>()[i]);
  }
  report.that("uploads and downloads", same);
}

void repeat(Device& d) {
  const Tensor x = gaussian(DType::bf16, {256, 1500}),
               h = filled(DType::f32, {1500, 1500}, [](int64_t) { return 0.0; });
  const auto one = d.run("gram_accumulate", {x, h}, {h}), two = d.run("gram_accumulate", {x, h}, {h});
  report.that("the same bytes again", std::memcmp(one[0].raw(), two[0].raw(), one[0].bytes()) == 0);
}

// Milliseconds an operation takes, the median of 5.
double milliseconds(Device& d, const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                    const Params& p) {
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    d.settle();
    d.queue().take_profile();
    Call call;
    call.in = in;
    call.out = out;
    call.params = p;
    d.queue().enqueue(op, std::move(call));
    const Queue::Outcome outcome = d.settle();
    if (!outcome.ok) throw Failure(outcome.code, outcome.detail);
    if (i > 0) times.push_back(d.queue().take_profile()[op].second * 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[2];
}

// The shapes of Llama-3-8B at 8192 tokens.
void bench(Device& d) {
  std::printf("\n%-34s %10s %12s\n", "Llama-3-8B, 8192 tokens", "ms", "rate");
  auto random_on = [&](DType dtype, std::vector<int64_t> shape, double scale) {
    const int64_t n = std::min<int64_t>(1 << 20, [&] {
      int64_t e = 1;
      for (int64_t s : shape) e *= s;
      return e;
    }());
    const Tensor piece = d.backend().upload(gaussian(dtype, {n}, scale));
    Tensor t = d.backend().allocate(dtype, shape);
    for (int64_t at = 0; at < t.elements(); at += n) {
      Call call;
      Tensor from = piece, to = t;
      from.shape = to.shape = {std::min(n, t.elements() - at)};
      to.offset += static_cast<size_t>(at) * dtype_bytes(dtype);
      call.in = {from};
      call.out = {to};
      d.queue().enqueue("cast", std::move(call));
    }
    return t;
  };
  const int64_t m = 8192;
  auto line = [&](const char* what, double ms, double work, const char* rate) {
    std::printf("%-34s %10.3f %8.1f %s\n", what, ms, work / ms * 1e-9, rate);
  };
  for (const auto& [n, k, name] : {std::tuple<int64_t, int64_t, const char*>{4096, 4096, "linear 4096 -> 4096"},
                                   {14336, 4096, "linear 4096 -> 14336"},
                                   {4096, 14336, "linear 14336 -> 4096"}}) {
    const Tensor x = random_on(DType::bf16, {m, k}, 1), w = random_on(DType::bf16, {n, k}, 0.02),
                 y = random_on(DType::f32, {m, n}, 1), z = random_on(DType::bf16, {m, n}, 1);
    line(name, milliseconds(d, "linear", {x, w}, {y}, {}), 2.0 * m * n * k, "TFLOP/s, f32 out");
    line(name, milliseconds(d, "linear", {x, w}, {z}, {}), 2.0 * m * n * k, "TFLOP/s, bf16 out");
  }
  for (int64_t k : {int64_t{4096}, int64_t{14336}}) {
    const Tensor x = random_on(DType::bf16, {m, k}, 1), h = random_on(DType::f32, {k, k}, 1);
    line(k == 4096 ? "gram 4096" : "gram 14336", milliseconds(d, "gram_accumulate", {x, h}, {h}, {}), 1.0 * m * k * k,
         "TFLOP/s of the triangle");
    line(k == 4096 ? "cross 4096" : "cross 14336", milliseconds(d, "cross_accumulate", {x, x, h}, {h}, {}),
         2.0 * m * k * k, "TFLOP/s");
  }
  {
    const Tensor q = random_on(DType::f32, {m, 4096}, 1), k = random_on(DType::f32, {m, 1024}, 1),
                 v = random_on(DType::f32, {m, 1024}, 1), y = random_on(DType::bf16, {m, 4096}, 1);
    const Tensor starts =
        d.backend().upload(filled(DType::i32, {5}, [](int64_t i) { return 2048.0 * static_cast<double>(i); }));
    line("attention 4 x 2048, 32/8 heads",
         milliseconds(d, "attention", {q, k, v, starts}, {y},
                      params({{"heads", 32.0}, {"kvHeads", 8.0}, {"headDim", 128.0}, {"scale", 0.0884}})),
         2.0 * 2 * m * 1024.5 * 4096, "TFLOP/s of what is seen");
  }
  {
    const Tensor x = random_on(DType::f32, {m, 4096}, 1), w = random_on(DType::bf16, {4096}, 1),
                 y = random_on(DType::bf16, {m, 4096}, 1);
    line("rmsnorm 4096", milliseconds(d, "rmsnorm", {x, w}, {y}, params({{"eps", 1e-5}})), 1e3 * m * 4096 * 6, "GB/s");
    const Tensor g = random_on(DType::bf16, {m, 14336}, 1), u = random_on(DType::bf16, {m, 14336}, 1);
    line("gated 14336", milliseconds(d, "gated_activation", {g, u}, {g}, params({{"act", std::string("silu")}})),
         1e3 * m * 14336 * 6, "GB/s");
    const Tensor h = random_on(DType::f64, {4096, 4096}, 0), info = d.backend().allocate(DType::i32, {1});
    line("cholesky f64 4096 (of zeros)", milliseconds(d, "cholesky", {h}, {h, info}, {}), 4096.0 * 4096 * 4096 / 3,
         "TFLOP/s");
  }
  const Tensor host = allocate(DType::u8, {int64_t{1} << 30});
  std::memset(host.raw(), 1, host.bytes());
  for (int i = 0; i < 2; ++i) {
    auto start = std::chrono::steady_clock::now();
    const Tensor up = d.backend().upload(host);
    Call call;
    call.in = {up};
    call.out = {up};
    d.queue().enqueue("cast", std::move(call));  // fails on the dtype, after it has waited for the upload
    d.settle();
    const double up_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    start = std::chrono::steady_clock::now();
    d.download(up);
    std::printf("upload 1 GiB %.1f GB/s, download %.1f GB/s\n", 1.0737 / up_seconds,
                1.0737 / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

}  // namespace

int main(int count, char** arguments) {
  bool timed = false;
  for (int i = 1; i < count; ++i) {
    small = small || std::string(arguments[i]) == "--small";
    timed = timed || std::string(arguments[i]) == "--bench";
  }
  try {
    Device d;
    std::printf("%s, compute capability %d\n", d.backend().facts().name.c_str(), d.backend().facts().arch);
    elementwise(d);
    for (DType type : kTypes)
      for (DType y_type : {DType::f32, type})
        for (const bool bias : {false, true}) linear(d, type, type, y_type, bias, y_type == DType::f32 && bias);
    linear(d, DType::bf16, DType::f16, DType::f32, false, false);
    linear(d, DType::bf16, DType::f32, DType::f32, false, true);
    linear(d, DType::f32, DType::bf16, DType::f32, true, false);
    for (DType y_type : kTypes) {
      norm(d, DType::f32, y_type, size(1, 40), size(1, 300), false);
      norm(d, DType::f32, y_type, size(1, 40), 4 * size(130, 1500), false);
      norm(d, y_type, y_type, size(1, 300), 128, true);
      for (const bool layer : {false, true})
        for (DType from : {DType::f32, y_type}) {
          add_norm(d, from, y_type, size(1, 40), size(1, 300), layer, layer ? 2 : 1);
          add_norm(d, from, y_type, size(1, 20), 4 * size(130, 1500), layer, layer ? 0 : 1);
        }
      columns(d, y_type);
    }
    others(d);
    tokens(d);
    const std::vector<int64_t> short_lengths = {5, 1, 64, 70},
                               lengths = small ? short_lengths : std::vector<int64_t>{1, 200, 63, 64, 65, 333};
    for (DType type : {DType::bf16, DType::f16, DType::f32})
      for (const int window : {0, 37}) {
        attention(d, DType::f32, type, 4, 2, 64, 64, window, lengths);
        attention(d, type, type, 6, 2, 128, 128, window, lengths);
        attention(d, DType::f32, type, 4, 2, 64, 64, window, lengths, 2.5);
        attention(d, DType::f32, type, 2, 1, 48, 40, window, short_lengths);
        attention(d, DType::f32, type, 3, 3, 17, 5, window, short_lengths);
        attention(d, DType::f32, type, 2, 2, 200, 200, window, lengths);
      }
    report.fails("attention: starts that fall", "LPQ_NATIVE_ARGUMENT", [&] {
      const Tensor x = gaussian(DType::bf16, {4, 16});
      d.run("attention",
            {x, x, x,
             filled(DType::i32, {4}, [](int64_t i) { return i == 0   ? 0.0
                                                            : i == 1 ? 3.0
                                                            : i == 2 ? 2.0
                                                                     : 4.0; })},
            {poisoned(DType::bf16, {4, 16})},
            params({{"heads", 1.0}, {"kvHeads", 1.0}, {"headDim", 16.0}, {"scale", 1.0}}));
    });
    routing(d);
    for (DType type : kTypes)
      for (DType h_type : {DType::f32, DType::f64}) {
        moments(d, type, h_type, size(1, 90), size(1, 70), 1);
        moments(d, type, h_type, size(1, 90), size(60, 200), 0.37);
      }
    if (!small) moments(d, DType::bf16, DType::f32, 33, 1111, 1);
    Tensor bad = gaussian(DType::bf16, {8, 40});
    set(bad, 77, INFINITY);
    const Tensor sums = filled(DType::f32, {40, 40}, [](int64_t) { return 0.0; });
    report.fails("gram: infinity", "LPQ_NATIVE_NUMERICS", [&] { d.run("gram_accumulate", {bad, sums}, {sums}); });
    report.fails("an operation of the CPU alone", "LPQ_NATIVE_OP", [&] { d.run("verify_compare", {}, {}); });
    report.fails("a tensor of the wrong shape", "LPQ_NATIVE_ARGUMENT", [&] { d.run("add", {bad, bad}, {bad}); });
    factor(d);
    if (!small) memory(d);
    traffic(d);
    if (!small) repeat(d);
    if (timed) bench(d);
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 100;
  }
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures;
}
