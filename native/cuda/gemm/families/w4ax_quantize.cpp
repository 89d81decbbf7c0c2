// quantize_tokens, quantize_activations, quantize_comet: codes of activations; dequantize_activations, widen_tokens,
// scale_tokens.
#include "cuda/launch.h"
#include "ops/w4ax.h"

namespace lpq::cuda {
namespace {

void quantize_tokens(Call& call, CudaExec& exec) {
  const ops::QuantizeTokens op(call);
  const Tensor &x = op.x, &codes = op.codes, &scales = op.scales;
  if (x.elements() == 0) return;
  const int k = static_cast<int>(x.dim(1)),
            vectors = k % 4 == 0 && fours(x) && reinterpret_cast<uintptr_t>(codes.raw()) % 4 == 0;
  const std::string kernel = std::string("lpq_quantize_tokens_") + (codes.dtype == DType::i8 ? "i8" : "f8") + suffix(x);
  unsigned char* const to = reinterpret_cast<unsigned char*>(codes.raw());
  uint32_t* const fault = exec.fault("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
  // Few tokens: as many threads as have a four each, so that all loads are under way at once.
  const int64_t most = x.dim(0) <= 2 * exec.device().multiprocessors ? 1024 : 256,
                threads = std::clamp<int64_t>(div_up(k, 4 * 32) * 32, 32, most);
  exec.launch_through(kernel, {x.dim(0)}, {threads}, 0, x.raw(), to, scales.data<float>(), k, vectors, fault);
  exec.wrote(codes, scales);
}

void widen_tokens(Call& call, CudaExec& exec) {
  const ops::WidenTokens op(call);
  const Tensor &codes = op.codes, &x = op.x, &rest = op.rest;
  if (x.elements() == 0) return;
  const int k = static_cast<int>(x.dim(1)),
            vectors = k % 4 == 0 && fours(x) && reinterpret_cast<uintptr_t>(codes.raw()) % 4 == 0;
  const std::string kernel = std::string("lpq_widen_tokens_") + (op.integers ? "i8" : "f8") + suffix(x);
  const int64_t threads = std::clamp<int64_t>(div_up(k, 4 * 32) * 32, 32, 256);
  exec.launch_through(kernel, {x.dim(0)}, {threads}, 0, reinterpret_cast<const unsigned char*>(codes.raw()),
                      static_cast<const float*>(op.scales.data<float>()), x.raw(), rest.data<float>(), k, vectors,
                      op.least, op.most);
  exec.wrote(x, rest);
}

void scale_tokens(Call& call, CudaExec& exec) {
  const ops::ScaleTokens op(call);
  if (op.y.elements() == 0) return;
  const long long count = op.y.elements(), n = op.y.dim(1);
  const void* const bias = op.bias ? op.bias->raw() : nullptr;
  exec.launch_through("lpq_scale_tokens" + suffix(op.y), {stride_blocks(exec, count, 256)}, {256}, 0,
                      static_cast<const float*>(op.rest.data<float>()), op.y.raw(), bias,
                      op.bias ? type_index(op.bias->dtype) : 0, count, n);
  exec.wrote(op.y);
}

// Codes are stored four at a time.
void require_four(const Tensor& codes, const char* name) {
  require(reinterpret_cast<uintptr_t>(codes.raw()) % 4 == 0,
          std::string(name) + " does not start at a multiple of 4 bytes");
}

const int* order_of(const Tensor* order) { return order ? order->data<int32_t>() : nullptr; }

void quantize_activations(Call& call, CudaExec& exec) {
  const ops::QuantizeActivations op(call);
  require_four(op.codes, "codes");
  if (op.rows == 0) return;
  const int* const none = nullptr;
  unsigned char* const no_nibbles = nullptr;
  uint32_t* const fault = exec.fault(
      "LPQ_NATIVE_NUMERICS",
      "activations hold NaN or infinity, bits something else than 4 and 8, or order a column that is not there");
  const long long tokens = op.rows;
  exec.launch_through("lpq_quantize_blocks" + suffix(op.x), {stride_blocks(exec, op.rows * op.blocks, 8)}, {256}, 0,
                      op.x.raw(), op.bits.data<unsigned char>(), op.clip.data<float>(), order_of(op.order), none,
                      reinterpret_cast<signed char*>(op.codes.raw()), no_nibbles, op.scales.data<float>(), tokens,
                      static_cast<int>(op.k), 0, 0, 0, fault);
  exec.wrote(op.codes, op.scales);
}

void dequantize_activations(Call& call, CudaExec& exec) {
  const ops::DequantizeActivations op(call);
  require_four(op.codes, "codes");
  if (op.rows == 0) return;
  require(fours(op.x), "x does not start at a multiple of four elements");
  const long long count = op.rows * op.k / 4;
  exec.launch("lpq_dequantize_blocks" + suffix(op.x), {stride_blocks(exec, count, 256)}, {256}, 0,
              reinterpret_cast<const signed char*>(op.codes.raw()), static_cast<const float*>(op.scales.data<float>()),
              op.x.raw(), count);
}

// The same in the form that gemm_comet reads.
void quantize_comet(Call& call, CudaExec& exec) {
  const ops::QuantizeComet op(call);
  const ops::W4axBlocks& to = op.to;
  require_four(to.x8, "x8"), require_four(to.x4, "x4");
  if (op.rows == 0) return;
  uint32_t* const fault = exec.fault("LPQ_NATIVE_NUMERICS",
                                     "activations hold NaN or infinity, bits something else than 4 and 8, blocks not "
                                     "those of bits, or order a column that is not there");
  const long long tokens = op.rows;
  exec.launch_through("lpq_quantize_blocks" + suffix(op.x), {stride_blocks(exec, op.rows * to.count, 8)}, {256}, 0,
                      op.x.raw(), op.bits.data<unsigned char>(), op.clip.data<float>(), order_of(op.order),
                      static_cast<const int*>(to.blocks.data<int32_t>()), reinterpret_cast<signed char*>(to.x8.raw()),
                      reinterpret_cast<unsigned char*>(to.x4.raw()), op.scales.data<float>(), tokens,
                      static_cast<int>(op.k), static_cast<int>(to.eights), static_cast<int>(to.fours),
                      static_cast<int>(op.scales.dim(1)), fault);
  exec.wrote(to.x8, to.x4, op.scales);
}

}  // namespace
LPQ_CUDA_OP(quantize_comet, "quantize_comet");
LPQ_CUDA_OP(quantize_tokens, "quantize_tokens");
LPQ_CUDA_OP(widen_tokens, "widen_tokens");
LPQ_CUDA_OP(scale_tokens, "scale_tokens");
LPQ_CUDA_OP(quantize_activations, "quantize_activations");
LPQ_CUDA_OP(dequantize_activations, "dequantize_activations");
}  // namespace lpq::cuda
