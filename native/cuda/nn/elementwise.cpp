// cast, zero, add, activation, soft_cap, gated_activation.
#include "ops/elementwise.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

constexpr int kThreads = 256;

void cast(Call& call, CudaExec& exec) {
  const ops::Cast op(call);
  if (op.x.dtype == op.y.dtype) return exec.copy(op.y.raw(), op.x.raw(), op.x.bytes());
  cast_elements(exec, op.x.raw(), op.x.dtype, op.y.raw(), op.y.dtype, op.x.elements());
}

void zero(Call& call, CudaExec& exec) {
  const Tensor& y = ops::Zero(call).y;
  exec.fill_zero(y.raw(), y.bytes());
}

void add(Call& call, CudaExec& exec) {
  const ops::Add op(call);
  require_dtype(op.a, "a", {DType::f32});
  const float scale = static_cast<float>(op.scale);
  const long long count = op.a.elements();
  const int vec = count % 4 == 0 && fours(op.a) && fours(op.b) && fours(op.y);
  exec.launch_through("lpq_add" + suffix(op.b), {stride_blocks(exec, vec ? count / 4 : count, kThreads)}, {kThreads}, 0,
                      op.a.data<float>(), op.b.raw(), op.y.data<float>(), scale, count, vec);
  exec.wrote(op.y);
}

void activation(Call& call, CudaExec& exec) {
  const ops::Activation a(call);
  const Tensor &x = a.x, &y = a.y;
  const int kind = static_cast<int>(a.act);
  const long long count = x.elements();
  exec.launch("lpq_activate" + suffix(x), {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, x.raw(), y.raw(), kind,
              count, 0);
}

void soft_cap(Call& call, CudaExec& exec) {
  const ops::SoftCap a(call);
  const Tensor &x = a.x, &y = a.y;
  const long long count = x.elements();
  exec.launch("lpq_soft_cap", {stride_blocks(exec, count, kThreads)}, {kThreads}, 0, x.data<float>(), y.data<float>(),
              a.scale, a.cap, count);
}

// y = act(gate) * up, without codes.
void gated(const ops::GatedActivation& a, CudaExec& exec) {
  const Tensor &gate = a.gate, &up = a.up, &y = a.y;
  const int kind = static_cast<int>(a.act);
  const long long count = gate.elements();
  const int vec = count % 4 == 0 && fours(gate) && fours(up) && fours(y);
  const void *g = gate.raw(), *u = up.raw();
  void* out = y.raw();
  exec.launch_through("lpq_gated" + suffix(gate), {stride_blocks(exec, vec ? count / 4 : count, kThreads)}, {kThreads},
                      0, g, u, out, kind, count, vec);
  exec.wrote(y);
}

// The same of some columns of matrices; codes, too, if the kernel that makes them takes the shape. Whether it did. It
// has a block a row: of few rows two launches are faster, the first of which shares a row among blocks.
bool gated_rows(const ops::GatedActivation& a, CudaExec& exec) {
  const Tensor& y = a.y;
  const int kind = static_cast<int>(a.act);
  const long long rows = y.dim(0), width = y.dim(1), size = static_cast<long long>(dtype_bytes(y.dtype)),
                  wide = 16 / size;
  const void *g = a.gate.raw() + a.gates.first * size, *u = a.up.raw() + a.ups.first * size;
  void* out = y.raw();
  const long long gate_pitch = a.gates.pitch, up_pitch = a.ups.pitch;
  const auto sixteens = [&](const void* p, long long pitch) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && pitch % wide == 0;
  };
  const int vec = width % wide == 0 && sixteens(g, gate_pitch) && sixteens(u, up_pitch) && sixteens(out, width);
  if (a.codes && rows > 2 * exec.device().multiprocessors && vec && size == 2 && width < INT32_MAX &&
      reinterpret_cast<uintptr_t>(a.codes.codes->raw()) % 8 == 0) {
    unsigned char* const to = reinterpret_cast<unsigned char*>(a.codes.codes->raw());
    const int64_t threads = std::clamp<int64_t>(div_up(width / wide, 4 * 32) * 32, 32, 512);
    exec.launch_through((a.codes.codes->dtype == DType::i8 ? "lpq_gated_i8" : "lpq_gated_f8") + suffix(y), {rows},
                        {threads}, 0, g, u, out, kind, static_cast<int>(width), gate_pitch, up_pitch, to,
                        a.codes.scales->data<float>(),
                        exec.fault("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity"));
    exec.wrote(y, *a.codes.codes, *a.codes.scales);
    return true;
  }
  exec.launch_through("lpq_gated_rows" + suffix(y),
                      Dim3(div_up(vec ? width / wide : width, kThreads), std::min<long long>(rows, 32768)), {kThreads},
                      0, g, u, out, kind, rows, width, gate_pitch, up_pitch, vec);
  exec.wrote(y);
  return false;
}

void gated_activation(Call& call, CudaExec& exec) {
  const ops::GatedActivation a(call);
  if (a.y.elements() == 0) return;
  bool coded = false;
  if (a.rows) coded = gated_rows(a, exec);
  else gated(a, exec);
  if (a.codes && !coded) a.codes.quantize(a.y, [&](const char* op, Call& made) { cuda_op_table().at(op)(made, exec); });
}

}  // namespace

void cast_elements(CudaExec& exec, const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  if (from_type == to_type) return exec.copy(to, from, static_cast<size_t>(count) * dtype_bytes(from_type));
  const long long n = count;
  auto aligned4 = [](const void* p, DType dtype) {
    return reinterpret_cast<uintptr_t>(p) % (4 * dtype_bytes(dtype)) == 0;
  };
  const int vec = n % 4 == 0 && from_type != DType::f64 && to_type != DType::f64 && from_type != DType::i32 &&
                  aligned4(from, from_type) && aligned4(to, to_type);
  const std::string kernel = "lpq_cast_" + std::string(dtype_name(from_type)) + "_" + std::string(dtype_name(to_type));
  exec.launch(kernel, {stride_blocks(exec, vec ? n / 4 : n, kThreads)}, {kThreads}, 0, from, to, n, vec);
}

LPQ_CUDA_OP(cast, "cast");
LPQ_CUDA_OP(zero, "zero");
LPQ_CUDA_OP(add, "add");
LPQ_CUDA_OP(activation, "activation");
LPQ_CUDA_OP(soft_cap, "soft_cap");
LPQ_CUDA_OP(gated_activation, "gated_activation");
}  // namespace lpq::cuda
