// gemm_marlin and gemm_turbomind on the CPU (contract: native/ops.ts): what the CUDA kernels are to compute, plainly.
// Where an element lies comes from the closed forms in which the formats are published (docs/layouts.md), one element
// at a time: nothing of the packer's layouts, of the kernels' loads or of the verifier's tables is used. Every weight
// is a number in f32, every output element one chain of fma over ascending k, then the bias.
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "lpq/checks.h"
#include "lpq/exec.h"
#include "lpq/half.h"
#include "lpq/quant_type.h"

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

struct Product {
  const Tensor &x, &y;
  const Tensor* bias = nullptr;
  int64_t m, n, k, group;
};
Product product_of(Call& call, size_t bias_at) {
  const Params& p = call.params;
  Product out{call.input(0), call.output(0), nullptr, 0, 0, 0, p.integer("groupLength", 0)};
  require_dtype(out.x, "x", {DType::f16, DType::bf16});
  require_shape(out.x, "x", {-1, -1});
  out.m = out.x.dim(0), out.k = out.x.dim(1);
  require_tensor(out.y, "y", out.x.dtype, {out.m, -1});
  out.n = out.y.dim(1);
  require(out.k >= 1, "K is 0");
  if (p.integer("hasBias", 0) != 0) {
    out.bias = &call.input(bias_at);
    require_tensor(*out.bias, "bias", out.x.dtype, {out.n});
  }
  return out;
}

void gemm_marlin(Call& call, Exec& exec) {
  const Params& p = call.params;
  const int64_t bits = p.integer("bits");
  require(bits == 4 || bits == 8, "bits is not 4 or 8");
  const Tensor &weights = call.input(1), &scales = call.input(2);
  size_t next = 3;
  const Tensor* zeros = p.integer("hasZeros", 0) != 0 ? &call.input(next++) : nullptr;
  const Tensor* order = p.integer("hasOrder", 0) != 0 ? &call.input(next++) : nullptr;
  const Product product = product_of(call, next);
  const int64_t group = product.group;
  require(group == 0 || group == 32 || group == 64 || group == 128,
          "groupLength is not 0 (one scale a row), 32, 64 or 128");
  require_dtype(weights, "weights", {DType::i32});
  require_shape(weights, "weights", {-1, -1});
  const int64_t k_pad = weights.dim(0) * 16, n_pad = weights.dim(1) * 2 / bits;
  require(weights.dim(1) % (32 * bits) == 0 && weights.dim(0) % 2 == 0 && n_pad >= product.n && k_pad >= product.k,
          "weights are not whole tiles of 64 columns and 32 rows that hold N and K");
  const int64_t groups = group == 0 ? 1 : (k_pad + group - 1) / group;
  require_tensor(scales, "scales", DType::f16, {groups, n_pad});
  if (zeros) require_tensor(*zeros, "zeros", DType::i32, {groups, n_pad * bits / 32});
  if (order) {
    require_tensor(*order, "permutation", DType::i32, {product.k});
    for (int64_t j = 0; j < product.k; ++j)
      require(order->data<int32_t>()[j] >= 0 && order->data<int32_t>()[j] < product.k,
              "the permutation names a column that x does not have");
  }
  multiply(product.x, order, product.bias, product.y, exec, [&](int64_t n, float* row) {
    const int64_t nt = n / 64, j = n % 64 / 16, c = n % 16;
    for (int64_t k = 0; k < product.k; ++k) {
      const int64_t kt = k / 16, kr = k % 16, lane = 4 * (c % 8) + kr % 8 / 2;
      uint32_t code;
      if (bits == 4)
        code =
            word_of(weights, kt * 2 * n_pad + nt * 128 + lane * 4 + j) >> (4 * (4 * (kr & 1) + 2 * (c / 8) + kr / 8)) &
            15;
      else
        code = word_of(weights, kt * 4 * n_pad + nt * 256 + lane * 8 + 2 * j + c / 8) >> (8 * (2 * (kr & 1) + kr / 8)) &
               255;
      const int64_t g = groups == 1 ? 0 : k / group, in64 = n % 64, in32 = n % 32;
      const int64_t position = groups == 1 ? n - in32 + 8 * (in32 % 8 / 2) + 2 * (in32 / 8) + in32 % 2
                                           : n - in64 + 8 * (in64 % 8) + in64 / 8;
      uint32_t zero = 1u << (bits - 1);
      if (zeros && bits == 4)
        zero = word_of(*zeros, g * (n_pad / 8) + nt * 8 + n % 8) >> (4 * nibble_of(static_cast<int>(in64 / 8))) & 15;
      if (zeros && bits == 8)
        zero = word_of(*zeros, g * (n_pad / 4) + nt * 16 + n % 8 * 2 + in64 / 32) >>
                   (8 * byte_of(static_cast<int>(in64 / 8 % 4))) &
               255;
      row[k] = (static_cast<float>(code) - static_cast<float>(zero)) * element(scales, g * n_pad + position);
    }
  });
}
LPQ_OP(gemm_marlin, "gemm_marlin");

void gemm_turbomind(Call& call, Exec& exec) {
  const Params& p = call.params;
  const QuantType type = QuantType::from(p);
  const bool integer = type.kind == QuantType::Kind::integer;
  const int64_t bits = type.bits;
  require(integer ? bits == 4 || bits == 8 : (bits == 4 && type.exponent == 2) || (bits == 8 && type.exponent == 4),
          "the type is none of 4- and 8-bit integers, f4e2m1 and f8e4m3");
  const Tensor &weights = call.input(1), &scales = call.input(2);
  const Product product = product_of(call, 3);
  const int64_t group = product.group, k_tiles = product.k / 16;
  require(group == 32 || group == 64 || group == 128, "groupLength is not 32, 64 or 128");
  const int64_t groups = (product.k + group - 1) / group;
  if (integer) {
    require_dtype(scales, "scales", {DType::f16});
    require_shape(scales, "scales", {groups, -1, 2});
  } else {
    if (bits == 4) require_dtype(scales, "scales", {DType::u8, DType::f8_e8m0});
    else require_dtype(scales, "scales", {DType::f16, DType::bf16});
    require_shape(scales, "scales", {groups, -1});
  }
  const int64_t n_pad = scales.dim(1);
  require(n_pad % 64 == 0 && n_pad >= product.n && product.k % 32 == 0,
          "scales are not of whole tiles of 64 columns that hold N, or K is no multiple of 32");
  require_tensor(weights, "weights", DType::i32, {n_pad * product.k * bits / 32});
  const bool experts = p.integer("experts", 0) != 0;
  require(integer || !experts, "only integers have a form for experts");
  multiply(product.x, nullptr, product.bias, product.y, exec, [&](int64_t n, float* row) {
    const int64_t side = n / 16 * 16 + n % 8 * 2 + n % 16 / 8;  // of a column's scale in its row
    for (int64_t k = 0; k < product.k; ++k) {
      const int64_t kt = k / 16, lane = 4 * (n % 8) + k % 8 / 2;
      const int e = static_cast<int>(k % 2), upper_n = static_cast<int>(n % 16 / 8),
                upper_k = static_cast<int>(k % 16 / 8);
      const int64_t at = k / group * n_pad + side;
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
        row[k] = type.decode(code) * scale;
      }
    }
  });
}
LPQ_OP(gemm_turbomind, "gemm_turbomind");

}  // namespace
}  // namespace lpq
