// What the programs of low-bit activations share: codes at random, exact references, and graphs timed by events.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <thread>

#include "cuda/launch.h"
#include "harness.h"

namespace lpq::test {

inline void parallel(int64_t count, const std::function<void(int64_t)>& body) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i)
    pool.emplace_back([&, i] {
      for (int64_t at = i; at < count; at += threads) body(at);
    });
  for (auto& thread : pool) thread.join();
}

inline const double* e4m3_values() {
  static const std::vector<double> values = [] {
    std::vector<double> list(256);
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, fraction = code & 7;
      const double value = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
      list[static_cast<size_t>(code)] = code & 128 ? -value : value;
    }
    return list;
  }();
  return values.data();
}

// Sums of products of bytes, [m][n], in 64-bit integers.
inline std::vector<int64_t> integer_products(const int8_t* x, const int8_t* w, int64_t m, int64_t n, int64_t k,
                                             int64_t begin, int64_t end) {
  std::vector<int64_t> sums(static_cast<size_t>(m * n));
  parallel(m, [&](int64_t t) {
    for (int64_t r = 0; r < n; ++r) {
      int64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += int64_t{x[t * k + i]} * w[r * k + i];
      sums[static_cast<size_t>(t * n + r)] = sum;
    }
  });
  return sums;
}

// Codes -8 .. 7 [n, k] as the kernels of 4-bit weights have them: [ceil(n/16)][k/128][1024];
// docs/internals/layouts/comet.md, comet. From its closed form: element (n, k) is nibble (k % 32) / 16 of byte k % 4 of
// the word named below.
inline Tensor comet_weights(const int8_t* codes, int64_t n, int64_t k) {
  const int64_t rows = (n + 15) / 16, kb = k / 128;
  Tensor t = allocate(DType::u8, {rows, kb, 1024});
  std::memset(t.raw(), 0, t.bytes());
  for (int64_t r = 0; r < n; ++r)
    for (int64_t i = 0; i < k; ++i) {
      const int64_t chunk = i % 128 / 32, high = i % 32 / 16, quad = i % 16 / 4, lane = 4 * (r % 8) + quad;
      const int64_t byte = chunk / 2 * 512 + lane * 16 + (chunk % 2 * 2 + r % 16 / 8) * 4 + i % 4;
      t.data<uint8_t>()[((r / 16) * kb + i / 128) * 1024 + byte] |=
          static_cast<uint8_t>((codes[r * k + i] & 15) << 4 * high);
    }
  return t;
}

class Timer {
 public:
  explicit Timer(Device& device) : device_(device), exec_(device.backend().exec()) {
    cuda::check(cuda::driver().context_set(exec_.context()), "context");
    cuda::check(cuda::driver().event_create(&begin_, 0), "event");
    cuda::check(cuda::driver().event_create(&end_, 0), "event");
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
    };
    find(capture_, "cuStreamBeginCapture_v2"), find(captured_, "cuStreamEndCapture"),
        find(instantiate_, "cuGraphInstantiateWithFlags");
    find(launch_, "cuGraphLaunch"), find(destroy_, "cuGraphExecDestroy"), find(destroy_graph_, "cuGraphDestroy");
  }
  cuda::CudaExec& exec() { return exec_; }
  // Microseconds of one of `count` launches: the median of `replays` replays of a graph of all.
  double time(int count, const std::function<void(int)>& run, int replays = 7) {
    const auto ok = [](int status, const char* what) {
      if (status != 0) throw Failure("BENCH", std::string(what) + " failed with " + std::to_string(status));
    };
    const auto& driver = cuda::driver();
    run(0);
    cuda::check(driver.stream_wait(exec_.stream()), "warm up");
    ok(capture_(exec_.stream(), 2), "capture");
    for (int i = 0; i < count; ++i) run(i);
    void *graph = nullptr, *executable = nullptr;
    ok(captured_(exec_.stream(), &graph), "end of capture");
    ok(instantiate_(&executable, graph, 0), "instantiate");
    std::vector<float> times;
    for (int i = 0; i < replays + 2; ++i) {
      cuda::check(driver.event_record(begin_, exec_.stream()), "event");
      ok(launch_(executable, exec_.stream()), "launch");
      cuda::check(driver.event_record(end_, exec_.stream()), "event");
      cuda::check(driver.event_wait(end_), "wait");
      float ms = 0;
      cuda::check(driver.event_elapsed(&ms, begin_, end_), "elapsed");
      if (i >= 2) times.push_back(ms);
    }
    destroy_(executable);
    destroy_graph_(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / count;
  }

 private:
  Device& device_;
  cuda::CudaExec& exec_;
  cuda::CUevent begin_ = nullptr, end_ = nullptr;
  int (*capture_)(cuda::CUstream, int) = nullptr;
  int (*captured_)(cuda::CUstream, void**) = nullptr;
  int (*instantiate_)(void**, void*, unsigned long long) = nullptr;
  int (*launch_)(void*, cuda::CUstream) = nullptr;
  int (*destroy_)(void*) = nullptr;
  int (*destroy_graph_)(void*) = nullptr;
};

