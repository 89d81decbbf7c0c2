// Rotary positions of rows of heads, and the tables of their angles.
#pragma once
#include "cpu/nn/cast.h"

namespace lpq::nn {

// The first `rotary` dims of every head of a row turn by the angles of the token's position.
struct Rotation {
  int64_t head_dim = 0, half = 0, places = 0;
  bool halves = false;
  const float *cos = nullptr, *sin = nullptr;
  const int32_t* position = nullptr;

  // Throws Failure where token t has no row in the tables.
  void turn(float* row, int64_t heads, int64_t t) const {
    if (half == 0) return;
    if (position[t] < 0 || position[t] >= places)
      require(false, "token " + std::to_string(t) + " has the position " + std::to_string(position[t]) +
                         ", outside the table of " + std::to_string(places));
    const float *c = cos + position[t] * half, *s = sin + position[t] * half;
    for (int64_t h = 0; h < heads; ++h) {
      float* v = row + h * head_dim;
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
};

// headDim, rotary and style of a call, and its tables: inputs `at` and on.
inline Rotation rotation(const Call& call, size_t at, int64_t tokens) {
  Rotation r;
  r.head_dim = call.params.integer("headDim");
  const int64_t rotary = call.params.integer("rotary");
  const std::string& style = call.params.text("style");
  require(r.head_dim > 0 && rotary >= 0 && rotary <= r.head_dim && rotary % 2 == 0,
          "rotary is " + std::to_string(rotary) +
              ", not an even number of at most headDim = " + std::to_string(r.head_dim));
  require(style == "half" || style == "interleaved", "style is '" + style + "', not half or interleaved");
  r.half = rotary / 2;
  r.halves = style == "half";
  const Tensor &cosines = call.input(at), &sines = call.input(at + 1), &positions = call.input(at + 2);
  require_tensor(cosines, "cos", DType::f32, {-1, r.half});
  require_tensor(sines, "sin", DType::f32, cosines.shape);
  require_tensor(positions, "positions", DType::i32, {tokens});
  r.places = cosines.dim(0);
  r.cos = cosines.data<float>();
  r.sin = sines.data<float>();
  r.position = positions.data<int32_t>();
  return r;
}

}  // namespace lpq::nn
