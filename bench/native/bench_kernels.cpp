// Times gemm_packed: bench_kernels [--json FILE] [--set NAME] ...   Sets: table (the shapes and M of
// docs/internals/kernels/stream.md, u4 g128, with cuBLAS f16), types (all types at 8192x57344, M = 16), groups, tune
// (cuts of the work), stream (the streaming kernel's cuts) and stream-types (its types; --few: some of them), wide-tune
// and wide-types (the wide kernel's), wide-profile, profile, and those of bench_layouts.h, bench_sparse.h,
// bench_large.h, bench_cuts.h and bench_points.h. Default: table types.
//
// Weights rotate among copies that together exceed the L2 cache eight times. One CUDA graph holds all launches of a
// case; its replays are timed with events, the median of nine is kept. The device's copy bandwidth (bytes read and
// written) is measured the same way in the same run.
#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "cuda/launch.h"
#include "cuts.h"
#include "harness.h"
#include "lpq/quant_type.h"

using namespace lpq;
using namespace lpq::test;

namespace {

using Graph = struct CUgraph_st*;
using GraphExec = struct CUgraphExec_st*;

struct Graphs {
  int (*begin)(cuda::CUstream, int);
  int (*end)(cuda::CUstream, Graph*);
  int (*instantiate)(GraphExec*, Graph, unsigned long long);
  int (*launch)(GraphExec, cuda::CUstream);
  int (*destroy)(GraphExec);
  int (*destroy_graph)(Graph);
  Graphs() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
    };
    find(begin, "cuStreamBeginCapture_v2");
    find(end, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
    find(destroy, "cuGraphExecDestroy");
    find(destroy_graph, "cuGraphDestroy");
  }
};

void ok(int status, const char* what) {
  if (status != 0) throw Failure("BENCH", std::string(what) + " failed with " + std::to_string(status));
}

struct Bench {
  Device device;
  Graphs graphs;
  cuda::CudaExec& exec;
  cuda::CUevent begin = nullptr, end = nullptr;
  Tensor noise;  // random bytes, and as f16 or bf16 numbers between 0.5 and 2 in size
  std::ostringstream json;
  bool first = true;
  int replays = 11;

  Bench() : exec(device.backend().exec()) {
    cuda::check(cuda::driver().context_set(exec.context()), "context");
    cuda::check(cuda::driver().event_create(&begin, 0), "event");
    cuda::check(cuda::driver().event_create(&end, 0), "event");
    Tensor host = allocate(DType::u64, {8 << 20});
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<uint64_t>()[i] = (lpq::test::random()() & 0x87ff87ff87ff87ffull) | 0x3800380038003800ull;
    noise = device.backend().upload(host);
    settle();
  }
  void settle() {
    const auto outcome = device.settle();
    if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
  }
  Tensor random_tensor(DType dtype, std::vector<int64_t> shape, size_t shift = 0) {
    Tensor t = device.backend().allocate(dtype, std::move(shape));
    for (size_t at = 0; at < t.bytes();) {
      const size_t from = shift * 4096 % (noise.bytes() / 2);
      const size_t bytes = std::min(t.bytes() - at, noise.bytes() - from);
      exec.copy(t.raw() + at, noise.raw() + from, bytes);
      at += bytes;
    }
    return t;
  }
  // Seconds of one of `count` launches.
  double time(int count, const std::function<void(int)>& launch) {
    const auto& driver = cuda::driver();
    launch(0);
    cuda::check(driver.stream_wait(exec.stream()), "warm up");
    ok(graphs.begin(exec.stream(), 2), "capture");
    for (int i = 0; i < count; ++i) launch(i);
    Graph graph;
    GraphExec run;
    ok(graphs.end(exec.stream(), &graph), "end of capture");
    ok(graphs.instantiate(&run, graph, 0), "instantiate");
    std::vector<float> times;
    for (int i = 0; i < replays; ++i) {
      cuda::check(driver.event_record(begin, exec.stream()), "event");
      ok(graphs.launch(run, exec.stream()), "launch");
      cuda::check(driver.event_record(end, exec.stream()), "event");
      cuda::check(driver.event_wait(end), "wait");
      float ms = 0;
      cuda::check(driver.event_elapsed(&ms, begin, end), "elapsed");
      if (i >= 2) times.push_back(ms);
    }
    graphs.destroy(run);
    graphs.destroy_graph(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] / 1e3 / count;
  }
  void row(const std::string& text) {
    json << (first ? "\n  " : ",\n  ") << text;
    first = false;
  }
};

