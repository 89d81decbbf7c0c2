// Products over packed codes on the CPU through liblpq_kernels' C interface, beside what the processor can do: bytes
// read from memory and fused multiply-adds in the same threads. Everything is timed in turn, round after round, and the
// best time of each counts, so that load on the machine hits all alike.
//   bench_packed THREADS ROUNDS LIBRARY [LIBRARY...]     one line of JSON a measurement
#include <dlfcn.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lpq_kernels.h"

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds that `threads` take for `work`, from when all of them are there.
double on(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0}, done{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i)
    others.emplace_back([&, i] {
      for (++ready; !go;) {
      }
      work(i), ++done;
    });
  while (ready < threads - 1) {
  }
  const double start = seconds();
  go = true;
  work(0);
  while (done < threads - 1) {
  }
  const double took = seconds() - start;
  for (auto& each : others) each.join();
  return took;
}

volatile float sink;

// Bytes a second that `threads` read of a buffer beyond every cache, 4 MiB each at `piece`: as short as a product.
double read_rate(int threads, const std::vector<float>& buffer, size_t piece) {
  constexpr size_t kShare = size_t{1} << 20;
  const double took = on(threads, [&](int t) {
    const size_t at = (piece * static_cast<size_t>(threads) + static_cast<size_t>(t)) % (buffer.size() / kShare);
    const float* from = buffer.data() + at * kShare;
    __m256 sum[8] = {};
    for (size_t i = 0; i < kShare; i += 64)
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) sum[j] = _mm256_add_ps(sum[j], _mm256_loadu_ps(from + i + 8 * j));
    for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_ps(sum[0], sum[j]);
    sink = _mm256_cvtss_f32(sum[0]);
  });
  return static_cast<double>(kShare * 4 * static_cast<size_t>(threads)) / took;
}

// Whether the library computes with AVX-512 here (LPQ_ISA), so that its peak is the one to compare with.
bool wide_units() {
  const char* wish = std::getenv("LPQ_ISA");
  return __builtin_cpu_supports("avx512f") && (!wish || std::string(wish) == "avx512");
}

constexpr int64_t kSteps = 20'000;

__attribute__((target("avx512f"))) void wide_steps() {
  __m512 sum[10];
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (auto& each : sum) each = y;
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 10
    for (auto& each : sum) each = _mm512_fmadd_ps(each, x, y);
  }
  for (int j = 1; j < 10; ++j) sum[0] = _mm512_add_ps(sum[0], sum[j]);
  sink = _mm512_cvtss_f32(sum[0]);
}

void narrow_steps() {
  __m256 sum[10];
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (auto& each : sum) each = y;
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 10
    for (auto& each : sum) each = _mm256_fmadd_ps(each, x, y);
  }
  for (int j = 1; j < 10; ++j) sum[0] = _mm256_add_ps(sum[0], sum[j]);
  sink = _mm256_cvtss_f32(sum[0]);
}

// Fused multiply-adds of f32 a second, in registers.
double fma_rate(int threads) {
  const bool wide = wide_units();
  const double took = on(threads, [&](int) { wide ? wide_steps() : narrow_steps(); });
  return static_cast<double>(kSteps * 10 * (wide ? 16 : 8) * threads) / took;
}

struct Library {
  decltype(&lpq_cpu_codes_bytes) codes_bytes;
  decltype(&lpq_cpu_codes_pack) codes_pack;
  decltype(&lpq_cpu_gemm) gemm;
  explicit Library(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) std::fprintf(stderr, "%s\n", dlerror()), std::exit(1);
    codes_bytes = reinterpret_cast<decltype(codes_bytes)>(dlsym(handle, "lpq_cpu_codes_bytes"));
    codes_pack = reinterpret_cast<decltype(codes_pack)>(dlsym(handle, "lpq_cpu_codes_pack"));
    gemm = reinterpret_cast<decltype(gemm)>(dlsym(handle, "lpq_cpu_gemm"));
  }
};

struct Shape {
  const char* model;
  int64_t n, k;
};
struct Type {
  const char* name;
  int bits;
  double zero;
};

// What a decoder's linears are: SmolLM2-135M's, and those of an 8B Llama.
constexpr Shape kShapes[] = {{"SmolLM2-135M", 576, 576}, {"SmolLM2-135M", 1536, 576}, {"SmolLM2-135M", 576, 1536},
                             {"8B", 4096, 4096},         {"8B", 1024, 4096},          {"8B", 4096, 14336}};
