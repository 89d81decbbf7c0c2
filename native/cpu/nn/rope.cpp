#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void rope(Call& call, Exec& exec) {
  const Tensor &x = call.output(0), &cosines = call.input(1), &sines = call.input(2), &positions = call.input(3);
  const int64_t heads = call.params.integer("heads"), head_dim = call.params.integer("headDim");
  const int64_t rotary = call.params.integer("rotary");
  const std::string& style = call.params.text("style");
  require(heads > 0 && head_dim > 0 && rotary >= 0 && rotary <= head_dim && rotary % 2 == 0,
          "rotary is " + std::to_string(rotary) + ", not an even number of at most headDim = " + std::to_string(head_dim));
  require(style == "half" || style == "interleaved", "style is '" + style + "', not half or interleaved");
  require_tensor(x, "x", DType::f32, {-1, heads * head_dim});
  const int64_t tokens = x.dim(0), half = rotary / 2;
  require_tensor(cosines, "cos", DType::f32, {-1, half});
  require_tensor(sines, "sin", DType::f32, cosines.shape);
  require_tensor(positions, "positions", DType::i32, {tokens});
  const int64_t places = cosines.dim(0);
  const int32_t* position = positions.data<int32_t>();
  const float *cos = cosines.data<float>(), *sin = sines.data<float>();
  float* data = x.data<float>();
  const bool halves = style == "half";
  exec.pool.parallel_for(tokens, rows_grain(heads * head_dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      if (position[t] < 0 || position[t] >= places)
        require(false, "token " + std::to_string(t) + " has the position " + std::to_string(position[t]) +
                           ", outside the table of " + std::to_string(places));
      const float *c = cos + position[t] * half, *s = sin + position[t] * half;
      for (int64_t h = 0; h < heads; ++h) {
        float* v = data + (t * heads + h) * head_dim;
        if (halves) {
          vector_kernels().rotate_half(v, v + half, c, s, half);
          continue;
        }
        for (int64_t i = 0; i < half; ++i) {
          const float a = v[2 * i], b = v[2 * i + 1];
          v[2 * i] = a * c[i] - b * s[i];
          v[2 * i + 1] = b * c[i] + a * s[i];
        }
      }
    }
  });
}

}  // namespace
LPQ_OP(rope, "rope");
}  // namespace lpq::nn