struct Packed {
  Params params;
  QuantType type;
  DType dtype;
  int64_t n, k, group;
  std::vector<Tensor> weights;
  Tensor scales, zeros;
  size_t bytes = 0;  // of one copy with scales and zeros
};

Params type_params(const std::string& name) {
  const int bits = name[1] - '0';
  if (name[0] != 'f')
    return params({{"kind", "int"},
                   {"bits", double(bits)},
                   {"signed", double(name[0] == 'i')},
                   {"exponent", 0.0},
                   {"mantissa", 0.0},
                   {"bias", 0.0},
                   {"special", "none"}});
  const int e = name[3] - '0';
  return params({{"kind", "float"},
                 {"bits", double(bits)},
                 {"signed", 1.0},
                 {"exponent", double(e)},
                 {"mantissa", double(bits - 1 - e)},
                 {"bias", double(e <= 1 ? 0 : (1 << (e - 1)) - 1)},
                 {"special", name == "f8e4m3"   ? "fn"
                             : name == "f8e5m2" ? "ieee"
                                                : "none"}});
}

Packed make(Bench& b, const std::string& name, DType dtype, int64_t n, int64_t k, int64_t group, int zero_kind) {
  Packed p;
  p.params = type_params(name);
  p.type = test::type_of(p.params);
  p.dtype = dtype;
  p.n = n, p.k = k, p.group = group;
  const int64_t nb = (n + 31) / 32, kb = (k + 127) / 128, groups = group ? (k + group - 1) / group : 1;
  const size_t one = static_cast<size_t>(nb * kb * 512 * p.type.bits);
  const size_t wanted = 8 * b.exec.device().l2_bytes;
  for (size_t i = 0; i < std::max<size_t>(2, (wanted + one - 1) / one); ++i)
    p.weights.push_back(b.random_tensor(DType::u8, {nb, kb, 512 * p.type.bits}, i + 1));
  p.scales = b.random_tensor(DType::f16, {nb, groups, 32});
  p.bytes = one + p.scales.bytes();
  if (zero_kind) {
    p.zeros = b.random_tensor(zero_kind == 1 ? DType::u8 : DType::f16, {nb, groups, 32});
    p.bytes += p.zeros.bytes();
  }
  p.params.set("groupSize", double(group));
  p.params.set("hasZeros", double(zero_kind != 0));
  if (name[0] == 'u') p.params.set("zero", double(1 << (p.type.bits - 1)));
  return p;
}

double time_packed(Bench& b, const Packed& p, int64_t m, const Params& tiling = {}, size_t least = 20) {
  const Tensor x = b.random_tensor(p.dtype, {m, p.k}, 99), y = b.exec.allocate(p.dtype, {m, p.n});
  Params all = p.params;
  for (const char* name : {"warpsN", "warpsK", "stages", "blocks", "slices", "overlap", "tokens", "width"})
    if (tiling.place(name) >= 0) all.set(name, test::number(tiling, name));
  for (const char* name : {"kernel", "reduce"})
    if (tiling.place(name) >= 0) all.set(name, test::word(tiling, name));
  const auto op = cuda::cuda_op_table().at("gemm_packed");
  std::vector<Call> calls(p.weights.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].in = {x, p.weights[i], p.scales};
    if (p.zeros.storage) calls[i].in.push_back(p.zeros);
    calls[i].out = {y};
    calls[i].params = all;
  }
  return b.time(static_cast<int>(least < 20 ? least : std::max<size_t>(20, calls.size())),
                [&](int i) { op(calls[static_cast<size_t>(i) % calls.size()], b.exec); });
}

struct Dense {
  int64_t n, k;
  std::vector<Tensor> weights;
};
Dense make_dense(Bench& b, int64_t n, int64_t k) {
  Dense d{n, k, {}};
  const size_t one = static_cast<size_t>(n * k) * 2, wanted = 8 * b.exec.device().l2_bytes;
  for (size_t i = 0; i < std::max<size_t>(2, (wanted + one - 1) / one); ++i)
    d.weights.push_back(b.random_tensor(DType::f16, {n, k}, i + 1));
  return d;
}
double time_dense(Bench& b, const Dense& d, int64_t m, size_t least = 20) {
  const Tensor x = b.random_tensor(DType::f16, {m, d.k}, 99), y = b.exec.allocate(DType::f16, {m, d.n});
  return b.time(static_cast<int>(least < 20 ? least : std::max<size_t>(20, d.weights.size())), [&](int i) {
    cuda::Gemm g;
    g.m = m, g.n = d.n, g.k = d.k;
    g.a = x.raw(), g.b = d.weights[static_cast<size_t>(i) % d.weights.size()].raw(), g.c = y.raw();
    g.ab = g.out = DType::f16;
    g.transpose_b = true;
    b.exec.gemm(g);
  });
}

