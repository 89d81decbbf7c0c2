#include "cpu/linalg/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <string>

namespace lpq::linalg {
namespace {

// CBLAS with 32-bit integers: order, transposes, sizes, then the operands.
template <class T>
using Gemm = void (*)(int, int, int, int, int, int, T, const T*, int, const T*, int, T, T*, int);
constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;

struct Library {
  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;
  void (*set_threads)(int) = nullptr;
};

Library open_library() {
  Library library;
  const char* wish = std::getenv("LPQ_BLAS");
  if (!wish || !*wish || std::string(wish) == "builtin") return library;
  if (std::string(wish) != "openblas")
    throw Failure("LPQ_NATIVE_BLAS", "LPQ_BLAS is '" + std::string(wish) + "', not builtin or openblas");
  std::string searched;
  for (const char* name : {"libopenblas.so.0", "libopenblas.so"}) {
    void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* reason = ::dlerror();
      searched += (searched.empty() ? "" : "; ") + std::string(reason ? reason : name);
      continue;
    }
    library.sgemm = reinterpret_cast<Gemm<float>>(::dlsym(handle, "cblas_sgemm"));
    library.dgemm = reinterpret_cast<Gemm<double>>(::dlsym(handle, "cblas_dgemm"));
    library.set_threads = reinterpret_cast<void (*)(int)>(::dlsym(handle, "openblas_set_num_threads"));
    if (library.sgemm && library.dgemm) return library;
    searched += (searched.empty() ? "" : "; ") + std::string(name) + " lacks cblas_sgemm or cblas_dgemm";
    ::dlclose(handle);
  }
  throw Failure("LPQ_NATIVE_BLAS", "LPQ_BLAS=openblas, but no OpenBLAS can be loaded: " + searched);
}

const Library& library() {
  static const Library instance = open_library();  // tried again after a failure
  return instance;
}

template <class T>
void slabs(ThreadPool& pool, Gemm<T> gemm, Trans a, Trans b, int64_t m, int64_t n, int64_t k, T alpha, const T* A,
           int64_t lda, const T* B, int64_t ldb, T beta, T* C, int64_t ldc) {
  if (library().set_threads) library().set_threads(pool.size());
  const int64_t rows =
      std::max<int64_t>(64, static_cast<int64_t>(2e9 / (static_cast<double>(n) * static_cast<double>(k))));
  for (int64_t i = 0; i < m; i += rows) {
    if (pool.aborted()) throw Failure("LPQ_ABORTED", "stopped on request");
    gemm(kRowMajor, a == Trans::yes ? kTrans : kNoTrans, b == Trans::yes ? kTrans : kNoTrans,
         static_cast<int>(std::min(rows, m - i)), static_cast<int>(n), static_cast<int>(k), alpha,
         a == Trans::yes ? A + i : A + i * lda, static_cast<int>(lda), B, static_cast<int>(ldb), beta, C + i * ldc,
         static_cast<int>(ldc));
  }
}

}  // namespace

bool blas_takes(int64_t m, int64_t n, int64_t k) {
  if (!library().sgemm) return false;
  return std::max({m, n, k}) < INT_MAX &&
         static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) >= 1e7;
}

void blas_gemm(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, float alpha, const float* A,
               int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  slabs<float>(pool, library().sgemm, a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

void blas_gemm(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, double alpha, const double* A,
               int64_t lda, const double* B, int64_t ldb, double beta, double* C, int64_t ldc) {
  slabs<double>(pool, library().dgemm, a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

}  // namespace lpq::linalg
