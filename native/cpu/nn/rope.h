// Rotary positions of rows of heads, and the tables of their angles.
#pragma once
#include "cpu/nn/cast.h"
#include "ops/attention.h"

namespace lpq::nn {

// The first `rotary` dims of every head of a row turn by the angles of the token's position.
struct Rotation {
  int64_t head_dim = 0, half = 0, places = 0;
  bool halves = false;
  const float *cos = nullptr, *sin = nullptr;
  const int32_t* position = nullptr;
  bool back = false;  // by the negative angles

  // Throws Failure where token t has no row in the tables.
  void turn(float* row, int64_t heads, int64_t t) const {
    if (half == 0) return;
    if (position[t] < 0 || position[t] >= places)
      require(false, "token " + std::to_string(t) + " has the position " + std::to_string(position[t]) +
                         ", outside the table of " + std::to_string(places));
    const float *c = cos + position[t] * half, *s = sin + position[t] * half;
    for (int64_t h = 0; h < heads; ++h) {
      float* v = row + h * head_dim;
      if (back) {
        turn_back(v, c, s);
        continue;
      }
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

 private:
  void turn_back(float* v, const float* c, const float* s) const {
    const int64_t step = halves ? 1 : 2, apart = halves ? half : 1;
    for (int64_t i = 0; i < half; ++i) {
      float *x = v + step * i, *y = x + apart;
      const float a = *x, b = *y;
      *x = a * c[i] + b * s[i];
      *y = b * c[i] - a * s[i];
    }
  }
};

inline Rotation rotation(const ops::Rotation& of, int64_t head_dim) {
  if (of.rotary == 0) return {};
  return {head_dim,
          of.rotary / 2,
          of.cos->dim(0),
          of.halves,
          of.cos->data<float>(),
          of.sin->data<float>(),
          of.positions->data<int32_t>()};
}

}  // namespace lpq::nn
