// The inner product over packed codes, compiled once an instruction set.
#pragma once
#include <cstdint>

namespace lpq::packed {

constexpr int64_t kMostRows = 96;

// Panels of one band times up to kMostRows rows of x.
struct Panel {
  const uint32_t* words;
  const float *scales, *shifts;  // 32 a panel and group; shifts may be null
  const float* table;            // [256], the value of each code
  const float* x;                // [rows, pitch], K padded with zeros; times 2^-place of codes in place (form.h)
  const float* sums;             // [rows, groups] of x as it is, where there are shifts
  int64_t pitch, chunks, group_chunks, groups;
  int rows, panels, width;  // width: panels of the band, from a chunk or group of one panel to its next
  float constant;
  float* y;  // [panels, rows, 32]
};

struct Kernels {
  // By bits - 1; `whole` for integers, whose values may be converted rather than looked up: those of `in_place` are.
  void (*multiply[8])(const Panel& panel);
  void (*whole[8])(const Panel& panel);
  bool in_place[8];
  int panels;  // at most
};

const Kernels& kernels_generic();
#if defined(LPQ_X86)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512vbmi();
#endif
const Kernels& active_kernels();

}  // namespace lpq::packed
