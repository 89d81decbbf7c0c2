// add_norm. Contract: native/ops.ts.
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void add_norm(Call& call, CudaExec& exec) {
  const Tensor &h = call.output(0), &y = call.input(1), &x = call.output(1);
  require_tensor(h, "h", DType::f32, {-1, -1});
  const int64_t rows = h.dim(0), columns = h.dim(1);
  const int width = static_cast<int>(columns);
  require_dtype(y, "y", kActivations);
  require_shape(y, "y", h.shape);
  require_dtype(x, "x", kActivations);
  require(y.dtype == DType::f32 || y.dtype == x.dtype, "x of a 16-bit y has another dtype");
  require_shape(x, "x", h.shape);
  require(rows == 0 || x.raw() != h.raw(), "x must not be h");
  const std::string& kind = call.params.text("kind");
  require(kind == "rms" || kind == "layer", "kind is '" + kind + "', not rms or layer");
  const int layer = kind == "layer";
  require(layer || call.in.size() == 3, "an RMS norm has a weight and no bias");
  const auto vector = [&](size_t input, const char* name) -> const Tensor* {
    if (call.in.size() <= input) return nullptr;
    const Tensor& from = call.input(input);
    require_dtype(from, name, kActivations);
    require(from.elements() == columns, std::string(name) + " has " + std::to_string(from.elements()) +
                                            " elements, not " + std::to_string(columns));
    return &from;
  };
  const Tensor *weight = vector(2, "weight"), *bias = vector(3, "bias");
  const float eps = static_cast<float>(call.params.number("eps")),
              offset = static_cast<float>(call.params.number("offset", 0.0));
  const float scale = static_cast<float>(call.params.number("scale", 1.0));
  const size_t shared = (32 + static_cast<size_t>(columns)) * 4;
  require(shared <= static_cast<size_t>(exec.device().shared_per_block),
          "rows of " + std::to_string(columns) + " columns do not fit the device's shared memory");
  const int vec = width % 4 == 0 && fours(h) && fours(y) && fours(x);
  const void *more = y.raw(), *gain = weight ? weight->raw() : nullptr, *shift = bias ? bias->raw() : nullptr;
  void* to = x.raw();
  // Few rows: as many threads as have a four each, so that all loads are under way at once.
  const int64_t threads = std::clamp<int64_t>(div_up(vec ? columns / 4 : columns, 32) * 32, 32, 1024);
  exec.launch_after("lpq_add_norm" + suffix(y) + suffix(x), {rows}, {threads}, static_cast<unsigned>(shared),
                    h.data<float>(), more, gain, weight ? type_index(weight->dtype) : 0, shift,
                    bias ? type_index(bias->dtype) : 0, to, width, scale, eps, offset, layer, vec);
  exec.wrote(h, x);
}

}  // namespace
LPQ_CUDA_OP(add_norm, "add_norm");
}  // namespace lpq::cuda
