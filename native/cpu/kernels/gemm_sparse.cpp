// gemm_sparse_marlin on the CPU (contract: native/ops.ts): what the CUDA kernel is to compute, plainly. Where a code,
// its place and its scale lie comes from the closed forms in which the format is published (docs/sparsity.md), one
// element at a time: nothing of the packer's layouts, of the kernel's loads or of the verifier's tables is used.
// Every weight is a number in f32, every output element one chain of fma over the weights that stay, ascending in k,
// then the bias.
#include <cmath>
#include <vector>

#include "lpq/checks.h"
#include "lpq/exec.h"
#include "lpq/half.h"

namespace lpq {
namespace {

float number(const Tensor& tensor, int64_t at) {
  const uint16_t bits = tensor.data<uint16_t>()[at];
  return tensor.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void gemm_sparse_marlin(Call& call, Exec& exec) {
  const Params& p = call.params;
  const int64_t bits = p.integer("bits"), group = p.integer("groupLength", 0);
  require(bits == 4 || bits == 8, "bits is not 4 or 8");
  require(group == 0 || group == 128, "groupLength is not 0 (one scale a row) or 128");
  const Tensor &x = call.input(0), &weights = call.input(1), &metadata = call.input(2), &scales = call.input(3),
               &y = call.output(0);
  const Tensor* bias = p.integer("hasBias", 0) != 0 ? &call.input(4) : nullptr;
  require_dtype(x, "x", {DType::f16, DType::bf16});
  require_shape(x, "x", {-1, -1});
  const int64_t m = x.dim(0), k = x.dim(1);
  require_tensor(y, "y", x.dtype, {m, -1});
  const int64_t n = y.dim(1);
  require(k >= 1, "K is 0");
  if (bias) require_tensor(*bias, "bias", x.dtype, {n});
  require_dtype(metadata, "metadata", {DType::i16});
  require_shape(metadata, "metadata", {-1, -1});
  const int64_t k_pad = metadata.dim(0) * 32, n_pad = metadata.dim(1) / 2;
  require(metadata.dim(1) % 128 == 0 && k_pad % 128 == 0 && n_pad >= n && k_pad >= k,
          "metadata is not of whole tiles of 64 columns and 128 rows that hold N and K");
  require_tensor(weights, "weights", DType::i32, {k_pad / 32, n_pad * bits / 2});
  const int64_t groups = group == 0 ? 1 : k_pad / group;
  require_tensor(scales, "scales", DType::f16, {groups, n_pad});

  std::vector<float> activations(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m * k; ++i) activations[static_cast<size_t>(i)] = number(x, i);
  const auto* words = reinterpret_cast<const uint32_t*>(weights.raw());
  const auto* places = reinterpret_cast<const uint16_t*>(metadata.raw());
  const int64_t kept = k_pad / 2;
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // of a feature modulo 8 among the scales of its eight
  uint16_t* out = y.data<uint16_t>();
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
        if (bias) sum += number(*bias, c);
        out[i * n + c] = x.dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
      }
    }
  });
}
LPQ_OP(gemm_sparse_marlin, "gemm_sparse_marlin");

}  // namespace
}  // namespace lpq