// The vendor's products of bytes: D [m, n] = X [m, k] Wᵀ, W [n, k].
class CublasLt {
 public:
  explicit CublasLt(cuda::CudaExec& exec) : workspace_(exec.scratch(64 << 20)) {
    void* library = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if (!library) library = dlopen(name, RTLD_NOW);
    if (!library) throw Failure("BENCH", "there is no libcublasLt");
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
    };
    find(create_, "cublasLtCreate"), find(desc_, "cublasLtMatmulDescCreate"),
        find(set_, "cublasLtMatmulDescSetAttribute"), find(layout_, "cublasLtMatrixLayoutCreate");
    find(preference_, "cublasLtMatmulPreferenceCreate"), find(prefer_, "cublasLtMatmulPreferenceSetAttribute"),
        find(heuristic_, "cublasLtMatmulAlgoGetHeuristic");
    find(matmul_, "cublasLtMatmul");
    ok(create_(&handle_), "create");
  }
  enum Kind { kInt8, kFp8, kFp8Fast };
  // A product ready to run; the algorithm is the heuristic's first.
  std::function<void(const void* x, const void* w, void* y)> product(cuda::CudaExec& exec, Kind kind, int64_t m,
                                                                     int64_t n, int64_t k) {
    void *desc = nullptr, *a = nullptr, *b = nullptr, *d = nullptr, *preference = nullptr;
    const bool integer = kind == kInt8;
    const int type = integer ? 3 : 28, out = integer ? 10 : 2, transpose = 1;
    ok(desc_(&desc, integer ? 72 : 68, integer ? 10 : 0), "desc");
    ok(set_(desc, 3, &transpose, sizeof(transpose)), "transposition");
    const int8_t fast = kind == kFp8Fast;
    if (!integer) ok(set_(desc, 25, &fast, sizeof(fast)), "fast accumulation");
    ok(layout_(&a, type, static_cast<uint64_t>(k), static_cast<uint64_t>(n), k), "layout");
    ok(layout_(&b, type, static_cast<uint64_t>(k), static_cast<uint64_t>(m), k), "layout");
    ok(layout_(&d, out, static_cast<uint64_t>(n), static_cast<uint64_t>(m), n), "layout");
    ok(preference_(&preference), "preference");
    const size_t bytes = workspace_.bytes();
    ok(prefer_(preference, 1, &bytes, sizeof(bytes)), "workspace");
    struct alignas(16) Result {
      char algo[64];
      size_t workspace;
      int state;
      float waves;
      int reserved[4];
    };
    auto result = std::make_shared<Result>();
    int found = 0;
    ok(heuristic_(handle_, desc, a, b, d, d, preference, 1, result.get(), &found), "heuristic");
    if (found == 0) throw Failure("BENCH", "cuBLAS has no such product");
    return [=, this, &exec](const void* x, const void* w, void* y) {
      const int one_i = 1, zero_i = 0;
      const float one = 1, zero = 0;
      const void *alpha = integer ? static_cast<const void*>(&one_i) : &one,
                 *beta = integer ? static_cast<const void*>(&zero_i) : &zero;
      ok(matmul_(handle_, desc, alpha, w, a, x, b, beta, y, d, y, d, result->algo, workspace_.as<void>(), bytes,
                 exec.stream()),
         "product");
    };
  }

 private:
  static void ok(int status, const char* what) {
    if (status != 0) throw Failure("BENCH", std::string("cublasLt ") + what + " failed with " + std::to_string(status));
  }
  cuda::Scratch workspace_;
  void* handle_ = nullptr;
  int (*create_)(void**) = nullptr;
  int (*desc_)(void**, int, int) = nullptr;
  int (*set_)(void*, int, const void*, size_t) = nullptr;
  int (*layout_)(void**, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*preference_)(void**) = nullptr;
  int (*prefer_)(void*, int, const void*, size_t) = nullptr;
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, void*, int*) = nullptr;
  int (*matmul_)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                 void*, void*, const void*, void*, size_t, cuda::CUstream) = nullptr;
};

}  // namespace lpq::test
