#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void embedding(Call& call, Exec& exec) {
  const Tensor &ids = call.input(0), &table = call.input(1), &y = call.output(0);
  require_tensor(ids, "ids", DType::i32, {-1});
  require_dtype(table, "table", {DType::f32, DType::f16, DType::bf16});
  require_shape(table, "table", {-1, -1});
  const int64_t vocabulary = table.dim(0), c = table.dim(1);
  require_tensor(y, "y", DType::f32, {ids.dim(0), c});
  const float scale = static_cast<float>(call.params.number("scale", 1.0));
  const int32_t* id = ids.data<int32_t>();
  float* out = y.data<float>();
  exec.pool.parallel_for(ids.dim(0), rows_grain(c), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      if (id[t] < 0 || id[t] >= vocabulary)
        require(false, "token " + std::to_string(t) + " has the id " + std::to_string(id[t]) +
                           ", outside the table of " + std::to_string(vocabulary) + " rows");
      widen(table, id[t] * c, c, out + t * c);
      if (scale != 1.0f) vector_kernels().scale(out + t * c, scale, out + t * c, c);
    }
  });
}

}  // namespace
LPQ_OP(embedding, "embedding");
}  // namespace lpq::nn
