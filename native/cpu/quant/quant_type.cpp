#include "lpq/quant_type.h"

#include <cmath>
#include <limits>

#include "lpq/arguments.h"

namespace lpq {

QuantType QuantType::from(Arguments& a) {
  const auto bad = [](const std::string& what) -> Failure { return Failure("LPQ_NATIVE_PARAM", what); };
  QuantType type;
  const std::string& kind = a.text("kind");
  if (kind != "int" && kind != "float") throw bad("no kind of type is called " + kind);
  type.kind = kind == "int" ? Kind::integer : Kind::floating;
  type.bits = static_cast<int>(a.integer("bits"));
  type.is_signed = a.integer("signed") != 0;
  if (type.bits < 1 || type.bits > 8) throw bad("a type has 1 to 8 bits, not " + std::to_string(type.bits));
  if (type.kind == Kind::integer) {
    for (const char* of_floats : {"exponent", "mantissa", "bias", "special"}) a.has(of_floats);
    if (type.is_signed && type.bits < 2) throw bad("a signed integer has at least 2 bits");
    return type;
  }
  type.exponent = static_cast<int>(a.integer("exponent"));
  type.mantissa = static_cast<int>(a.integer("mantissa"));
  type.bias = static_cast<int>(a.integer("bias"));
  const std::string special = a.has("special") ? a.text("special") : "none";
  if (special != "none" && special != "fn" && special != "ieee")
    throw bad("no set of special values is called " + special);
  type.special = special == "fn" ? Special::fn : special == "ieee" ? Special::ieee : Special::none;
  if (!type.is_signed || type.exponent < 1 || type.mantissa < 1 || 1 + type.exponent + type.mantissa != type.bits)
    throw bad("a float is signed, with 1 + exponent + mantissa = bits and neither empty");
  if (type.bias < 0 || type.bias > 63) throw bad("the bias of a float lies between 0 and 63");
  return type;
}

float QuantType::decode(uint32_t code) const {
  if (kind == Kind::integer) {
    const int value = static_cast<int>(code);
    return static_cast<float>(is_signed && (code >> (bits - 1)) ? value - (1 << bits) : value);
  }
  const uint32_t fraction = code & ((1u << mantissa) - 1u);
  const uint32_t power = (code >> mantissa) & ((1u << exponent) - 1u);
  const bool top = power == (1u << exponent) - 1u;
  if (top && (special == Special::ieee || (special == Special::fn && fraction == (1u << mantissa) - 1u)))
    return std::numeric_limits<float>::quiet_NaN();
  const uint32_t whole = power == 0 ? fraction : fraction + (1u << mantissa);
  const int scale = static_cast<int>(power == 0 ? 1 : power) - bias - mantissa;
  const float magnitude = std::ldexp(static_cast<float>(whole), scale);
  return code >> (bits - 1) ? -magnitude : magnitude;
}

uint32_t QuantType::max_code() const {
  if (kind == Kind::integer) return is_signed ? (1u << (bits - 1)) - 1u : (1u << bits) - 1u;
  const uint32_t ones = (1u << (bits - 1)) - 1u;
  if (special == Special::fn) return ones - 1u;
  if (special == Special::ieee) return ones - (1u << mantissa);
  return ones;
}

float QuantType::top() const {
  float top = max_value();
  while (top > 512.0f) top *= 0.5f;
  return top;
}

float QuantType::min_value() const {
  if (kind == Kind::floating) return -max_value();
  return is_signed ? -static_cast<float>(1 << (bits - 1)) : 0.0f;
}

}  // namespace lpq
