// embedding, rmsnorm, layernorm, rope, neg_log_likelihood. Contracts: native/ops.ts; bad ids and positions are found
// when the queue is next waited for.
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void embedding(Call& call, CudaExec& exec) {
  const Tensor &ids = call.input(0), &table = call.input(1), &y = call.output(0);
  require_tensor(ids, "ids", DType::i32, {-1});
  require_dtype(table, "table", kActivations);
  require_shape(table, "table", {-1, -1});
  const long long vocabulary = table.dim(0), width = table.dim(1);
  require_tensor(y, "y", DType::f32, {ids.dim(0), width});
  const float scale = static_cast<float>(call.params.number("scale", 1.0));
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "a token id lies outside the table of " + std::to_string(vocabulary) + " rows");
  const void* rows = table.raw();
  exec.launch("lpq_embedding", {ids.dim(0)}, {256}, 0, ids.data<int32_t>(), rows, type_index(table.dtype),
              y.data<float>(), scale, vocabulary, width, fault);
}

// What is normalised: whole rows of x, or with `first` and `runs` so many runs of columns of each, in place.
struct Rows {
  long long count, pitch;
  int runs, vec;
  const void* from;
  void* to;
};

Rows rows_of(const Params& p, const Tensor& x, const Tensor& y, int64_t width) {
  const int64_t runs = p.integer("runs", 1);
  require(runs > 0, "runs is " + std::to_string(runs));
  require_dtype(x, "x", kActivations);
  const Columns columns = columns_of(p, "first", x, "x", runs * width);
  require_dtype(y, "y", kActivations);
  require(x.dtype == DType::f32 || x.dtype == y.dtype, "y of a 16-bit x has another dtype");
  require_shape(y, "y", x.shape);
  require(columns.pitch == runs * width || y.raw() == x.raw(), "some columns are normalised in place only");
  const bool vec = width % 4 == 0 && columns.pitch % 4 == 0 && columns.first % 4 == 0 && fours(x) && fours(y);
  return {x.dim(0) * runs,
          columns.pitch,
          static_cast<int>(runs),
          vec,
          x.raw() + columns.first * static_cast<int64_t>(dtype_bytes(x.dtype)),
          y.raw() + columns.first * static_cast<int64_t>(dtype_bytes(y.dtype))};
}

void rmsnorm(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &weight = call.input(1), &y = call.output(0);
  require_dtype(weight, "weight", kActivations);
  require_shape(x, "x", {-1, -1});
  if (call.params.integer("first", -1) < 0) require_shape(weight, "weight", {x.dim(1)});
  require_shape(weight, "weight", {-1});
  const int width = static_cast<int>(weight.dim(0));
  const Rows rows = rows_of(call.params, x, y, width);
  const float eps = static_cast<float>(call.params.number("eps"));
  const float offset = static_cast<float>(call.params.number("offset", 0.0));
  const void* gain = weight.raw();
  const bool by_warp = width <= 512;
  exec.launch_after("lpq_rmsnorm" + suffix(x) + suffix(y), {by_warp ? div_up(rows.count, 8) : rows.count},
                    by_warp ? Dim3(32, 8) : Dim3(256), 0, rows.from, gain, type_index(weight.dtype), rows.to,
                    rows.count, width, rows.runs, rows.pitch, eps, offset, rows.vec);
  exec.wrote(y);
}

void layernorm(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_shape(x, "x", {-1, -1});
  const int width = static_cast<int>(call.params.integer("width", x.dim(1))),
            turns = static_cast<int>(call.params.integer("turns", 1));
  require(width > 0 || x.dim(1) == 0, "width is " + std::to_string(width));
  const Rows rows = rows_of(call.params, x, y, width);
  require(turns > 0 && rows.count % turns == 0,
          "turns is " + std::to_string(turns) + ", which does not divide " + std::to_string(rows.count) + " rows");
  const auto vector = [&](size_t input, const char* name) -> const Tensor* {
    if (call.in.size() <= input) return nullptr;
    const Tensor& from = call.input(input);
    require_dtype(from, name, kActivations);
    require(from.elements() == static_cast<int64_t>(turns) * width,
            std::string(name) + " has " + std::to_string(from.elements()) + " elements");
    return &from;
  };
  const Tensor *weight = vector(1, "weight"), *bias = vector(2, "bias");
  const float eps = static_cast<float>(call.params.number("eps"));
  const void *gain = weight ? weight->raw() : nullptr, *shift = bias ? bias->raw() : nullptr;
  exec.launch_after("lpq_layernorm" + suffix(x) + suffix(y), {rows.count}, {256}, 0, rows.from, gain,
                    weight ? type_index(weight->dtype) : 0, shift, bias ? type_index(bias->dtype) : 0, rows.to, width,
                    rows.runs, rows.pitch, turns, eps);
  exec.wrote(y);
}

void rope(Call& call, CudaExec& exec) {
  const Tensor &x = call.output(0), &cosines = call.input(1), &sines = call.input(2), &positions = call.input(3);
  const int heads = static_cast<int>(call.params.integer("heads")),
            head_dim = static_cast<int>(call.params.integer("headDim"));
  const int rotary = static_cast<int>(call.params.integer("rotary"));
  const std::string& style = call.params.text("style");
  require(
      heads > 0 && head_dim > 0 && rotary >= 0 && rotary <= head_dim && rotary % 2 == 0,
      "rotary is " + std::to_string(rotary) + ", not an even number of at most headDim = " + std::to_string(head_dim));
  require(style == "half" || style == "interleaved", "style is '" + style + "', not half or interleaved");
  require_dtype(x, "x", kActivations);
  const Columns columns = columns_of(call.params, "first", x, "x", static_cast<int64_t>(heads) * head_dim);
  require_tensor(cosines, "cos", DType::f32, {-1, rotary / 2});
  require_tensor(sines, "sin", DType::f32, cosines.shape);
  require_tensor(positions, "positions", DType::i32, {x.dim(0)});
  if (rotary == 0) return;
  const long long places = cosines.dim(0);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "a position lies outside the table of " + std::to_string(places));
  void* data = x.raw() + columns.first * static_cast<int64_t>(dtype_bytes(x.dtype));
  const long long pitch = columns.pitch;
  const int halves = style == "half";
  exec.launch("lpq_rope" + suffix(x), {x.dim(0)}, {256}, 0, data, cosines.data<float>(), sines.data<float>(),
              positions.data<int32_t>(), heads, head_dim, pitch, rotary, halves, places, fault);
}

void neg_log_likelihood(Call& call, CudaExec& exec) {
  const Tensor &logits = call.input(0), &targets = call.input(1), &nll = call.output(0);
  require_tensor(logits, "logits", DType::f32, {-1, -1});
  const int64_t tokens = logits.dim(0);
  const int vocabulary = static_cast<int>(logits.dim(1));
  require_tensor(targets, "targets", DType::i32, {tokens});
  require_tensor(nll, "nll", DType::f64, {tokens});
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "a target lies outside the vocabulary of " + std::to_string(vocabulary));
  exec.launch("lpq_nll", {tokens}, {256}, 0, logits.data<float>(), targets.data<int32_t>(), nll.data<double>(),
              vocabulary, fault);
}

}  // namespace
LPQ_CUDA_OP(embedding, "embedding");
LPQ_CUDA_OP(rmsnorm, "rmsnorm");
LPQ_CUDA_OP(layernorm, "layernorm");
LPQ_CUDA_OP(rope, "rope");
LPQ_CUDA_OP(neg_log_likelihood, "neg_log_likelihood");
}  // namespace lpq::cuda
