// The inner products over banded weights, compiled once an instruction set. Private to cpu/banded.
#pragma once
#include <cstdint>

namespace lpq::banded {

// Panels of a band times some rows of x, over one block of k (linalg::kBlockK).
struct Strip {
  const uint32_t* words;  // of the first panel and pair
  int64_t row;            // words from one pair to the next
  const float* x;         // a panel of linalg's kernels, `rows` wide
  int64_t kc;
  int rows, panels;
  bool add;
  float* sums;  // [rows, 128]: of each output the chain of this block, or added to it
};

struct Kernels {
  // Products in f32 with weights in bf16 and in f16; `rounded`: products in bf16 with weights in bf16.
  void (*bf16)(const Strip&);
  void (*f16)(const Strip&);
  void (*rounded)(const Strip&);
  // Elements of `width` (8, 16 or 32) columns as floats, [kc][width].
  void (*widen_bf16)(const uint32_t* words, int64_t row, int64_t kc, int width, float* to);
  void (*widen_f16)(const uint32_t* words, int64_t row, int64_t kc, int width, float* to);
  int rows;  // at most
};

const Kernels& kernels_generic();
#if defined(LPQ_X86)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
// `rounded` by the instruction that multiplies pairs.
void pairs_avx512bf16(const Strip& strip);
#endif

}  // namespace lpq::banded
