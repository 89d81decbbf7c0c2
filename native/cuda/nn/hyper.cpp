#include "ops/hyper.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void hyper_weights(Call& call, CudaExec& exec) {
  const ops::HyperWeights a(call);
  require(a.streams <= 8, "there are " + std::to_string(a.streams) + " streams: on CUDA 8 at most");
  const int n = static_cast<int>(a.streams), width = static_cast<int>(a.w.dim(1)),
            iterations = static_cast<int>(a.iterations), tokens = static_cast<int>(a.w.dim(0)),
            base_type = type_index(a.base.dtype), scale_type = type_index(a.scale.dtype);
  const void *base = a.base.raw(), *scale = a.scale.raw();
  float *const post = a.whole ? a.post->data<float>() : nullptr, *const mix = a.whole ? a.mix->data<float>() : nullptr;
  exec.launch("lpq_hyper_weights", {div_up(tokens, 64)}, {64}, 0, a.w.data<float>(), base, base_type, scale, scale_type,
              a.pre.data<float>(), post, mix, n, width, iterations, a.eps, tokens);
}

void hyper_collapse(Call& call, CudaExec& exec) {
  const ops::HyperCollapse a(call);
  const int n = static_cast<int>(a.pre.dim(1)), width = static_cast<int>(a.y.dim(1));
  const long long count = a.y.elements();
  exec.launch("lpq_hyper_collapse", {stride_blocks(exec, count, 256)}, {256}, 0, a.x.data<float>(), a.pre.data<float>(),
              a.y.data<float>(), n, width, count);
}

void hyper_expand(Call& call, CudaExec& exec) {
  const ops::HyperExpand a(call);
  const int n = static_cast<int>(a.post.dim(1)), width = static_cast<int>(a.made.dim(1));
  const long long count = a.made.elements();
  exec.launch("lpq_hyper_expand", {stride_blocks(exec, count, 256)}, {256}, 0, a.x.data<float>(), a.made.data<float>(),
              a.post.data<float>(), a.mix.data<float>(), a.y.data<float>(), n, width, count);
}

void limited_gate(Call& call, CudaExec& exec) {
  const ops::LimitedGate a(call);
  const long long count = a.gate.elements();
  exec.launch("lpq_limited_gate" + suffix(a.gate), {stride_blocks(exec, count, 256)}, {256}, 0, a.gate.raw(),
              a.up.raw(), a.y.raw(), a.limit, count);
}

void route_root(Call& call, CudaExec& exec) {
  const ops::RouteRoot a(call);
  const long long tokens = a.logits.dim(0), rows = a.table ? a.table->dim(0) : 0;
  const int experts = static_cast<int>(a.experts), k = static_cast<int>(a.k), bias_type = type_of(a.bias),
            wide = a.table && a.table->dtype == DType::i64;
  const int warps = static_cast<int>(std::clamp<int64_t>(4096 / std::max(1, experts), 1, 4));
  const void *bias = raw_of(a.bias), *table = raw_of(a.table);
  const int32_t* ids = a.ids ? a.ids->data<int32_t>() : nullptr;
  uint32_t *not_finite = exec.fault("LPQ_NATIVE_NUMERICS", "a share of an expert is NaN or infinite"),
           *no_expert = exec.fault("LPQ_NATIVE_ARGUMENT", "the table lacks an id, or names an expert that is none");
  exec.launch("lpq_route_root", {div_up(tokens, warps)}, {32, warps}, static_cast<unsigned>(8 * experts * warps),
              a.logits.data<float>(), bias, bias_type, ids, table, wide, rows, a.indices.data<int32_t>(),
              a.weights.data<float>(), tokens, experts, k, a.scale, not_finite, no_expert);
}

}  // namespace
LPQ_CUDA_OP(hyper_weights, "hyper_weights");
LPQ_CUDA_OP(hyper_collapse, "hyper_collapse");
LPQ_CUDA_OP(hyper_expand, "hyper_expand");
LPQ_CUDA_OP(limited_gate, "limited_gate");
LPQ_CUDA_OP(route_root, "route_root");
}  // namespace lpq::cuda
