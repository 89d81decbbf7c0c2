// What launchers of products make for their kernels: rows of activations as those read them, and room for sums that
// blocks share.
#pragma once
#include "cuda/launch.h"

namespace lpq::cuda {

// Rows of x in 16 bits at multiples of 16 bytes, of whole `unit`s of columns: x as it lies, or a copy, which has zeros
// behind K. With `order` I32 [K] column j is x's column order[j]; one that x does not have fails with
// LPQ_NATIVE_ARGUMENT.
struct PaddedRows {
  const uint16_t* x;
  int k;  // columns, and from one row to the next
  std::optional<Scratch> made;
  PaddedRows(const Tensor& from, int64_t unit, const Tensor* order, CudaExec& exec);
};

// `bytes` for a.partial and `counters` words for a.counters.
template <class Args>
[[nodiscard]] Scratch share_sums(Args& a, int64_t bytes, int64_t counters, CudaExec& exec) {
  Scratch partial = exec.scratch(static_cast<size_t>(bytes));
  a.partial = partial.as<float>();
  a.counters = exec.counters(static_cast<size_t>(counters));
  return partial;
}

// Rows of y [M, N] in 16 bits start at multiples of 16 bytes.
inline bool vector_rows(const void* y, int64_t n) { return n % 8 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0; }

// What createpolicy.fractional.L2::evict_first would give for all of an access.
constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;
// 1024 in f16, or 128 in bf16, twice: a code or-ed into it is that much more.
inline unsigned magic_of(DType x) { return x == DType::f16 ? 0x64006400u : 0x43004300u; }

}  // namespace lpq::cuda
