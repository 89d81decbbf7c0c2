#ifdef LPQ_X86
#include "cpu/layout/lanes_body.h"

namespace lpq::layout {

void pack_lanes_avx2(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out) {
  pack_with_lanes(plan, bits, tile, halves, out);
}

}  // namespace lpq::layout
#endif
