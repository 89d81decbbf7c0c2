// What the emulated kernels have in common: their tokens, the numbers of codes, and the walk over strips of outputs.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/verify/outputs.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {

// m/1024 with -1024 <= m <= 1024, which fp16 holds, by splitmix64.
inline std::vector<float> activations(int64_t seed, int64_t count) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  };
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = (static_cast<float>(mix(static_cast<uint64_t>(seed) ^ mix(i)) % 2049) - 1024.0f) / 1024.0f;
  return x;
}

inline uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// The number a bit pattern stands for (types: src/core/quant-type.ts, spec "packed layouts" section 4), exact.
struct CodeType {
  bool integer, is_signed;
  int bits, exponent, mantissa, bias;
  std::string special;

  static CodeType read(Arguments& a) {
    const bool integer = a.one_of("kind", {"int", "float"}) == 0;
    const auto whole = [&](const char* name) { return static_cast<int>(a.integer(name, 0)); };
    const CodeType type{integer,
                        a.flag("signed"),
                        whole("bits"),
                        whole("exponent"),
                        whole("mantissa"),
                        whole("bias"),
                        a.has("special") ? a.text("special") : ""};
    require(type.bits >= 1 && type.bits <= 8, "bits is 1 to 8");
    return type;
  }
  double value(uint32_t code) const {
    const bool negative = code >> (bits - 1);
    if (integer) return is_signed && negative ? static_cast<double>(code) - (1 << bits) : code;
    const int e = static_cast<int>(code >> mantissa & ((1u << exponent) - 1)), top = (1 << exponent) - 1;
    const int m = static_cast<int>(code & ((1u << mantissa) - 1));
    if (e == top && (special == "ieee" || (special == "fn" && m == (1 << mantissa) - 1)))
      return std::numeric_limits<double>::quiet_NaN();
    const double size = std::ldexp(e == 0 ? m : (1 << mantissa) + m, std::max(e, 1) - bias - mantissa);
    return negative ? -size : size;
  }
};

// Runs strips of an emulated kernel, body(strip, wrong, worst), and writes what they found: `registers` I64 [5], the
// first value of a register that is another than the canonical one; `outputs` F64 [7] (OutputReport).
class Strips {
 public:
  // Reads the list `strips`, the number `seed` and the two outputs.
  explicit Strips(Arguments& a)
      : seed(a.integer("seed")),
        strips_(a.list("strips")),
        registers_(report_output(a, "registers")),
        outputs_(a.output("outputs", {DType::f64}, {7})) {}

  template <class Body>
  void run(Exec& exec, int64_t all, const Body& body) const {
    exec.total = static_cast<int64_t>(strips_.size());
    for (const double strip : strips_) require(strip >= 0 && strip < static_cast<double>(all), "a strip inside N");
    WrongReport registers;
    OutputReport outputs;
    exec.pool.for_each(exec.total, 1, [&](int64_t i) {
      Wrong wrong;
      WorstOutput worst;
      body(static_cast<int64_t>(strips_[static_cast<size_t>(i)]), wrong, worst);
      registers.merge(wrong);
      outputs.merge(worst);
      ++exec.done;
    });
    registers.write(registers_);
    outputs.write(outputs_);
  }

  const int64_t seed;

 private:
  const std::vector<double>& strips_;
  const Tensor &registers_, &outputs_;
};

}  // namespace lpq::verify
