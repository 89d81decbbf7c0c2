#include "cpu/kernels/elements.h"

#include <array>
#include <cmath>
#include <vector>

#include "cpu/kernels/sparse.h"
#include "lpq/half.h"
#include "ops/gemm_marlin.h"
#include "ops/gemm_packed.h"
#include "ops/gemm_turbomind.h"

namespace lpq {
namespace {

constexpr int64_t kBlockN = ops::GemmPacked::kBlockN, kBlockK = ops::GemmPacked::kBlockK;

uint32_t word_of(const Tensor& tensor, int64_t at) { return static_cast<uint32_t>(tensor.data<int32_t>()[at]); }

// Nibble i of a word holds value v of a fragment: v0 v2 v4 v6 v1 v3 v5 v7 from the lowest. Bytes: v0 v2 v1 v3.
int nibble_of(int v) { return v / 2 + 4 * (v & 1); }
int byte_of(int v) { return v / 2 + 2 * (v & 1); }

// Where the bits of one code lie in a packed block: byte << 3 | bit.
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

template <class Arguments>
void take(Elements& e, const Arguments& p, QuantType type) {
  e.n = p.n, e.k = p.k, e.group_size = p.group_size, e.groups = p.groups, e.type = type, e.bias = p.bias;
}

class Tilus : public Elements {
 public:
  explicit Tilus(const Call& call) : p_(call), places_(places(p_.type.bits)) {
    take(*this, p_, p_.type);
    constant = static_cast<float>(p_.zero);
    grouped_zeros = p_.zeros != nullptr;
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    const int64_t k_blocks = p_.weights.dim(1), block_bytes = p_.weights.dim(2), r = row_n % kBlockN;
    for (int64_t kb = 0; kb * kBlockK < k; ++kb) {
      const uint8_t* block = p_.weights.data<uint8_t>() + (row_n / kBlockN * k_blocks + kb) * block_bytes;
      const Place* place = places_.data() + r * kBlockK;
      const int64_t end = std::min(k - kb * kBlockK, kBlockK);
      for (int64_t j = 0; j < end; ++j, ++place) {
        uint32_t code = 0;
        for (int b = 0; b < type.bits; ++b) {
          const unsigned at = (*place)[static_cast<size_t>(b)];
          code |= static_cast<uint32_t>(block[at >> 3] >> (at & 7) & 1) << b;
        }
        *row++ = static_cast<uint8_t>(code);
      }
    }
  }
  float scale(int64_t row_n, int64_t g) const override { return number_at(p_.scales, side(row_n, g)); }
  float zero(int64_t row_n, int64_t g) const override {
    return p_.zeros ? number_at(*p_.zeros, side(row_n, g)) : constant;
  }

 private:
  int64_t side(int64_t row_n, int64_t g) const {
    const int64_t r = row_n % kBlockN;
    return (row_n / kBlockN * groups + g) * kBlockN + 4 * (r % 8) + r / 8;
  }
  const ops::GemmPacked p_;
  const std::vector<Place> places_;
};

QuantType unsigned_type(int64_t bits) { return {QuantType::Kind::integer, static_cast<int>(bits), false}; }

class Marlin : public Elements {
 public:
  explicit Marlin(const Call& call) : p_(call) {
    take(*this, p_, unsigned_type(p_.bits));
    permutation = p_.permutation;
    constant = static_cast<float>(1 << (p_.bits - 1));
    grouped_zeros = p_.zeros != nullptr;
    if (permutation)
      for (int64_t j = 0; j < k; ++j)
        require(permutation->data<int32_t>()[j] >= 0 && permutation->data<int32_t>()[j] < k,
                "the permutation names a column that x does not have");
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    const int64_t nt = row_n / 64, j = row_n % 64 / 16, c = row_n % 16, n_pad = p_.n_pad;
    for (int64_t at = 0; at < k; ++at) {
      const int64_t kt = at / 16, kr = at % 16, lane = 4 * (c % 8) + kr % 8 / 2;
      row[at] = static_cast<uint8_t>(p_.bits == 4
                                         ? word_of(p_.weights, kt * 2 * n_pad + nt * 128 + lane * 4 + j) >>
                                                   (4 * (4 * (kr & 1) + 2 * (c / 8) + kr / 8)) &
                                               15
                                         : word_of(p_.weights, kt * 4 * n_pad + nt * 256 + lane * 8 + 2 * j + c / 8) >>
                                                   (8 * (2 * (kr & 1) + kr / 8)) &
                                               255);
    }
  }
  float scale(int64_t row_n, int64_t g) const override {
    const int64_t in64 = row_n % 64, in32 = row_n % 32;
    const int64_t position = groups == 1 ? row_n - in32 + 8 * (in32 % 8 / 2) + 2 * (in32 / 8) + in32 % 2
                                         : row_n - in64 + 8 * (in64 % 8) + in64 / 8;
    return number_at(p_.scales, g * p_.n_pad + position);
  }
  float zero(int64_t row_n, int64_t g) const override {
    if (!p_.zeros) return constant;
    const int64_t nt = row_n / 64, in64 = row_n % 64, n_pad = p_.n_pad;
    return static_cast<float>(p_.bits == 4
                                  ? word_of(*p_.zeros, g * (n_pad / 8) + nt * 8 + row_n % 8) >>
                                            (4 * nibble_of(static_cast<int>(in64 / 8))) &
                                        15
                                  : word_of(*p_.zeros, g * (n_pad / 4) + nt * 16 + row_n % 8 * 2 + in64 / 32) >>
                                            (8 * byte_of(static_cast<int>(in64 / 8 % 4))) &
                                        255);
  }

