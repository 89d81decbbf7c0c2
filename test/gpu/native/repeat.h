// The same bytes every time, and counters left at 0: what every product that blocks share is checked for.
#pragma once
#include "harness.h"

namespace lpq::test {

// Runs an operation `runs` times on the same inputs, its output of [m, n] poisoned before each. Returns how many runs
// gave other bytes than the first.
inline int other_bytes(Device& d, const std::string& op, const std::vector<Tensor>& in, const Params& p, int64_t m,
                       int64_t n, int runs) {
  std::vector<uint8_t> first;
  int others = 0;
  for (int i = 0; i < runs; ++i) {
    const Tensor got = d.run(op, in, {poisoned(in[0].dtype, {m, n})}, p)[0];
    const auto* from = reinterpret_cast<const uint8_t*>(got.raw());
    const std::vector<uint8_t> bytes(from, from + got.bytes());
    if (i == 0) first = bytes;
    else if (bytes != first) {
      ++others;
      std::printf("FAIL run %d of %s gave other bytes\n", i, op.c_str());
    }
  }
  return others;
}

}  // namespace lpq::test
