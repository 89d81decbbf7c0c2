// Times the solver's operations for the linears of one Llama-3-8B block: bench_solver [--only FEED] [--once] [JSON
// file]. --once: one pass without a warm-up, for a profiler.
// Device time by events around each operation; the first pass warms up, three are measured, the median is kept. Also:
// what one-pass sweeps cost in the objective against three-pass ones, and how far GPTAQ's targets are from the CPU's
// f64.
#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

struct Runner {
  Device& d;
  Tensor make(DType dtype, std::vector<int64_t> shape) { return d.backend().allocate(dtype, std::move(shape)); }
  void op(const std::string& name, std::vector<Tensor> in, std::vector<Tensor> out, const Params& p = {}) {
    Call call;
    call.in = std::move(in);
    call.out = std::move(out);
    call.params = p;
    d.queue().enqueue(name, std::move(call));
  }
  void wait() {
    const auto outcome = d.settle();
    if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
  }
};

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// About normal: the sum of four uniform 16-bit numbers.
float noise(uint64_t i) {
  const uint64_t r = mix(i);
  return (static_cast<float>((r & 0xffff) + ((r >> 16) & 0xffff) + ((r >> 32) & 0xffff) + (r >> 48)) / 65535.0f -
          2.0f) *
         1.732f;
}
Tensor random_bf16(int64_t rows, int64_t columns, uint64_t seed, float size, bool activations) {
  Tensor t = allocate(DType::bf16, {rows, columns});
  uint16_t* out = t.data<uint16_t>();
  std::vector<std::thread> threads;
  const int64_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (int64_t w = 0; w < workers; ++w)
    threads.emplace_back([&, w] {
      for (int64_t r = rows * w / workers; r < rows * (w + 1) / workers; ++r) {
        float common[4];
        for (int m = 0; m < 4; ++m)
          common[m] = 0.5f * noise(seed * 7 + static_cast<uint64_t>(r * 4 + m) + (1ull << 50));
        for (int64_t c = 0; c < columns; ++c) {
          float v = noise(seed * 1000003 + static_cast<uint64_t>(r * columns + c));
          if (activations) {
            for (int m = 0; m < 4; ++m)
              v += common[m] * noise(seed * 13 + static_cast<uint64_t>(c * 4 + m) + (1ull << 51));
            v *= std::exp(0.6f * noise(seed * 17 + static_cast<uint64_t>(c) + (1ull << 52)));
            if (mix(static_cast<uint64_t>(c) + seed) % 512 == 0) v *= 20;  // outlier channels
          }
          out[r * columns + c] = f32_to_bf16(v * size);
        }
      }
    });
  for (auto& thread : threads) thread.join();
  return t;
}

Params int4() {
  return params({{"kind", "int"},
                 {"bits", 4.0},
                 {"signed", 1.0},
                 {"symmetric", 1.0},
                 {"constantZero", 0.0},
                 {"steps", 76.0},
                 {"bothSigns", 1.0},
                 {"scaleDtype", "f32"},
                 {"sweeps", 1.0}});
}

struct Times {
  std::map<std::string, std::vector<double>> by_op;  // seconds, one entry a pass
  void take(Device& d, size_t pass) {
    for (const auto& [op, entry] : d.backend().take_profile()) {
      auto& list = by_op[op];
      list.resize(pass + 1, 0);
      list[pass] += entry.second;
    }
  }
  static double median(std::vector<double> list) {
    if (list.size() > 1) list.erase(list.begin());  // the warm-up
    std::sort(list.begin(), list.end());
    return list.empty() ? 0 : list[list.size() / 2];
  }
};

struct Feed {
  const char* name;
  int64_t k;
  std::vector<std::pair<const char*, int64_t>> linears;
};

