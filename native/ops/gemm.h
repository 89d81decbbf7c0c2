// What the products of packed weights have in common: how one is described without tensors, what a caller may ask of
// its kernel, and checks.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "ops/arguments.h"

namespace lpq::ops {

// What a caller may ask of a kernel. The CPU gives the same numbers whatever is asked. `kernel`: a family's name
// (cuda/gemm/families). Numbers: 0 is as chosen, `shared` (items that blocks share) -1. `tuned` 0: settings that were
// timed on the device are not looked for. `overlap` 0: the launch waits for the operation before.
struct GemmSettings {
  std::string kernel, reduce;
  int64_t warps_n = 0, warps_k = 0, stages = 0, blocks = 0, tokens = 0, width = 0, slices = 0, shared = -1;
  bool overlap = true, tuned = true;
  bool timed = false;  // they come from a tuning, which does not decide about rounding

  bool operator==(const GemmSettings&) const = default;
  // Those of these names that the call has; `kernels`: what `kernel` may be.
  static GemmSettings read(Arguments& a, std::initializer_list<const char*> names,
                           std::initializer_list<const char*> kernels = {}) {
    static const std::map<std::string, int64_t GemmSettings::*> kNumbers = {
        {"warpsN", &GemmSettings::warps_n}, {"warpsK", &GemmSettings::warps_k}, {"stages", &GemmSettings::stages},
        {"blocks", &GemmSettings::blocks},  {"tokens", &GemmSettings::tokens},  {"width", &GemmSettings::width},
        {"slices", &GemmSettings::slices},  {"shared", &GemmSettings::shared}};
    GemmSettings s;
    for (const std::string name : names) {
      if (!a.has(name)) continue;
      if (name == "reduce") s.reduce = a.one_of(name, {"global", "cluster"}) == 0 ? "global" : "cluster";
      else if (name == "overlap") s.overlap = a.flag(name);
      else if (name == "tuned") s.tuned = a.flag(name);
      else if (const int64_t value = s.*kNumbers.at(name) = a.integer(name); value < 0)
        throw Failure("LPQ_NATIVE_ARGUMENT", name + " is " + std::to_string(value) + ", below 0");
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
  DType x = f16, scales = f16;
  std::optional<DType> zeros;  // of groups: u8 or f16 (tilus), i32 (marlin)
  double zero = 0;             // tilus: the constant, where there are none of groups
  bool bias = false, permutation = false;
  int64_t experts = 0;  // tilus: so many, one after the other (gemm_experts); turbomind: not 0: stored along K first
  bool gated = false;   // of experts in tilus: rows of gate and up stand by turns (gemm_experts), N is of one of them
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
inline int64_t groups_of(int64_t k, int64_t group_size) { return group_size == 0 ? 1 : parts_of(k, group_size); }

inline int64_t checked_group_size(int64_t size, std::initializer_list<int64_t> sizes) {
  std::string all;
  for (const int64_t& each : sizes) {
    if (each == size) return size;
    all += (&each == sizes.begin()     ? ""
            : &each + 1 == sizes.end() ? " or "
                                       : ", ") +
           std::to_string(each) + (each == 0 ? " (one scale a row)" : "");
  }
  throw Failure("LPQ_NATIVE_ARGUMENT", "groupSize is " + std::to_string(size) + ", not " + all);
}
inline int64_t checked_bits(int64_t bits) {
  require(bits == 4 || bits == 8, "bits is " + std::to_string(bits) + ", not 4 or 8");
  return bits;
}
// Weights of whole tiles hold N and K.
inline bool holds(int64_t n_pad, int64_t n, int64_t k_pad, int64_t k) {
  return n_pad >= n && k_pad >= k && n_pad < kMostRows + 1024 && k_pad < kMostRows + 1024;
}

// What every product of activations in 16 bits reads: x f16 or bf16 [M,K], y of its dtype [M,N].
struct GemmArguments : Arguments {
  const Tensor& x = input("x", kHalves, {-1, -1});
  const Tensor& y = output("y", {x.dtype}, {x.dim(0), -1});
  int64_t m = x.dim(0), n = y.dim(1), k = x.dim(1);

  GemmArguments(const Call& call, const char* op) : Arguments(call, op) { require_gemm_sizes(m, n, k); }

 protected:
  const Tensor* read_bias() { return input_if(flag("hasBias"), "bias", {x.dtype}, {n}); }
};

// One of the tensors of a described call.
struct Described {
  const char* name;
  DType dtype;
  Dims shape;
  bool given = true;
};

// The call of GemmArguments with these weights.
inline Call described_call(const GemmProduct& p, const Place& place, std::initializer_list<Described> weights,
                           Params params) {
  params.set("groupSize", double(p.group_size)), params.set("hasBias", double(p.bias));
  Call call{{place("x", p.x, {p.m, p.k})}, {}, std::move(params)};
  for (const Described& each : weights)
    if (each.given) call.in.push_back(place(each.name, each.dtype, each.shape));
  if (p.bias) call.in.push_back(place("bias", p.x, {p.n}));
  call.out = {place("y", p.x, {p.m, p.n})};
  return call;
}

// The type of a name such as u4 or f6e3m2. Throws Failure("LPQ_NATIVE_PARAM").
inline QuantType type_named(const std::string& name) {
  const auto digit = [&](size_t at) {
    return at < name.size() && name[at] >= '0' && name[at] <= '9' ? name[at] - '0' : -1;
  };
  const int bits = digit(1), exponent = digit(3), mantissa = digit(5);
  using Special = QuantType::Special;
  if (name.size() == 2 && (name[0] == 'u' || name[0] == 'i') && bits >= (name[0] == 'i' ? 2 : 1) && bits <= 8)
    return {QuantType::Kind::integer, bits, name[0] == 'i'};
  if (name.size() == 6 && name[0] == 'f' && name[2] == 'e' && name[4] == 'm' && bits >= 3 && bits <= 8 &&
      exponent >= 1 && mantissa >= 1 && 1 + exponent + mantissa == bits)
    return {QuantType::Kind::floating,
            bits,
            true,
            exponent,
            mantissa,
            exponent == 1 ? 0 : (1 << (exponent - 1)) - 1,
            name == "f8e4m3"   ? Special::fn
            : name == "f8e5m2" ? Special::ieee
                               : Special::none};
  throw Failure("LPQ_NATIVE_PARAM",
                "'" + name + "' is no quantized type: u1 to u8, i2 to i8, or fBeXmY of 3 to 8 bits with 1 + X + Y = B");
}

// What a quantized type sends with a call (QuantType::from).
inline Params type_params(const QuantType& t) {
  static constexpr const char* kSpecial[] = {"none", "fn", "ieee"};
  return {{"kind", t.kind == QuantType::Kind::integer ? "int" : "float"},
          {"bits", double(t.bits)},
          {"signed", double(t.is_signed)},
          {"exponent", double(t.exponent)},
          {"mantissa", double(t.mantissa)},
          {"bias", double(t.bias)},
          {"special", kSpecial[static_cast<int>(t.special)]}};
}

inline std::string type_name(const QuantType& t) {
  if (t.kind == QuantType::Kind::integer) return (t.is_signed ? "i" : "u") + std::to_string(t.bits);
  return "f" + std::to_string(t.bits) + "e" + std::to_string(t.exponent) + "m" + std::to_string(t.mantissa);
}

}  // namespace lpq::ops
