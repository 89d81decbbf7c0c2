// gemm_packed on the CPU (format: docs/internals/layouts/tilus.md): what the CUDA kernels are to compute,
// plainly. Every weight is (decode(code) - zero) * scale in f32, every output element one chain of fma over ascending
// k, then the bias.
#include <array>
#include <cmath>
#include <vector>

#include "lpq/half.h"
#include "ops/gemm_packed.h"

namespace lpq {
namespace {

constexpr int64_t kBlockN = ops::GemmPacked::kBlockN, kBlockK = ops::GemmPacked::kBlockK;

// Where the bits of one code lie in its packed block: byte << 3 | bit.
using Place = std::array<uint16_t, 8>;

// Of every (n, k) of a block, k fastest. docs/internals/layouts/tilus.md, closed forms: lane, chunk, pair; words;
// vectors of a lane.
std::vector<Place> places(int bits) {
  std::vector<Place> table(static_cast<size_t>(kBlockN * kBlockK));
  const int fields = 16 / bits, left = 16 % bits, top = 16 - left;
  for (int n = 0; n < kBlockN; ++n)
    for (int k = 0; k < kBlockK; ++k) {
      const int lane = 4 * (n % 8) + k % 8 / 2, chunk = k / 32, pair = 4 * (k % 32 / 8) + n / 8;
      Place& place = table[static_cast<size_t>(n * kBlockK + k)];
      for (int m = 0; m < bits; ++m) {
        int word, at;
        const int rest = pair - fields * bits;  // of the pairs that lie in what whole fields leave over
        if (rest < 0) {
          word = pair / fields;
          at = pair % fields * bits + m;
        } else if (bits == 6) {
          word = m < 4 ? rest : 4 + rest / 2;
          at = m < 4 ? top + m : top + 2 * (rest % 2) + m - 4;
        } else if (bits == 7) {
          word = m < 6 ? 3 * rest + m / 2 : 6;
          at = m < 6 ? top + m % 2 : top + rest;
        } else {  // 3 and 5: one bit of each word
          word = m;
          at = top;
        }
        const int w = chunk * bits + word, bit = 16 * (k % 2) + at;
        const int byte = 512 * (w / 4) + 16 * lane + 4 * (w % 4) + bit / 8;
        place[static_cast<size_t>(m)] = static_cast<uint16_t>(byte << 3 | bit % 8);
      }
    }
  return table;
}

float element(const Tensor& tensor, int64_t at) {
  switch (tensor.dtype) {
    case DType::f32: return tensor.data<float>()[at];
    case DType::f16: return f16_to_f32(tensor.data<uint16_t>()[at]);
    case DType::bf16: return bf16_to_f32(tensor.data<uint16_t>()[at]);
    default: return static_cast<float>(tensor.data<uint8_t>()[at]);
  }
}

void gemm_packed(Call& call, Exec& exec) {
  const ops::GemmPacked p(call);
  const int64_t m = p.m, n = p.n, k = p.k;
  const QuantType& type = p.type;
  const int64_t n_blocks = p.weights.dim(0), k_blocks = p.weights.dim(1), block_bytes = p.weights.dim(2);
  const float constant = static_cast<float>(p.zero);
  if (m == 0 || n == 0) return;

  const std::vector<Place> table = places(type.bits);
  std::vector<float> values(type.codes()), activations(static_cast<size_t>(m * k));
  for (uint32_t code = 0; code < type.codes(); ++code) values[code] = type.decode(code);
  for (int64_t i = 0; i < m * k; ++i) activations[static_cast<size_t>(i)] = element(p.x, i);
  const uint8_t* bytes = p.weights.data<uint8_t>();
  uint16_t* out = p.y.data<uint16_t>();
  exec.pool.parallel_for(n_blocks, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t nb = begin; nb < end; ++nb)
      for (int64_t r = 0; r < kBlockN && nb * kBlockN + r < n; ++r) {
        for (int64_t j = 0; j < k; ++j) {
          const uint8_t* block = bytes + (nb * k_blocks + j / kBlockK) * block_bytes;
          const Place& place = table[static_cast<size_t>(r * kBlockK + j % kBlockK)];
          uint32_t code = 0;
          for (int b = 0; b < type.bits; ++b)
            code |= static_cast<uint32_t>(
                        block[place[static_cast<size_t>(b)] >> 3] >> (place[static_cast<size_t>(b)] & 7) & 1)
                    << b;
          const int64_t at =
              (nb * p.groups + (p.group_size == 0 ? 0 : j / p.group_size)) * kBlockN + 4 * (r % 8) + r / 8;
          const float zero = p.zeros ? element(*p.zeros, at) : constant;
          row[static_cast<size_t>(j)] = (values[code] - zero) * element(p.scales, at);
        }
        for (int64_t i = 0; i < m; ++i) {
          float sum = 0;
          for (int64_t j = 0; j < k; ++j)
            sum = std::fma(activations[static_cast<size_t>(i * k + j)], row[static_cast<size_t>(j)], sum);
          if (p.bias) sum += element(*p.bias, nb * kBlockN + r);
          out[i * n + nb * kBlockN + r] = p.x.dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
        }
      }
  });
}

LPQ_OP(gemm_packed, "gemm_packed");

}  // namespace
}  // namespace lpq
