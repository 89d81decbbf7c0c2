// Routing of mixtures, rows sorted by expert, the clamped gate, parts of heads and sinks on a device, against plain
// double precision.
// `--small` keeps shapes tiny, for compute-sanitizer. Exit code: failures.
#include <algorithm>
#include <cstring>

#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

Report report;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Routing {
  int64_t experts, k, groups, top_groups;
  bool sigmoid, normalize, top_two, bias;
  double scale;
};

void routing(Device& d, const Routing& c, int64_t tokens) {
  const Tensor logits = gaussian(DType::f32, {tokens, c.experts}, 2), bias = gaussian(DType::bf16, {c.experts}, 0.5);
  std::vector<double> index, weight;
  const int64_t size = c.experts / c.groups;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> share(static_cast<size_t>(c.experts)), wish(share);
    double sum = 0;
    for (int64_t e = 0; e < c.experts; ++e) sum += std::exp(get(logits, t * c.experts + e));
    for (int64_t e = 0; e < c.experts; ++e) {
      const double x = get(logits, t * c.experts + e);
      share[static_cast<size_t>(e)] = c.sigmoid ? sigmoid(x) : std::exp(x) / sum;
      wish[static_cast<size_t>(e)] = share[static_cast<size_t>(e)] + (c.bias ? get(bias, e) : 0);
    }
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t g = 0; g < c.groups; ++g) {
      std::vector<double> best(wish.begin() + g * size, wish.begin() + (g + 1) * size);
      std::sort(best.rbegin(), best.rend());
      scores.emplace_back(-(best[0] + (c.top_two ? best[1] : 0)), g);
    }
    std::sort(scores.begin(), scores.end());
    std::vector<std::pair<double, int64_t>> open;
    for (int64_t g = 0; g < c.top_groups; ++g)
      for (int64_t e = scores[static_cast<size_t>(g)].second * size, end = e + size; e < end; ++e)
        open.emplace_back(-wish[static_cast<size_t>(e)], e);
    std::sort(open.begin(), open.end());
    double chosen = 0;
    for (int64_t j = 0; j < c.k; ++j) chosen += share[static_cast<size_t>(open[static_cast<size_t>(j)].second)];
    for (int64_t j = 0; j < c.k; ++j) {
      const int64_t e = open[static_cast<size_t>(j)].second;
      index.push_back(static_cast<double>(e));
      weight.push_back(c.scale * share[static_cast<size_t>(e)] / (c.normalize ? chosen : 1));
    }
  }
  std::vector<Tensor> in = {logits};
  if (c.bias) in.push_back(bias);
  const auto got = d.run("route_top_k", in, {poisoned(DType::i32, {tokens, c.k}), poisoned(DType::f32, {tokens, c.k})},
                         params({{"k", static_cast<double>(c.k)},
                                 {"groups", static_cast<double>(c.groups)},
                                 {"topGroups", static_cast<double>(c.top_groups)},
                                 {"sigmoid", c.sigmoid ? 1.0 : 0.0},
                                 {"normalize", c.normalize ? 1.0 : 0.0},
                                 {"topTwo", c.top_two ? 1.0 : 0.0},
                                 {"scale", c.scale}}));
  const std::string name = "route_top_k " + std::to_string(c.experts) + " in " + std::to_string(c.groups) + " groups";
  report.close(name + ", indices", got[0], index, 0, 0);
  report.close(name + ", weights", got[1], weight, 1e-7, 4e-6);
}

