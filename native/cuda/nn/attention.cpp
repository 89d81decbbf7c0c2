// attention. Contract: native/ops.ts. With a 16-bit y, q, k and v (f32 or y's dtype) are rounded to y's dtype once, q
// after its scale; products and the softmax are fp32. With an f32 y everything is fp32, and slower.
#include <cmath>

#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

constexpr int kQueries = 64;

struct Heads {
  int heads, kv_heads, head_dim, value_dim, window;
  float scale, cap;
};

const void* first_of(const Tensor& matrix, const Columns& of) {
  return matrix.raw() + of.first * static_cast<int64_t>(dtype_bytes(matrix.dtype));
}

// [T, count, width] of any activation dtype, some columns of a matrix -> [T, count, padded] of `dtype`.
Scratch pack(CudaExec& exec, const Tensor& from, const Columns& of, DType dtype, int64_t count, int width, int padded,
             float factor) {
  const long long rows = from.dim(0) * count, pitch = of.pitch;
  Scratch to = exec.scratch(static_cast<size_t>(rows * padded) * 2);
  const void* source = first_of(from, of);
  void* target = to.as<void>();
  const int heads = static_cast<int>(count);
  const int fours =
      width % 4 == 0 && pitch % 4 == 0 && reinterpret_cast<uintptr_t>(source) % (4 * dtype_bytes(from.dtype)) == 0;
  exec.launch("lpq_pack_heads" + suffix(from) + "_" + std::string(dtype_name(dtype)),
              {stride_blocks(exec, rows * padded / 4, 256)}, {256}, 0, source, target, rows, heads, pitch, width,
              padded, fours, factor);
  return to;
}

void attention(Call& call, CudaExec& exec) {
  const Tensor &q = call.input(0), &k = call.input(1), &v = call.input(2), &starts = call.input(3), &y = call.output(0);
  const Params& p = call.params;
  Heads h{static_cast<int>(p.integer("heads")),        static_cast<int>(p.integer("kvHeads")),
          static_cast<int>(p.integer("headDim")),      0,
          static_cast<int>(p.integer("window", 0)),    static_cast<float>(p.number("scale")),
          static_cast<float>(p.number("softCap", 0.0))};
  h.value_dim = static_cast<int>(p.integer("valueDim", h.head_dim));
  require(h.heads > 0 && h.kv_heads > 0 && h.heads % h.kv_heads == 0,
          "heads (" + std::to_string(h.heads) + ") is not a multiple of kvHeads (" + std::to_string(h.kv_heads) + ")");
  require(h.head_dim > 0 && h.value_dim > 0 && h.head_dim <= 256 && h.value_dim <= 256,
          "headDim and valueDim must lie between 1 and 256");
  require(h.window >= 0, "window is " + std::to_string(h.window));
  require(h.cap >= 0, "softCap is " + std::to_string(h.cap));
  require_dtype(y, "y", kActivations);
  for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}})
    require_dtype(*tensor, name, {DType::f32, y.dtype});
  const Columns of_q = columns_of(p, "qFirst", q, "q", static_cast<int64_t>(h.heads) * h.head_dim);
  const Columns of_k = columns_of(p, "kFirst", k, "k", static_cast<int64_t>(h.kv_heads) * h.head_dim);
  const Columns of_v = columns_of(p, "vFirst", v, "v", static_cast<int64_t>(h.kv_heads) * h.value_dim);
  const int tokens = static_cast<int>(q.dim(0));
  require_shape(k, "k", {tokens, -1});
  require_shape(v, "v", {tokens, -1});
  require_shape(y, "y", {tokens, static_cast<int64_t>(h.heads) * h.value_dim});
  require(tokens == 0 || (y.raw() != q.raw() && y.raw() != k.raw() && y.raw() != v.raw()),
          "y must be none of q, k and v");
  require_tensor(starts, "starts", DType::i32, {-1});
  const int sequences = static_cast<int>(starts.dim(0)) - 1;
  require(sequences >= 0, "starts is empty");
  const void* sinks = nullptr;
  int sinks_type = 0;
  if (call.in.size() > 4) {
    require_dtype(call.input(4), "sinks", kActivations);
    require_shape(call.input(4), "sinks", {h.heads});
    sinks = call.input(4).raw();
    sinks_type = type_index(call.input(4).dtype);
  }
  if (tokens == 0) return;

  const int room = tokens / kQueries + sequences;
  const Scratch memory = exec.scratch(static_cast<size_t>(room) * 12 + 16);
  int32_t* count = memory.as<int32_t>();
  void* tasks = memory.as<int32_t>(16);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "starts does not rise from 0 to " + std::to_string(tokens));
  exec.launch("lpq_attention_tasks", {1}, {1}, 0, starts.data<int32_t>(), sequences, tokens, tasks, room, count, fault);
  if (y.dtype == DType::f32) {
    const long long q_pitch = of_q.pitch, k_pitch = of_k.pitch, v_pitch = of_v.pitch;
    exec.launch("lpq_attention_f32", {div_up(static_cast<int64_t>(tokens) * h.heads, 8)}, {32, 8}, 0,
                q.data<float>() + of_q.first, k.data<float>() + of_k.first, v.data<float>() + of_v.first, q_pitch,
                k_pitch, v_pitch, y.data<float>(), starts.data<int32_t>(), sequences, tokens, h.heads, h.kv_heads,
                h.head_dim, h.value_dim, h.scale, h.window, h.cap, sinks, sinks_type);
    return;
  }
  const int wide = std::max(h.head_dim, h.value_dim), padded = wide <= 32    ? 32
                                                               : wide <= 64  ? 64
                                                               : wide <= 128 ? 128
                                                                             : 256;
  const int keys = padded == 256 ? 32 : 64;
  const float log2e = 1.4426950408889634f;
  const Scratch queries = pack(exec, q, of_q, y.dtype, h.heads, h.head_dim, padded, h.scale * log2e);
  const Scratch packed_keys = pack(exec, k, of_k, y.dtype, h.kv_heads, h.head_dim, padded, 1.0f);
  const Scratch values = pack(exec, v, of_v, y.dtype, h.kv_heads, h.value_dim, padded, 1.0f);
  const void *qs = queries.as<void>(), *ks = packed_keys.as<void>(), *vs = values.as<void>();
  void* out = y.raw();
  const unsigned shared = static_cast<unsigned>((kQueries + 4 * keys) * padded * 2);
  exec.launch("lpq_attention" + suffix(y) + "_" + std::to_string(padded), {h.heads, room}, {128}, shared, qs, ks, vs,
              out, tasks, count, h.heads, h.kv_heads, h.value_dim, h.window, h.cap * log2e, sinks, sinks_type);
}

}  // namespace
LPQ_CUDA_OP(attention, "attention");
}  // namespace lpq::cuda
