// What packed weights hold, one element at a time, by the closed forms in which the formats are published
// (docs/internals/layouts): nothing of the packer's layouts, of the kernels' loads or of the verifier's tables is used.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lpq/exec.h"
#include "lpq/quant_type.h"

namespace lpq {

// W[n][k] = (value(code) - zero(n, g)) * scale(n, g), g = k / group_size, or 0 where group_size is 0 (one scale a row);
// of turbomind value(code) * scale + shift. Looks at the tensors of the call that it was made of.
class Elements {
 public:
  virtual ~Elements() = default;
  int64_t n = 0, k = 0, group_size = 0, groups = 1;
  QuantType type;
  bool grouped_zeros = false;           // zero points, or shifts, of every group
  float constant = 0;                   // the zero point otherwise
  const Tensor* permutation = nullptr;  // i32 [K], the column of x of each k
  const Tensor* bias = nullptr;         // [N] in the type of x

  // All K codes of output n.
  virtual void codes(int64_t n, uint8_t* row) const = 0;
  virtual float scale(int64_t n, int64_t g) const = 0;
  virtual float zero(int64_t, int64_t) const { return constant; }
  // What is added to value(code) * scale, where grouped_zeros.
  virtual float shift(int64_t n, int64_t g) const { return -zero(n, g) * scale(n, g); }
  // All K weights of output n in f32, each rounded as the formula above says.
  virtual void weights(int64_t n, float* row) const;

  int64_t group_of(int64_t at) const { return group_size == 0 || groups == 1 ? 0 : at / group_size; }
};

// Of a call of gemm_packed, gemm_marlin, gemm_turbomind or gemm_sparse_marlin, which must outlive it. Throws
// Failure("LPQ_NATIVE_ARGUMENT") for what breaks the operation's contract.
std::unique_ptr<Elements> elements_of(const std::string& op, const Call& call);

// y = x Wᵀ + bias of the call that `weights` was made of: every output element one chain of fma over ascending k from
// 0, then the bias, rounded once.
void multiply_elements(const Elements& weights, const Call& call, Exec& exec);
// The same before it is rounded: store(m, n, sum), by several threads.
void multiply_sums(const Elements& weights, const Call& call, Exec& exec,
                   const std::function<void(int64_t m, int64_t n, float sum)>& store);

// Number `at` of a tensor of f32, f16, bf16 or u8.
float number_at(const Tensor& tensor, int64_t at);

}  // namespace lpq
