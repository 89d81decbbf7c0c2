#include "ops/interleave_gates.h"

#include "lpq/exec.h"

namespace lpq {
namespace {

// Words of a block that lie at chunk c of a lane.
template <int Bits, class Each>
void each_word(int lane, int chunk, const Each& each) {
  for (int w = 0; w < Bits; ++w) {
    const int at = chunk * Bits + w;
    each(w, 128 * (at / 4) + 4 * lane + at % 4);
  }
}

template <int Bits>
void words(const ops::InterleaveGates& a, Exec& exec) {
  const auto* from = reinterpret_cast<const uint32_t*>(a.x.raw());
  auto* to = reinterpret_cast<uint32_t*>(a.y.raw());
  const int64_t size = 128 * Bits, row = a.across * size;
  exec.pool.for_each(a.experts * a.half, 1, [&](int64_t at) {
    const int64_t first = at / a.half * 2 * a.half + at % a.half;
    for (int64_t b = 0; b < a.across; ++b)
      for (int unit = 0; unit < 128; ++unit) {
        uint32_t gate[Bits], up[Bits], made[Bits];
        const uint32_t* x = from + first * row + b * size;
        each_word<Bits>(unit / 4, unit % 4, [&](int w, int i) { gate[w] = x[i], up[w] = x[a.half * row + i]; });
        for (int s = 0; s < 2; ++s) {
          interleave_chunk<Bits>(gate, up, s, made);
          uint32_t* y = to + (2 * at + s) * row + b * size;
          each_word<Bits>(unit / 4, unit % 4, [&](int w, int i) { y[i] = made[w]; });
        }
      }
  });
}

template <class Number>
void numbers(const ops::InterleaveGates& a, Exec& exec) {
  const auto* from = reinterpret_cast<const Number*>(a.x.raw());
  auto* to = reinterpret_cast<Number*>(a.y.raw());
  const int64_t block = 32 * a.across;
  const int next = a.of == a.kRows ? 8 : 1, lane = a.of == a.kRows ? 1 : 4;
  exec.pool.for_each(a.experts * a.half, 16, [&](int64_t at) {
    const int64_t first = at / a.half * 2 * a.half + at % a.half;
    for (int64_t i = 0; i < 8 * a.across; ++i) {
      const int64_t inside = i / 8 * 32 + i % 8 * lane;
      interleave_classes(from + first * block + inside, to + 2 * at * block + inside, a.half * block, block, next);
    }
  });
}

void interleave_gates(Call& call, Exec& exec) {
  const ops::InterleaveGates a(call);
  if (a.x.elements() == 0) return;
  switch (a.bits) {
    case 1: return words<1>(a, exec);
    case 2: return words<2>(a, exec);
    case 3: return words<3>(a, exec);
    case 4: return words<4>(a, exec);
    case 5: return words<5>(a, exec);
    case 6: return words<6>(a, exec);
    case 7: return words<7>(a, exec);
    case 8: return words<8>(a, exec);
  }
  if (dtype_bytes(a.x.dtype) == 1) numbers<uint8_t>(a, exec);
  else numbers<uint16_t>(a, exec);
}
LPQ_OP(interleave_gates, "interleave_gates");

}  // namespace
}  // namespace lpq
