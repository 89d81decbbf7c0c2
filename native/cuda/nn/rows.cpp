// embedding, rmsnorm, layernorm, rope, neg_log_likelihood; bad ids and positions are found
// when the queue is next waited for.
#include "cuda/launch.h"
#include "ops/attention.h"
#include "ops/norm.h"
#include "ops/tokens.h"

namespace lpq::cuda {
namespace {

void embedding(Call& call, CudaExec& exec) {
  const ops::Embedding op(call);
  const long long vocabulary = op.table.dim(0), width = op.table.dim(1);
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "a token id lies outside the table of " + std::to_string(vocabulary) + " rows");
  exec.launch("lpq_embedding", {op.ids.dim(0)}, {256}, 0, op.ids.data<int32_t>(), op.table.raw(),
              type_index(op.table.dtype), op.y.data<float>(), op.scale, vocabulary, width, fault);
}

// The columns to be normalised, and whether they can be read in fours.
struct Columns4 {
  const void* from;
  void* to;
  int vec;
};

Columns4 columns_from(const ops::NormRows& rows, const Tensor& x, const Tensor& y) {
  const bool vec = rows.width % 4 == 0 && rows.pitch % 4 == 0 && rows.first % 4 == 0 && fours(x) && fours(y);
  return {x.raw() + rows.first * static_cast<int64_t>(dtype_bytes(x.dtype)),
          y.raw() + rows.first * static_cast<int64_t>(dtype_bytes(y.dtype)), vec};
}

void rmsnorm(Call& call, CudaExec& exec) {
  const ops::Rmsnorm a(call);
  const auto [from, to, vec] = columns_from(a.rows, a.x, a.y);
  const int width = static_cast<int>(a.rows.width), runs = static_cast<int>(a.rows.runs);
  const long long count = a.rows.count, pitch = a.rows.pitch;
  const float eps = static_cast<float>(a.eps);
  const bool by_warp = width <= 512;
  exec.launch_through("lpq_rmsnorm" + suffix(a.x) + suffix(a.y), {by_warp ? div_up(count, 8) : count},
                      by_warp ? Dim3(32, 8) : Dim3(256), 0, from, raw_of(a.weight), type_of(a.weight), to, count, width,
                      runs, pitch, eps, a.offset, vec);
  exec.wrote(a.y);
}

void layernorm(Call& call, CudaExec& exec) {
  const ops::Layernorm a(call);
  const auto [from, to, vec] = columns_from(a.rows, a.x, a.y);
  const int width = static_cast<int>(a.rows.width), runs = static_cast<int>(a.rows.runs),
            turns = static_cast<int>(a.turns);
  const long long pitch = a.rows.pitch;
  const float eps = static_cast<float>(a.eps);
  const void *gain = raw_of(a.weight), *shift = raw_of(a.bias);
  exec.launch_through("lpq_layernorm" + suffix(a.x) + suffix(a.y), {a.rows.count}, {256}, 0, from, gain,
                      type_of(a.weight), shift, type_of(a.bias), to, width, runs, pitch, turns, eps, a.offset);
  exec.wrote(a.y);
}

void turn(const ops::Rope& a, int back, CudaExec& exec) {
  if (a.rotation.rotary == 0) return;
  const Tensor &x = a.x, &cosines = *a.rotation.cos;
  const int heads = static_cast<int>(a.heads), head_dim = static_cast<int>(a.head_dim);
  const int rotary = static_cast<int>(a.rotation.rotary), halves = a.rotation.halves;
  const long long places = cosines.dim(0);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "a position lies outside the table of " + std::to_string(places));
  void* data = x.raw() + a.columns.first * static_cast<int64_t>(dtype_bytes(x.dtype));
  const long long pitch = a.columns.pitch;
  exec.launch("lpq_rope" + suffix(x), {x.dim(0)}, {256}, 0, data, cosines.data<float>(), a.rotation.sin->data<float>(),
              a.rotation.positions->data<int32_t>(), heads, head_dim, pitch, rotary, halves, places, back, fault);
}

void rope(Call& call, CudaExec& exec) { turn(ops::Rope(call), 0, exec); }

void rope_backward(Call& call, CudaExec& exec) { turn(ops::Rope(call, true), 1, exec); }

void neg_log_likelihood(Call& call, CudaExec& exec) {
  const ops::NegLogLikelihood op(call);
  const int64_t tokens = op.logits.dim(0);
  const int vocabulary = static_cast<int>(op.logits.dim(1));
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "a target lies outside the vocabulary of " + std::to_string(vocabulary));
  exec.launch("lpq_nll", {tokens}, {256}, 0, op.logits.data<float>(), op.targets.data<int32_t>(), op.nll.data<double>(),
              vocabulary, fault);
}

}  // namespace
LPQ_CUDA_OP(embedding, "embedding");
LPQ_CUDA_OP(rmsnorm, "rmsnorm");
LPQ_CUDA_OP(layernorm, "layernorm");
LPQ_CUDA_OP(rope, "rope");
LPQ_CUDA_OP(rope_backward, "rope_backward");
LPQ_CUDA_OP(neg_log_likelihood, "neg_log_likelihood");
}  // namespace lpq::cuda
