// gemm_packed, gemm_marlin and gemm_turbomind on the CPU: what the CUDA kernels are to compute, plainly, from elements
// (elements.h). Every weight is a number in f32, every output element one chain of fma over ascending k, then the bias.
#include <cmath>
#include <vector>

#include "cpu/kernels/elements.h"
#include "lpq/half.h"

namespace lpq {

void multiply_sums(const Elements& w, const Call& call, Exec& exec,
                   const std::function<void(int64_t, int64_t, float)>& store) {
  const Tensor& x = call.in[0];
  const int64_t m = x.dim(0), k = w.k, n = w.n;
  std::vector<float> activations(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < k; ++j)
      activations[static_cast<size_t>(i * k + j)] =
          number_at(x, i * k + (w.permutation ? w.permutation->data<int32_t>()[j] : j));
  exec.pool.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t c = begin; c < end; ++c) {
      w.weights(c, row.data());
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t j = 0; j < k; ++j)
          sum = std::fma(activations[static_cast<size_t>(i * k + j)], row[static_cast<size_t>(j)], sum);
        if (w.bias) sum += number_at(*w.bias, c);
        store(i, c, sum);
      }
    }
  });
}

void multiply_elements(const Elements& w, const Call& call, Exec& exec) {
  uint16_t* out = call.out[0].data<uint16_t>();
  const bool half = call.out[0].dtype == DType::f16;
  multiply_sums(w, call, exec,
                [&](int64_t m, int64_t n, float sum) { out[m * w.n + n] = half ? f32_to_f16(sum) : f32_to_bf16(sum); });
}

namespace {

void gemm_packed(Call& call, Exec& exec) { multiply_elements(*elements_of("gemm_packed", call), call, exec); }
void gemm_marlin(Call& call, Exec& exec) { multiply_elements(*elements_of("gemm_marlin", call), call, exec); }
void gemm_turbomind(Call& call, Exec& exec) { multiply_elements(*elements_of("gemm_turbomind", call), call, exec); }

LPQ_OP(gemm_packed, "gemm_packed");
LPQ_OP(gemm_marlin, "gemm_marlin");
LPQ_OP(gemm_turbomind, "gemm_turbomind");

}  // namespace
}  // namespace lpq