 private:
  const ops::GemmMarlin p_;
};

class Turbomind : public Elements {
 public:
  explicit Turbomind(const Call& call) : p_(call) {
    take(*this, p_, p_.integers ? unsigned_type(p_.type.bits) : p_.type);  // signed ones are stored so, t says the rest
    grouped_zeros = p_.integers;
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    const int64_t k_tiles = k / 16, n_pad = p_.n_pad;
    const int upper_n = static_cast<int>(row_n % 16 / 8);
    for (int64_t at = 0; at < k; ++at) {
      const int64_t kt = at / 16, lane = 4 * (row_n % 8) + at % 8 / 2;
      const int e = static_cast<int>(at % 2), upper_k = static_cast<int>(at % 16 / 8);
      uint32_t code;
      if (p_.integers) {  // operand B: values 4s + 2c + e, two tiles a lane
        const int64_t tile = p_.experts ? row_n / 32 * k_tiles + kt : kt * (n_pad / 32) + row_n / 32,
                      pair = row_n % 32 / 16;
        const int v = 4 * upper_n + 2 * upper_k + e;
        if (type.bits == 4) code = word_of(p_.weights, (tile * 32 + lane) * 2 + pair) >> (4 * nibble_of(v)) & 15;
        else code = word_of(p_.weights, (tile * 32 + lane) * 4 + 2 * pair + v / 4) >> (8 * byte_of(v % 4)) & 255;
      } else {  // operand A: register j = (n + 8) + 2 (k + 8)
        const int64_t tile = kt * (n_pad / 16) + row_n / 16;
        const int v = 2 * (upper_n + 2 * upper_k) + e;
        if (type.bits == 4) code = word_of(p_.weights, tile * 32 + lane) >> (4 * nibble_of(v)) & 15;
        else code = word_of(p_.weights, (tile * 32 + lane) * 2 + v / 4) >> (8 * byte_of(v % 4)) & 255;
      }
      row[at] = static_cast<uint8_t>(code);
    }
  }
  float scale(int64_t row_n, int64_t g) const override {
    const int64_t at = side(row_n, g);
    if (p_.integers) return number_at(p_.scales, 2 * at);
    if (type.bits == 8) return number_at(p_.scales, at);
    const int power = reinterpret_cast<const uint8_t*>(p_.scales.raw())[at];
    return power == 255 ? std::nanf("") : std::ldexp(1.0f, power - 127);
  }
  float shift(int64_t row_n, int64_t g) const override { return number_at(p_.scales, 2 * side(row_n, g) + 1); }
  void weights(int64_t row_n, float* row) const override {
    if (!p_.integers) return Elements::weights(row_n, row);
    std::vector<uint8_t> stored(static_cast<size_t>(k));
    codes(row_n, stored.data());
    for (int64_t at = 0; at < k; ++at)
      row[at] = std::fma(type.decode(stored[static_cast<size_t>(at)]), scale(row_n, group_of(at)),
                         shift(row_n, group_of(at)));
  }

 private:
  // Of a column's scale.
  int64_t side(int64_t row_n, int64_t g) const {
    return g * p_.n_pad + row_n / 16 * 16 + row_n % 8 * 2 + row_n % 16 / 8;
  }
  const ops::GemmTurbomind p_;
};

// What is not stored of 2:4 weights has the code whose value is the zero point.
class Sparse : public Elements {
 public:
  explicit Sparse(const Call& call) : p_(call) {
    take(*this, p_, unsigned_type(p_.bits));
    constant = static_cast<float>(1 << (p_.bits - 1));
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    std::fill(row, row + k, static_cast<uint8_t>(1 << (p_.bits - 1)));
    for (int64_t kc = 0; kc < p_.k_pad / 2; ++kc) {
      const SparseElement kept = sparse_element(p_, row_n, kc);
      if (kept.column < k) row[kept.column] = static_cast<uint8_t>(kept.code);
    }
  }
  float scale(int64_t row_n, int64_t g) const override { return sparse_scale(p_, row_n, g); }

 private:
  const ops::GemmSparseMarlin p_;
};

}  // namespace

float number_at(const Tensor& tensor, int64_t at) {
  switch (tensor.dtype) {
    case DType::f32: return tensor.data<float>()[at];
    case DType::f16: return f16_to_f32(tensor.data<uint16_t>()[at]);
    case DType::bf16: return bf16_to_f32(tensor.data<uint16_t>()[at]);
    default: return static_cast<float>(tensor.data<uint8_t>()[at]);
  }
}

void Elements::weights(int64_t row_n, float* row) const {
  std::vector<uint8_t> stored(static_cast<size_t>(k));
  codes(row_n, stored.data());
  float factor = 0, middle = 0;
  int64_t now = -1;
  for (int64_t at = 0; at < k; ++at) {
    if (const int64_t g = group_of(at); g != now) factor = scale(row_n, g), middle = zero(row_n, g), now = g;
    row[at] = (type.decode(stored[static_cast<size_t>(at)]) - middle) * factor;
  }
}

std::unique_ptr<Elements> elements_of(const std::string& op, const Call& call) {
  if (op == "gemm_packed") return std::make_unique<Tilus>(call);
  if (op == "gemm_marlin") return std::make_unique<Marlin>(call);
  if (op == "gemm_turbomind") return std::make_unique<Turbomind>(call);
  if (op == "gemm_sparse_marlin") return std::make_unique<Sparse>(call);
  throw Failure("LPQ_UNSUPPORTED", op + " has no weights that are read one by one");
}

}  // namespace lpq