// Up to 1024 rows, and more, take kernels of their own.
void rows(Device& d, DType type, int64_t tokens, int64_t k, int64_t experts, int64_t width) {
  const int64_t count = tokens * k;
  const Tensor indices =
      filled(DType::i32, {tokens, k}, [&](int64_t) { return double(between(0, std::max<int64_t>(0, experts - 2))); });
  std::vector<double> offsets(static_cast<size_t>(experts + 1)), order;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < count; ++i)
      if (get(indices, i) == double(e)) order.push_back(double(i));
    offsets[static_cast<size_t>(e + 1)] = double(order.size());
  }
  const std::string name = " of " + std::to_string(count) + " rows " + std::string(dtype_name(type));
  const auto grouped =
      d.run("group_by_expert", {indices}, {poisoned(DType::i32, {count}), poisoned(DType::i32, {experts + 1})},
            params({{"experts", double(experts)}}));
  report.close("group_by_expert" + name, grouped[0], order, 0, 0);
  report.close("group_by_expert offsets" + name, grouped[1], offsets, 0, 0);
  const Tensor x = gaussian(type, {tokens, width}), weights = gaussian(DType::f32, {tokens, k}),
               y = gaussian(DType::f32, {tokens, width});
  const Tensor gathered =
      d.run("gather_rows", {x, grouped[0]}, {poisoned(type, {count, width})}, params({{"divide", double(k)}}))[0];
  std::vector<double> taken, sums = values(y), sizes(sums.size());
  for (size_t at = 0; at < sums.size(); ++at) sizes[at] = std::fabs(sums[at]);
  for (const double row : order)
    for (int64_t c = 0; c < width; ++c) {
      const int64_t t = static_cast<int64_t>(row) / k, at = t * width + c;
      taken.push_back(get(x, at));
      const double more = get(x, at) * get(weights, static_cast<int64_t>(row));
      sums[static_cast<size_t>(at)] += more, sizes[static_cast<size_t>(at)] += std::fabs(more);
    }
  report.close("gather_rows" + name, gathered, taken, 0, 0);
  // k sums of fp32, each half a unit of what it is of.
  const double most = *std::max_element(sizes.begin(), sizes.end());
  const Tensor added =
      d.run("scatter_add_rows", {gathered, grouped[0], weights, y}, {y}, params({{"divide", double(k)}}))[0];
  report.close("scatter_add_rows" + name, added, sums, double(k + 1) * 0x1p-24 * most, 0);
}

void gate(Device& d, DType type, int64_t count) {
  const Tensor g = gaussian(type, {count}, 6), u = gaussian(type, {count}, 6);
  std::vector<double> want;
  for (int64_t i = 0; i < count; ++i) {
    const double a = std::min(get(g, i), 7.0), b = std::clamp(get(u, i), -7.0, 7.0);
    want.push_back((b + 1) * a * sigmoid(1.702 * a));
  }
  const auto got =
      d.run("clamped_swiglu", {g, u}, {poisoned(type, {count})}, params({{"alpha", 1.702}, {"limit", 7.0}}));
  report.close("clamped_swiglu " + std::string(dtype_name(type)), got[0], want, 1e-5, 2 * unit(type) + 2e-6);
}

void heads(Device& d, DType type, bool shared) {
  const int64_t tokens = between(1, 50), count = 5, from_dim = 7, to_dim = 9;
  const Tensor x = gaussian(type, {tokens, (shared ? 1 : count) * from_dim}),
               y = gaussian(type, {tokens, count * to_dim});
  std::vector<double> want = values(y);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < count; ++h)
      for (int64_t c = 0; c < 4; ++c)
        want[static_cast<size_t>((t * count + h) * to_dim + 1 + c)] =
            get(x, (shared ? t : t * count + h) * from_dim + 3 + c);
  const auto got = d.run("copy_heads", {x}, {y},
                         params({{"heads", 5.0},
                                 {"width", 4.0},
                                 {"fromDim", 7.0},
                                 {"from", 3.0},
                                 {"toDim", 9.0},
                                 {"to", 1.0},
                                 {"shared", shared ? 1.0 : 0.0}}));
  report.close("copy_heads " + std::string(dtype_name(type)), got[0], want, 0, 0);
}

