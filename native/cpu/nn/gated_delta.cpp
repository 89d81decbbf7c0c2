// gated_delta: linear attention whose state forgets and is corrected.
#include "cpu/nn/delta_factors.h"

namespace lpq::nn {
namespace {

void gated_delta(Call& call, Exec& exec) {
  const ops::GatedDelta a(call);
  const std::vector<Run> all = runs(a.past, a.q.dim(0));
  const DeltaFactors by(a, exec);
  const int64_t rows = a.key_dim, width = a.value_dim, keys = a.key_heads * rows, values = a.heads * width;
  const int64_t gates = a.decay.dim(1);
  over_states(exec, all, a.heads, rows, width,
              [&](int64_t t, int64_t head, int64_t first, int64_t columns, float* state) {
                const int64_t key = head / (a.heads / a.key_heads) * rows, at = t * values + head * width + first;
                float value[kStateColumns] = {}, made[kStateColumns];
                std::copy(a.v.data<float>() + at, a.v.data<float>() + at + columns, value);
                const float* decay = by.decay.data() + t * gates + (a.by_channel() ? head * rows : head);
                vector_kernels().delta_token(state, rows, decay, a.by_channel() ? 1 : 0, by.k.data() + t * keys + key,
                                             by.q.data() + t * keys + key, value,
                                             by.beta[static_cast<size_t>(t * a.heads + head)], made);
                std::copy(made, made + columns, a.y.data<float>() + at);
              });
}

}  // namespace
LPQ_OP(gated_delta, "gated_delta");
}  // namespace lpq::nn
