// With bf16, heads of up to 256 dims, and no keys that are chosen: on tensor cores (attention_backward.cuh); q, after
// its scale, k, v and dy are rounded to bf16 once. Otherwise fp32 throughout (attention_backward_f32.cuh).
#include "cuda/nn/heads_pack.h"
#include "ops/backward.h"

namespace lpq::cuda {
namespace {

constexpr float kLog2e = 1.4426950408889634f;
constexpr int64_t kMostDims = 576;

// As in attention_backward.cuh.
struct AttentionGradient {
  const void *q, *k, *v, *dy;
  void* rows;
  float *dq, *dk, *dv;
  const void* tasks;
  const int* count;
  const void* sinks;
  int sinks_type, room, heads, kv_heads, head_dim, value_dim, window;
  float scale, cap;
};

// As in attention_backward_f32.cuh.
struct ChainedGradient {
  const float *q, *k, *v, *dy;
  const int *starts, *count, *selected;
  const void* sinks;
  unsigned* seen;
  void* rows;
  float *dq, *dk, *dv;
  int sequences, tokens, heads, kv_heads, head_dim, value_dim, window, sinks_type, choices, top, block, words, fours;
  float scale, cap;
};

// The kernels of dims of queries and values, of tasks of 64 keys, and their shared memory.
struct Kernels {
  int64_t head_dim, value_dim;
  int row_keys, keys, queries;

  std::string name(const char* pass) const {
    return std::string("lpq_attention_backward_") + pass + "_" + std::to_string(head_dim) + "_" +
           std::to_string(value_dim);
  }
  unsigned rows_shared() const { return static_cast<unsigned>((kTaskQueries + 2 * row_keys) * row()); }
  unsigned columns_shared() const { return static_cast<unsigned>((keys + 2 * queries) * row() + 16 * queries); }