void sinks(Device& d, DType type, int64_t tokens, int window, double cap) {
  const int64_t count = 4, kv = 2, hd = 48, vd = 40;
  const Tensor q = gaussian(type, {tokens, count * hd}), k = gaussian(type, {tokens, kv * hd}),
               v = gaussian(type, {tokens, kv * vd});
  const Tensor sink = gaussian(DType::bf16, {count}, 4);
  std::vector<double> want;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < count; ++h) {
      std::vector<double> out(static_cast<size_t>(vd));
      double total = std::exp(get(sink, h));
      for (int64_t u = window > 0 ? std::max<int64_t>(0, t - window + 1) : 0; u <= t; ++u) {
        double dot = 0;
        for (int64_t i = 0; i < hd; ++i) dot += get(q, (t * count + h) * hd + i) * get(k, (u * kv + h / 2) * hd + i);
        const double share = std::exp(cap > 0 ? cap * std::tanh(0.1 * dot / cap) : 0.1 * dot);
        total += share;
        for (int64_t i = 0; i < vd; ++i) out[static_cast<size_t>(i)] += share * get(v, (u * kv + h / 2) * vd + i);
      }
      for (const double value : out) want.push_back(value / total);
    }
  const Tensor starts = filled(DType::i32, {2}, [&](int64_t i) { return i == 0 ? 0.0 : static_cast<double>(tokens); });
  const auto got = d.run("attention", {q, k, v, starts, sink}, {poisoned(type, {tokens, count * vd})},
                         params({{"heads", 4.0},
                                 {"kvHeads", 2.0},
                                 {"headDim", 48.0},
                                 {"valueDim", 40.0},
                                 {"scale", 0.1},
                                 {"window", static_cast<double>(window)},
                                 {"softCap", cap}}));
  // q, scaled, and the shares are rounded to the type: scores below 8 move by 8 units, outputs (values below 5) by five
  // times that.
  report.close((cap > 0 ? "attention with sinks, capped " : "attention with sinks ") + std::string(dtype_name(type)),
               got[0], want, 50 * unit(type) + 1e-5, 2 * unit(type));
}

}  // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  try {
    Device d;
    const int64_t tokens = small ? 9 : 60;  // few, so that no two experts are as close as f32 rounds
    for (const Routing& c : {Routing{1, 1, 1, 1, true, false, false, false, 1},
                             {60, 4, 1, 1, false, false, false, false, 1},
                             {64, 6, 1, 1, false, false, false, false, 16},
                             {160, 6, 8, 3, false, false, false, false, 16},
                             {256, 8, 8, 4, true, true, true, true, 2.5},
                             {32, 4, 16, 2, true, true, true, true, 1},
                             {512, 8, 256, 200, true, true, true, true, 1},
                             {21, 3, 1, 1, false, true, false, true, 1}})
      routing(d, c, tokens);
    for (DType type : {DType::f32, DType::f16, DType::bf16}) {
      rows(d, type, 1, 8, 128, small ? 70 : 7168), rows(d, type, 33, 4, 70, 40), rows(d, type, 128, 8, 9, 17);
      rows(d, type, small ? 210 : 3000, 5, 300, small ? 20 : 129);
      gate(d, type, small ? 77 : 100003);
      for (const bool shared : {false, true}) heads(d, type, shared);
      for (const int window : {0, 13})
        for (const double cap : {0.0, 1.5}) sinks(d, type, small ? 20 : 300, window, cap);
    }
    report.fails("route_top_k: groups that do not divide", "LPQ_NATIVE_ARGUMENT", [&] {
      d.run("route_top_k", {gaussian(DType::f32, {2, 8})}, {poisoned(DType::i32, {2, 2}), poisoned(DType::f32, {2, 2})},
            params({{"k", 2.0}, {"normalize", 0.0}, {"groups", 3.0}}));
    });
    Tensor bias = gaussian(DType::f32, {8});
    set(bias, 3, NAN);
    report.fails("route_top_k: a bias of NaN", "LPQ_NATIVE_NUMERICS", [&] {
      d.run("route_top_k", {gaussian(DType::f32, {2, 8}), bias},
            {poisoned(DType::i32, {2, 2}), poisoned(DType::f32, {2, 2})}, params({{"k", 2.0}, {"normalize", 0.0}}));
    });
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 100;
  }
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures;
}
