// Scales and zeros: their storage types, and the rule that gives a group its scale (docs/internals/numerics.md).
#pragma once
#include <cstddef>
#include <cstdint>

#include "lpq/exec.h"
#include "lpq/quant_type.h"
#include "lpq/tensor.h"

namespace lpq {

// f16, bf16, f32, f8_e8m0, f8_e4m3.
bool is_scale_dtype(DType dtype);
// The least scale that a dtype holds with its own precision. f16: 2^-17; it is subnormal below 2^-14, but down to there
// it has at least the 8 significant bits of bf16. e4m3 (without a second level): its least normal number.
float least_scale(DType dtype);
// Element i of an array of `dtype` (a scale dtype, or u8 or i16 for zeros) as f32; e8m0 255 and e4m3 0x7f are NaN.
float read_number(DType dtype, const std::byte* data, int64_t i);
// Stores `value`, rounded to nearest even, at element i, and returns what it reads back as. Floats overflow to infinity
// (e4m3: saturate at 448); e8m0 takes the nearest power of two in ratio; u8 and i16 take whole numbers of their range.
float write_number(DType dtype, std::byte* data, int64_t i, float value);

// Least and greatest weight of a group.
struct Extent {
  float min = 0.0f, max = 0.0f;
  float magnitude() const { return -min > max ? -min : max; }
};

enum class ZeroMode : uint8_t {
  constant,  // symmetric: one constant for the whole tensor (0 for signed types, 2^(b-1) for unsigned ones)
  whole,     // asymmetric: an integer a group
  real,      // asymmetric: the exact offset of the group's minimum, stored as f16 or f32
};

enum class ScaleIssue : uint8_t { none, overflow, underflow };

struct ScaleChoice {
  float ideal;   // 0 for a group of zeros
  float codes;   // the scale that codes are chosen with, `global` included
  float stored;  // what the storage type holds, `global` not included
  float zero;    // as stored
  ScaleIssue issue;
};

// The rule for one tensor. All arithmetic in f32, each operation rounded.
//   ideal scale, symmetric integers: max|w| / ((2^b - 1) / 2); symmetric floats: max|w| / type.top()
//   asymmetric (integers):           (max - min) / (2^b - 1), 0 counted into the range
// Codes are chosen with the ideal scale, then it is stored as f16, bf16 or f32. The coarse storage types come first:
// e8m0 and e4m3 scales are rounded and codes are chosen with what is stored.
struct ScaleRule {
  // Throws Failure("LPQ_NATIVE_DTYPE") when dtype is none for scales.
  ScaleRule(const QuantType& type, DType dtype);

  ZeroMode zero_mode = ZeroMode::constant;
  DType zero_dtype = DType::u8;  // of whole and real zeros
  float constant_zero = 0.0f;
  float global = 1.0f;  // second level: a weight is (q - zero) * stored * global
  bool has_global = false;
  bool cover = false;  // e8m0: the least power of two that saturates nothing, instead of the OCP MX rule

  // 0 for a group of zeros.
  float ideal(const Extent& extent) const;
  // The scale and zero of a group. A group of zeros gets scale 1 (and the least normal one where the constant zero is
  // not a code, so that 0.5 * scale is as near to 0 as can be); it raises no issue.
  ScaleChoice choose(const Extent& extent) const;
  // The second level that puts the largest ideal scale of a tensor at 448, the top of e4m3; 1 for a tensor of zeros.
  static float global_for(float largest_ideal);

 private:
  float power_of_two(const Extent& extent, float ideal) const;
  void choose_zero(float minimum, ScaleChoice& choice) const;

  QuantType type_;
  DType dtype_;
  float min_, max_, levels_;  // of the type; 2^b - 1
  float top_;                 // where floats put the largest magnitude of a group
  int top_power_;             // exponent of the largest element, OCP MX's emax
};

}  // namespace lpq
