// gemm_experts on the CPU: what the CUDA kernels are to compute, expert by expert as gemm_packed computes it there.
#include "ops/gemm_experts.h"

#include <cmath>
#include <vector>

#include "cpu/kernels/elements.h"
#include "lpq/half.h"

namespace lpq {
namespace {

// Part `at` of a tensor along its first dimension, which goes: the shape of one part is `shape`.
Tensor part_of(const Tensor& whole, int64_t at, Dims shape) {
  Tensor part = whole;
  part.shape = std::move(shape);
  part.offset += static_cast<size_t>(at) * part.bytes();
  return part;
}
Tensor part_of(const Tensor& whole, int64_t at) {
  return part_of(whole, at, Dims(whole.shape.begin() + 1, whole.shape.end()));
}
Tensor rows_of(const Tensor& whole, int64_t first, int64_t count) {
  Tensor rows = part_of(whole, first);
  rows.shape.insert(rows.shape.begin(), count);
  return rows;
}

double activated(ops::Act act, double x) {
  const auto share = [](double z) { return 1 / (1 + std::exp(-z)); };
  switch (act) {
    case ops::Act::silu: return x * share(x);
    case ops::Act::gelu: return 0.5 * x * std::erfc(-x * 0.70710678118654752);
    case ops::Act::gelu_tanh: return x * share(1.5957691216057308 * (x + 0.044715 * x * x * x));
    case ops::Act::relu: return std::fmax(x, 0);
    case ops::Act::relu2: return std::fmax(x, 0) * std::fmax(x, 0);
    case ops::Act::quick_gelu: return x * share(1.702 * x);
    default: return share(x);
  }
}

// What a gate and what it gates make, out of their sums.
float gated(const ops::ExpertGating& by, double gate, double up) {
  if (by.limit > 0) {
    const double most = by.limit;
    gate = gate > most ? most : gate, up = up > most ? most : up < -most ? -most : up;
  }
  if (by.kind == ops::ExpertGating::kClamped)
    return static_cast<float>(gate / (1 + std::exp(-double(by.alpha) * gate)) * (up + 1));
  return static_cast<float>(activated(static_cast<ops::Act>(by.kind), gate) * up);
}

// Rows of one expert, gated: `one` makes sums of all rows of weights for `made` [count, columns].
void multiply_gated(const ops::GemmExperts& a, const Call& one, const Tensor& made, Exec& exec) {
  const int64_t count = made.dim(0);
  std::vector<float> sums(static_cast<size_t>(count * a.n));
  multiply_sums(*elements_of("gemm_packed", one), one, exec,
                [&](int64_t m, int64_t n, float sum) { sums[static_cast<size_t>(m * a.n + n)] = sum; });
  uint16_t* out = made.data<uint16_t>();
  for (int64_t m = 0; m < count; ++m)
    for (int64_t c = 0; c < a.columns; ++c) {
      const float* gate = &sums[static_cast<size_t>(m * a.n + c / 8 * 16 + c % 8)];
      const float value = gated(a.gate, gate[0], gate[8]);
      out[m * a.columns + c] = made.dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    }
}

void gemm_experts(Call& call, Exec& exec) {
  const ops::GemmExperts a(call);
  const int32_t* offsets = a.offsets.data<int32_t>();
  a.require_offsets(offsets, a.experts, a.m);
  Params params = ops::type_params(a.type);
  params.set("groupSize", static_cast<double>(a.group_size)), params.set("zero", a.zero);
  params.set("hasZeros", static_cast<double>(a.zeros != nullptr));
  params.set("hasBias", static_cast<double>(a.bias != nullptr));
  for (int64_t e = 0; e < a.experts; ++e) {
    const int64_t first = offsets[e], count = offsets[e + 1] - first;
    if (count == 0 || a.n == 0) continue;
    const Tensor made = rows_of(a.y, first, count);
    Tensor all = made;  // where it is gated, of as many columns as there are rows of weights, and not written
    all.shape = {count, a.n};
    Call one{{rows_of(a.x, first, count), part_of(a.weights, e), part_of(a.scales, e)}, {all}, params};
    if (a.zeros) one.in.push_back(part_of(*a.zeros, e));
    if (a.bias) one.in.push_back(part_of(*a.bias, e));
    if (a.gate) multiply_gated(a, one, made, exec);
    else multiply_elements(*elements_of("gemm_packed", one), one, exec);
  }
}
LPQ_OP(gemm_experts, "gemm_experts");

}  // namespace
}  // namespace lpq
