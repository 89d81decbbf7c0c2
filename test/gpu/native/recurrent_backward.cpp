// gated_delta_backward and selective_scan_backward of many heads, of which a launch takes some: the same bytes as of
// calls with some of the heads, and twice. Against double precision they are tested by test/gpu/operations.test.ts.
// --small: for compute-sanitizer. --time: milliseconds at the shapes of Qwen3-Next, Kimi Linear, Mamba-2 and Mamba.
// Exit code: failures.
#include <algorithm>
#include <cstring>

#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

Report report;

Tensor starts_of(int sequences, int length) {
  return filled(DType::i32, {sequences + 1}, [&](int64_t i) { return static_cast<double>(i * length); });
}
// Columns first .. first + count.
Tensor some(const Tensor& of, int64_t first, int64_t count) {
  const int64_t width = of.dim(1);
  return filled(of.dtype, {of.dim(0), count},
                [&](int64_t i) { return get(of, i / count * width + first + i % count); });
}
// What inputs are drawn by.
using Draw = std::function<Tensor(std::vector<int64_t>)>;
Tensor drawn(std::vector<int64_t> shape) { return gaussian(DType::f32, std::move(shape)); }
// The same few numbers again and again, where a kernel's time is all that is wanted of them.
Tensor repeated(std::vector<int64_t> shape) {
  static const Tensor some = gaussian(DType::f32, {1 << 16});
  Tensor t = allocate(DType::f32, std::move(shape));
  for (int64_t at = 0; at < t.elements(); at += some.elements())
    std::memcpy(t.data<float>() + at, some.raw(), std::min(some.elements(), t.elements() - at) * sizeof(float));
  return t;
}
void same(const std::string& what, const Tensor& got, const Tensor& want) {
  report.that(what, got.bytes() == want.bytes() && std::memcmp(got.raw(), want.raw(), got.bytes()) == 0);
}

struct Delta {
  int heads, key_heads, key_dim, value_dim;
  bool channels;
  int64_t gates() const { return heads * (channels ? key_dim : 1); }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return heads * value_dim; }
  Params given() const {
    return params({{"heads", static_cast<double>(heads)},
                   {"keyHeads", static_cast<double>(key_heads)},
                   {"keyDim", static_cast<double>(key_dim)},
                   {"valueDim", static_cast<double>(value_dim)}});
  }
  std::vector<Tensor> in(int64_t tokens, const Tensor& starts, const Draw& draw = drawn) const {
    const auto made = [&](int64_t width) { return draw({tokens, width}); };
    return {made(keys()),  made(keys()),    made(values()), made(gates()), made(heads),
            draw({heads}), draw({gates()}), starts,         made(values())};
  }
  std::vector<int64_t> gradients() const { return {keys(), keys(), values(), gates(), int64_t{heads}}; }
};

struct Scan {
  int heads, head_dim, groups, size;
  bool channels;
  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t steps() const { return channels ? width() : heads; }
  Params given() const {
    return params({{"heads", static_cast<double>(heads)},
                   {"headDim", static_cast<double>(head_dim)},
                   {"groups", static_cast<double>(groups)},
                   {"size", static_cast<double>(size)}});
  }
  std::vector<Tensor> in(int64_t tokens, const Tensor& starts, const Draw& draw = drawn) const {
    const auto made = [&](int64_t columns) { return draw({tokens, columns}); };
    return {made(width()),
            made(int64_t{groups} * size),
            made(int64_t{groups} * size),
            made(steps()),
            channels ? draw({width(), size}) : draw({heads}),
            draw({steps()}),
            draw({steps()}),
            starts,
            made(width())};
  }
  std::vector<int64_t> gradients() const { return {width(), int64_t{groups} * size, int64_t{groups} * size, steps()}; }
};

// What a backward pass of a shape writes.
template <class Shape>
std::vector<Tensor> out_of(const Shape& shape, int64_t tokens) {
  std::vector<Tensor> list;
  for (const int64_t columns : shape.gradients()) list.push_back(poisoned(DType::f32, {tokens, columns}));
  return list;
}

