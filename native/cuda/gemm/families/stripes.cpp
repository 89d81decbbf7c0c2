// gemm_marlin and gemm_turbomind (native/ops.ts): checks and launches; stripes_plan.h has the choice of tiles.
#include "cuda/gemm/families/stripes.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "cuda/gemm/families/stripes_plan.h"
#include "cuda/launch.h"
#include "lpq/quant_type.h"

namespace lpq::cuda {
namespace {

// What createpolicy.fractional.L2::evict_first would give for all of an access.
constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;

// Of a layout, as its kernels are named and as their arguments are laid out.
struct Weights {
  std::string kernel;                             // without tiles
  int bits = 4, scale_bytes = 2, zero_bytes = 0;  // of a column and group; zero_bytes: of 64 columns
};

int log2_of(int64_t v) {
  int log = 0;
  while (v > 1) v /= 2, ++log;
  return log;
}

StripePlan plan_of(const StripeArgs& a, const Weights& w, const DeviceFacts& device, const Params& params) {
  const StripeProduct product{a.m,           a.n_pad,      a.k_pad,       w.bits,
                              w.scale_bytes, w.zero_bytes, a.group_shift, a.channel != 0};
  const StripeWish wish{params.integer("blocks", device.multiprocessors), params.integer("warpsN", 0),
                        params.integer("warpsK", 0), params.integer("stages", 0)};
  require(wish.blocks >= 1 && wish.blocks <= device.multiprocessors,
          "blocks is not between 1 and the number of multiprocessors");
  const auto with = [&](const StripeWish& wished) {
    return plan_stripes(device.multiprocessors, static_cast<int64_t>(device.shared_per_block), product, wished);
  };
  const std::optional<StripePlan> plan = with(wish);
  if (plan) return *plan;
  require(!with({wish.blocks, wish.warps_n, wish.warps_k, 0}), "stages do not fit shared memory");
  throw Failure("LPQ_NATIVE_ARGUMENT", "warpsN and warpsK do not fit the kernel, or shared memory");
}

// What a rehearsal says (chooser.h).
std::string stripe_reason(const StripePlan& t) {
  char predicted[32];
  std::snprintf(predicted, sizeof predicted, "%.1f", t.microseconds);
  return "Tiles of " + std::to_string(8 * t.tiles) + " tokens; " + std::to_string(1 << t.log_n) +
         " warps along N times " + std::to_string(1 << t.log_k) + " along K, " + std::to_string(t.stages) +
         " stages: the least time by bytes of the busiest block, " + std::to_string(t.per) + " steps, and the " +
         std::to_string(t.sharers) + (t.sharers == 1 ? " block" : " blocks") + " that share a column: " + predicted +
         " us, in terms of an H200.";
}

// Activations as the kernel reads them: in the weights' order of columns, rows at multiples of 16 bytes. Sets a.x and
// a.k.
std::optional<Scratch> arrange(StripeArgs& a, const Tensor& x, const Tensor* order, CudaExec& exec) {
  const int64_t m = x.dim(0), k = x.dim(1), pitch = div_up(k, 8) * 8;
  const uint16_t* rows = x.data<uint16_t>();
  a.x = rows;
  a.k = static_cast<int>(pitch);
  if (!order && k == pitch && reinterpret_cast<uintptr_t>(rows) % 16 == 0) return std::nullopt;
  Scratch made = exec.scratch(static_cast<size_t>(m * pitch) * 2);
  uint16_t* to = made.as<uint16_t>();
  const long long count = m;
  const int width = static_cast<int>(k), wide = static_cast<int>(pitch);
  const Dim3 grid = {stride_blocks(exec, m * pitch, 256)};
  if (order) {
    uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "the permutation names a column that x does not have");
    exec.launch("lpq_gather_columns", grid, {256}, 0, rows, order->data<int>(), to, count, width, wide, fault);
  } else {
    exec.launch("lpq_pad_rows", grid, {256}, 0, rows, to, count, width, wide);
  }
  a.x = to;
  return made;
}

void multiply(StripeArgs& a, const Weights& w, const Tensor& x, const Tensor* order, CudaExec& exec, const Params& p) {
  const std::optional<Scratch> arranged = arrange(a, x, order, exec);
  const StripePlan t = plan_of(a, w, exec.device(), p);
  const std::string name = w.kernel + (x.dtype == DType::f16 ? "_f16_t" : "_bf16_t") + std::to_string(t.tiles);
  require(exec.has_kernel(name), "there is no kernel " + name);
  if (exec.rehearsing()) exec.because(stripe_reason(t));
  a.policy = kEvictFirst;
  a.magic = x.dtype == DType::f16 ? 0x64006400u : 0x43004300u;
  a.log_n = t.log_n, a.log_k = t.log_k, a.stages = t.stages;
  a.strips = static_cast<int>(div_up(a.n_pad, int64_t{kTileColumns} << t.log_n));
  a.steps = static_cast<int>(div_up(a.k_pad, stripe_step(t.log_k, w.bits)));
  const int64_t all = div_up(a.m, 8 * t.tiles);
  // A stripe's tiles are counted in 32 bits.
  const int64_t together = std::clamp<int64_t>((int64_t{1} << 30) / (int64_t{a.strips} * a.steps), 1, all);
  const Scratch partial =
      exec.scratch(static_cast<size_t>(t.blocks) * (size_t{2048} * static_cast<size_t>(t.tiles) << t.log_n));
  a.partial = partial.as<float>();
  a.counters = exec.counters(static_cast<size_t>(t.blocks));
  for (int64_t first = 0; first < all; first += together) {
    a.first_batch = static_cast<int>(first);
    a.batches = static_cast<int>(std::min(together, all - first));
    const int64_t tiles = int64_t{a.strips} * a.batches * a.steps;
    a.per = static_cast<int>(div_up(tiles, t.blocks));
    exec.launch(name, {div_up(tiles, a.per)}, {32 << (t.log_n + t.log_k)}, t.shared, a);
  }
}

// What both operations have: x [M,K], y [M,N], a bias, groups.
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
  require(out.k >= 1 && out.k < (int64_t{1} << 31) - 1024 && out.n < (int64_t{1} << 31) - 1024,
          "K is 0, or N or K is 2^31 or more");
  if (p.integer("hasBias", 0) != 0) {
    out.bias = &call.input(bias_at);
    require_tensor(*out.bias, "bias", out.x.dtype, {out.n});
  }
  return out;
}

