// attention_backward, and attention of f32 activations with products in bf16, against double precision, elementwise
// (attention_gradient.h, with operands that are rounded as native/ops/backward.h says): heads of all kernels' dims and
// such that do not fill them, MHA, GQA and MQA, windows, caps, sinks, keys that are chosen, sequences with tails and
// empty ones. Outputs are full of NaN before. --small: for compute-sanitizer. --time: milliseconds at the shapes of
// Llama-3-8B and DeepSeek-V2-Lite. Exit code: failures.
#include <algorithm>
#include <cstring>

#include "../../native/attention_gradient.h"
#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

bool small = false;
Report report;

struct Shape {
  int heads, kv_heads, head_dim, value_dim;
  int window = 0;
  double cap = 0;
  bool sinks = false;
};

Tensor starts_of(const std::vector<int>& starts) {
  return filled(DType::i32, {static_cast<int64_t>(starts.size())},
                [&](int64_t i) { return starts[static_cast<size_t>(i)]; });
}
Params params_of(const Shape& s, double scale, bool bf16) {
  return params({{"heads", static_cast<double>(s.heads)},
                 {"kvHeads", static_cast<double>(s.kv_heads)},
                 {"headDim", static_cast<double>(s.head_dim)},
                 {"valueDim", static_cast<double>(s.value_dim)},
                 {"scale", scale},
                 {"window", static_cast<double>(s.window)},
                 {"softCap", s.cap},
                 {"bf16", bf16 ? 1.0 : 0.0}});
}
// x times factor as the operation rounds it, or x.
std::vector<double> multiplied(const Tensor& x, float factor, bool bf16) {
  std::vector<double> list = values(x);
  if (bf16)
    for (double& each : list) each = bf16_to_f32(f32_to_bf16(static_cast<float>(each) * factor));
  return list;
}

void compare(const std::string& what, const Tensor& got, const std::vector<double>& want,
             const std::vector<double>& bound) {
  double worst = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double off = std::fabs(get(got, i) - want[static_cast<size_t>(i)]) / bound[static_cast<size_t>(i)];
    const double share = std::isnan(off) ? INFINITY : off;
    if (share > worst) worst = share, at = i;
  }
  if (worst > 1)
    std::printf("      %s: %.9g at %lld, not %.9g within %.3g\n", what.c_str(), get(got, at),
                static_cast<long long>(at), want[static_cast<size_t>(at)], bound[static_cast<size_t>(at)]);
  report.that(what + " (" + std::to_string(worst).substr(0, 4) + ")", worst <= 1);
}

// Runs of `block` that queries choose: the own one, and others before it, in any order; none where there are fewer.
struct Choice {
  int choices, top, block;
  std::vector<int> list;  // [T, choices, top]
  Choice(int choices_, int top_, int block_, const std::vector<int>& starts)
      : choices(choices_), top(top_), block(block_) {
    for (size_t s = 0; s + 1 < starts.size(); ++s)
      for (int t = 0; t < starts[s + 1] - starts[s]; ++t)
        for (int c = 0; c < choices; ++c) {
          std::vector<int> runs;
          for (int run = 0; run < t / block; ++run) runs.push_back(run);
          std::shuffle(runs.begin(), runs.end(), test::random());
          runs.insert(runs.begin(), t / block);
          runs.resize(static_cast<size_t>(top), -1);
          std::shuffle(runs.begin(), runs.end(), test::random());
          list.insert(list.end(), runs.begin(), runs.end());
        }
  }
  bool sees(int token, int choice, int key) const {
    const auto first = list.begin() + (token * choices + choice) * top;
    return std::find(first, first + top, key / block) != first + top;
  }
};

