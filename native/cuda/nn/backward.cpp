// Gradients of norms, activations, gates and the output.
#include "ops/backward.h"
#include "cuda/launch.h"
#include "ops/w4ax.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
  Dim3 grid, block;
  Rows(int64_t rows, int64_t width)
      : grid(width <= 512 ? div_up(rows, 8) : rows),
        block(width <= 512 ? Dim3(32, 8) : Dim3(width <= 2048 ? 256 : 512)) {}
};

void rmsnorm_backward(Call& call, CudaExec& exec) {
  const ops::RmsnormBackward a(call);
  const long long rows = a.x.dim(0);
  const int width = static_cast<int>(a.x.dim(1)), type = type_of(a.weight), accumulate = a.accumulate;
  const void* weight = raw_of(a.weight);
  const float eps = static_cast<float>(a.eps);
  const Rows of(rows, width);
  exec.launch("lpq_rmsnorm_backward", of.grid, of.block, 0, a.x.data<float>(), a.dy.data<float>(), weight, type,
              a.dx.data<float>(), rows, width, eps, a.offset, accumulate);
}

void layernorm_backward(Call& call, CudaExec& exec) {
  const ops::LayernormBackward a(call);
  const long long rows = a.x.dim(0);
  const int width = static_cast<int>(a.x.dim(1)), type = type_of(a.weight), accumulate = a.accumulate,
            turns = static_cast<int>(a.turns);
  const void* weight = raw_of(a.weight);
  const float eps = static_cast<float>(a.eps);
  const Rows of(rows, width);
  exec.launch("lpq_layernorm_backward", of.grid, of.block, 0, a.x.data<float>(), a.dy.data<float>(), weight, type,
              a.dx.data<float>(), rows, width, turns, eps, a.offset, accumulate);
}

void activation_backward(Call& call, CudaExec& exec) {
  const ops::ActivationBackward a(call);
  const long long count = a.x.elements();
  const int act = static_cast<int>(a.act);
  exec.launch("lpq_activation_backward", {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, a.x.data<float>(),
              a.dy.data<float>(), a.dx.data<float>(), act, count);
}

// A gate's gradients are made four at a time where all tensors allow it.
template <class Of>
bool in_fours(const Of& a) {
  return a.gate.elements() % 4 == 0 && fours(a.gate) && fours(a.up) && fours(a.dy) && fours(a.dgate) && fours(a.dup);
}

void gated_activation_backward(Call& call, CudaExec& exec) {
  const ops::GatedActivationBackward a(call);
  const long long count = a.gate.elements();
  const int act = static_cast<int>(a.act), vec = in_fours(a);
  exec.launch("lpq_gated_activation_backward", {stride_blocks(exec, vec ? count / 4 : count, kThreads)}, {kThreads}, 0,
              a.gate.data<float>(), a.up.data<float>(), a.dy.data<float>(), a.dgate.data<float>(), a.dup.data<float>(),
              act, count, vec);
}

template <class Of>
void limited(const Of& a, CudaExec& exec, float alpha, float more) {
  const long long count = a.gate.elements();
  const int vec = in_fours(a);
  exec.launch("lpq_limited_backward", {stride_blocks(exec, vec ? count / 4 : count, kThreads)}, {kThreads}, 0,
              a.gate.template data<float>(), a.up.template data<float>(), a.dy.template data<float>(),
              a.dgate.template data<float>(), a.dup.template data<float>(), alpha, a.limit, more, count, vec);
}

void clamped_swiglu_backward(Call& call, CudaExec& exec) {
  const ops::ClampedSwigluBackward a(call);
  limited(a, exec, a.alpha, 1.0f);
}

void limited_gate_backward(Call& call, CudaExec& exec) { limited(ops::LimitedGateBackward(call), exec, 1.0f, 0.0f); }

void xielu_backward(Call& call, CudaExec& exec) {
  const ops::XieluBackward a(call);
  const long long count = a.x.elements();
  const void *positive = a.positive.raw(), *negative = a.negative.raw(), *beta = a.beta.raw(), *eps = a.eps.raw();
  const int positive_type = type_index(a.positive.dtype), negative_type = type_index(a.negative.dtype),
            beta_type = type_index(a.beta.dtype), eps_type = type_index(a.eps.dtype);
  exec.launch("lpq_xielu_backward", {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, a.x.data<float>(), positive,
              negative, beta, eps, positive_type, negative_type, beta_type, eps_type, a.dy.data<float>(),
              a.dx.data<float>(), count);
}

void soft_cap_backward(Call& call, CudaExec& exec) {
  const ops::SoftCapBackward a(call);
  const long long count = a.y.elements();
  const float inverse = a.cap > 0 ? 1.0f / a.cap : 0.0f;
  exec.launch("lpq_soft_cap_backward", {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, a.y.data<float>(),
              a.dy.data<float>(), a.dx.data<float>(), a.scale, inverse, count);
}

void output_error(Call& call, CudaExec& exec) {
  const ops::OutputError a(call);
  const int width = static_cast<int>(a.y.dim(1));
  exec.launch("lpq_output_error", {a.y.dim(0)}, {kThreads}, 0, a.y.data<float>(), a.target.data<float>(),
              a.dy.data<float>(), a.sums.data<double>(), width);
}

void divergence(Call& call, CudaExec& exec) {
  const ops::Divergence a(call);
  const int vocabulary = static_cast<int>(a.logits.dim(1));
  exec.launch("lpq_divergence", {a.logits.dim(0)}, {1024}, 0, a.logits.data<float>(), a.target.data<float>(),
              a.dlogits.data<float>(), a.sums.data<double>(), vocabulary, a.factor);
}

void gather_columns(Call& call, CudaExec& exec) {
  const ops::GatherColumns a(call);
  const int width = static_cast<int>(a.x.dim(1));
  const long long count = a.x.elements();
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "order names a column that x does not have");
  exec.launch("lpq_gather_columns_f32", {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, a.x.data<float>(),
              a.order.data<int32_t>(), a.y.data<float>(), width, count, fault);
}

}  // namespace
LPQ_CUDA_OP(rmsnorm_backward, "rmsnorm_backward");
LPQ_CUDA_OP(layernorm_backward, "layernorm_backward");
LPQ_CUDA_OP(activation_backward, "activation_backward");
LPQ_CUDA_OP(gated_activation_backward, "gated_activation_backward");
LPQ_CUDA_OP(clamped_swiglu_backward, "clamped_swiglu_backward");
LPQ_CUDA_OP(limited_gate_backward, "limited_gate_backward");
LPQ_CUDA_OP(xielu_backward, "xielu_backward");
LPQ_CUDA_OP(soft_cap_backward, "soft_cap_backward");
LPQ_CUDA_OP(output_error, "output_error");
LPQ_CUDA_OP(divergence, "divergence");
LPQ_CUDA_OP(gather_columns, "gather_columns");
}  // namespace lpq::cuda
