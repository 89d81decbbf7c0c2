// Which scales a stored dtype can hold. f16, bf16 and f32 are searched in fp32 and rounded at the end (rounding first flips
// ties: spec/quantization-methods); e8m0 and e4m3 are so coarse that only their own values are tried.
#pragma once
#include <cmath>
#include <string>

#include "lpq/exec.h"

namespace lpq::gptq {

struct ScaleType {
  enum class Kind { fine, e8m0, e4m3 } kind = Kind::fine;
  float unit = 1;  // global factor of the second level

  static ScaleType from(const Params& params) {
    ScaleType type;
    const std::string name = params.text("scaleDtype", "f32");
    if (name == "f8_e8m0") type.kind = Kind::e8m0;
    if (name == "f8_e4m3") type.kind = Kind::e4m3;
    type.unit = static_cast<float>(params.number("scaleUnit", 1.0));
    return type;
  }

  // The value of this type nearest to a positive scale (e8m0: in the logarithm), never 0.
  float usable(float scale) const {
    switch (kind) {
      case Kind::fine: return scale > 1e-12f ? scale : 1e-12f;
      case Kind::e8m0: {
        const float wanted = scale > 0 ? std::nearbyint(std::log2(scale)) : -127.0f;
        return std::ldexp(1.0f, static_cast<int>(std::fmin(std::fmax(wanted, -127.0f), 127.0f)));
      }
      case Kind::e4m3: {
        const float x = scale / unit;
        const float smallest = std::ldexp(1.0f, -9);
        if (!(x > smallest)) return smallest * unit;
        int power;
        std::frexp(x, &power);  // x in [2^(power-1), 2^power)
        const float step = std::ldexp(1.0f, std::max(power - 1, -6) - 3);
        return std::fmin(std::nearbyint(x / step) * step, 448.0f) * unit;
      }
    }
    return scale;
  }
};

}  // namespace lpq::gptq
