#include <algorithm>
#include <cmath>

#include "cpu/packed/form.h"
#include "cpu/packed/kernels.h"

namespace lpq::packed {
namespace {

struct F {
  float v[16];
};
struct U {
  uint32_t v[16];
};
constexpr int kTile = 1, kPanels = 1;

// Plain loops of 16, not unrolled further: this is for processors without vectors, and for tests.
template <class T, class Each>
T made(const Each& each) {
  T out;
  for (int i = 0; i < 16; ++i) out.v[i] = each(i);
  return out;
}

F zeros() {
  return made<F>([](int) { return 0.0f; });
}
F load(const float* at) {
  return made<F>([&](int i) { return at[i]; });
}
F broadcast(const float* at) {
  return made<F>([&](int) { return *at; });
}
void store(float* at, const F& f) { std::copy(f.v, f.v + 16, at); }
F fma(const F& a, const F& b, const F& c) {
  return made<F>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
U load_words(const uint32_t* at) {
  return made<U>([&](int i) { return at[i]; });
}
U right(const U& u, int by) {
  return made<U>([&](int i) { return u.v[i] >> by; });
}
U left(const U& u, int by) {
  return made<U>([&](int i) { return u.v[i] << by; });
}
U either(const U& a, const U& b) {
  return made<U>([&](int i) { return a.v[i] | b.v[i]; });
}
U both(const U& a, const U& b) {
  return made<U>([&](int i) { return a.v[i] & b.v[i]; });
}
U words(uint32_t all) {
  return made<U>([&](int) { return all; });
}
F number(const U& u) {
  return made<F>([&](int i) { return static_cast<float>(static_cast<int32_t>(u.v[i])); });
}
F minus(const F& a, float b) {
  return made<F>([&](int i) { return a.v[i] - b; });
}

template <int B, bool Whole>
struct Values {
  static constexpr bool kInPlace = Whole;
  static constexpr bool kSigned = false;
  static constexpr int kCodes = 1;
  explicit Values(const Panel& p) : table(p.table), constant(p.constant) {}
  F of(const U& codes, int) const {
    return made<F>([&](int i) { return table[codes.v[i] & ((1u << B) - 1)]; });
  }
  const float* table;
  float constant;
};

#define LPQ_EVERY_COLUMN
#include "cpu/packed/kernels_body.h"

}  // namespace

const Kernels& kernels_generic() { return kKernels; }

}  // namespace lpq::packed
