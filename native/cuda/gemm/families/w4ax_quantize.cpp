// quantize_tokens, quantize_activations: codes of activations. Contracts: native/packed-ops.ts, native/w4ax-ops.ts.
#include "cuda/gemm/families/w4ax.h"
#include "cuda/launch.h"
#include "lpq/checks.h"

namespace lpq::cuda {
namespace {

void quantize_tokens(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &codes = call.output(0), &scales = call.output(1);
  require_dtype(x, "x", kActivations);
  require_shape(x, "x", {-1, -1});
  require_dtype(codes, "codes", {DType::i8, DType::f8_e4m3});
  require_shape(codes, "codes", x.shape);
  require_tensor(scales, "scales", DType::f32, {x.dim(0)});
  if (x.elements() == 0) return;
  require(x.dim(1) <= INT32_MAX, "x has more than 2^31 - 1 columns");
  const int k = static_cast<int>(x.dim(1)),
            vectors = k % 4 == 0 && fours(x) && reinterpret_cast<uintptr_t>(codes.raw()) % 4 == 0;
  const std::string kernel = std::string("lpq_quantize_tokens_") + (codes.dtype == DType::i8 ? "i8" : "f8") + suffix(x);
  unsigned char* const to = reinterpret_cast<unsigned char*>(codes.raw());
  uint32_t* const fault = exec.fault("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity");
  const void* const from = x.raw();
  exec.launch_after(kernel, {x.dim(0)}, {256}, 0, from, to, scales.data<float>(), k, vectors, fault);
  exec.wrote(codes, scales);
}

// Codes are stored four at a time.
void require_four(const Tensor& codes, const char* name) {
  require(reinterpret_cast<uintptr_t>(codes.raw()) % 4 == 0,
          std::string(name) + " does not start at a multiple of 4 bytes");
}

void quantize_activations(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &bits = call.input(1), &clip = call.input(2), &codes = call.output(0),
               &scales = call.output(1);
  require_dtype(x, "x", kActivations);
  require_shape(x, "x", {-1, -1});
  const int64_t rows = x.dim(0), k = x.dim(1), blocks = k / 128;
  require(k > 0 && k % 128 == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 128");
  require_tensor(bits, "bits", DType::u8, {blocks});
  require_tensor(clip, "clip", DType::f32, {blocks});
  require_tensor(codes, "codes", DType::i8, {rows, k});
  require_tensor(scales, "scales", DType::f32, {rows, blocks});
  const int* order = nullptr;
  if (call.in.size() > 3) {
    require_tensor(call.input(3), "order", DType::i32, {k});
    order = call.input(3).data<int32_t>();
  }
  require_four(codes, "codes");
  if (rows == 0) return;
  const int* const none = nullptr;
  unsigned char* const no_nibbles = nullptr;
  uint32_t* const fault = exec.fault(
      "LPQ_NATIVE_NUMERICS",
      "activations hold NaN or infinity, bits something else than 4 and 8, or order a column that is not there");
  const void* const from = x.raw();
  const long long tokens = rows;
  exec.launch_after("lpq_quantize_blocks" + suffix(x), {stride_blocks(exec, rows * blocks, 8)}, {256}, 0, from,
                    bits.data<unsigned char>(), clip.data<float>(), order, none,
                    reinterpret_cast<signed char*>(codes.raw()), no_nibbles, scales.data<float>(), tokens,
                    static_cast<int>(k), 0, 0, 0, fault);
  exec.wrote(codes, scales);
}

// The same in the form that gemm_comet reads.
void quantize_comet(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &bits = call.input(1), &clip = call.input(2), &blocks = call.input(3);
  const Tensor &x8 = call.output(0), &x4 = call.output(1), &scales = call.output(2);
  require_dtype(x, "x", kActivations);
  require_shape(x, "x", {-1, -1});
  const int64_t rows = x.dim(0), k = x.dim(1), kb = k / 128;
  require(k > 0 && k % 128 == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 128");
  require_tensor(bits, "bits", DType::u8, {kb});
  require_tensor(clip, "clip", DType::f32, {kb});
  require_tensor(blocks, "blocks", DType::i32, {kb});
  require_tensor(x8, "x8", DType::i8, {rows, -1});
  require_tensor(x4, "x4", DType::u8, {rows, -1});
  require(x8.dim(1) % 128 == 0 && x4.dim(1) % 64 == 0 && x8.dim(1) / 128 + x4.dim(1) / 64 == kb,
          "x8 and x4 have not " + std::to_string(kb) + " blocks");
  const int64_t pitch = div_up(rows, 4) * 4;
  require_tensor(scales, "scales", DType::f32, {kb, pitch});
  const int* order = nullptr;
  if (call.in.size() > 4) {
    require_tensor(call.input(4), "order", DType::i32, {k});
    order = call.input(4).data<int32_t>();
  }
  require_four(x8, "x8"), require_four(x4, "x4");
  if (rows == 0) return;
  uint32_t* const fault = exec.fault("LPQ_NATIVE_NUMERICS",
                                     "activations hold NaN or infinity, bits something else than 4 and 8, blocks not "
                                     "those of bits, or order a column that is not there");
  const void* const from = x.raw();
  const long long tokens = rows;
  exec.launch_after("lpq_quantize_blocks" + suffix(x), {stride_blocks(exec, rows * kb, 8)}, {256}, 0, from,
                    bits.data<unsigned char>(), clip.data<float>(), order,
                    static_cast<const int*>(blocks.data<int32_t>()), reinterpret_cast<signed char*>(x8.raw()),
                    reinterpret_cast<unsigned char*>(x4.raw()), scales.data<float>(), tokens, static_cast<int>(k),
                    static_cast<int>(x8.dim(1) / 128), static_cast<int>(x4.dim(1) / 64), static_cast<int>(pitch),
                    fault);
  exec.wrote(x8, x4, scales);
}

}  // namespace
LPQ_CUDA_OP(quantize_comet, "quantize_comet");
LPQ_CUDA_OP(quantize_tokens, "quantize_tokens");
LPQ_CUDA_OP(quantize_activations, "quantize_activations");
}  // namespace lpq::cuda
