// How the kernel of integer products (int8.cuh) cuts a product: plain functions, which the host's test of the kernel
// uses, too.
#pragma once
#include "cuda/gemm/families/int8.h"
#include "cuda/gemm/families/scaled_plan.h"

namespace lpq::cuda {

// Nanoseconds of an H100, fitted to timings of every form and cut on 16 shapes and 4 to 1024 tokens
// (docs/internals/kernels/int8.md says how far the choice is from the best on others).
constexpr int kInt8FormCount = 13;
struct Int8Costs {
  ScaledForm forms[kInt8FormCount];
  CutCosts cuts;
};
constexpr Int8Costs kInt8BytesCosts = {{{2, 1, 2, 269, 313, 409},
                                        {4, 1, 2, 471, 380, 265},
                                        {8, 1, 2, 2018, 456, 148},
                                        {12, 1, 2, 2939, 542, 119},
                                        {16, 1, 2, 5372, 570, 200},
                                        {2, 1, 1, 110, 305, 174, 106},
                                        {4, 1, 1, 0, 349, 85, 158},
                                        {8, 1, 1, 899, 322, 135, 231},
                                        {12, 1, 1, 1462, 339, 67},
                                        {16, 1, 1, 2246, 331, 141},
                                        {20, 1, 1, 3428, 301, 202},
                                        {24, 1, 1, 3588, 400, 165},
                                        {32, 1, 1, 5966, 529, 274}},
                                       {1256, 2115, 771, 0, 0, 1929, 568, 0, 2829, 9276, 244, 420, 261}};
constexpr Int8Costs kInt8RowsCosts = {{{2, 1, 2, 1937, 291, 211},
                                       {4, 1, 2, 2653, 299, 88},
                                       {8, 1, 2, 3948, 299, 133},
                                       {12, 1, 2, 4766, 369, 143},
                                       {16, 1, 2, 6220, 410, 263},
                                       {2, 1, 1, 1528, 189, 167, 119},
                                       {4, 1, 1, 2129, 217, 88, 109},
                                       {8, 1, 1, 3107, 227, 80, 164},
                                       {12, 1, 1, 3264, 250, 80},
                                       {16, 1, 1, 4012, 216, 156},
                                       {20, 1, 1, 5010, 234, 197},
                                       {24, 1, 1, 4694, 321, 212},
                                       {32, 1, 1, 7458, 412, 313}},
                                      {761, 1352, 447, 0, 364, 825, 268, 139, 3558, 5045, 403, 1516, 32}};
constexpr Int8Costs kInt8GroupsCosts = {{{2, 1, 2, 1968, 300, 404},
                                         {4, 1, 2, 2634, 415, 148},
                                         {8, 1, 2, 3920, 393, 175},
                                         {12, 1, 2, 4718, 477, 144},
                                         {16, 1, 2, 6578, 457, 312},
                                         {2, 1, 1, 1646, 215, 204, 234},
                                         {4, 1, 1, 2324, 267, 103, 206},
                                         {8, 1, 1, 3190, 279, 104, 229},
                                         {12, 1, 1, 3303, 289, 98},
                                         {16, 1, 1, 4394, 263, 166},
                                         {20, 1, 1, 4744, 313, 190},
                                         {24, 1, 1, 4726, 314, 228},
                                         {32, 1, 1, 7581, 377, 379}},
                                        {512, 1384, 384, 62, 680, 862, 254, 180, 3383, 4065, 1433, 1658, 23}};

// What lpq_gemm_int8_NAME multiplies with activations of 8 bits.
struct Int8Kind {
  const char* name;
  bool nibbles, factors;
  const Int8Costs& costs;
};
constexpr Int8Kind kInt8Bytes{"i8", false, false, kInt8BytesCosts}, kInt8Rows{"r4", true, false, kInt8RowsCosts},
    kInt8Groups{"g4", true, true, kInt8GroupsCosts};

template <class Has, class Clusters>
std::optional<ScaledPlan> choose_int8(int multiprocessors, int64_t shared_per_block, const Int8Kind& kind, int64_t m,
                                      int64_t n, int64_t k_blocks, const ops::GemmSettings& wish, const Has& has,
                                      const Clusters& clusters) {
  return choose_cut(
      multiprocessors, shared_per_block, {m, plan_div_up(n, kBlockN), k_blocks, 1}, kind.costs.forms, kind.costs.cuts,
      [&](int width) { return Int8Stage(width * kBlockN, kind.nibbles, kind.factors).bytes; }, wish, has, clusters);
}

}  // namespace lpq::cuda
