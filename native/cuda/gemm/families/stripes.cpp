// gemm_marlin and gemm_turbomind: one kernel, whose blocks own equal stripes of tiles (stripes.cuh); stripes_plan.h
// cuts.
#include "cuda/gemm/families/stripes.h"

#include "cuda/gemm/families/operands.h"
#include "cuda/gemm/families/stripes_plan.h"
#include "cuda/gemm/family.h"
#include "cuda/launch.h"
#include "ops/gemm_marlin.h"
#include "ops/gemm_turbomind.h"

namespace lpq::cuda {
namespace {

struct StripesProblem {
  const Tensor &x, &y;
  const Tensor* permutation;
  ops::GemmSettings wish;
  StripeArgs args;                                // of the whole product: all but its cut and its rows
  std::string kernel;                             // without tiles
  int bits = 4, scale_bytes = 2, zero_bytes = 0;  // of a column and group; zero_bytes: of 64 columns

  template <class Op>
  StripesProblem(const Op& op, const Tensor* order, const char* layout, int64_t op_bits, int64_t k_pad)
      : x(op.x),
        y(op.y),
        permutation(order),
        wish(op.settings),
        args{},
        kernel(layout),
        bits(static_cast<int>(op_bits)) {
    kernel += std::to_string(bits);
    args.weights = reinterpret_cast<const unsigned char*>(op.weights.raw());
    args.scales = reinterpret_cast<const unsigned char*>(op.scales.raw());
    require_sixteen(op.weights, "weights"), require_sixteen(op.scales, "scales");
    args.y = y.data<uint16_t>();
    args.bias = op.bias ? op.bias->template data<uint16_t>() : nullptr;
    args.m = static_cast<int>(op.m), args.n = static_cast<int>(op.n);
    args.n_pad = static_cast<int>(op.n_pad), args.k_pad = static_cast<int>(k_pad);
    args.groups = static_cast<int>(op.groups);
    args.group_shift = op.group_size == 0 ? 30 : log2_of(op.group_size);
    args.policy = kEvictFirst;
    args.magic = magic_of(x.dtype);
  }
};

StripePlan cut_stripes(const StripesProblem& p, const DeviceFacts& device) {
  const StripeArgs& a = p.args;
  const StripeProduct product{a.m,           a.n_pad,      a.k_pad,       p.bits,
                              p.scale_bytes, p.zero_bytes, a.group_shift, a.channel != 0};
  require(p.wish.blocks <= device.multiprocessors, "blocks is not between 1 and the number of multiprocessors");
  ops::GemmSettings wish = p.wish;
  const auto with = [&] { return plan_stripes(device.multiprocessors, device.shared_per_block, product, wish); };
  if (const std::optional<StripePlan> cut = with()) return *cut;
  wish.stages = 0;
  require(!with(), "stages do not fit shared memory");
  throw Failure("LPQ_NATIVE_ARGUMENT", "warpsN and warpsK do not fit the kernel, or shared memory");
}

std::string how(const StripePlan& t) {
  return "tiles of " + std::to_string(8 * t.tiles) + " tokens; " + std::to_string(1 << t.log_n) +
         " warps along N times " + std::to_string(1 << t.log_k) + " along K, " + std::to_string(t.stages) +
         " stages: the least time by bytes of the busiest block, " + std::to_string(t.per) + " steps, and the " +
         std::to_string(t.sharers) + (t.sharers == 1 ? " block" : " blocks") + " that share a column";
}

std::string kernel_of(const StripesProblem& p, int tiles) {
  return p.kernel + (p.x.dtype == DType::f16 ? "_f16_t" : "_bf16_t") + std::to_string(tiles);
}

Answer plan(const StripesProblem& p, CudaExec& exec) {
  const StripePlan cut = cut_stripes(p, exec.device());
  if (!exec.has_kernel(kernel_of(p, cut.tiles))) return "there is no kernel " + kernel_of(p, cut.tiles);
  return Plan{0, cut.microseconds, cut, exec.rehearsing() ? how(cut) : ""};
}

void launch(const StripesProblem& p, const Plan& plan, CudaExec& exec) {
  const StripePlan& t = std::any_cast<const StripePlan&>(plan.cut);
  StripeArgs a = p.args;
  const PaddedRows rows(p.x, 8, p.permutation, exec);  // in the weights' order of columns
  a.x = rows.x, a.k = rows.k;
  a.log_n = t.log_n, a.log_k = t.log_k, a.stages = t.stages;
  a.strips = static_cast<int>(div_up(a.n_pad, int64_t{kTileColumns} << t.log_n));
  a.steps = static_cast<int>(div_up(a.k_pad, stripe_step(t.log_k, p.bits)));
  const int64_t all = div_up(a.m, 8 * t.tiles);
  // A stripe's tiles are counted in 32 bits.
  const int64_t together = std::clamp<int64_t>((int64_t{1} << 30) / (int64_t{a.strips} * a.steps), 1, all);
  const Scratch partial = share_sums(a, t.blocks * (int64_t{2048} * t.tiles << t.log_n), t.blocks, exec);
  for (int64_t first = 0; first < all; first += together) {
    a.first_batch = static_cast<int>(first);
    a.batches = static_cast<int>(std::min(together, all - first));
    const int64_t tiles = int64_t{a.strips} * a.batches * a.steps;
    a.per = static_cast<int>(div_up(tiles, t.blocks));
    exec.launch(kernel_of(p, t.tiles), {div_up(tiles, a.per)}, {32 << (t.log_n + t.log_k)}, t.shared, a);
  }
}

constexpr Family<StripesProblem> kFamilies[] = {{"stripes", {.portable = true}, plan, launch}};

template <class Op>
ops::GemmProduct product_of(const Op& op, const char* layout, std::string type) {
  ops::GemmProduct product;
  product.layout = layout, product.type = std::move(type);
  product.m = op.m, product.n = op.n, product.k = op.k;
  product.group_size = op.group_size, product.x = op.x.dtype;
  return product;
}

void gemm_marlin(Call& call, CudaExec& exec) {
  const ops::GemmMarlin op(call);
  StripesProblem p(op, op.permutation, "lpq_marlin_u", op.bits, op.k_pad);
  if (op.zeros) require_sixteen(*op.zeros, "zeros");
  if (op.m == 0 || op.n == 0) return;
  p.args.zeros = op.zeros ? reinterpret_cast<const unsigned char*>(op.zeros->raw()) : nullptr;
  p.args.channel = op.groups == 1;  // a single row is in the order of the accumulators, whatever made it single
  p.args.n_stride = 64 * op.bits, p.args.k_stride = op.n_pad / 32 * 64 * op.bits;
  if (op.zeros) p.kernel += "z", p.zero_bytes = 8 * p.bits;
  ops::GemmProduct product = product_of(op, "marlin", "u" + std::to_string(op.bits));
  if (op.zeros) product.zeros = op.zeros->dtype;
  run_families(p, kFamilies, product, ops::GemmMarlin::settings_of, exec);
}
LPQ_CUDA_OP(gemm_marlin, "gemm_marlin");

void gemm_turbomind(Call& call, CudaExec& exec) {
  const ops::GemmTurbomind op(call);
  const int64_t bits = op.type.bits, piece = 64 * bits;  // a sub-tile of 32 columns: one tile of operand B, two of A
  StripesProblem p(op, nullptr, op.integers ? "lpq_turbomind_u" : "lpq_turbomind_f", bits, op.k);
  if (op.m == 0 || op.n == 0) return;
  p.args.scale_bf16 = op.scales.dtype == DType::bf16;
  p.args.n_stride = op.experts ? op.k / 16 * piece : piece;
  p.args.k_stride = op.experts ? piece : op.n_pad / 32 * piece;
  p.scale_bytes = op.integers ? 4 : bits == 4 ? 1 : 2;
  run_families(p, kFamilies, product_of(op, "turbomind", ops::type_name(op.type)), ops::GemmTurbomind::settings_of,
               exec);
}
LPQ_CUDA_OP(gemm_turbomind, "gemm_turbomind");

}  // namespace
}  // namespace lpq::cuda
