// What queries of sparse attention see.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "cpu/checks.h"

namespace lpq::nn {

// Tokens that one choice of a query names, in order: those of `top` runs of `block`, of `visible` of its sequence.
inline void named(const int32_t* selected, int64_t top, int64_t block, int64_t visible, std::vector<int64_t>& tokens) {
  tokens.clear();
  const int64_t runs = (visible + block - 1) / block;
  for (int64_t i = 0; i < top; ++i) {
    const int64_t run = selected[i];
    if (run == -1) continue;
    require(run >= 0 && run < runs,
            "selected has " + std::to_string(run) + " where " + std::to_string(runs) + " can be seen");
    for (int64_t s = run * block; s < std::min(visible, (run + 1) * block); ++s) tokens.push_back(s);
  }
  require(!tokens.empty(), "a token of selected sees nothing");
}

}  // namespace lpq::nn
