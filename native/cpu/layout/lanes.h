// Quads whose halves lie side by side in a tile of bytes (LaneGroup in lpq/layout_plan.h), four lanes of eight bytes at
// a time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lpq/layout_plan.h"

namespace lpq::layout {

// Packs a tile; `halves` has room for two words a quad.
void pack_lanes(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out);
void pack_lanes_generic(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out);
void pack_lanes_avx2(const Plan& plan, int bits, const uint8_t* tile, uint64_t* halves, std::byte* out);

}  // namespace lpq::layout
