// gemm_experts on the CPU: what the CUDA kernels are to compute, expert by expert as gemm_packed computes it there.
#include "ops/gemm_experts.h"

#include "cpu/kernels/elements.h"

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
    Call one{{rows_of(a.x, first, count), part_of(a.weights, e), part_of(a.scales, e)},
             {rows_of(a.y, first, count)},
             params};
    if (a.zeros) one.in.push_back(part_of(*a.zeros, e));
    if (a.bias) one.in.push_back(part_of(*a.bias, e));
    multiply_elements(*elements_of("gemm_packed", one), one, exec);
  }
}
LPQ_OP(gemm_experts, "gemm_experts");

}  // namespace
}  // namespace lpq