void delta_heads(Device& d, const Delta& all, int sequences, int length) {
  const int64_t tokens = int64_t{sequences} * length, share = all.heads / all.key_heads;
  const Tensor starts = starts_of(sequences, length);
  const auto in = all.in(tokens, starts);
  const auto got = d.run("gated_delta_backward", in, out_of(all, tokens), all.given());
  const auto again = d.run("gated_delta_backward", in, out_of(all, tokens), all.given());
  for (size_t i = 0; i < got.size(); ++i) same("delta twice, " + std::to_string(i), got[i], again[i]);
  const int64_t per = all.gates() / all.heads;
  for (const int64_t key : {int64_t{0}, int64_t{all.key_heads - 1}}) {
    const Delta one{static_cast<int>(share), 1, all.key_dim, all.value_dim, all.channels};
    const int64_t head = key * share;
    const auto cut = [&](const Tensor& of, int64_t unit, bool keys) {
      return some(of, (keys ? key : head) * unit, (keys ? 1 : share) * unit);
    };
    const auto line = [&](const Tensor& of, int64_t unit) {
      return filled(DType::f32, {share * unit}, [&](int64_t i) { return get(of, head * unit + i); });
    };
    const std::vector<Tensor> part = {cut(in[0], all.key_dim, true),
                                      cut(in[1], all.key_dim, true),
                                      cut(in[2], all.value_dim, false),
                                      cut(in[3], per, false),
                                      cut(in[4], 1, false),
                                      line(in[5], 1),
                                      line(in[6], per),
                                      starts,
                                      cut(in[8], all.value_dim, false)};
    const auto want = d.run("gated_delta_backward", part, out_of(one, tokens), one.given());
    const std::string name = "delta, heads of key " + std::to_string(key);
    same(name + " dq", cut(got[0], all.key_dim, true), want[0]);
    same(name + " dk", cut(got[1], all.key_dim, true), want[1]);
    same(name + " dv", cut(got[2], all.value_dim, false), want[2]);
    same(name + " ddecay", cut(got[3], per, false), want[3]);
    same(name + " dbeta", cut(got[4], 1, false), want[4]);
  }
}

// One group, whose halves' sums are those of all heads but for the order of sums.
void scan_heads(Device& d, const Scan& all, int sequences, int length) {
  const int64_t tokens = int64_t{sequences} * length, half = all.heads / 2;
  const Tensor starts = starts_of(sequences, length);
  const auto in = all.in(tokens, starts);
  const auto got = d.run("selective_scan_backward", in, out_of(all, tokens), all.given());
  const auto again = d.run("selective_scan_backward", in, out_of(all, tokens), all.given());
  for (size_t i = 0; i < got.size(); ++i) same("scan twice, " + std::to_string(i), got[i], again[i]);
  std::vector<double> db(static_cast<size_t>(got[1].elements())), dc = db;
  double largest = 0;
  for (const int64_t head : {int64_t{0}, half}) {
    const Scan one{static_cast<int>(half), all.head_dim, 1, all.size, false};
    const auto line = [&](const Tensor& of) {
      return filled(DType::f32, {half}, [&](int64_t i) { return get(of, head + i); });
    };
    const auto cut = [&](const Tensor& of, int64_t unit) { return some(of, head * unit, half * unit); };
    const auto want = d.run("selective_scan_backward",
                            {cut(in[0], all.head_dim), in[1], in[2], cut(in[3], 1), line(in[4]), line(in[5]),
                             line(in[6]), starts, cut(in[8], all.head_dim)},
                            out_of(one, tokens), one.given());
    const std::string name = "scan, heads from " + std::to_string(head);
    same(name + " dx", cut(got[0], all.head_dim), want[0]);
    same(name + " dstep", cut(got[3], 1), want[3]);
    for (size_t i = 0; i < db.size(); ++i) {
      db[i] += get(want[1], static_cast<int64_t>(i)), dc[i] += get(want[2], static_cast<int64_t>(i));
      largest = std::max({largest, std::fabs(db[i]), std::fabs(dc[i])});
    }
  }
  // Sums of as many numbers as there are heads, in f32 in two orders, each below the largest sum.
  const double bound = 2 * all.heads * 0x1p-24 * largest;
  report.close("scan db of two halves", got[1], db, bound, 0);
  report.close("scan dc of two halves", got[2], dc, bound, 0);
}

