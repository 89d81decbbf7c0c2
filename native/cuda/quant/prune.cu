// Magnitude pruning to 2:4; a thread takes eight neighbours of a row, two fours and one byte of the mask.
#include "cuda/quant/number.cuh"

namespace lpq::cuda {

// cpu/quant/prune.cpp says what the outputs are. w: type 0 f32, 1 f16, 2 bf16 (number.cuh), any byte address.
extern "C" __global__ void lpq_prune_magnitude(const uint8_t* w, int type, int n, int k, float* pruned, uint8_t* mask) {
  const int row_bytes = (k + 7) / 8;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<int64_t>(n) * row_bytes) return;
  const int64_t row = i / row_bytes, first = row * k + i % row_bytes * 8;
  unsigned bits = 0;
  for (int half = 0; half < 2 && i % row_bytes * 8 + 4 * half < k; ++half) {
    float x[4];
    bool finite = true;
    for (int c = 0; c < 4; ++c) {
      x[c] = read_number(type, w, first + 4 * half + c);
      finite = finite && (__float_as_uint(x[c]) & 0x7f800000u) != 0x7f800000u;
    }
    for (int c = 0; c < 4; ++c) {
      int ahead = 0;
      for (int d = 0; d < 4; ++d) ahead += fabsf(x[d]) > fabsf(x[c]) || (d < c && fabsf(x[d]) == fabsf(x[c]));
      const bool kept = finite ? ahead < 2 : c < 2;
      pruned[first + 4 * half + c] = kept || !finite ? x[c] : 0.0f;
      bits |= static_cast<unsigned>(kept) << (4 * half + c);
    }
  }
  mask[i] = static_cast<uint8_t>(bits);
}

}  // namespace lpq::cuda
