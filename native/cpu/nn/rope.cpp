#include "cpu/nn/rope.h"

namespace lpq::nn {
namespace {

void rope(Call& call, Exec& exec) {
  const ops::Rope a(call);
  require_f32({{&a.x, "x"}});
  const Rotation rotate = rotation(a.rotation, a.head_dim);
  float* data = a.x.data<float>() + a.columns.first;
  exec.pool.for_each(a.x.dim(0), rows_grain(a.heads * a.head_dim),
                     [&](int64_t t) { rotate.turn(data + t * a.columns.pitch, a.heads, t); });
}

}  // namespace
LPQ_OP(rope, "rope");
}  // namespace lpq::nn