// Milliseconds, the median of 5.
template <class Shape>
void timed(Device& d, const std::string& name, const std::string& op, const Shape& shape, int sequences, int length) {
  const int64_t tokens = int64_t{sequences} * length;
  std::vector<Tensor> in, out, y;
  for (const Tensor& t : shape.in(tokens, starts_of(sequences, length), repeated)) in.push_back(d.backend().upload(t));
  for (const int64_t columns : shape.gradients()) out.push_back(d.backend().allocate(DType::f32, {tokens, columns}));
  y.push_back(d.backend().allocate(DType::f32, in.back().shape));
  const auto milliseconds = [&](const std::string& of, const std::vector<Tensor>& given,
                                const std::vector<Tensor>& made) {
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      d.settle();
      d.queue().take_profile();
      Call call;
      call.in = given, call.out = made, call.params = shape.given();
      d.queue().enqueue(of, std::move(call));
      const Queue::Outcome outcome = d.settle();
      if (!outcome.ok) throw Failure(outcome.code, outcome.detail);
      if (i > 1) times.push_back(d.queue().take_profile()[of].second * 1e3);
    }
    std::sort(times.begin(), times.end());
    return times[2];
  };
  const double forward = milliseconds(op, {in.begin(), in.end() - 1}, y),
               backward = milliseconds(op + "_backward", in, out);
  std::printf("%-26s %2d x %4d  forward %8.3f ms  backward %8.3f ms, %5.1f times\n", name.c_str(), sequences, length,
              forward, backward, backward / forward);
}

}  // namespace

int main(int count, char** arguments) {
  bool times = false, small = false;
  for (int i = 1; i < count; ++i) {
    small = small || std::string(arguments[i]) == "--small";
    times = times || std::string(arguments[i]) == "--time";
  }
  try {
    Device d;
    std::printf("%s, compute capability %d\n", d.backend().facts().name.c_str(), d.backend().facts().arch);
    if (times) {
      for (const auto& [sequences, length] : {std::pair{4, 2048}, {1, 4096}, {32, 128}}) {
        timed(d, "Qwen3-Next", "gated_delta", Delta{32, 16, 128, 128, false}, sequences, length);
        timed(d, "Kimi Linear", "gated_delta", Delta{32, 32, 128, 128, true}, sequences, length);
        timed(d, "Mamba-2, 64 heads", "selective_scan", Scan{64, 64, 8, 128, false}, sequences, length);
        timed(d, "Mamba-2, 128 heads", "selective_scan", Scan{128, 64, 8, 128, false}, sequences, length);
        timed(d, "Mamba", "selective_scan", Scan{1, 8192, 1, 16, true}, sequences, length);
      }
      return 0;
    }
    // Of the larger ones a launch takes some of the heads on a device of 141 GB or less.
    const int length = small ? 20 : 4500;
    delta_heads(d, {8, 4, 128, 128, false}, 2, 70);
    delta_heads(d, {6, 6, 36, 20, true}, 3, small ? 9 : 200);
    delta_heads(d, {small ? 4 : 32, small ? 2 : 16, 256, 128, true}, 3, length);
    scan_heads(d, {8, 64, 1, 128, false}, 2, 70);
    scan_heads(d, {6, 33, 1, 30, false}, 3, small ? 9 : 200);
    scan_heads(d, {small ? 4 : 128, 64, 1, 128, false}, 3, length);
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 100;
  }
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures;
}
