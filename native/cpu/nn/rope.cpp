#include "cpu/nn/rope.h"

namespace lpq::nn {
namespace {

void rope(Call& call, Exec& exec) {
  const Tensor& x = call.output(0);
  const int64_t heads = call.params.integer("heads"), head_dim = call.params.integer("headDim");
  require(heads > 0, "heads is " + std::to_string(heads));
  require_dtype(x, "x", {DType::f32});
  const Columns columns = columns_of(call.params, "first", x, "x", heads * head_dim);
  const int64_t tokens = x.dim(0);
  const Rotation rotate = rotation(call, 1, tokens);
  float* data = x.data<float>() + columns.first;
  exec.pool.parallel_for(tokens, rows_grain(heads * head_dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) rotate.turn(data + t * columns.pitch, heads, t);
  });
}

}  // namespace
LPQ_OP(rope, "rope");
}  // namespace lpq::nn