StripeArgs arguments(const Product& product) {
  StripeArgs a{};
  a.y = product.y.data<uint16_t>();
  a.bias = product.bias ? product.bias->data<uint16_t>() : nullptr;
  a.m = static_cast<int>(product.m), a.n = static_cast<int>(product.n);
  a.group_shift = product.group == 0 ? 30 : log2_of(product.group);
  return a;
}

void require_vectors(const CudaExec& exec, const Tensor& tensor, const char* name) {
  require_device(exec, tensor, name);
  require(reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0,
          std::string(name) + " does not start at a multiple of 16 bytes");
}

void gemm_marlin(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  const int64_t bits = p.integer("bits");
  require(bits == 4 || bits == 8, "bits is not 4 or 8");
  const Tensor &weights = call.input(1), &scales = call.input(2);
  size_t next = 3;
  const Tensor* zeros = p.integer("hasZeros", 0) != 0 ? &call.input(next++) : nullptr;
  const Tensor* order = p.integer("hasOrder", 0) != 0 ? &call.input(next++) : nullptr;
  const Product product = product_of(call, next);
  require(product.group == 0 || product.group == 32 || product.group == 64 || product.group == 128,
          "groupLength is not 0 (one scale a row), 32, 64 or 128");
  require_dtype(weights, "weights", {DType::i32});
  require_shape(weights, "weights", {-1, -1});
  const int64_t k_pad = weights.dim(0) * 16, n_pad = weights.dim(1) * 2 / bits;
  require(weights.dim(1) % (32 * bits) == 0 && weights.dim(0) % 2 == 0 && n_pad >= product.n && k_pad >= product.k &&
              n_pad < (int64_t{1} << 31) && k_pad < (int64_t{1} << 31),
          "weights are not whole tiles of 64 columns and 32 rows that hold N and K");
  const int64_t groups = product.group == 0 ? 1 : div_up(k_pad, product.group);
  require_tensor(scales, "scales", DType::f16, {groups, n_pad});
  if (zeros) require_tensor(*zeros, "zeros", DType::i32, {groups, n_pad * bits / 32});
  if (order) require_tensor(*order, "permutation", DType::i32, {product.k});
  for (const Tensor* t : {&product.x, &product.y, product.bias, order})
    if (t)
      require_device(exec, *t, t == &product.x ? "x" : t == &product.y ? "y" : t == order ? "permutation" : "bias");
  require_vectors(exec, weights, "weights");
  require_vectors(exec, scales, "scales");
  if (zeros) require_vectors(exec, *zeros, "zeros");
  if (product.m == 0 || product.n == 0) return;

  StripeArgs a = arguments(product);
  a.weights = reinterpret_cast<const unsigned char*>(weights.raw());
  a.scales = reinterpret_cast<const unsigned char*>(scales.raw());
  a.zeros = zeros ? reinterpret_cast<const unsigned char*>(zeros->raw()) : nullptr;
  a.n_pad = static_cast<int>(n_pad), a.k_pad = static_cast<int>(k_pad);
  a.groups = static_cast<int>(groups);
  a.channel = groups == 1;  // a single row is in the order of the accumulators, whatever made it single
  a.n_stride = 64 * bits, a.k_stride = n_pad / 32 * 64 * bits;
  Weights w;
  w.kernel = "lpq_marlin_u" + std::to_string(bits) + (zeros ? "z" : "");
  w.bits = static_cast<int>(bits);
  w.zero_bytes = zeros ? 8 * w.bits : 0;
  multiply(a, w, product.x, order, exec, p);
}
LPQ_CUDA_OP(gemm_marlin, "gemm_marlin");

