// The body of pack_lanes, for each instruction set: vectors of the compiler's, which it turns into what there is.
#include <cstring>

#include "cpu/layout/lanes.h"

namespace lpq::layout {
namespace {

typedef uint64_t Lanes __attribute__((vector_size(32)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

template <int bits, int fold>
void sum_lanes(const Plan& plan, const uint8_t* tile, uint64_t* halves) {
  constexpr int steps = 8 / bits / fold;
  const uint32_t* element = plan.lane_elements.data();
  for (const LaneGroup& group : plan.lane_groups) {
    Lanes sum{};
    for (int step = 0; step < steps; ++step) {
      Lanes codes;
      std::memcpy(&codes, tile + *element++, sizeof(codes));
      Lanes shift;
      for (int l = 0; l < 4; ++l) shift[l] = static_cast<uint64_t>(bits * (l % fold * steps + step));
      sum |= fold == 1 ? codes << (bits * step) : codes << shift;
    }
    for (int i = 0; i < 4 / fold; ++i) {
      uint64_t half = sum[i * fold];
      for (int l = 1; l < fold; ++l) half |= sum[i * fold + l];
      halves[group.half[i]] = half;
    }
  }
}

template <int bits>
void sum_lanes(const Plan& plan, const uint8_t* tile, uint64_t* halves) {
  if (plan.lane_fold == 1) return sum_lanes<bits, 1>(plan, tile, halves);
  if constexpr (bits <= 4)
    if (plan.lane_fold == 2) return sum_lanes<bits, 2>(plan, tile, halves);
  if constexpr (bits <= 2)
    if (plan.lane_fold == 4) return sum_lanes<bits, 4>(plan, tile, halves);
}

void pack_with_lanes(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out) {
  switch (bits) {
    case 1: sum_lanes<1>(plan, tile, halves); break;
    case 2: sum_lanes<2>(plan, tile, halves); break;
    default: sum_lanes<4>(plan, tile, halves);
  }
  for (size_t q = 0; q < plan.quads.size(); ++q) {
    Bytes both, words;
    std::memcpy(&both, halves + 2 * q, 16);
#if defined(__clang__)
    words = __builtin_shufflevector(both, both, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
#else  // g++ 11 has only this one
    words = __builtin_shuffle(both, Bytes{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15});
#endif
    uint32_t word[4];
    std::memcpy(word, &words, 16);
    for (int t = 0; t < 4; ++t) std::memcpy(out + plan.words[plan.quads[q].word[t]] * 4, &word[t], 4);
  }
}

}  // namespace
}  // namespace lpq::layout
