#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cpu/banded/form.h"
#include "cpu/banded/kernels.h"
#include "lpq/half.h"

namespace lpq::banded {
namespace {

struct F {
  float v[16];
};
struct U {
  uint32_t v[16];
};
struct BF16 {};
struct F16 {};
constexpr int kRows = 1;
constexpr int panels_of(int) { return 1; }

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
F plus(const F& a, const F& b) {
  return made<F>([&](int i) { return a.v[i] + b.v[i]; });
}
U load_words(const uint32_t* at) {
  return made<U>([&](int i) { return at[i]; });
}
template <class T>
float number(uint32_t half) {
  return std::is_same_v<T, BF16> ? bf16_to_f32(static_cast<uint16_t>(half)) : f16_to_f32(static_cast<uint16_t>(half));
}
template <class T>
F low(const U& u) {
  return made<F>([&](int i) { return number<T>(u.v[i] & 0xffffu); });
}
template <class T>
F high(const U& u) {
  return made<F>([&](int i) { return number<T>(u.v[i] >> 16); });
}

#include "cpu/banded/kernels_body.h"

}  // namespace

const Kernels& kernels_generic() { return kKernels; }

}  // namespace lpq::banded
