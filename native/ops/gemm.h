// What the products of packed weights have in common: how one is described without tensors, what a caller may ask of
// its kernel, and checks.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "ops/arguments.h"

namespace lpq::ops {

// What a caller may ask of a kernel. The CPU gives the same numbers whatever is asked. `kernel`: a family's name
// (cuda/gemm/families). Numbers: 0 is as chosen, `shared` (items that blocks share) -1. `tuned` 0: settings that were
// timed on the device are not looked for. `overlap` 0: the launch waits for the operation before.
struct GemmSettings {
  std::string kernel, reduce;
  int64_t warps_n = 0, warps_k = 0, stages = 0, blocks = 0, tokens = 0, width = 0, slices = 0, cluster = 0, shared = -1;
  bool overlap = true, tuned = true;
  bool timed = false;  // they come from a tuning, which does not decide about rounding

  bool operator==(const GemmSettings&) const = default;
  // Those of these names that the call has; `kernels`: what `kernel` may be.
  static GemmSettings read(Arguments& a, std::initializer_list<const char*> names,
                           std::initializer_list<const char*> kernels = {}) {
    static constexpr struct {
      const char* name;
      int64_t GemmSettings::* number;
    } kNumbers[] = {
        {"warpsN", &GemmSettings::warps_n}, {"warpsK", &GemmSettings::warps_k},  {"stages", &GemmSettings::stages},
        {"blocks", &GemmSettings::blocks},  {"tokens", &GemmSettings::tokens},   {"width", &GemmSettings::width},
        {"slices", &GemmSettings::slices},  {"cluster", &GemmSettings::cluster}, {"shared", &GemmSettings::shared}};
    GemmSettings s;
    for (const std::string name : names) {
      if (!a.has(name)) continue;
      if (name == "reduce") s.reduce = a.one_of(name, {"global", "cluster"}) == 0 ? "global" : "cluster";
      if (name == "overlap") s.overlap = a.flag(name);
      if (name == "tuned") s.tuned = a.flag(name);
      for (const auto& row : kNumbers) {
        if (name != row.name) continue;
        s.*row.number = a.integer(name);
        require(s.*row.number >= 0, name + " is " + std::to_string(s.*row.number) + ", below 0");
      }
    }
    if (kernels.size() > 0 && a.has("kernel")) s.kernel = *(kernels.begin() + a.one_of("kernel", kernels));
    return s;
  }
};

// A product as its makers describe it: y [M,N] = x [M,K] Wᵀ + bias, W in one of the layouts tilus, marlin, turbomind.
struct GemmProduct {
  std::string layout = "tilus", type = "u4";
  int64_t m = 1, n = 0, k = 0;
  int64_t n_padded = 0, k_padded = 0;  // as stored; 0: as `lpq pack` pads
  int64_t group_size = 128;            // along K; 0: one scale a row
  DType x = DType::f16, scales = DType::f16;
  std::optional<DType> zeros;  // of groups: u8 or f16 (tilus), i32 (marlin)
  double zero = 0;             // tilus: the constant, where there are none of groups
  bool bias = false, permutation = false, experts = false;
};

// The tensor of a call that has this name, as a description is turned into one.
using Place = std::function<Tensor(const char* name, DType dtype, Dims shape)>;

// M, N and K as kernels count them.
inline constexpr int64_t kMostRows = (int64_t{1} << 31) - 1024;
inline void require_gemm_sizes(int64_t m, int64_t n, int64_t k) {
  require(m >= 0 && m < kMostRows && n >= 0 && n < kMostRows && k >= 1 && k < kMostRows,
          "K is 0, M, N or K is negative, or 2^31 or more");
}

inline int64_t up_to(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
inline int64_t parts_of(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// 0: one scale a row.
inline void require_group_size(int64_t size, bool may_be_0) {
  require((may_be_0 && size == 0) || size == 32 || size == 64 || size == 128,
          "groupSize is " + std::to_string(size) +
              (may_be_0 ? ", not 0 (one scale a row), 32, 64 or 128" : ", not 32, 64 or 128"));
}

// What a quantized type sends with a call (QuantType::from), of a name such as u4 or f6e3m2. Throws
// Failure("LPQ_NATIVE_PARAM").
inline Params type_params(const std::string& name) {
  Params params;
  const auto set = [&](const char* kind, int bits, bool is_signed, int exponent, int mantissa, int bias,
                       const char* special) {
    params.set("kind", kind);
    params.set("bits", double(bits)), params.set("signed", is_signed ? 1.0 : 0.0);
    params.set("exponent", double(exponent)), params.set("mantissa", double(mantissa)),
        params.set("bias", double(bias));
    params.set("special", special);
  };
  const auto digit = [&](size_t at) {
    return at < name.size() && name[at] >= '0' && name[at] <= '9' ? name[at] - '0' : -1;
  };
  const int bits = digit(1);
  if (name.size() == 2 && (name[0] == 'u' || name[0] == 'i') && bits >= (name[0] == 'i' ? 2 : 1) && bits <= 8) {
    set("int", bits, name[0] == 'i', 0, 0, 0, "none");
    return params;
  }
  const int exponent = digit(3), mantissa = digit(5);
  if (name.size() == 6 && name[0] == 'f' && name[2] == 'e' && name[4] == 'm' && bits >= 3 && bits <= 8 &&
      exponent >= 1 && mantissa >= 1 && 1 + exponent + mantissa == bits) {
    set("float", bits, true, exponent, mantissa, exponent == 1 ? 0 : (1 << (exponent - 1)) - 1,
        name == "f8e4m3"   ? "fn"
        : name == "f8e5m2" ? "ieee"
                           : "none");
    return params;
  }
  throw Failure("LPQ_NATIVE_PARAM",
                "'" + name + "' is no quantized type: u1 to u8, i2 to i8, or fBeXmY of 3 to 8 bits with 1 + X + Y = B");
}

inline std::string type_name(const QuantType& t) {
  if (t.kind == QuantType::Kind::integer) return (t.is_signed ? "i" : "u") + std::to_string(t.bits);
  return "f" + std::to_string(t.bits) + "e" + std::to_string(t.exponent) + "m" + std::to_string(t.mantissa);
}

}  // namespace lpq::ops