void one(Device& d, const Shape& s, const std::vector<int>& lengths, bool bf16, int choices = 0, int top = 0,
         int block = 1) {
  std::vector<int> starts{0};
  for (const int length : lengths) starts.push_back(starts.back() + length);
  const int64_t tokens = starts.back(), hd = s.head_dim, vd = s.value_dim;
  // Scores of about 2.
  const float scale = static_cast<float>(1.7 / std::sqrt(s.head_dim)), log2e = 1.4426950408889634f;
  const Tensor q = gaussian(DType::f32, {tokens, s.heads * hd}), k = gaussian(DType::f32, {tokens, s.kv_heads * hd}),
               v = gaussian(DType::f32, {tokens, s.kv_heads * vd}), dy = gaussian(DType::f32, {tokens, s.heads * vd}),
               sinks = gaussian(between(0, 1) ? DType::f32 : DType::bf16, {s.heads}), at = starts_of(starts);
  const bool chosen = choices > 0, rounded = bf16 && !chosen && hd <= 256 && vd <= 256;
  const Choice choice(std::max(choices, 1), top, block, starts);
  Params p = params_of(s, scale, bf16);
  std::vector<Tensor> in = {q, k, v, at, dy};
  if (chosen) {
    p.set("chosen", 1.0), p.set("choices", static_cast<double>(choices)), p.set("block", static_cast<double>(block));
    in.push_back(filled(DType::i32, {tokens, int64_t{choices} * top},
                        [&](int64_t i) { return choice.list[static_cast<size_t>(i)]; }));
  }
  if (s.sinks) in.push_back(sinks);
  const std::vector<Tensor> out = {poisoned(DType::f32, q.shape), poisoned(DType::f32, k.shape),
                                   poisoned(DType::f32, v.shape)};
  const auto got = d.run("attention_backward", in, out, p);
  GradientCase c{s.heads,
                 s.kv_heads,
                 s.head_dim,
                 s.value_dim,
                 rounded ? std::log(2.0) : scale,
                 scale,
                 static_cast<double>(static_cast<float>(s.cap)),
                 starts,
                 s.sinks ? values(sinks) : std::vector<double>{},
                 [&](int sequence, int t, int head, int key) {
                   if (!chosen) return s.window == 0 || key > t - s.window;
                   return choice.sees(starts[static_cast<size_t>(sequence)] + t, head / (s.heads / choices), key);
                 },
                 rounded};
  const auto q_used = multiplied(q, scale * log2e, rounded), k_used = multiplied(k, 1, rounded),
             v_used = multiplied(v, 1, rounded), dy_used = multiplied(dy, 1, rounded);
  const ExpectedGradients expected(c, q_used, k_used, v_used, dy_used);
  const std::string name = std::string(bf16 ? "bf16" : "f32") + " " + std::to_string(s.heads) + "/" +
                           std::to_string(s.kv_heads) + " heads of " + std::to_string(hd) + "/" + std::to_string(vd) +
                           (s.window ? " window " + std::to_string(s.window) : "") + (s.cap > 0 ? " capped" : "") +
                           (s.sinks ? " sinks" : "") + (chosen ? " chosen" : "") + ", " + std::to_string(tokens);
  compare("dq " + name, got[0], expected.want.dq, expected.bound.dq);
  compare("dk " + name, got[1], expected.want.dk, expected.bound.dk);
  compare("dv " + name, got[2], expected.want.dv, expected.bound.dv);
  const auto again = d.run("attention_backward", in, out, p);
  for (size_t i = 0; i < 3; ++i)
    if (std::memcmp(got[i].raw(), again[i].raw(), got[i].bytes()) != 0) report.that(name + ", the same bytes", false);
  if (chosen || hd > 256 || vd > 256) return;
  in.erase(in.begin() + 4);
  const auto y = d.run("attention", in, {poisoned(DType::f32, dy.shape)}, p);
  compare("y  " + name, y[0], expected.want.y, expected.bound.y);
}

void refusals(Device& d) {
  const Tensor x = gaussian(DType::f32, {70, 64});
  const auto out = [&] {
    return std::vector<Tensor>{poisoned(DType::f32, x.shape), poisoned(DType::f32, x.shape),
                               poisoned(DType::f32, x.shape)};
  };
  for (const bool bf16 : {false, true})
    report.fails("starts that fall", "LPQ_NATIVE_ARGUMENT", [&] {
      d.run("attention_backward", {x, x, x, starts_of({0, 40, 30, 70}), x}, out(), params_of({1, 1, 64, 64}, 1, bf16));
    });
  for (const double run : {-2.0, 5.0, -1.0})
    report.fails("a token chooses " + std::to_string(static_cast<int>(run)), "LPQ_NATIVE_ARGUMENT", [&] {
      Params p = params_of({1, 1, 64, 64}, 1, true);
      p.set("chosen", 1.0);
      const Tensor list = filled(DType::i32, {70, 1}, [&](int64_t i) { return i == 3 ? run : 0.0; });
      d.run("attention_backward", {x, x, x, starts_of({0, 70}), x, list}, out(), p);
    });
}