double copy_bandwidth(Bench& b) {
  const Tensor from = b.exec.allocate(DType::u8, {int64_t{2} << 30}),
               to = b.exec.allocate(DType::u8, {int64_t{2} << 30});
  const auto& driver = cuda::driver();
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    cuda::check(driver.event_record(b.begin, b.exec.stream()), "event");
    for (int j = 0; j < 4; ++j) b.exec.copy(to.raw(), from.raw(), from.bytes());
    cuda::check(driver.event_record(b.end, b.exec.stream()), "event");
    cuda::check(driver.event_wait(b.end), "wait");
    float ms = 0;
    cuda::check(driver.event_elapsed(&ms, b.begin, b.end), "elapsed");
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return 2.0 * 4 * static_cast<double>(from.bytes()) / (times[4] / 1e3);
}

struct Shape {
  int64_t k, n;
  double marlin[4];  // microseconds at M = 1, 16, 32, 64 (an H200)
};
const Shape kShapes[] = {{4096, 4096, {10.6, 10.9, 18.2, 24.0}},  {4096, 28672, {30.7, 31.5, 35.9, 51.1}},
                         {14336, 4096, {20.9, 22.5, 33.8, 47.1}}, {8192, 8192, {20.3, 19.4, 26.8, 37.5}},
                         {8192, 57344, {101, 107, 128, 173}},     {28672, 8192, {68.4, 66.2, 84.4, 122}}};

const char* const kTypes[] = {"u1",     "u2",     "u3",     "u4",     "u5",     "u6",     "u7",     "u8",     "i2",
                              "i3",     "i4",     "i5",     "i6",     "i7",     "i8",     "f3e1m1", "f4e2m1", "f4e1m2",
                              "f5e3m1", "f5e2m2", "f5e1m3", "f6e4m1", "f6e3m2", "f6e2m3", "f6e1m4", "f7e5m1", "f7e4m2",
                              "f7e3m3", "f7e2m4", "f7e1m5", "f8e6m1", "f8e5m2", "f8e4m3", "f8e3m4", "f8e2m5", "f8e1m6"};

// A list with commas of an environment variable.
std::vector<std::string> listed(const char* name, const char* otherwise) {
  std::vector<std::string> words;
  std::stringstream text(std::getenv(name) ? std::getenv(name) : otherwise);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}
// A number of kShapes, or KxN.
Shape shape_of(const std::string& text) {
  const size_t x = text.find('x');
  if (x == std::string::npos) return kShapes[std::stoi(text)];
  return {std::stoll(text), std::stoll(text.substr(x + 1)), {}};
}

#include "bench_cuts.h"
#include "bench_large.h"
#include "bench_layouts.h"
#include "bench_points.h"
#include "bench_sparse.h"

}  // namespace