void gemm_turbomind(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  const bool integer = p.text("kind") == "int";
  const int64_t bits = p.integer("bits");
  require(integer ? bits == 4 || bits == 8
                  : (bits == 4 && p.integer("exponent") == 2) || (bits == 8 && p.integer("exponent") == 4),
          "the type is none of 4- and 8-bit integers, f4e2m1 and f8e4m3");
  const Tensor &weights = call.input(1), &scales = call.input(2);
  const Product product = product_of(call, 3);
  require(product.group == 32 || product.group == 64 || product.group == 128, "groupLength is not 32, 64 or 128");
  const int64_t groups = div_up(product.k, product.group);
  if (integer) {
    require_dtype(scales, "scales", {DType::f16});
    require_shape(scales, "scales", {groups, -1, 2});
  } else {
    if (bits == 4) require_dtype(scales, "scales", {DType::u8, DType::f8_e8m0});
    else require_dtype(scales, "scales", {DType::f16, DType::bf16});
    require_shape(scales, "scales", {groups, -1});
  }
  const int64_t n_pad = scales.dim(1);
  require(n_pad % 64 == 0 && n_pad >= product.n && n_pad < (int64_t{1} << 31) && product.k % 32 == 0,
          "scales are not of whole tiles of 64 columns that hold N, or K is no multiple of 32");
  require_tensor(weights, "weights", DType::i32, {n_pad * product.k * bits / 32});
  for (const Tensor* t : {&product.x, &product.y, product.bias})
    if (t) require_device(exec, *t, t == &product.x ? "x" : t == &product.y ? "y" : "bias");
  require_vectors(exec, weights, "weights");
  require_vectors(exec, scales, "scales");
  const bool experts = p.integer("experts", 0) != 0;
  require(integer || !experts, "only integers have a form for experts");
  if (product.m == 0 || product.n == 0) return;

  StripeArgs a = arguments(product);
  a.weights = reinterpret_cast<const unsigned char*>(weights.raw());
  a.scales = reinterpret_cast<const unsigned char*>(scales.raw());
  a.n_pad = static_cast<int>(n_pad), a.k_pad = static_cast<int>(product.k);
  a.groups = static_cast<int>(groups);
  a.scale_bf16 = scales.dtype == DType::bf16;
  const int64_t piece = 64 * bits;  // a sub-tile of 32 columns: one tile of operand B, two of operand A
  a.n_stride = experts ? product.k / 16 * piece : piece;
  a.k_stride = experts ? piece : n_pad / 32 * piece;
  Weights w;
  w.kernel = std::string("lpq_turbomind_") + (integer ? "u" : "f") + std::to_string(bits);
  w.bits = static_cast<int>(bits);
  w.scale_bytes = integer ? 4 : bits == 4 ? 1 : 2;
  multiply(a, w, product.x, nullptr, exec, p);
}
LPQ_CUDA_OP(gemm_turbomind, "gemm_turbomind");

}  // namespace
}  // namespace lpq::cuda
