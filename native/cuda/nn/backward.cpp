// Gradients of norms, activations, gates and the output.
#include "ops/backward.h"

#include "cuda/launch.h"
#include "cuda/nn/backward_norms.h"
#include "ops/w4ax.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

// count elements in fours, where they and all tensors allow it.
bool in_fours(int64_t count, std::initializer_list<const Tensor*> tensors) {
  return count % 4 == 0 && std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return fours(*t); });
}

struct Elements {
  long long count;
  int vec;
  Dim3 grid;
  Elements(const CudaExec& exec, std::initializer_list<const Tensor*> tensors)
      : count((*tensors.begin())->elements()),
        vec(in_fours(count, tensors)),
        grid(stride_blocks(exec, vec ? count / 4 : count, kThreads)) {}
};

template <class Of>
void norm_backward(const Of& a, CudaExec& exec, int turns, const std::string& kernel) {
  const int64_t rows = a.x.dim(0), width = a.x.dim(1);
  if (a.x.elements() == 0) return;
  require(width < int64_t{1} << 31, "rows have 2^31 columns or more");
  // What a block of at most 1024 threads holds, and a warp.
  constexpr int64_t kThread = 4 * kHeld, kWarp = 32 * kThread;
  const bool held = width <= 1024 * kThread && in_fours(width, {&a.x, &a.dy, &a.dx}) && (!a.weight || fours(*a.weight));
  const bool by_warp = width <= kWarp;
  const int64_t threads = by_warp ? 256 : held ? 32 * div_up(width, kWarp) : width <= 2048 ? 256 : 512;
  const NormGradient gradient{a.x.template data<float>(),
                              a.dy.template data<float>(),
                              raw_of(a.weight),
                              a.dx.template data<float>(),
                              rows,
                              type_of(a.weight),
                              static_cast<int>(width),
                              turns,
                              static_cast<float>(a.eps),
                              a.offset,
                              a.accumulate,
                              by_warp};
  exec.launch(held ? kernel + "_held" : kernel, {by_warp ? div_up(rows, threads / 32) : rows}, {threads}, 0, gradient);
}

void rmsnorm_backward(Call& call, CudaExec& exec) {
  norm_backward(ops::RmsnormBackward(call), exec, 1, "lpq_rmsnorm_backward");
}

void layernorm_backward(Call& call, CudaExec& exec) {
  const ops::LayernormBackward a(call);
  norm_backward(a, exec, static_cast<int>(a.turns), "lpq_layernorm_backward");
}

void activation_backward(Call& call, CudaExec& exec) {
  const ops::ActivationBackward a(call);
  const Elements of(exec, {&a.x, &a.dy, &a.dx});
  const int act = static_cast<int>(a.act);
  exec.launch("lpq_activation_backward", of.grid, {kThreads}, 0, a.x.data<float>(), a.dy.data<float>(),
              a.dx.data<float>(), act, of.count, of.vec);
}

void gated_activation_backward(Call& call, CudaExec& exec) {
  const ops::GatedActivationBackward a(call);
  const Elements of(exec, {&a.gate, &a.up, &a.dy, &a.dgate, &a.dup});
  const int act = static_cast<int>(a.act);
  exec.launch("lpq_gated_activation_backward", of.grid, {kThreads}, 0, a.gate.data<float>(), a.up.data<float>(),
              a.dy.data<float>(), a.dgate.data<float>(), a.dup.data<float>(), act, of.count, of.vec);
}

template <class Of>
void limited(const Of& a, CudaExec& exec, float alpha, float more) {
  const Elements of(exec, {&a.gate, &a.up, &a.dy, &a.dgate, &a.dup});
  exec.launch("lpq_limited_backward", of.grid, {kThreads}, 0, a.gate.template data<float>(),
              a.up.template data<float>(), a.dy.template data<float>(), a.dgate.template data<float>(),
              a.dup.template data<float>(), alpha, a.limit, more, of.count, of.vec);
}

void clamped_swiglu_backward(Call& call, CudaExec& exec) {
  const ops::ClampedSwigluBackward a(call);
  limited(a, exec, a.alpha, 1.0f);
}

void limited_gate_backward(Call& call, CudaExec& exec) { limited(ops::LimitedGateBackward(call), exec, 1.0f, 0.0f); }

void xielu_backward(Call& call, CudaExec& exec) {
  const ops::XieluBackward a(call);
  const Elements of(exec, {&a.x, &a.dy, &a.dx});
  const void *positive = a.positive.raw(), *negative = a.negative.raw(), *beta = a.beta.raw(), *eps = a.eps.raw();
  const int positive_type = type_index(a.positive.dtype), negative_type = type_index(a.negative.dtype),
            beta_type = type_index(a.beta.dtype), eps_type = type_index(a.eps.dtype);
  exec.launch("lpq_xielu_backward", of.grid, {kThreads}, 0, a.x.data<float>(), positive, negative, beta, eps,
              positive_type, negative_type, beta_type, eps_type, a.dy.data<float>(), a.dx.data<float>(), of.count,
              of.vec);
}

void soft_cap_backward(Call& call, CudaExec& exec) {
  const ops::SoftCapBackward a(call);
  const Elements of(exec, {&a.y, &a.dy, &a.dx});
  const float inverse = a.cap > 0 ? 1.0f / a.cap : 0.0f;
  exec.launch("lpq_soft_cap_backward", of.grid, {kThreads}, 0, a.y.data<float>(), a.dy.data<float>(),
              a.dx.data<float>(), a.scale, inverse, of.count, of.vec);
}

void output_error(Call& call, CudaExec& exec) {
  const ops::OutputError a(call);
  const int width = static_cast<int>(a.y.dim(1)), vec = in_fours(width, {&a.y, &a.target, &a.dy});
  exec.launch("lpq_output_error", {a.y.dim(0)}, {kThreads}, 0, a.y.data<float>(), a.target.data<float>(),
              a.dy.data<float>(), a.sums.data<double>(), width, vec);
}

void divergence(Call& call, CudaExec& exec) {
  const ops::Divergence a(call);
  const int64_t columns = a.logits.dim(1);
  const int vocabulary = static_cast<int>(columns), vec = in_fours(columns, {&a.logits, &a.target, &a.dlogits});
  const int64_t threads = std::min<int64_t>(1024, 32 * div_up(columns, 128));
  exec.launch("lpq_divergence", {a.logits.dim(0)}, {threads}, 0, a.logits.data<float>(), a.target.data<float>(),
              a.dlogits.data<float>(), a.sums.data<double>(), vocabulary, a.factor, vec);
}

void gather_columns(Call& call, CudaExec& exec) {
  const ops::GatherColumns a(call);
  const int64_t columns = a.x.dim(1), bytes = columns * static_cast<int64_t>(dtype_bytes(a.x.dtype));
  if (columns == 0) return;
  const int width = static_cast<int>(columns), staged = bytes <= exec.device().shared_per_block;
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "order names a column that x does not have");
  const std::string kernel = std::string("lpq_gather_columns_") + (a.x.dtype == DType::f32 ? "f32" : "b16");
  exec.launch(kernel, {a.x.dim(0)}, {kThreads}, staged ? static_cast<unsigned>(bytes) : 0u,
              static_cast<const void*>(a.x.raw()), a.order.data<int32_t>(), a.y.raw(), width, staged, fault);
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
