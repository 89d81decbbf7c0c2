// gemm_sparse_marlin on the CPU: what the CUDA kernel is to compute, plainly. Where a code,
// its place and its scale lie comes from the closed forms in which the format is published
// (docs/internals/layouts/sparse-marlin.md), one element at a time: nothing of the packer's layouts, of the kernel's
// loads or of the verifier's tables is used. Every weight is a number in f32, every output element one chain of fma
// over the weights that stay, ascending in k, then the bias.
#include <cmath>
#include <vector>

#include "lpq/half.h"
#include "ops/gemm_sparse_marlin.h"

namespace lpq {
namespace {

float number(const Tensor& tensor, int64_t at) {
  const uint16_t bits = tensor.data<uint16_t>()[at];
  return tensor.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void gemm_sparse_marlin(Call& call, Exec& exec) {
  const ops::GemmSparseMarlin p(call);
  const int64_t bits = p.bits, groups = p.groups, m = p.m, n = p.n, k = p.k, n_pad = p.n_pad;
  const Tensor& scales = p.scales;
  std::vector<float> activations(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m * k; ++i) activations[static_cast<size_t>(i)] = number(p.x, i);
  const auto* words = reinterpret_cast<const uint32_t*>(p.weights.raw());
  const auto* places = reinterpret_cast<const uint16_t*>(p.metadata.raw());
  const int64_t kept = p.k_pad / 2;
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // of a feature modulo 8 among the scales of its eight
  uint16_t* out = p.y.data<uint16_t>();
  exec.pool.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
    std::vector<float> weight(static_cast<size_t>(kept));
    std::vector<int64_t> column(static_cast<size_t>(kept));
    for (int64_t c = begin; c < end; ++c) {
      const int64_t nt = c / 64, in64 = c % 64 / 8, below = c % 8 / 4, j = c % 4;
      for (int64_t kc = 0; kc < kept; ++kc) {
        const int64_t kt = kc / 16, kr = kc % 16, lane = 4 * in64 + kr % 8 / 2, quad = kc / 2;
        uint32_t code;
        if (bits == 4)
          code = words[kt * 2 * n_pad + nt * 128 + lane * 4 + j] >> (4 * (4 * (kr & 1) + 2 * below + kr / 8)) & 15;
        else code = words[kt * 4 * n_pad + nt * 256 + lane * 8 + 2 * j + below] >> (8 * (2 * (kr & 1) + kr / 8)) & 255;
        const int64_t word = quad / 4, at = word / 2 * 2 * n_pad + nt * 128 + 64 * (c >> 1 & 1) + 8 * in64 +
                                            4 * (c & 1) + 2 * (word % 2) + (c >> 2 & 1);
        column[static_cast<size_t>(kc)] = 4 * quad + (places[at] >> (4 * (quad % 4) + 2 * (kc % 2)) & 3);
        const float scale =
            groups == 1 ? number(scales, c) : number(scales, 4 * quad / 128 * n_pad + c / 8 * 8 + kOrder[c % 8]);
        weight[static_cast<size_t>(kc)] = static_cast<float>(static_cast<int>(code) - (1 << (bits - 1))) * scale;
      }
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t kc = 0; kc < kept; ++kc) {
          const int64_t at = column[static_cast<size_t>(kc)];
          if (at < k)
            sum = std::fma(activations[static_cast<size_t>(i * k + at)], weight[static_cast<size_t>(kc)], sum);
        }
        if (p.bias) sum += number(*p.bias, c);
        out[i * n + c] = p.x.dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
      }
    }
  });
}
LPQ_OP(gemm_sparse_marlin, "gemm_sparse_marlin");

}  // namespace
}  // namespace lpq
