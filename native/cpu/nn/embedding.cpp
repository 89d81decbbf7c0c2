#include "cpu/nn/cast.h"
#include "ops/tokens.h"

namespace lpq::nn {
namespace {

void embedding(Call& call, Exec& exec) {
  const ops::Embedding a(call);
  const int64_t vocabulary = a.table.dim(0), c = a.table.dim(1);
  const int32_t* id = a.ids.data<int32_t>();
  float* out = a.y.data<float>();
  exec.pool.for_each(a.ids.dim(0), rows_grain(c), [&](int64_t t) {
    if (id[t] < 0 || id[t] >= vocabulary)
      require(false, "token " + std::to_string(t) + " has the id " + std::to_string(id[t]) + ", outside the table of " +
                         std::to_string(vocabulary) + " rows");
    widen(a.table, id[t] * c, c, out + t * c);
    if (a.scale != 1.0f) vector_kernels().scale(out + t * c, a.scale, out + t * c, c);
  });
}

}  // namespace
LPQ_OP(embedding, "embedding");
}  // namespace lpq::nn
