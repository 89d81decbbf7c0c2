// Random bits by counter: they depend on a key and a place alone.
#pragma once
#include <cstdint>

namespace lpq::synth {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose outputs on a counter pass for random.
inline uint64_t mixed(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
inline uint64_t draw(uint64_t key, uint64_t counter) { return mixed(key + kGolden * (counter + 1)); }

}  // namespace lpq::synth
