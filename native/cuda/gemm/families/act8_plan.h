// How the kernel of 8-bit activations (act8.cuh) cuts a product: plain functions, which the host's test of the kernel
// uses, too.
#pragma once
#include "cuda/gemm/families/act8.h"
#include "cuda/gemm/families/scaled_plan.h"

namespace lpq::cuda {

// What lpq_gemm_act8_NAME_FORM multiplies with activations of 8 bits: weights of 4 bits or of 8, bytes of a group and
// row, scales of tokens by blocks of 128 of k; and the nanoseconds of its forms and cuts on an H100, fitted to timings
// of all of them on 16 shapes and 4 to 1024 tokens (docs/internals/kernels/act8.md says how far the choice is from the
// best on others).
struct Act8Kind {
  const char* name;
  bool nibbles;
  int factor_bytes;
  ScaledForm forms[13];
  CutCosts cuts;
  bool token_scales = false;
};
constexpr Act8Kind kAct8Kinds[] = {{"i8",
                                    false,
                                    0,
                                    {{2, 1, 2, 269, 313, 409},
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
                                    {1256, 2115, 771, 0, 0, 1929, 568, 0, 2829, 9276, 244, 420, 261}},
                                   {"f8",
                                    false,
                                    0,
                                    {{2, 1, 2, 793, 323, 381},
                                     {4, 1, 2, 639, 439, 169},
                                     {8, 1, 2, 2110, 534, 2},
                                     {2, 1, 1, 0, 235, 383, 37},
                                     {4, 1, 1, 45, 352, 94, 148},
                                     {8, 1, 1, 911, 361, 81, 249},
                                     {12, 1, 1, 1061, 356, 54},
                                     {16, 1, 1, 1475, 384, 108}},
                                    {1928, 2744, 610, 245, 0, 1515, 541, 3169, 3860, 7610, 69, 1318, 453}},
                                   {"r4",
                                    true,
                                    0,
                                    {{2, 1, 2, 1937, 291, 211},
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
                                    {761, 1352, 447, 0, 364, 825, 268, 139, 3558, 5045, 403, 1516, 32}},
                                   {"g4",
                                    true,
                                    1,
                                    {{2, 1, 2, 1968, 300, 404},
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
                                    {512, 1384, 384, 62, 680, 862, 254, 180, 3383, 4065, 1433, 1658, 23}},
                                   {"w4",
                                    true,
                                    4,
                                    {{2, 1, 2, 1682, 289, 330},
                                     {4, 1, 2, 2418, 427, 35},
                                     {8, 1, 2, 3933, 438, 129},
                                     {2, 1, 1, 1601, 156, 229, 120},
                                     {4, 1, 1, 2058, 227, 122, 165},
                                     {8, 1, 1, 3129, 290, 59, 245},
                                     {12, 1, 1, 2725, 374, 74},
                                     {16, 1, 1, 3822, 413, 144}},
                                    {1109, 1395, 408, 304, 523, 743, 217, 1153, 3664, 4493, 0, 1593, 0}},
                                   {"w4x",
                                    true,
                                    4,
                                    {{2, 1, 2, 2633, 289, 155},
                                     {4, 1, 2, 2710, 461, 88},
                                     {8, 1, 2, 4054, 537, 175},
                                     {2, 1, 1, 2339, 239, 49, 177},
                                     {4, 1, 1, 2387, 266, 103, 260},
                                     {8, 1, 1, 3066, 333, 90, 341},
                                     {12, 1, 1, 3455, 418, 136},
                                     {16, 1, 1, 3746, 484, 172}},
                                    {526, 1706, 314, 227, 84, 551, 157, 6068, 713, 3790, 376, 1390, 0},
                                    true},
                                   {"w4f8",
                                    true,
                                    4,
                                    {{2, 1, 2, 2877, 325, 450},
                                     {4, 1, 2, 3004, 358, 436},
                                     {8, 1, 2, 4082, 504, 226},
                                     {2, 1, 1, 2393, 241, 202, 314},
                                     {4, 1, 1, 2608, 267, 181, 329},
                                     {8, 1, 1, 3366, 306, 101, 342},
                                     {12, 1, 1, 3217, 404, 126},
                                     {16, 1, 1, 4146, 402, 214}},
                                    {542, 1395, 269, 978, 178, 703, 171, 2564, 2327, 3800, 0, 1385, 0}}};

template <class Has, class Clusters>
std::optional<ScaledPlan> choose_act8(int multiprocessors, int64_t shared_per_block, const Act8Kind& kind, int64_t m,
                                      int64_t n, int64_t k_blocks, const ops::GemmSettings& wish, const Has& has,
                                      const Clusters& clusters) {
  return choose_cut(
      multiprocessors, shared_per_block, {m, plan_div_up(n, kBlockN), k_blocks, 1, kind.token_scales}, kind.forms,
      kind.cuts, [&](int width) { return Act8Stage(width * kBlockN, kind.nibbles, kind.factor_bytes).bytes; }, wish,
      has, clusters);
}

}  // namespace lpq::cuda
