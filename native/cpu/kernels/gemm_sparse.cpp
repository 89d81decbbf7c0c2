// gemm_sparse_marlin on the CPU: what the CUDA kernel is to compute, plainly (sparse.h). Every weight is a number in
// f32, every output element one chain of fma over the weights that stay, ascending in k, then the bias.
#include <cmath>
#include <vector>

#include "cpu/kernels/elements.h"
#include "cpu/kernels/sparse.h"

namespace lpq {
namespace {

void gemm_sparse_marlin(Call& call, Exec& exec) {
  const ops::GemmSparseMarlin p(call);
  const int64_t m = p.m, n = p.n, k = p.k, kept = p.k_pad / 2;
  std::vector<float> activations(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m * k; ++i) activations[static_cast<size_t>(i)] = number_at(p.x, i);
  uint16_t* out = p.y.data<uint16_t>();
  exec.pool.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
    std::vector<float> weight(static_cast<size_t>(kept));
    std::vector<int64_t> column(static_cast<size_t>(kept));
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t kc = 0; kc < kept; ++kc) {
        const SparseElement element = sparse_element(p, c, kc);
        column[static_cast<size_t>(kc)] = element.column;
        weight[static_cast<size_t>(kc)] = static_cast<float>(static_cast<int>(element.code) - (1 << (p.bits - 1))) *
                                          sparse_scale(p, c, element.column / 128);
      }
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t kc = 0; kc < kept; ++kc) {
          const int64_t at = column[static_cast<size_t>(kc)];
          if (at < k)
            sum = std::fma(activations[static_cast<size_t>(i * k + at)], weight[static_cast<size_t>(kc)], sum);
        }
        if (p.bias) sum += number_at(*p.bias, c);
        out[i * n + c] = p.x.dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
      }
    }
  });
}
LPQ_OP(gemm_sparse_marlin, "gemm_sparse_marlin");

}  // namespace
}  // namespace lpq
