#include "cpu/nn/rope.h"

namespace lpq::nn {
namespace {

void turn(const ops::Rope& a, bool back, Exec& exec) {
  require_f32({{&a.x, "x"}});
  Rotation rotate = rotation(a.rotation, a.head_dim);
  rotate.back = back;
  float* data = a.x.data<float>() + a.columns.first;
  exec.pool.for_each(a.x.dim(0), rows_grain(a.heads * a.head_dim),
                     [&](int64_t t) { rotate.turn(data + t * a.columns.pitch, a.heads, t); });
}

void rope(Call& call, Exec& exec) { turn(ops::Rope(call), false, exec); }

void rope_backward(Call& call, Exec& exec) { turn(ops::Rope(call, true), true, exec); }

}  // namespace
LPQ_OP(rope, "rope");
LPQ_OP(rope_backward, "rope_backward");
}  // namespace lpq::nn