// Milliseconds, the median of 5.
double milliseconds(Device& d, const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                    const Params& p) {
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    d.settle();
    d.queue().take_profile();
    Call call;
    call.in = in, call.out = out, call.params = p;
    d.queue().enqueue(op, std::move(call));
    const Queue::Outcome outcome = d.settle();
    if (!outcome.ok) throw Failure(outcome.code, outcome.detail);
    if (i > 1) times.push_back(d.queue().take_profile()[op].second * 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[2];
}

void timed(Device& d, const Shape& s, int sequences, int length, bool bf16) {
  const int64_t tokens = int64_t{sequences} * length;
  std::vector<int> starts;
  for (int i = 0; i <= sequences; ++i) starts.push_back(i * length);
  // Some numbers, again and again.
  static const std::vector<double> numbers = values(gaussian(DType::f32, {100003}));
  const auto made = [&](int64_t width) {
    const Tensor host = allocate(DType::f32, {tokens, width});
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<float>()[i] = static_cast<float>(numbers[static_cast<size_t>(i) % numbers.size()]);
    return d.backend().upload(host);
  };
  const auto empty = [&](int64_t width) { return d.backend().allocate(DType::f32, {tokens, width}); };
  const int64_t qs = s.heads * s.head_dim, ks = s.kv_heads * s.head_dim, vs = s.kv_heads * s.value_dim,
                ys = s.heads * s.value_dim;
  const Tensor q = made(qs), k = made(ks), v = made(vs), dy = made(ys), at = d.backend().upload(starts_of(starts));
  const Params p = params_of(s, 1 / std::sqrt(s.head_dim), bf16);
  const double forward = milliseconds(d, "attention", {q, k, v, at}, {empty(ys)}, p),
               backward =
                   milliseconds(d, "attention_backward", {q, k, v, at, dy}, {empty(qs), empty(ks), empty(vs)}, p);
  // Products of what is seen: q kᵀ and p v; backward those of dP, dV, dQ, dK, and q kᵀ again.
  const double pairs = 2.0 * sequences * s.heads * length * (length + 1.0) / 2;
  std::printf(
      "%-5s %2d x %4d, %3d/%d heads of %d/%d  forward %8.3f ms %6.1f TFLOP/s  backward %8.3f ms %6.1f TFLOP/s\n",
      bf16 ? "bf16" : "f32", sequences, length, s.heads, s.kv_heads, s.head_dim, s.value_dim, forward,
      pairs * (s.head_dim + s.value_dim) / forward * 1e-9, backward,
      pairs * (3 * s.head_dim + 2 * s.value_dim) / backward * 1e-9);
}

}  // namespace

int main(int count, char** arguments) {
  bool times = false;
  for (int i = 1; i < count; ++i) {
    small = small || std::string(arguments[i]) == "--small";
    times = times || std::string(arguments[i]) == "--time";
  }
  try {
    Device d;
    std::printf("%s, compute capability %d\n", d.backend().facts().name.c_str(), d.backend().facts().arch);
    if (times) {
      const Shape llama{32, 8, 128, 128};
      timed(d, llama, 2, 2048, true);
      timed(d, llama, 1, 4096, true);
      timed(d, llama, 8, 512, true);
      timed(d, {32, 8, 64, 64}, 2, 2048, true);
      timed(d, {16, 16, 192, 128}, 2, 2048, true);
      timed(d, {16, 8, 256, 256}, 2, 2048, true);
      timed(d, llama, 8, 512, false);
      return 0;
    }
    const auto length = [&](int most) { return static_cast<int>(between(1, small ? std::min(most, 70) : most)); };
    for (const bool bf16 : {true, false}) {
      one(d, {4, 2, 64, 64}, {length(300), 0, 64, 1, length(200)}, bf16);
      one(d, {6, 2, 128, 128}, {length(400), 63, 65, 0}, bf16);
      one(d, {4, 1, 96, 96, length(90), 3, true}, {length(200), length(200)}, bf16);
      one(d, {3, 3, 37, 20, 0, 2.5}, {length(150), 2}, bf16);
      one(d, {2, 1, 128, 128, 128, 0, true}, {length(500)}, bf16);
      one(d, {2, 2, 192, 128}, {length(200), length(90)}, bf16);
      one(d, {2, 1, 130, 33, length(70)}, {length(200)}, bf16);
      one(d, {2, 1, 256, 256, 0, 4}, {length(150), length(70)}, bf16);
      one(d, {1, 1, 200, 250, 33, 0, true}, {length(150)}, bf16);
      if (small) continue;
      const int dims = static_cast<int>(between(1, 256));
      one(d, {8, 4, dims, static_cast<int>(between(1, 256)), static_cast<int>(between(0, 200))},
          {length(200), length(200)}, bf16);
    }
    one(d, {4, 1, 576, 512}, {length(90), 0, length(90)}, true);  // beyond what the tensor cores' kernels take
    one(d, {4, 2, 64, 40}, {length(120), 3, length(70)}, false, 1, 20, 1);
    one(d, {4, 2, 33, 64}, {length(120), length(70)}, false, 4, 5, 8);
    one(d, {4, 1, 192, 128, 0, 5}, {length(200)}, true, 2, 70, 1);
    refusals(d);
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 100;
  }
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures;
}