constexpr Type kTypes[] = {{"u1", 1, 0.5},   {"u2", 2, 2},     {"u3", 3, 4},     {"u4", 4, 8},     {"i4", 4, 0},
                           {"u5", 5, 16},    {"u6", 6, 32},    {"u7", 7, 64},    {"u8", 8, 128},   {"f3e1m1", 3, 0},
                           {"f4e2m1", 4, 0}, {"f5e2m2", 5, 0}, {"f6e3m2", 6, 0}, {"f7e3m3", 7, 0}, {"f8e4m3", 8, 0}};

class Blocks {
 public:
  // Copies of one weight, together beyond the caches, so that each product reads memory.
  Blocks(const Library& library, const lpq_cpu_codes& codes, int threads) {
    if (library.codes_bytes(&codes, &size_) != LPQ_OK) std::fprintf(stderr, "codes_bytes\n"), std::exit(1);
    size_ = (size_ + 63) / 64 * 64;
    count_ = std::clamp<size_t>((size_t{96} << 20) / size_, 2, 512);
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, size_ * count_));
    if (library.codes_pack(&codes, memory_, size_, threads) != LPQ_OK)
      std::fprintf(stderr, "codes_pack\n"), std::exit(1);
    for (size_t i = 1; i < count_; ++i) std::copy(memory_, memory_ + size_, memory_ + i * size_);
  }
  Blocks(const Blocks&) = delete;
  ~Blocks() { std::free(memory_); }
  const void* next() { return memory_ + size_ * (at_++ % count_); }
  size_t size() const { return size_; }

 private:
  uint8_t* memory_ = nullptr;
  size_t size_ = 0, count_ = 0, at_ = 0;
};

void measure(const std::vector<Library>& libraries, const Shape& shape, const Type& type, int threads, int rounds,
             const std::vector<float>& buffer) {
  constexpr int64_t kGroup = 64;
  std::mt19937 draw(1);
  std::vector<uint8_t> codes(static_cast<size_t>(shape.n * shape.k));
  for (auto& code : codes) code = static_cast<uint8_t>(draw() >> (32 - type.bits));
  const std::vector<float> scales(static_cast<size_t>(shape.n * (shape.k / kGroup)), 0.01f);
  lpq_cpu_codes given{};
  given.size = sizeof given, given.type = type.name, given.n = shape.n, given.k = shape.k, given.group = kGroup;
  given.codes = codes.data(), given.scales = scales.data(), given.zero = type.zero;
  std::vector<float> x(static_cast<size_t>(16 * shape.k)), y(static_cast<size_t>(16 * shape.n));
  for (auto& each : x) each = static_cast<float>(draw()) / 4e9f - 0.5f;
  std::vector<Blocks*> blocks;
  for (const Library& library : libraries) blocks.push_back(new Blocks(library, given, threads));
  for (const int64_t m : {1, 16}) {
    std::vector<double> best(libraries.size(), 1e9);
    double memory = 0, peak = 0;
    for (int round = 0; round < rounds; ++round) {
      for (size_t l = 0; l < libraries.size(); ++l)
        for (int again = 0; again < 3; ++again) {
          const void* block = blocks[l]->next();
          const double start = seconds();
          libraries[l].gemm(block, blocks[l]->size(), m, LPQ_F32, x.data(), y.data(), threads);
          best[l] = std::min(best[l], seconds() - start);
        }
      memory = std::max(memory, read_rate(threads, buffer, static_cast<size_t>(round)));
      peak = std::max(peak, fma_rate(threads));
    }
    std::printf(
        "{\"model\": \"%s\", \"n\": %lld, \"k\": %lld, \"type\": \"%s\", \"m\": %lld, \"threads\": %d, "
        "\"bytes\": %zu, \"memory\": %.4g, \"peak\": %.4g, \"seconds\": [",
        shape.model, static_cast<long long>(shape.n), static_cast<long long>(shape.k), type.name,
        static_cast<long long>(m), threads, blocks[0]->size(), memory, peak);
    for (size_t l = 0; l < best.size(); ++l) std::printf("%s%.4g", l ? ", " : "", best[l]);
    std::printf("]}\n");
    std::fflush(stdout);
  }
  for (Blocks* each : blocks) delete each;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "bench_packed THREADS ROUNDS LIBRARY...\n"), 2;
  const int threads = std::atoi(argv[1]), rounds = std::atoi(argv[2]);
  std::vector<Library> libraries(argv + 3, argv + argc);
  const std::vector<float> buffer(size_t{32} << 20, 1.0f);
  const char* only = std::getenv("BENCH_ONLY");  // a type, or a shape NxK
  for (const Shape& shape : kShapes)
    for (const Type& type : kTypes) {
      const std::string named = std::to_string(shape.n) + "x" + std::to_string(shape.k);
      if (!only || std::string(only).find(type.name) != std::string::npos ||
          std::string(only).find(named) != std::string::npos)
        measure(libraries, shape, type, threads, rounds, buffer);
    }
  return 0;
}
