// gemm_packed: its problem, and the families that take it.
#include "cuda/gemm/families/packed_problem.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

std::string kernel_name(const QuantType& type, DType x) {
  const bool integer = type.kind == QuantType::Kind::integer;
  // Both as bf16, activations in two parts: f16 holds 5 exponent bits where the type's highest exponent means infinity
  // too.
  const bool split = !integer && x == DType::f16 &&
                     (type.exponent > 5 || (type.exponent == 5 && type.special != QuantType::Special::ieee));
  return "lpq_gemm_" + std::string(integer ? "int" : "float") + std::to_string(type.bits) +
         (split             ? "_wide"
          : x == DType::f16 ? "_f16"
                            : "_bf16");
}

}  // namespace

PackedProblem::PackedProblem(const ops::GemmPacked& of)
    : op(of),
      wish(of.settings),
      name(kernel_name(of.type, of.x.dtype)),
      args{},
      integer(of.type.kind == QuantType::Kind::integer),
      bf16(of.x.dtype == DType::bf16),
      bits(of.type.bits) {
  for (const Tensor* t : {&op.weights, &op.scales, op.zeros})
    require(!t || reinterpret_cast<uintptr_t>(t->raw()) % 16 == 0,
            "weights, scales and zeros start at multiples of 16 bytes");
  args.weights = op.weights.data<uint8_t>();
  args.scales = op.scales.data<uint16_t>();
  args.zeros = op.zeros ? reinterpret_cast<const unsigned char*>(op.zeros->raw()) : nullptr;
  args.bias = op.bias ? op.bias->data<uint16_t>() : nullptr;
  args.y = op.y.data<uint16_t>();
  args.m = static_cast<int>(op.m), args.n = static_cast<int>(op.n), args.k = static_cast<int>(op.k);
  args.n_blocks = static_cast<int>(op.weights.dim(0)), args.k_blocks = static_cast<int>(op.weights.dim(1));
  args.groups = static_cast<int>(op.groups);
  args.groups_per_block = op.group_size == 0 ? 1 : static_cast<int>(kBlockK / op.group_size);
  args.channel = op.group_size == 0;
  args.scale_bf16 = op.scales.dtype == DType::bf16;
  args.zero_kind = !op.zeros ? 0 : op.zeros->dtype == DType::u8 ? 1 : 2;
  // Signed codes are read as code + 2^(bits-1).
  args.zero = (op.zeros ? 0.0f : static_cast<float>(op.zero)) +
              (integer && op.type.is_signed ? static_cast<float>(1 << (bits - 1)) : 0.0f);
  args.is_signed = op.type.is_signed;
  args.exponent = op.type.exponent;
  side_bytes = args.groups_per_block * (64 + 32 * args.zero_kind);
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
