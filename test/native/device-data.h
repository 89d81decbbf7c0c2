// Tensors as device memory has them, and how the simulated TMA is told where their boxes lie.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "asynchronous.h"
#include "cuda/gemm/families/packed.h"

template <class T>
struct Aligned {  // as device memory is
  std::vector<T> room;
  T* data;
  explicit Aligned(size_t count, T value = {}) : room(count + 256 / sizeof(T), value) {
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(room.data()) + 127) / 128 * 128);
  }
};
inline lpq::cuda::TensorMap boxes(const void* base, uint16_t element, uint64_t d0, uint64_t d1, uint64_t d2,
                                  uint64_t s0, uint64_t s1, uint32_t b0, uint32_t b1, uint32_t b2, bool swizzle) {
  const simt::BoxMap map{
      static_cast<const unsigned char*>(base), {d0, d1, d2}, {s0, s1}, {b0, b1, b2}, element, swizzle};
  lpq::cuda::TensorMap out{};
  std::memcpy(&out, &map, sizeof(map));
  return out;
}