int main(int argc, char** argv) try {
  std::string out;
  bool few = false;
  std::vector<std::string> sets;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json" && i + 1 < argc) out = argv[++i];
    else if (word == "--set" && i + 1 < argc) sets.push_back(argv[++i]);
    else if (word == "--few") few = true;
  }
  if (sets.empty()) sets = {"table", "types"};
  Bench b;
  const double copy = copy_bandwidth(b);
  std::printf("%s, copy %.3f TB/s\n", b.exec.device().name.c_str(), copy / 1e12);
  char line[512];
  for (const std::string& set : sets) {
    if (set.rfind("layouts", 0) == 0) bench_layouts(b, set, copy);
    if (set.rfind("sparse", 0) == 0) bench_sparse(b, set, copy);
    if (set.rfind("large", 0) == 0) bench_large(b, set);
    if (set == "cuts") bench_cuts(b);
    if (set == "points") bench_points(b);
    if (set == "table") {
      double product[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
      std::printf("%-14s %4s %9s %6s %9s %6s %9s %6s\n", "K x N", "M", "us", "copy", "marlin", "x", "cublas", "x");
      for (const Shape& s : kShapes) {
        const Packed p = make(b, "u4", DType::f16, s.n, s.k, 128, 0);
        const Dense d = make_dense(b, s.n, s.k);
        const int64_t ms[] = {1, 16, 32, 64};
        for (int i = 0; i < 4; ++i) {
          const double t = time_packed(b, p, ms[i]), dense = time_dense(b, d, ms[i]);
          const double bytes = static_cast<double>(p.bytes) + 2.0 * static_cast<double>(ms[i] * (s.n + s.k));
          product[0][i] *= s.marlin[i] / (t * 1e6), product[1][i] *= dense / t;
          std::printf("%5lldx%-8lld %4lld %9.2f %5.1f%% %9.1f %6.2f %9.2f %6.2f\n", (long long)s.k, (long long)s.n,
                      (long long)ms[i], t * 1e6, 100 * bytes / t / copy, s.marlin[i], s.marlin[i] / (t * 1e6),
                      dense * 1e6, dense / t);
          std::snprintf(line, sizeof(line),
                        "{\"set\": \"table\", \"type\": \"u4\", \"group\": 128, \"k\": %lld, \"n\": %lld, \"m\": %lld, "
                        "\"us\": %.3f, \"bytes\": %.0f, \"marlin_us\": %.1f, \"cublas_us\": %.3f}",
                        (long long)s.k, (long long)s.n, (long long)ms[i], t * 1e6, bytes, s.marlin[i], dense * 1e6);
          b.row(line);
          std::fflush(stdout);
        }
      }
      for (int i = 0; i < 4; ++i)
        std::printf("M=%d: geometric mean %.2f of MARLIN's, %.2f of cuBLAS\n", i == 0 ? 1 : 8 << i,
                    std::pow(product[0][i], 1 / 6.0), std::pow(product[1][i], 1 / 6.0));
    }
    if (set == "types") {
      double u4 = 0;
      std::vector<std::pair<std::string, double>> times;
      for (DType dtype : {DType::f16, DType::bf16}) {
        times.clear();
        for (const char* name : kTypes) {
          const Packed p = make(b, name, dtype, 57344, 8192, 128, 0);
          const double t = time_packed(b, p, 16);
          if (!std::strcmp(name, "u4")) u4 = t;
          times.push_back({name, t});
          std::snprintf(line, sizeof(line),
                        "{\"set\": \"types\", \"type\": \"%s\", \"x\": \"%s\", \"group\": 128, \"k\": 8192, \"n\": "
                        "57344, \"m\": 16, \"us\": %.3f, \"bytes\": %.0f}",
                        name, dtype == DType::f16 ? "f16" : "bf16", t * 1e6, double(p.bytes));
          b.row(line);
        }
        std::printf("8192x57344 M=16 %s\n", dtype == DType::f16 ? "f16" : "bf16");
        for (const auto& [name, t] : times) {
          double base = 0;
          for (const auto& [other, s] : times)
            if (other == std::string("u") + name[1]) base = s;
          std::printf("%-7s %8.2f us %5.2f of u4 %5.2f of u%c\n", name.c_str(), t * 1e6, t / u4, t / base, name[1]);
        }
      }
    }
    if (set == "profile") {  // a few plain launches, for a profiler
      for (const char* name : {"u4", "u1", "f4e2m1"}) {
        const Packed p = make(b, name, DType::f16, 57344, 8192, 128, 0);
        for (int64_t m : {8, 16, 32, 64}) {
          Call call;
          call.in = {b.random_tensor(DType::f16, {m, p.k}, 99), p.weights[0], p.scales};
          call.out = {b.exec.allocate(DType::f16, {m, p.n})};
          call.params = p.params;
          cuda::cuda_op_table().at("gemm_packed")(call, b.exec);
          b.settle();
        }
      }
    }
    if (set == "groups") {
      for (int64_t group : {int64_t{128}, int64_t{64}, int64_t{32}, int64_t{0}})
        for (int zeros : {0, 1, 2}) {
          const Packed p = make(b, "u4", DType::f16, 28672, 8192, group, zeros);
          for (int64_t m : {16, 64}) {
            const double t = time_packed(b, p, m);
            std::printf("u4 8192x28672 g%lld zeros %d M=%lld %.2f us %.1f%%\n", (long long)group, zeros, (long long)m,
                        t * 1e6, 100 * double(p.bytes) / t / copy);
          }
        }
    }
    if (set == "stream") {
      // The choice of slices beside every other, and the Hopper kernel: us for M = 1, 8, 16.
      b.replays = 7;
      for (const Shape& s : kShapes) {
        const Packed p = make(b, "u4", DType::f16, s.n, s.k, 128, 0);
        for (int64_t m : {1, 8, 16}) {
          const double bytes = static_cast<double>(p.bytes) + 2.0 * static_cast<double>(m * (s.n + s.k));
          const auto attempt = [&](const char* kernel, int slices, const char* reduce, bool overlap) {
            Params tiling = params({{"kernel", std::string(kernel)}, {"overlap", double(overlap)}});
            if (slices) tiling.set("slices", double(slices));
            if (reduce[0]) tiling.set("reduce", std::string(reduce));
            try {
              const double t = time_packed(b, p, m, tiling);
              std::snprintf(line, sizeof(line),
                            "{\"set\": \"stream\", \"k\": %lld, \"n\": %lld, \"m\": %lld, \"kernel\": \"%s\", "
                            "\"slices\": %d, \"reduce\": \"%s\", \"overlap\": %d, \"us\": %.3f, \"bytes\": %.0f}",
                            (long long)s.k, (long long)s.n, (long long)m, kernel, slices, reduce, int(overlap), t * 1e6,
                            bytes);
              b.row(line);
              return t * 1e6;
            } catch (const Failure& failure) {
              if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;  // a cut that does not fit is no row
              return 0.0;
            }
          };
          std::printf("%5lldx%-6lld %3lld copy %.1f: choice %.2f, launched apart %.2f |", (long long)s.k,
                      (long long)s.n, (long long)m, bytes / copy * 1e6, attempt("stream", 0, "", true),
                      attempt("stream", 0, "", false));
          for (int slices : {1, 2, 4, 8}) std::printf(" c%d %.2f", slices, attempt("stream", slices, "cluster", true));
          for (int slices : {2, 4, 6, 8}) std::printf(" g%d %.2f", slices, attempt("stream", slices, "global", true));
          std::printf(" | hopper %.2f\n", attempt("hopper", 0, "", false));
          std::fflush(stdout);
        }
      }
      b.replays = 11;
    }
    if (set == "stream-types") {
      // All types; --few: some.
      for (DType dtype : {DType::f16, DType::bf16}) {
        std::printf("8192x57344 M=16 %s, streaming kernel:", dtype == DType::f16 ? "f16" : "bf16");
        std::map<std::string, double> base;
        for (const char* name : kTypes) {
          if (few && !std::strstr(" u1 u2 u3 u4 u5 u6 u8 i4 f3e1m1 f4e2m1 f5e2m2 f6e3m2 f8e4m3 ",
                                  (" " + std::string(name) + " ").c_str()))
            continue;
          const Packed p = make(b, name, dtype, 57344, 8192, 128, 0);
          double t;
          try {
            t = time_packed(b, p, 16, params({{"kernel", std::string("stream")}}));
          } catch (const Failure& failure) {
            if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;  // two types have no streaming kernel for f16
            continue;
          }
          base[name] = t;
          std::printf("%s %s %.1f (%.2f of u4, %.2f of u%c)", base.size() % 4 == 1 ? "\n " : "", name, t * 1e6,
                      base.count("u4") ? t / base["u4"] : 0.0, t / base[std::string("u") + name[1]], name[1]);
          std::snprintf(line, sizeof(line),
                        "{\"set\": \"stream-types\", \"type\": \"%s\", \"x\": \"%s\", \"group\": 128, \"k\": 8192, "
                        "\"n\": 57344, \"m\": 16, \"us\": %.3f, \"bytes\": %.0f}",
                        name, dtype == DType::f16 ? "f16" : "bf16", t * 1e6, double(p.bytes));
          b.row(line);
        }
        std::printf("\n");
      }
    }
    if (set == "wide-tune" || set == "wide-quick") {
      // For each shape and M: the wide kernel as it chooses, other tiles, the others' best, cuBLAS and MARLIN's own
      // figure.
      const bool tune = set == "wide-tune";
      const int64_t ms[] = {8, 16, 32, 64, 128, 256, 1024, 4096};
      const double marlin[6][8] = {{10.6, 10.9, 18.2, 24.0, 21.9, 28.7, 94.9, 389},
                                   {30.7, 31.5, 35.9, 51.1, 92.7, 175, 665, 2798},
                                   {20.9, 22.5, 33.8, 47.1, 61.7, 106, 316, 1339},
                                   {20.3, 19.4, 26.8, 37.5, 54.8, 101, 366, 1564},
                                   {101, 107, 128, 173, 323, 621, 2812, 10563},
                                   {68.4, 66.2, 84.4, 122, 218, 327, 1304, 5534}};  // M = 1 in place of 8
      double product[2][8];
      for (auto& list : product) std::fill(list, list + 8, 1.0);
      std::printf("%-12s %4s %8s %8s %8s %8s %8s %8s %5s %5s | best of the tiles tried\n", "K x N", "M", "bytes",
                  "wide", "overlap", "hopper", "stream", "cublas", "x", "marl");
      int at_shape = 0;
      for (const Shape& s : kShapes) {
        const Packed p = make(b, "u4", DType::f16, s.n, s.k, 128, 0);
        const Dense d = make_dense(b, s.n, s.k);
        for (int i = 0; i < 8; ++i) {
          const int64_t m = ms[i];
          const size_t launches = m <= 64 ? 20 : m <= 256 ? 12 : m <= 1024 ? 6 : 3;
          b.replays = m <= 256 ? 9 : 5;
          const auto with = [&](const char* kernel, std::initializer_list<std::pair<const char*, double>> list) {
            Params q;
            q.set("kernel", std::string(kernel));
            for (const auto& [name, value] : list)
              if (value > 0) q.set(name, value);
            return q;
          };
          const double plain = time_packed(b, p, m, with("wide", {}), launches),
                       over = time_packed(b, p, m, with("wide", {{"overlap", 1}}), launches);
          const double hopper = m <= 64 ? time_packed(b, p, m, with("hopper", {}), launches) : 0;
          double stream = 0;
          if (m <= 32)
            for (int slices : {0, 4}) {
              Params q = with("stream", {{"overlap", 1}, {"slices", double(slices)}});
              if (slices) q.set("reduce", std::string("cluster"));
              try {
                const double t = time_packed(b, p, m, q, launches);
                stream = stream == 0 ? t : std::min(stream, t);
              } catch (const Failure&) {
              }
            }
          const double dense = time_dense(b, d, m, launches);
          struct Row {
            double t;
            std::string what;
          };
          std::vector<Row> rows;
          const auto attempt = [&](int64_t tokens, int width, int64_t blocks, int stages) {
            try {
              const double t = time_packed(b, p, m,
                                           with("wide", {{"tokens", double(tokens)},
                                                         {"width", double(width)},
                                                         {"blocks", double(blocks)},
                                                         {"stages", double(stages)},
                                                         {"overlap", 1}}),
                                           launches);
              std::snprintf(line, sizeof(line), "t%lld w%d b%lld r%d", (long long)tokens, width, (long long)blocks,
                            stages);
              rows.push_back({t, line});
              const std::string what = line;
              std::snprintf(
                  line, sizeof(line),
                  "{\"set\": \"wide-tune\", \"k\": %lld, \"n\": %lld, \"m\": %lld, \"what\": \"%s\", \"us\": %.3f}",
                  (long long)s.k, (long long)s.n, (long long)m, what.c_str(), t * 1e6);
              b.row(line);
            } catch (const Failure& failure) {
              if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
            }
          };
          if (tune) {
            for (int64_t tokens : {16, 32, 64, 128}) {
              if (m <= 64 ? tokens < m || tokens >= 2 * std::max<int64_t>(m, 16) : tokens < 64) continue;
              for (int width : {4, 7, 8, 12, 14, 16}) {
                if (m >= 1024 && width < 8) continue;
                // All multiprocessors, and as many blocks as share items evenly.
                const int64_t items = ((s.n + 31) / 32 + width - 1) / width * ((m + tokens - 1) / tokens);
                attempt(tokens, width, 132, 0);
                for (int64_t blocks = 131; blocks > 96; --blocks)
                  if (items % blocks == 0 || blocks % items == 0) {
                    attempt(tokens, width, blocks, 0);
                    break;
                  }
              }
            }
          }
          std::sort(rows.begin(), rows.end(), [](const Row& l, const Row& r) { return l.t < r.t; });
          const double bytes = static_cast<double>(p.bytes) + 2.0 * static_cast<double>(m * (s.n + s.k)),
                       ours = std::min(plain, over);
          product[0][i] *= dense / ours, product[1][i] *= marlin[at_shape][i] / (ours * 1e6);
          std::printf("%5lldx%-6lld %4lld %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %5.2f %5.2f |", (long long)s.k,
                      (long long)s.n, (long long)m, bytes / copy * 1e6, plain * 1e6, over * 1e6, hopper * 1e6,
                      stream * 1e6, dense * 1e6, dense / ours, marlin[at_shape][i] / (ours * 1e6));
          for (size_t j = 0; j < std::min<size_t>(3, rows.size()); ++j)
            std::printf(" %.2f (%s)", rows[j].t * 1e6, rows[j].what.c_str());
          std::printf("\n");
          std::fflush(stdout);
          std::snprintf(line, sizeof(line),
                        "{\"set\": \"%s\", \"type\": \"u4\", \"group\": 128, \"k\": %lld, \"n\": %lld, \"m\": %lld, "
                        "\"us\": %.3f, \"overlap_us\": %.3f, \"hopper_us\": %.3f, \"stream_us\": %.3f, "
                        "\"cublas_us\": %.3f, \"bytes\": %.0f, \"marlin_us\": %.1f}",
                        set.c_str(), (long long)s.k, (long long)s.n, (long long)m, plain * 1e6, over * 1e6,
                        hopper * 1e6, stream * 1e6, dense * 1e6, bytes, marlin[at_shape][i]);
          b.row(line);
        }
        ++at_shape;
      }
      for (int i = 0; i < 8; ++i)
        std::printf("M=%lld: geometric mean %.2f of cuBLAS, %.2f of MARLIN's\n", (long long)ms[i],
                    std::pow(product[0][i], 1 / 6.0), std::pow(product[1][i], 1 / 6.0));
      b.replays = 11;
    }
    if (set == "compare") {
      // LPQ_BENCH_M, LPQ_BENCH_KERNELS (auto: the choice), LPQ_BENCH_TYPE, LPQ_BENCH_SHAPES (numbers from 0, or KxN),
      // all lists with commas: each kernel and cuBLAS in turn.
      const std::vector<std::string> tokens = listed("LPQ_BENCH_M", "32,64,128,256,512,1024,4096"),
                                     kernels = listed("LPQ_BENCH_KERNELS", "auto"),
                                     types = listed("LPQ_BENCH_TYPE", "u4");
      const std::string x_type = std::getenv("LPQ_BENCH_X") ? std::getenv("LPQ_BENCH_X") : "f16";
      const int64_t group = std::getenv("LPQ_BENCH_GROUP") ? std::atoll(std::getenv("LPQ_BENCH_GROUP")) : 128;
      const int zeros = std::getenv("LPQ_BENCH_ZEROS") ? std::atoi(std::getenv("LPQ_BENCH_ZEROS")) : 0;
      std::map<std::string, std::pair<double, int>> means;
      for (const std::string& number_of : listed("LPQ_BENCH_SHAPES", "0,1,2,3,4,5")) {
        const Shape s = shape_of(number_of);
        const Dense d = make_dense(b, s.n, s.k);
        for (const std::string& type : types) {
          const Packed p = make(b, type, x_type == "f16" ? DType::f16 : DType::bf16, s.n, s.k, group, zeros);
          for (const std::string& token : tokens) {
            const int64_t m = std::stoll(token);
            const size_t launches = m <= 64 ? 20 : m <= 256 ? 12 : m <= 1024 ? 6 : 3;
            b.replays = m <= 256 ? 9 : 7;
            double dense = time_dense(b, d, m, launches);
            std::printf("%5lldx%-6lld %-7s M=%-5lld", (long long)s.k, (long long)s.n, type.c_str(), (long long)m);
            std::string text;
            for (const std::string& kernel : kernels) {
              Params q;
              const size_t at = kernel.find(':');  // kernel:name=value:...
              if (kernel.substr(0, at) != "auto") q.set("kernel", kernel.substr(0, at));
              std::stringstream rest(at == std::string::npos ? "" : kernel.substr(at + 1));
              for (std::string word; std::getline(rest, word, ':');)
                q.set(word.substr(0, word.find('=')), std::stod(word.substr(word.find('=') + 1)));
              double t = 0;
              try {
                t = time_packed(b, p, m, q, launches);
              } catch (const Failure& failure) {
                if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
                std::printf(" | %s -", kernel.c_str());
                continue;
              }
              const double bytes = static_cast<double>(p.bytes) + 2.0 * static_cast<double>(m * (s.n + s.k));
              std::printf(" | %s %.2f us %.3f (%.0f T, %.0f%%)", kernel.c_str(), t * 1e6, dense / t,
                          2.0 * double(m) * double(s.n) * double(s.k) / t / 1e12, 100 * bytes / t / copy);
              auto& [product, count] = means.try_emplace(type + " M=" + token + " " + kernel, 1.0, 0).first->second;
              product *= dense / t, ++count;
              std::snprintf(line, sizeof(line),
                            "{\"set\": \"compare\", \"type\": \"%s\", \"x\": \"%s\", \"group\": %lld, \"zeros\": %d, "
                            "\"k\": %lld, \"n\": %lld, \"m\": %lld, \"kernel\": \"%s\", \"us\": %.3f, \"cublas_us\": "
                            "%.3f, \"bytes\": %.0f}",
                            type.c_str(), x_type.c_str(), (long long)group, zeros, (long long)s.k, (long long)s.n,
                            (long long)m, kernel.c_str(), t * 1e6, dense * 1e6, bytes);
              b.row(line);
            }
            std::printf(" | cublas %.2f\n", dense * 1e6);
            std::fflush(stdout);
          }
        }
      }
      for (const auto& [name, mean] : means)
        std::printf("%s: mean %.3f of cuBLAS\n", name.c_str(), std::pow(mean.first, 1.0 / mean.second));
      b.replays = 11;
    }
    if (set == "wide-types") {
      b.replays = 7;
      for (const int64_t m : {int64_t{16}, int64_t{64}, int64_t{1024}})
        for (DType dtype : {DType::f16, DType::bf16}) {
          std::printf("8192x57344 M=%lld %s, wide kernel:", (long long)m, dtype == DType::f16 ? "f16" : "bf16");
          for (const char* name : kTypes) {
            const Packed p = make(b, name, dtype, 57344, 8192, 128, 0);
            double t = 0;
            try {
              t = time_packed(b, p, m, params({{"kernel", std::string("wide")}}), m > 64 ? 3 : 12);
            } catch (const Failure& failure) {
              if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
              continue;
            }
            std::printf(" %s %.1f", name, t * 1e6);
            std::snprintf(line, sizeof(line),
                          "{\"set\": \"wide-types\", \"type\": \"%s\", \"x\": \"%s\", \"m\": %lld, \"us\": %.3f, "
                          "\"bytes\": %.0f}",
                          name, dtype == DType::f16 ? "f16" : "bf16", (long long)m, t * 1e6, double(p.bytes));
            b.row(line);
          }
          std::printf("\n");
          std::fflush(stdout);
        }
      b.replays = 11;
    }
    if (set == "wide-profile") {  // a few plain launches, for a profiler
      const Packed p = make(b, "u4", DType::f16, 57344, 8192, 128, 0);
      for (int64_t m : {16, 64, 512}) {
        Call call;
        call.in = {b.random_tensor(DType::f16, {m, p.k}, 99), p.weights[0], p.scales};
        call.out = {b.exec.allocate(DType::f16, {m, p.n})};
        call.params = p.params;
        call.params.set("kernel", std::string("wide"));
        cuda::cuda_op_table().at("gemm_packed")(call, b.exec);
        b.settle();
      }
    }
    if (set == "tune") {
      for (const Shape& s : kShapes) {
        if (s.n == 28672 || s.k == 28672) continue;
        const Packed p = make(b, "u4", DType::f16, s.n, s.k, 128, 0);
        for (int64_t m : {1, 16, 32, 64}) {
          struct Row {
            double t;
            std::string what;
          };
          std::vector<Row> rows;
          const int warps = m <= 32 ? 16 : 8;
          for (int used : {8, 16})
            for (int wn : {4, 8, 16})
              for (int stages : {4, 6, 8, 12}) {
                if (used > warps || wn > used) continue;
                try {
                  const double t = time_packed(
                      b, p, m,
                      params({{"warpsN", double(wn)}, {"warpsK", double(used / wn)}, {"stages", double(stages)}}));
                  std::snprintf(line, sizeof(line), "wn %d wk %d stages %d", wn, used / wn, stages);
                  rows.push_back({t, line});
                } catch (const Failure&) {
                }
              }
          std::sort(rows.begin(), rows.end(), [](const Row& l, const Row& r) { return l.t < r.t; });
          std::printf("%lldx%lld M=%lld default %.2f us:", (long long)s.k, (long long)s.n, (long long)m,
                      time_packed(b, p, m) * 1e6);
          for (size_t i = 0; i < std::min<size_t>(6, rows.size()); ++i)
            std::printf("  %.2f (%s)", rows[i].t * 1e6, rows[i].what.c_str());
          std::printf("\n");
          std::fflush(stdout);
        }
      }
    }
  }
  if (!out.empty()) {
    std::ofstream file(out);
    file << "{\"device\": \"" << b.exec.device().name << "\", \"copy_bytes_per_second\": " << copy << ", \"rows\": ["
         << b.json.str() << "\n]}\n";
  }
  return 0;
} catch (const Failure& failure) {
  std::printf("%s: %s\n", failure.code.c_str(), failure.what());
  return 1;
}