 private:
  int64_t row() const { return 2 * (head_dim + value_dim); }
};
constexpr Kernels kKernels[] = {
    {64, 64, 64, 64, 64}, {128, 128, 64, 64, 64}, {192, 128, 32, 64, 32}, {256, 256, 16, 32, 32}};

void on_tensor_cores(CudaExec& exec, const ops::AttentionBackward& a, const AttentionTasks& tasks, int window) {
  const ops::AttentionShape& of = a.shape;
  const Kernels& kernels = *std::find_if(std::begin(kKernels), std::end(kKernels), [&](const Kernels& each) {
    return of.head_dim <= each.head_dim && of.value_dim <= each.value_dim;
  });
  const auto packed = [&](const Tensor& from, int64_t heads, int64_t width, int64_t padded, float factor) {
    return pack_heads(exec, from, {0, from.dim(1)}, DType::bf16, heads, static_cast<int>(width),
                      static_cast<int>(padded), factor);
  };
  const Scratch q = packed(a.q, of.heads, of.head_dim, kernels.head_dim, of.scale * kLog2e),
                k = packed(a.k, of.kv_heads, of.head_dim, kernels.head_dim, 1),
                v = packed(a.v, of.kv_heads, of.value_dim, kernels.value_dim, 1),
                dy = packed(a.dy, of.heads, of.value_dim, kernels.value_dim, 1),
                rows = exec.scratch(static_cast<size_t>(of.heads * tasks.room) * kTaskQueries * 8);
  const AttentionGradient of_kernels{q.as<void>(),
                                     k.as<void>(),
                                     v.as<void>(),
                                     dy.as<void>(),
                                     rows.as<void>(),
                                     a.dq.data<float>(),
                                     a.dk.data<float>(),
                                     a.dv.data<float>(),
                                     tasks.list(),
                                     tasks.count(),
                                     raw_of(a.sinks),
                                     type_of(a.sinks),
                                     tasks.room,
                                     static_cast<int>(of.heads),
                                     static_cast<int>(of.kv_heads),
                                     static_cast<int>(of.head_dim),
                                     static_cast<int>(of.value_dim),
                                     window,
                                     of.scale,
                                     of.cap * kLog2e};
  exec.launch(kernels.name("rows"), {of.heads * tasks.room}, {128}, kernels.rows_shared(), of_kernels);
  exec.launch(kernels.name("columns"), {of.kv_heads * tasks.room * kTaskQueries / kernels.keys}, {128},
              kernels.columns_shared(), of_kernels);
}

void in_fp32(CudaExec& exec, const ops::AttentionBackward& a, const AttentionTasks& tasks, int window) {
  const ops::AttentionShape& of = a.shape;
  const int64_t tokens = a.q.dim(0), most = std::max(of.head_dim, of.value_dim);
  require(most <= kMostDims, "headDim and valueDim are at most " + std::to_string(kMostDims));
  const int64_t words = a.chosen ? div_up(div_up(tokens, a.block), 32) : 0;
  const size_t seen_bytes = static_cast<size_t>(tokens * a.choices * words) * 4;
  const Scratch rows = exec.scratch(static_cast<size_t>(tokens * of.heads) * 8), seen = exec.scratch(seen_bytes + 16);
  const bool fours = of.head_dim % 4 == 0 && of.value_dim % 4 == 0 && lpq::cuda::fours(a.q) && lpq::cuda::fours(a.k) &&
                     lpq::cuda::fours(a.v) && lpq::cuda::fours(a.dy);
  const ChainedGradient of_kernels{a.q.data<float>(),
                                   a.k.data<float>(),
                                   a.v.data<float>(),
                                   a.dy.data<float>(),
                                   a.starts.data<int32_t>(),
                                   tasks.count(),
                                   a.chosen ? a.selected->data<int32_t>() : nullptr,
                                   a.chosen ? nullptr : raw_of(a.sinks),
                                   seen.as<unsigned>(),
                                   rows.as<void>(),
                                   a.dq.data<float>(),
                                   a.dk.data<float>(),
                                   a.dv.data<float>(),
                                   static_cast<int>(a.starts.dim(0)) - 1,
                                   static_cast<int>(tokens),
                                   static_cast<int>(of.heads),
                                   static_cast<int>(of.kv_heads),
                                   static_cast<int>(of.head_dim),
                                   static_cast<int>(of.value_dim),
                                   a.chosen ? 0 : window,
                                   type_of(a.sinks),
                                   static_cast<int>(a.choices),
                                   a.chosen ? static_cast<int>(a.selected->dim(1) / a.choices) : 0,
                                   static_cast<int>(a.block),
                                   static_cast<int>(words),
                                   fours,
                                   of.scale,
                                   of.cap};
  if (a.chosen) {
    uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "selected names what a token does not see, or nothing");
    exec.fill_zero(seen.as<void>(), seen_bytes);
    exec.launch("lpq_attention_backward_seen", {div_up(tokens * a.choices, 4)}, {128}, 0, of_kernels, fault);
  }
  const std::string dims = most <= 128 ? "_4" : most <= 256 ? "_8" : "_18";
  const unsigned shared = static_cast<unsigned>(16 * (of.head_dim + of.value_dim));
  exec.launch("lpq_attention_backward_f32_rows" + dims, {div_up(tokens * of.heads, 4)}, {128}, shared, of_kernels);
  exec.launch("lpq_attention_backward_f32_columns" + dims, {div_up(tokens * of.kv_heads, 4)}, {128}, shared,
              of_kernels);
}

void attention_backward(Call& call, CudaExec& exec) {
  const ops::AttentionBackward a(call);
  const int64_t tokens = a.q.dim(0);
  if (tokens == 0) return;
  const AttentionTasks tasks(exec, a.starts, tokens);
  const int window = static_cast<int>(a.shape.window < tokens ? a.shape.window : 0);
  if (a.bf16 && !a.chosen && a.shape.head_dim <= 256 && a.shape.value_dim <= 256)
    on_tensor_cores(exec, a, tasks, window);
  else in_fp32(exec, a, tasks, window);
}

}  // namespace
LPQ_CUDA_OP(attention_backward, "attention_backward");
}  // namespace lpq::cuda
