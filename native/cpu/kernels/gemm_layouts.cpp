// gemm_marlin and gemm_turbomind on the CPU: what the CUDA kernels are to compute, plainly.
// Where an element lies comes from the closed forms in which the formats are published (docs/internals/layouts), one
// element at a time: nothing of the packer's layouts, of the kernels' loads or of the verifier's tables is used. Every
// weight is a number in f32, every output element one chain of fma over ascending k, then the bias.
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "lpq/half.h"
#include "ops/gemm_marlin.h"
#include "ops/gemm_turbomind.h"

namespace lpq {
namespace {

float element(const Tensor& tensor, int64_t at) {
  switch (tensor.dtype) {
    case DType::f16: return f16_to_f32(tensor.data<uint16_t>()[at]);
    case DType::bf16: return bf16_to_f32(tensor.data<uint16_t>()[at]);
    default: return tensor.data<float>()[at];
  }
}

uint32_t word_of(const Tensor& tensor, int64_t at) { return static_cast<uint32_t>(tensor.data<int32_t>()[at]); }

// Nibble i of a word holds value v of a fragment: v0 v2 v4 v6 v1 v3 v5 v7 from the lowest. Bytes: v0 v2 v1 v3.
int nibble_of(int v) { return v / 2 + 4 * (v & 1); }
int byte_of(int v) { return v / 2 + 2 * (v & 1); }

// weight(n, k) of all k into a row, for every n; then the products.
void multiply(const Tensor& x, const Tensor* order, const Tensor* bias, const Tensor& y, Exec& exec,
              const std::function<void(int64_t n, float* row)>& weights) {
  const int64_t m = x.dim(0), k = x.dim(1), n = y.dim(1);
  std::vector<float> activations(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < k; ++j)
      activations[static_cast<size_t>(i * k + j)] = element(x, i * k + (order ? order->data<int32_t>()[j] : j));
  uint16_t* out = y.data<uint16_t>();
  exec.pool.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t c = begin; c < end; ++c) {
      weights(c, row.data());
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t j = 0; j < k; ++j)
          sum = std::fma(activations[static_cast<size_t>(i * k + j)], row[static_cast<size_t>(j)], sum);
        if (bias) sum += element(*bias, c);
        out[i * n + c] = x.dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
      }
    }
  });
}

void gemm_marlin(Call& call, Exec& exec) {
  const ops::GemmMarlin p(call);
  const int64_t bits = p.bits, groups = p.groups, n_pad = p.n_pad;
  const Tensor& weights = p.weights;
  if (p.permutation)
    for (int64_t j = 0; j < p.k; ++j)
      require(p.permutation->data<int32_t>()[j] >= 0 && p.permutation->data<int32_t>()[j] < p.k,
              "the permutation names a column that x does not have");
  multiply(p.x, p.permutation, p.bias, p.y, exec, [&](int64_t n, float* row) {
    const int64_t nt = n / 64, j = n % 64 / 16, c = n % 16;
    for (int64_t k = 0; k < p.k; ++k) {
      const int64_t kt = k / 16, kr = k % 16, lane = 4 * (c % 8) + kr % 8 / 2;
      uint32_t code;
      if (bits == 4)
        code =
            word_of(weights, kt * 2 * n_pad + nt * 128 + lane * 4 + j) >> (4 * (4 * (kr & 1) + 2 * (c / 8) + kr / 8)) &
            15;
      else
        code = word_of(weights, kt * 4 * n_pad + nt * 256 + lane * 8 + 2 * j + c / 8) >> (8 * (2 * (kr & 1) + kr / 8)) &
               255;
      const int64_t g = groups == 1 ? 0 : k / p.group_size, in64 = n % 64, in32 = n % 32;
      const int64_t position = groups == 1 ? n - in32 + 8 * (in32 % 8 / 2) + 2 * (in32 / 8) + in32 % 2
                                           : n - in64 + 8 * (in64 % 8) + in64 / 8;
      uint32_t zero = 1u << (bits - 1);
      if (p.zeros && bits == 4)
        zero = word_of(*p.zeros, g * (n_pad / 8) + nt * 8 + n % 8) >> (4 * nibble_of(static_cast<int>(in64 / 8))) & 15;
      if (p.zeros && bits == 8)
        zero = word_of(*p.zeros, g * (n_pad / 4) + nt * 16 + n % 8 * 2 + in64 / 32) >>
                   (8 * byte_of(static_cast<int>(in64 / 8 % 4))) &
               255;
      row[k] = (static_cast<float>(code) - static_cast<float>(zero)) * element(p.scales, g * n_pad + position);
    }
  });
}
LPQ_OP(gemm_marlin, "gemm_marlin");

void gemm_turbomind(Call& call, Exec& exec) {
  const ops::GemmTurbomind p(call);
  const bool integer = p.integers, experts = p.experts;
  const int64_t bits = p.type.bits, k_tiles = p.k / 16, n_pad = p.n_pad;
  const Tensor &weights = p.weights, &scales = p.scales;
  multiply(p.x, nullptr, p.bias, p.y, exec, [&](int64_t n, float* row) {
    const int64_t side = n / 16 * 16 + n % 8 * 2 + n % 16 / 8;  // of a column's scale in its row
    for (int64_t k = 0; k < p.k; ++k) {
      const int64_t kt = k / 16, lane = 4 * (n % 8) + k % 8 / 2;
      const int e = static_cast<int>(k % 2), upper_n = static_cast<int>(n % 16 / 8),
                upper_k = static_cast<int>(k % 16 / 8);
      const int64_t at = k / p.group_size * n_pad + side;
      uint32_t code;
      if (integer) {  // operand B: values 4s + 2c + e, two tiles a lane
        const int64_t tile = experts ? n / 32 * k_tiles + kt : kt * (n_pad / 32) + n / 32, pair = n % 32 / 16;
        const int v = 4 * upper_n + 2 * upper_k + e;
        if (bits == 4) code = word_of(weights, (tile * 32 + lane) * 2 + pair) >> (4 * nibble_of(v)) & 15;
        else code = word_of(weights, (tile * 32 + lane) * 4 + 2 * pair + v / 4) >> (8 * byte_of(v % 4)) & 255;
        // fma(q, s, t)
        row[k] = std::fma(static_cast<float>(code), element(scales, 2 * at), element(scales, 2 * at + 1));
      } else {  // operand A: register j = (n + 8) + 2 (k + 8)
        const int64_t tile = kt * (n_pad / 16) + n / 16;
        const int v = 2 * (upper_n + 2 * upper_k) + e;
        if (bits == 4) code = word_of(weights, tile * 32 + lane) >> (4 * nibble_of(v)) & 15;
        else code = word_of(weights, (tile * 32 + lane) * 2 + v / 4) >> (8 * byte_of(v % 4)) & 255;
        float scale;
        if (bits == 4) {
          const int power = reinterpret_cast<const uint8_t*>(scales.raw())[at];
          scale = power == 255 ? std::nanf("") : std::ldexp(1.0f, power - 127);
        } else {
          scale = element(scales, at);
        }
        row[k] = p.type.decode(code) * scale;
      }
    }
  });
}
LPQ_OP(gemm_turbomind, "gemm_turbomind");

}  // namespace
}  // namespace lpq
