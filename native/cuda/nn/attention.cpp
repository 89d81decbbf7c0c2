// With a 16-bit y, q, k and v (f32 or y's dtype) are rounded to y's dtype once, q
// after its scale; products and the softmax are fp32. With an f32 y everything is fp32, and slower.
#include <cmath>

#include "cuda/launch.h"
#include "ops/attention.h"

namespace lpq::cuda {
namespace {

constexpr int kQueries = 64;

const void* first_of(const Tensor& matrix, const Columns& of) {
  return matrix.raw() + of.first * static_cast<int64_t>(dtype_bytes(matrix.dtype));
}

// [T, count, width] of any activation dtype, some columns of a matrix -> [T, count, padded] of `dtype`.
Scratch pack(CudaExec& exec, const Tensor& from, const Columns& of, DType dtype, int64_t count, int width, int padded,
             float factor) {
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

  const int room = tokens / kQueries + sequences;
  const Scratch memory = exec.scratch(static_cast<size_t>(room) * 12 + 16);
  int32_t* count = memory.as<int32_t>();
  void* tasks = memory.as<int32_t>(16);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "starts does not rise from 0 to " + std::to_string(tokens));
  exec.launch("lpq_attention_tasks", {1}, {1}, 0, starts.data<int32_t>(), sequences, tokens, tasks, room, count, fault);
  if (y.dtype == DType::f32) {
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
  const Scratch queries = pack(exec, q, a.of_q, y.dtype, heads, head_dim, padded, of.scale * log2e);
  const Scratch packed_keys = pack(exec, k, a.of_k, y.dtype, kv_heads, head_dim, padded, 1.0f);
  const Scratch values = pack(exec, v, a.of_v, y.dtype, kv_heads, value_dim, padded, 1.0f);
  const void *qs = queries.as<void>(), *ks = packed_keys.as<void>(), *vs = values.as<void>();
  const unsigned shared = static_cast<unsigned>((kQueries + 4 * keys) * padded * 2);
  exec.launch("lpq_attention" + suffix(y) + "_" + std::to_string(padded), {heads, room}, {128}, shared, qs, ks, vs,
              y.raw(), tasks, count, heads, kv_heads, value_dim, window, of.cap * log2e, sinks, sinks_type);
}

}  // namespace
LPQ_CUDA_OP(attention, "attention");
}  // namespace lpq::cuda
