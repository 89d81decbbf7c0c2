#include "cpu/quant/scale.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/quant/grid.h"
#include "lpq/half.h"

namespace lpq {
namespace {

constexpr float kLeastNormal = 0x1p-126f;
constexpr float kTopE4m3 = 448.0f;
constexpr float kLeastE4m3 = 0x1p-9f;

// f8e4m3, made once: scales of small groups are rounded by the hundred million.
struct E4m3 {
  QuantType type{QuantType::Kind::floating, 8, true, 4, 3, 7, QuantType::Special::fn};
  FloatGrid grid{type};
  float values[256];
  E4m3() {
    for (uint32_t code = 0; code < 256; ++code) values[code] = type.decode(code);
  }
};
const E4m3 kE4m3;

template <class T>
T read_as(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void write_as(std::byte* data, int64_t i, T value) {
  std::memcpy(data + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// floor(log2 x) for finite x > 0.
int floor_log2(float x) {
  const uint32_t bits = as_bits(x);
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : std::ilogb(x);
}
// 2^(code - 127); 255 is NaN.
float e8m0_value(int code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return as_float(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}
float power_of_two_value(int e) { return e8m0_value(std::clamp(e, -127, 127) + 127); }
int ceil_log2(float x) {
  const int e = floor_log2(x);
  return std::ldexp(1.0f, e) == x ? e : e + 1;
}

}  // namespace

bool is_scale_dtype(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f8_e8m0 ||
         dtype == DType::f8_e4m3;
}

float least_scale(DType dtype) {
  switch (dtype) {
    case DType::f16: return 0x1p-17f;
    case DType::f8_e4m3: return 0x1p-6f;
    case DType::f8_e8m0: return 0x1p-127f;
    default: return kLeastNormal;
  }
}

float read_number(DType dtype, const std::byte* data, int64_t i) {
  switch (dtype) {
    case DType::f32: return read_as<float>(data, i);
    case DType::f16: return f16_to_f32(read_as<uint16_t>(data, i));
    case DType::bf16: return bf16_to_f32(read_as<uint16_t>(data, i));
    case DType::f8_e8m0: return e8m0_value(read_as<uint8_t>(data, i));
    case DType::f8_e4m3: return kE4m3.values[read_as<uint8_t>(data, i)];
    case DType::u8: return static_cast<float>(read_as<uint8_t>(data, i));
    case DType::i16: return static_cast<float>(read_as<int16_t>(data, i));
    default: throw Failure("LPQ_NATIVE_DTYPE", "scales and zeros are not stored as " + std::string(dtype_name(dtype)));
  }
}

float write_number(DType dtype, std::byte* data, int64_t i, float value) {
  switch (dtype) {
    case DType::f32: write_as(data, i, value); break;
    case DType::f16: write_as(data, i, f32_to_f16(value)); break;
    case DType::bf16: write_as(data, i, f32_to_bf16(value)); break;
    case DType::f8_e8m0: {
      int code = 255;
      if (value > 0 && std::isfinite(value)) {
        const int e = floor_log2(value);
        code = std::clamp(e + (std::ldexp(value, -e) > 0x1.6a09e6p0f ? 1 : 0) + 127, 0, 254);  // beyond sqrt(2)
      }
      write_as(data, i, static_cast<uint8_t>(code));
      break;
    }
    case DType::f8_e4m3: {
      write_as(data, i, static_cast<uint8_t>(std::isnan(value) ? 0x7f : kE4m3.grid.quantize(value, 1.0f, 0.0f)));
      break;
    }
    case DType::u8: write_as(data, i, static_cast<uint8_t>(value)); break;
    case DType::i16: write_as(data, i, static_cast<int16_t>(value)); break;
    default: throw Failure("LPQ_NATIVE_DTYPE", "scales and zeros are not stored as " + std::string(dtype_name(dtype)));
  }
  return read_number(dtype, data, i);
}

ScaleRule::ScaleRule(const QuantType& type, DType dtype)
    : type_(type),
      dtype_(dtype),
      min_(type.min_value()),
      max_(type.max_value()),
      levels_(static_cast<float>(type.codes() - 1u)),
      top_(dtype == DType::f8_e8m0 || type.kind == QuantType::Kind::integer ? max_ : type.top()),
      top_power_(type.kind == QuantType::Kind::integer ? type.bits - 2 : floor_log2(type.max_value())) {
  if (!is_scale_dtype(dtype))
    throw Failure("LPQ_NATIVE_DTYPE", "scales are not stored as " + std::string(dtype_name(dtype)));
}

float ScaleRule::ideal(const Extent& extent) const {
  const float low = std::min(extent.min, 0.0f), high = std::max(extent.max, 0.0f);
  float scale;
  if (zero_mode != ZeroMode::constant) {
    scale = (high - low) / levels_;
  } else if (type_.kind == QuantType::Kind::integer && !type_.is_signed && constant_zero == 0.0f) {
    scale = high / max_;  // no negative values at all
  } else if (type_.kind == QuantType::Kind::integer) {
    // Half of 2^b - 1 is exact, so this is 2 max|w| / (2^b - 1) rounded once, and 2 max|w| cannot overflow.
    scale = extent.magnitude() / (0.5f * levels_);
  } else {
    scale = extent.magnitude() / top_;
  }
  if (scale == 0.0f && low == high) return 0.0f;
  return std::max(scale, kLeastNormal);
}

float ScaleRule::global_for(float largest_ideal) {
  return largest_ideal > 0.0f ? std::max(largest_ideal / kTopE4m3, kLeastNormal) : 1.0f;
}

// The OCP MX rule (Microscaling Formats 1.0, section 6.3): the exponent of the largest magnitude less that of the
// largest element. It may saturate the top of a group by less than a factor of 2; `cover` takes the power that does
// not.
float ScaleRule::power_of_two(const Extent& extent, float ideal) const {
  const bool covers = cover || zero_mode != ZeroMode::constant;
  const int e = covers ? ceil_log2(ideal) : floor_log2(extent.magnitude()) - top_power_;
  return power_of_two_value(e);
}

void ScaleRule::choose_zero(float minimum, ScaleChoice& choice) const {
  const float offset = -std::min(minimum, 0.0f) / choice.codes;
  float zero = zero_mode == ZeroMode::whole ? std::nearbyintf(offset) + min_ : offset + min_;
  zero = std::min(std::max(zero, min_), max_);
  std::byte room[4];
  choice.zero = write_number(zero_dtype, room, 0, zero);
}

ScaleChoice ScaleRule::choose(const Extent& extent) const {
  const float scale = ideal(extent);
  ScaleChoice choice{scale, scale, 0.0f, constant_zero, ScaleIssue::none};
  std::byte room[4];
  if (scale == 0.0f) {
    const bool no_zero = type_.kind == QuantType::Kind::integer && constant_zero != std::floor(constant_zero);
    choice.stored = !no_zero ? 1.0f : dtype_ == DType::f16 ? 0x1p-14f : has_global ? kLeastE4m3 : least_scale(dtype_);
    choice.codes = choice.stored * global;
  } else if (dtype_ == DType::f8_e8m0) {
    choice.stored = choice.codes = power_of_two(extent, scale);
    if (!std::isfinite(scale)) choice.issue = ScaleIssue::overflow;
  } else if (dtype_ == DType::f8_e4m3) {
    const float relative = scale / global;
    if (!(relative <= 464.0f)) choice.issue = ScaleIssue::overflow;  // past the midpoint to the missing 480
    choice.stored = std::max(write_number(dtype_, room, 0, relative), kLeastE4m3);
    if (!has_global && choice.stored < least_scale(dtype_)) choice.issue = ScaleIssue::underflow;
    choice.codes = choice.stored * global;
  } else {
    // Never 0: the least subnormal of f16 instead (bf16 and f32 hold every scale from 2^-126 up).
    choice.stored = std::max(write_number(dtype_, room, 0, scale), dtype_ == DType::f16 ? 0x1p-24f : 0x1p-126f);
    if (!std::isfinite(choice.stored)) choice.issue = ScaleIssue::overflow;
    else if (choice.stored < least_scale(dtype_)) choice.issue = ScaleIssue::underflow;
  }
  if (zero_mode != ZeroMode::constant && choice.issue != ScaleIssue::overflow) choose_zero(extent.min, choice);
  return choice;
}

}  // namespace lpq
