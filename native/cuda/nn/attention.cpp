// With a 16-bit y, q, k and v (f32 or y's dtype) are rounded to y's dtype once, q after its scale; products and the
// softmax are fp32. With an f32 y and bf16 they are rounded to bf16, and y is what the sums are. With an f32 y alone
// everything is fp32, and slower.
#include <cmath>

#include "cuda/nn/heads_pack.h"

namespace lpq::cuda {
namespace {

const void* first_of(const Tensor& matrix, const Columns& of) {
  return matrix.raw() + of.first * static_cast<int64_t>(dtype_bytes(matrix.dtype));
}

}  // namespace

Scratch pack_heads(CudaExec& exec, const Tensor& from, const Columns& of, DType dtype, int64_t count, int width,
                   int padded, float factor) {
  const long long rows = from.dim(0) * count, pitch = of.pitch;
  Scratch to = exec.scratch(static_cast<size_t>(rows * padded) * 2);
  const void* source = first_of(from, of);
  const int heads = static_cast<int>(count);
  const int fours =
      width % 4 == 0 && pitch % 4 == 0 && reinterpret_cast<uintptr_t>(source) % (4 * dtype_bytes(from.dtype)) == 0;
  exec.launch("lpq_pack_heads" + suffix(from) + "_" + std::string(dtype_name(dtype)),
              {stride_blocks(exec, rows * padded / 4, 256)}, {256}, 0, source, to.as<void>(), rows, heads, pitch, width,
              padded, fours, factor);
  return to;
}

AttentionTasks::AttentionTasks(CudaExec& exec, const Tensor& starts, int64_t tokens)
    : room(static_cast<int>(tokens / kTaskQueries + starts.dim(0) - 1)),
      memory_(exec.scratch(static_cast<size_t>(room) * 12 + 16)) {
  const int sequences = static_cast<int>(starts.dim(0)) - 1, all = static_cast<int>(tokens);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "starts does not rise from 0 to " + std::to_string(tokens));
  exec.launch("lpq_attention_tasks", {1}, {1}, 0, starts.data<int32_t>(), sequences, all, memory_.as<void>(16), room,
              memory_.as<int32_t>(), fault);
}

namespace {

void attention(Call& call, CudaExec& exec) {
  const ops::Attention a(call);
  const Tensor &q = a.q, &k = a.k, &v = a.v, &y = a.y, &starts = a.starts;
  const ops::AttentionShape& of = a.shape;
  require(of.head_dim <= 256 && of.value_dim <= 256, "headDim and valueDim are at most 256");
  const int heads = static_cast<int>(of.heads), kv_heads = static_cast<int>(of.kv_heads),
            head_dim = static_cast<int>(of.head_dim), value_dim = static_cast<int>(of.value_dim),
            window = static_cast<int>(of.window);
  const int tokens = static_cast<int>(q.dim(0)), sequences = static_cast<int>(starts.dim(0)) - 1;
  const void* sinks = raw_of(a.sinks);
  const int sinks_type = type_of(a.sinks);
  if (tokens == 0) return;

  const AttentionTasks made(exec, starts, tokens);
  const int32_t* count = made.count();
  const void* tasks = made.list();
  if (y.dtype == DType::f32 && !a.bf16) {
    const long long q_pitch = a.of_q.pitch, k_pitch = a.of_k.pitch, v_pitch = a.of_v.pitch;
    exec.launch("lpq_attention_f32", {div_up(static_cast<int64_t>(tokens) * heads, 8)}, {32, 8}, 0,
                q.data<float>() + a.of_q.first, k.data<float>() + a.of_k.first, v.data<float>() + a.of_v.first, q_pitch,
                k_pitch, v_pitch, y.data<float>(), starts.data<int32_t>(), sequences, tokens, heads, kv_heads, head_dim,
                value_dim, of.scale, window, of.cap, sinks, sinks_type);
    return;
  }
  const int wide = std::max(head_dim, value_dim), padded = wide <= 32 ? 32 : wide <= 64 ? 64 : wide <= 128 ? 128 : 256;
  const int keys = padded == 256 ? 32 : 64;
  const float log2e = 1.4426950408889634f;
  const DType products = y.dtype == DType::f32 ? DType::bf16 : y.dtype;
  const Scratch queries = pack_heads(exec, q, a.of_q, products, heads, head_dim, padded, of.scale * log2e);
  const Scratch packed_keys = pack_heads(exec, k, a.of_k, products, kv_heads, head_dim, padded, 1.0f);
  const Scratch values = pack_heads(exec, v, a.of_v, products, kv_heads, value_dim, padded, 1.0f);
  const void *qs = queries.as<void>(), *ks = packed_keys.as<void>(), *vs = values.as<void>();
  const unsigned shared = static_cast<unsigned>((kTaskQueries + 4 * keys) * padded * 2);
  const char* type = products == DType::f16 ? "f16_" : y.dtype == DType::f32 ? "bf16_f32_" : "bf16_";
  exec.launch(std::string("lpq_attention_") + type + std::to_string(padded), {heads, made.room}, {128}, shared, qs, ks,
              vs, y.raw(), tasks, count, heads, kv_heads, value_dim, window, of.cap * log2e, sinks, sinks_type);
}

}  // namespace
LPQ_CUDA_OP(attention, "attention");
}  // namespace lpq::cuda
