// Tensors as the simulated bulk engine is told of them. For one file of a program.
#pragma once
#include <string>
#include <vector>

#include "asynchronous.h"
#include "cuda/gemm/tensor_maps.h"

namespace lpq::cuda {
TensorMap describe_boxes(const void* address, int type, const uint64_t (&dims)[3], const uint64_t (&strides)[2],
                         const uint32_t (&box)[3], bool swizzle) {
  simt::BoxMap map{static_cast<const unsigned char*>(address),
                   {dims[0], dims[1], dims[2]},
                   {strides[0], strides[1]},
                   {box[0], box[1], box[2]},
                   static_cast<uint16_t>(type == kMap8    ? 1
                                         : type == kMap16 ? 2
                                                          : 8),
                   swizzle};
  for (uint32_t b : box)
    if (b < 1 || b > 256) throw std::runtime_error("a box of " + std::to_string(b));
  if (box[0] * map.element % 16 != 0 || strides[0] % 16 != 0 || strides[1] % 16 != 0 ||
      reinterpret_cast<uintptr_t>(address) % 16 != 0)
    throw std::runtime_error("a tensor that the bulk engine refuses");
  TensorMap out{};
  std::memcpy(&out, &map, sizeof(map));
  return out;
}
}  // namespace lpq::cuda

template <class T>
struct Aligned {  // as device memory is
  std::vector<T> room;
  T* data;
  explicit Aligned(const std::vector<T>& from) : room(from.size() + 128 / sizeof(T)) {
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(room.data()) + 127) / 128 * 128);
    std::copy(from.begin(), from.end(), data);
  }
};
