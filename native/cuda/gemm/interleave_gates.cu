// interleave_gates (native/ops/interleave_gates.h): a thread does one chunk of a lane of a gate's and of up's block, or
// the four row classes of a lane in both, of scales, zero points and biases. It reads what it writes over before.
//   words of chunk c -> (lane = thread % 32, chunk = thread / 32 % 4, word) at 512 (W / 4) + 16 lane + 4 (W % 4) bytes
//   of the block, W = bits c + word
//   numbers -> (q = thread % 8, r) of row 8 r + q: element 4 q + r of a group's 32, of a bias 8 r + q
#include "cuda/types.cuh"
#include "lpq/interleave_chunk.h"

using namespace lpq;

namespace {

template <int Bits>
__device__ __forceinline__ void interleave_words(const uint32_t* x, uint32_t* y, index_t blocks, index_t half,
                                                 index_t across) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x, row = across * (128 * Bits);
  for (index_t t = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < blocks * across * 128; t += step) {
    const int lane = static_cast<int>(t & 31), chunk = static_cast<int>(t >> 5 & 3);
    const index_t at = (t >> 7) / across, inside = (t >> 7) % across * (128 * Bits);
    const uint32_t* const gates = x + (at / half * 2 * half + at % half) * row + inside;
    uint32_t gate[Bits], up[Bits], made[Bits];
#pragma unroll
    for (int w = 0; w < Bits; ++w) {
      const int word = chunk * Bits + w, i = 128 * (word >> 2) + 4 * lane + (word & 3);
      gate[w] = gates[i], up[w] = gates[half * row + i];
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      interleave_chunk<Bits>(gate, up, s, made);
#pragma unroll
      for (int w = 0; w < Bits; ++w) {
        const int word = chunk * Bits + w;
        y[(2 * at + s) * row + inside + 128 * (word >> 2) + 4 * lane + (word & 3)] = made[w];
      }
    }
  }
}

template <class Number>
__device__ __forceinline__ void interleave_numbers(const Number* x, Number* y, index_t blocks, index_t half,
                                                   index_t groups, int rows) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x, block = 32 * groups;
  for (index_t t = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < blocks * groups * 8; t += step) {
    const index_t at = (t >> 3) / groups, inside = (t >> 3) % groups * 32 + (t & 7) * (rows ? 1 : 4);
    interleave_classes(x + (at / half * 2 * half + at % half) * block + inside, y + 2 * at * block + inside,
                       half * block, block, rows ? 8 : 1);
  }
}

}  // namespace

#define LPQ_INTERLEAVE_WORDS(bits)                                                                                     \
  extern "C" __global__ void lpq_interleave_words_##bits(const uint32_t* x, uint32_t* y, index_t blocks, index_t half, \
                                                         index_t across) {                                             \
    interleave_words<bits>(x, y, blocks, half, across);                                                                \
  }
LPQ_INTERLEAVE_WORDS(1)
LPQ_INTERLEAVE_WORDS(2)
LPQ_INTERLEAVE_WORDS(3)
LPQ_INTERLEAVE_WORDS(4)
LPQ_INTERLEAVE_WORDS(5)
LPQ_INTERLEAVE_WORDS(6)
LPQ_INTERLEAVE_WORDS(7)
LPQ_INTERLEAVE_WORDS(8)

#define LPQ_INTERLEAVE_NUMBERS(name, number)                                                                 \
  extern "C" __global__ void lpq_interleave_##name(const number* x, number* y, index_t blocks, index_t half, \
                                                   index_t groups, int rows) {                               \
    interleave_numbers<number>(x, y, blocks, half, groups, rows);                                            \
  }
LPQ_INTERLEAVE_NUMBERS(u8, uint8_t)
LPQ_INTERLEAVE_NUMBERS(u16, uint16_t)
