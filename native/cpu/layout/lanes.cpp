#include "cpu/layout/lanes.h"

#include "cpu/isa.h"
#include "cpu/layout/lanes_body.h"

namespace lpq::layout {

void pack_lanes_generic(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out) {
  pack_with_lanes(plan, bits, tile, halves, out);
}

void pack_lanes(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out) {
#ifdef LPQ_X86
  if (active_isa() != Isa::generic) return pack_lanes_avx2(plan, bits, tile, halves, out);
#endif
  pack_lanes_generic(plan, bits, tile, halves, out);
}

}  // namespace lpq::layout