// GPTAQ's change of a few rows against the CPU's f64: the H-norm of the difference over that of the change, and the
// largest difference of an element over the largest change.
void check_target(Runner& run, const char* name, int64_t k, const Tensor& order, const Tensor& dead,
                  const Tensor& drift, const Tensor& u, const Tensor& m, std::optional<Tensor> matrix) {
  constexpr int64_t rows = 16;
  Device& d = run.d;
  const Tensor w = random_bf16(rows, k, 99, 0.02f, false), on_device = d.backend().upload(w);
  const auto target = [&](const std::vector<Tensor>& more, double alpha) {
    std::vector<Tensor> in{on_device, order, dead};
    in.insert(in.end(), more.begin(), more.end());
    const Tensor t = run.make(DType::f32, {rows, k});
    run.op("gptq_target", in, {t, run.make(DType::f64, {2})}, params({{"alpha", alpha}}));
    run.wait();
    return d.download(t);
  };
  const Tensor plain = target({}, 0), direct = target({drift, u}, 1),
               by_matrix = matrix ? target({*matrix}, 1) : direct;
  std::unique_ptr<Backend> host = make_cpu_backend(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const Tensor narrow = d.download(drift), wide = allocate(DType::f64, {k, k}), want = allocate(DType::f32, {rows, k}),
               metric = d.download(m);
  for (int64_t i = 0; i < k * k; ++i) wide.data<double>()[i] = narrow.data<float>()[i];
  Call call;
  call.in = {w, d.download(order), d.download(dead), wide, d.download(u)};
  call.out = {want, allocate(DType::f64, {2})};
  call.params = params({{"alpha", 1.0}});
  host->run("gptq_target", call);
  host->drain();
  const auto norm = [&](const Tensor& a, const Tensor& b) {
    std::vector<double> part(static_cast<size_t>(rows));
    std::vector<std::thread> threads;
    for (int64_t r = 0; r < rows; ++r)
      threads.emplace_back([&, r] {
        std::vector<double> e(static_cast<size_t>(k));
        for (int64_t j = 0; j < k; ++j)
          e[static_cast<size_t>(j)] = static_cast<double>(a.data<float>()[r * k + j]) - b.data<float>()[r * k + j];
        for (int64_t i = 0; i < k; ++i) {
          double line = 0;
          for (int64_t j = 0; j < k; ++j) line += e[static_cast<size_t>(j)] * metric.data<float>()[i * k + j];
          part[static_cast<size_t>(r)] += e[static_cast<size_t>(i)] * line;
        }
      });
    for (auto& thread : threads) thread.join();
    return std::sqrt(std::max(0.0, std::accumulate(part.begin(), part.end(), 0.0)));
  };
  const auto largest = [&](const Tensor& a, const Tensor& b) {
    double most = 0;
    for (int64_t i = 0; i < rows * k; ++i)
      most = std::max(most, std::fabs(static_cast<double>(a.data<float>()[i]) - b.data<float>()[i]));
    return most;
  };
  const double change = norm(want, plain), most = largest(want, plain);
  std::printf(
      "%-8s target against f64: H-norm %.2e of the change's (with a matrix %.2e), largest element %.2e (%.2e) of the "
      "largest change %.3g\n",
      name, norm(direct, want) / change, norm(by_matrix, want) / change, largest(direct, want) / most,
      largest(by_matrix, want) / most, most);
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, file;
  bool once = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--only" && i + 1 < argc) only = argv[++i];
    else if (arg == "--once") once = true;
    else file = arg;
  }
  Device d;
  Runner run{d};
  const int64_t size = 128, passes = once ? 1 : 4;
  const std::vector<Feed> feeds{{"qkv", 4096, {{"q", 4096}, {"k", 1024}, {"v", 1024}}},
                                {"o", 4096, {{"o", 4096}}},
                                {"gate_up", 4096, {{"gate", 14336}, {"up", 14336}}},
                                {"down", 14336, {{"down", 4096}}}};
  const Params damp = params({{"damp", 0.01}}), corrected = params({{"alpha", 0.25}}), type = int4();
  std::map<std::string, Times> times;
  std::map<std::string, double> objective;
  double busy = 0;
  size_t peak = 0;
  std::string json;
  for (const Feed& feed : feeds) {
    if (!only.empty() && only != feed.name) continue;
    const int64_t k = feed.k, g = k / size;
    const Tensor h = run.make(DType::f32, {k, k}), drift = run.make(DType::f32, {k, k});
    run.op("zero", {}, {h});
    run.op("zero", {}, {drift});
    {
      const uint64_t seed = static_cast<uint64_t>(k) + feed.linears.size();
      const Tensor x = d.backend().upload(random_bf16(k + 2048, k, seed, 1, true)),
                   other = d.backend().upload(random_bf16(k + 2048, k, seed + 1, 1, true));
      run.op("gram_accumulate", {x, h}, {h});
      // xf = 0.95 xq + something else.
      run.op("cross_accumulate", {x, x, drift}, {drift}, params({{"weight", 0.95}}));
      run.op("cross_accumulate", {other, x, drift}, {drift}, params({{"weight", 0.1}}));
      run.op("cross_drift", {h, drift}, {drift});
      run.op("gram_finish", {h}, {h});
      run.wait();
    }
    // Solving order by descending diagonal.
    const Tensor diagonal_of = d.download(h);
    std::vector<int32_t> list(static_cast<size_t>(k));
    std::iota(list.begin(), list.end(), 0);
    std::stable_sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
      return diagonal_of.data<float>()[a * k + a] > diagonal_of.data<float>()[b * k + b];
    });
    const Tensor order =
        d.backend().upload(filled(DType::i32, {k}, [&](int64_t j) { return list[static_cast<size_t>(j)]; }));
    const Tensor group =
        d.backend().upload(filled(DType::i32, {k}, [&](int64_t j) { return list[static_cast<size_t>(j)] / size; }));
    const Tensor u = run.make(DType::f32, {k, k}), m = run.make(DType::f32, {k, k}), dead = run.make(DType::u8, {k}),
                 info = run.make(DType::f64, {3});
    run.wait();
    d.backend().take_profile();
    const bool whole = feed.linears[0].second >= k;  // as FeedSolver decides
    const Tensor matrix = run.make(DType::f32, whole ? std::vector<int64_t>{k, k} : std::vector<int64_t>{1});
    for (size_t pass = 0; pass < static_cast<size_t>(passes); ++pass) {
      run.op("gptq_factor", {h, order}, {u, m, dead, info}, damp);
      if (whole) run.op("gptq_correction", {drift, order, u}, {matrix});
      run.wait();
      times[feed.name].take(d, pass);
    }
    if (!once) {
      const Tensor exact = run.make(DType::f32, {k, k});
      Params p = damp;
      p.set("splitFrom", 0.0);
      run.op("gptq_factor", {h, order}, {exact, m, dead, info}, p);
      run.wait();
      const Tensor want = d.download(exact), got = d.download(u);
      double worst = 0, sum = 0, size_of = 0;
      for (int64_t i = 0; i < k; ++i) {
        double row_error = 0, row_most = 0;
        for (int64_t j = i; j < k; ++j) {
          const double w = want.data<float>()[i * k + j], e = std::fabs(got.data<float>()[i * k + j] - w);
          row_error = std::max(row_error, e), row_most = std::max(row_most, std::fabs(w));
          sum += e * e, size_of += w * w;
        }
        worst = std::max(worst, row_error / row_most);
      }
      std::printf("%-8s U against f64: largest error of an element over its row's largest %.2e; Frobenius norms %.2e\n",
                  feed.name, worst, std::sqrt(sum / size_of));
    }
    if (!once)
      check_target(run, feed.name, k, order, dead, drift, u, m, whole ? std::optional<Tensor>(matrix) : std::nullopt);
    for (const auto& [name, n] : feed.linears) {
      const Tensor w = d.backend().upload(
          random_bf16(n, k, mix(static_cast<uint64_t>(n) + static_cast<uint64_t>(name[0])), 0.02f, false));
      const Tensor t = run.make(DType::f32, {n, k}), bad = run.make(DType::f64, {2}),
                   scale = run.make(DType::f32, {n, g}), zero = run.make(DType::f32, {n, g}),
                   level = run.make(DType::f32, {n, k});
      const Tensor count = run.make(DType::f64, {1}), scales = run.make(DType::f16, {n, g}),
                   counts = run.make(DType::f64, {2}), codes = run.make(DType::u8, {n, k}),
                   stream = run.make(DType::u8, {n, k / 2});
      const Tensor back = run.make(DType::f32, {n, k}), w32 = run.make(DType::f32, {n, k}),
                   sums = run.make(DType::f64, {2});
      run.op("cast", {w}, {w32});
      run.wait();
      d.backend().take_profile();
      const auto solve = [&](double descend_passes) {
        Params sweep = type;
        sweep.set("passes", descend_passes);
        if (whole) run.op("gptq_target", {w, order, dead, matrix}, {t, bad}, corrected);
        else run.op("gptq_target", {w, order, dead, drift, u}, {t, bad}, corrected);
        run.op("gptq_clip", {t, m, group}, {scale, zero}, type);
        run.op("gptq_solve", {t, u, scale, zero, group}, {level}, type);
        for (int round = 0; round < 4; ++round) {
          run.op("gptq_refit", {t, m, level, zero, group}, {scale, count});
          run.op("gptq_descend", {t, m, scale, zero, group}, {level, count}, sweep);
        }
        run.op("gptq_refit", {t, m, level, zero, group}, {scale, count});
        run.op("gptq_store_scales", {scale}, {scales, scale, counts}, params({{"unit", 1.0}}));
        run.op("gptq_descend", {t, m, scale, zero, group}, {level, count}, sweep);
        run.op("gptq_encode", {level, order}, {codes}, type);
        run.op("pack_codes", {codes}, {stream}, params({{"bits", 4.0}}));
      };
      const auto measure = [&] {
        Params p = int4();
        p.set("blockN", 1.0);
        p.set("blockK", static_cast<double>(size));
        run.op("unpack_codes", {stream}, {codes}, params({{"bits", 4.0}}));
        run.op("dequantize", {codes, scales}, {back}, p);
        run.op("module_error", {w32, back, h}, {sums});
        run.wait();
        const Tensor s = d.download(sums);
        return s.data<double>()[0] / s.data<double>()[1];
      };
      for (size_t pass = 0; pass < static_cast<size_t>(passes); ++pass) {
        run.wait();
        const auto start = std::chrono::steady_clock::now();
        solve(1);
        run.wait();
        if (pass == static_cast<size_t>(passes) - 1)
          busy += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        times[name].take(d, pass);
      }
      if (once) break;
      const double one = measure();
      solve(3);
      const double three = measure();
      objective[name] = one / three - 1;
      std::printf("%-6s relative error %.6f, against three passes %+.2e\n", name, one, one / three - 1);
      d.backend().take_profile();
      for (size_t pass = 0; pass < static_cast<size_t>(passes); ++pass) {
        run.op("rtn", {w}, {stream, scales, run.make(DType::f64, {9})}, [] {
          Params p = int4();
          p.set("groupSize", 128.0);
          p.set("zero", 0.0);
          return p;
        }());
        run.op("unpack_codes", {stream}, {codes}, params({{"bits", 4.0}}));
        Params p = int4();
        p.set("blockN", 1.0);
        p.set("blockK", static_cast<double>(size));
        run.op("dequantize", {codes, scales}, {back}, p);
        run.op("module_error", {w32, back, h}, {sums});
        run.wait();
        times[std::string("other ") + name].take(d, pass);
      }
    }
    peak = std::max(peak, d.backend().allocator().usage().peak_used);
  }
  std::map<std::string, double> total;
  double all = 0;
  std::string rows;
  for (const auto& [name, list] : times) {
    rows += rows.empty() ? "" : ",";
    rows += "\n    {\"what\": \"" + name + "\"";
    for (const auto& [op, passes_of] : list.by_op) {
      const double ms = Times::median(passes_of) * 1e3;
      rows += ", \"" + op + "\": " + std::to_string(ms);
      if (name.rfind("other", 0) != 0) total[op] += ms, all += ms;
      else total["(" + op + ")"] += ms;
    }
    rows += "}";
  }
  std::printf("%-22s %8s\n", "operation", "ms");
  std::string sums;
  for (const auto& [op, ms] : total) {
    std::printf("%-22s %8.2f\n", op.c_str(), ms);
    sums += (sums.empty() ? "" : ", ") + ("\"" + op + "\": " + std::to_string(ms));
  }
  std::printf("%-22s %8.2f  (without those in brackets); host clock, solves without factors: %.2f\n", "seven linears",
              all, busy * 1e3);
  std::printf("peak device memory %.2f GiB, this program's input copies included\n",
              static_cast<double>(peak) / (1 << 30));
  if (!file.empty()) {
    std::string objectives;
    for (const auto& [name, value] : objective)
      objectives += (objectives.empty() ? "" : ", ") + ("\"" + name + "\": " + std::to_string(value));
    std::ofstream(file) << "{\n  \"device\": \"" << d.backend().facts().name
                        << "\",\n  \"unit\": \"ms\",\n  \"layer\": \"Llama-3-8B, i4 symmetric g128, 76 clip steps and "
                           "both signs, 4 rounds of refit and 1 sweep, a last refit and sweep\",\n  \"seven_linears\": "
                        << all << ",\n  \"host_clock_solves\": " << busy * 1e3 << ",\n  \"peak_bytes\": " << peak
                        << ",\n  \"operations\": {" << sums << "},\n  \"one_pass_error_over_three_pass\": {"
                        << objectives << "},\n  \"by_linear\": [" << rows << "\n  ]\n}\n";
  }
  return 0;
}
