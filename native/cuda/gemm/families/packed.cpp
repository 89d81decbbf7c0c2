// gemm_packed: its problem, and the families that take it.
#include "cuda/gemm/families/packed_problem.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

std::string type_and_activations(const QuantType& type, DType x) {
  const bool integer = type.kind == QuantType::Kind::integer;
  // Both as bf16, activations in two parts: f16 holds 5 exponent bits where the type's highest exponent means infinity
  // too.
  const bool split = !integer && x == DType::f16 &&
                     (type.exponent > 5 || (type.exponent == 5 && type.special != QuantType::Special::ieee));
  return std::string(integer ? "int" : "float") + std::to_string(type.bits) +
         (split             ? "_wide"
          : x == DType::f16 ? "_f16"
                            : "_bf16");
}

}  // namespace

PackedForm::PackedForm(const ops::GemmSettings& settings, const QuantType& type, DType x, const Tensor& weights,
                       const Tensor& scales, const Tensor* zeros, double zero, int64_t group_size)
    : wish(settings),
      name(type_and_activations(type, x)),
      args{},
      integer(type.kind == QuantType::Kind::integer),
      bf16(x == DType::bf16),
      bits(type.bits) {
  for (const Tensor* t : {&weights, &scales, zeros})
    require(!t || reinterpret_cast<uintptr_t>(t->raw()) % 16 == 0,
            "weights, scales and zeros start at multiples of 16 bytes");
  args.weights = weights.data<uint8_t>();
  args.scales = scales.data<uint16_t>();
  args.zeros = zeros ? reinterpret_cast<const unsigned char*>(zeros->raw()) : nullptr;
  args.groups_per_block = group_size == 0 ? 1 : static_cast<int>(kBlockK / group_size);
  args.channel = group_size == 0;
  args.scale_bf16 = scales.dtype == DType::bf16;
  args.zero_kind = !zeros ? 0 : zeros->dtype == DType::u8 ? 1 : 2;
  // Signed codes are read as code + 2^(bits-1).
  args.zero = (zeros ? 0.0f : static_cast<float>(zero)) +
              (integer && type.is_signed ? static_cast<float>(1 << (bits - 1)) : 0.0f);
  args.is_signed = type.is_signed;
  args.exponent = type.exponent;
  side_bytes = args.groups_per_block * (64 + 32 * args.zero_kind);
}

PackedProblem::PackedProblem(const ops::GemmPacked& of) : PackedForm(of, of.weights.dim(0), of.weights.dim(1)), op(of) {
  name = "lpq_gemm_" + name;
}

PackedRows::PackedRows(const PackedProblem& p, int unit, CudaExec& exec)
    : rows(p.op.x, unit, nullptr, exec),
      args(p.args),
      untouched(exec.follows_untouched(p.op.weights) && exec.follows_untouched(p.op.scales) &&
                (!p.op.zeros || exec.follows_untouched(*p.op.zeros))) {
  args.x = rows.x, args.k = rows.k;
}

GemmPackedArgs PackedRows::from(int64_t first, int64_t count) const {
  GemmPackedArgs some = args;
  some.m = static_cast<int>(count);
  some.x += first * args.k;
  some.y += first * args.n;
  return some;
}

namespace {

void gemm_packed(Call& call, CudaExec& exec) {
  // In the order of their tiers, and of preference where no model compares them.
  const Family<PackedProblem> families[] = {kStreamFamily, kScaledFamily, kWideFamily,
                                            kHopperFamily, kLargeFamily,  kPortableFamily};
  const ops::GemmPacked op(call);
  PackedProblem problem(op);
  if (op.m == 0 || op.n == 0) return;
  ops::GemmProduct product;
  product.type = ops::type_name(op.type), product.m = op.m, product.n = op.n, product.k = op.k;
  product.group_size = op.group_size, product.x = op.x.dtype;
  if (op.zeros) product.zeros = op.zeros->dtype;
  run_families(problem, families, product, ops::GemmPacked::settings_of, exec);
}
LPQ_CUDA_OP(gemm_packed, "gemm_packed");

}  // namespace
}  // namespace lpq::cuda
