// pack_rows and unpack_rows, bit by bit, for every device: f32 rows as f16 with one power of two each.
#pragma once
#include <cstdint>

#include "lpq/everywhere.h"

namespace lpq {

// Of the bits of the row's largest finite |x|: the bits of 2^(14-e), where x rounds to 11 bits of [2^e, 2^(e+1)): half
// a unit of those bits is added first, which carries where x rounds up to the next power of two. At most 2^127: below
// 2^-113 rows come out smaller than 2^14, and still exact.
LPQ_EVERYWHERE uint32_t row_scale_bits(uint32_t largest) {
  if (largest == 0) return 127u << 23;
  const uint32_t exponent = (largest + 0x1000u) >> 23;
  return (exponent < 14u ? 254u : 268u - exponent) << 23;
}

// What is not finite has no product to be rounded: the payload of a NaN must not depend on who multiplies.
LPQ_EVERYWHERE bool finite_f32(uint32_t bits) { return (bits & 0x7f800000u) != 0x7f800000u; }
LPQ_EVERYWHERE uint16_t special_to_f16(uint32_t bits) {
  const uint32_t nan = (bits & 0x7fffffu) ? 0x200u | ((bits >> 13) & 0x3ffu) : 0u;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7c00u | nan);
}
LPQ_EVERYWHERE bool finite_f16(uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }
LPQ_EVERYWHERE uint32_t special_to_f32(uint16_t bits) {
  const uint32_t nan = (bits & 0x3ffu) ? 0x400000u | (static_cast<uint32_t>(bits & 0x3ffu) << 13) : 0u;
  return (static_cast<uint32_t>(bits & 0x8000u) << 16) | 0x7f800000u | nan;
}

}  // namespace lpq
