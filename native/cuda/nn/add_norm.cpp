#include "ops/norm.h"

#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void add_norm(Call& call, CudaExec& exec) {
  const ops::AddNorm a(call);
  require(a.y.dtype == DType::f32 || a.y.dtype == a.x.dtype, "x of a 16-bit y has another dtype");
  const int64_t rows = a.h.dim(0), columns = a.h.dim(1);
  const int width = static_cast<int>(columns), layer = a.layer;
  const float eps = static_cast<float>(a.eps);
  const size_t shared = (32 + static_cast<size_t>(columns)) * 4;
  require(shared <= static_cast<size_t>(exec.device().shared_per_block),
          "rows of " + std::to_string(columns) + " columns do not fit the device's shared memory");
  const int vec = width % 4 == 0 && fours(a.h) && fours(a.y) && fours(a.x);
  const void *more = a.y.raw(), *gain = raw_of(a.weight), *shift = raw_of(a.bias);
  // Few rows: as many threads as have a four each, so that all loads are under way at once. Many: several rows at a
  // time.
  const int64_t most = rows <= 2 * exec.device().multiprocessors ? 1024 : 512,
                threads = std::clamp<int64_t>(div_up(vec ? columns / 4 : columns, 32) * 32, 32, most);
  const auto launch = [&](const std::string& kernel, const auto&... more_args) {
    exec.launch_through(kernel + suffix(a.y) + suffix(a.x), {rows}, {threads}, static_cast<unsigned>(shared),
                        a.h.data<float>(), more, gain, type_of(a.weight), shift, type_of(a.bias), a.x.raw(), width,
                        a.scale, eps, a.offset, layer, vec, more_args...);
  };
  if (a.codes && a.x.dtype != DType::f32) {
    unsigned char* const to = reinterpret_cast<unsigned char*>(a.codes.codes->raw());
    require(!vec || reinterpret_cast<uintptr_t>(to) % 4 == 0, "codes do not start at a multiple of 4 bytes");
    launch(a.codes.codes->dtype == DType::i8 ? "lpq_add_norm_i8" : "lpq_add_norm_f8", to, a.codes.scales->data<float>(),
           exec.fault("LPQ_NATIVE_NUMERICS", "activations hold NaN or infinity"));
    return exec.wrote(a.h, a.x, *a.codes.codes, *a.codes.scales);
  }
  launch("lpq_add_norm");
  exec.wrote(a.h, a.x);
  if (a.codes) a.codes.quantize(a.x, [&](const char* op, Call& made) { cuda_op_table().at(op)(made, exec); });
}

}  // namespace
LPQ_CUDA_OP(add_norm, "add_norm");
}  // namespace lpq::cuda
