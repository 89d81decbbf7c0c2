// native/cuda/ptx/shared_memory.cuh, simulated.
#pragma once
#include "simulator.h"

namespace lpq::cuda {

inline uint32_t shared_address(const void* p) { return simt::shared_address(p); }
inline unsigned char* dynamic_shared() { return simt::own_shared(); }
template <class T>
T load_shared_as(uint32_t address) {
  T v;
  std::memcpy(&v, simt::shared_memory(address, sizeof(T)), sizeof(T));
  return v;
}
template <class T>
void store_shared_as(uint32_t address, const T& v) {
  std::memcpy(simt::shared_memory(address, sizeof(T)), &v, sizeof(T));
}
inline uint32_t ld_shared_s8(uint32_t address) {
  return static_cast<uint32_t>(static_cast<int32_t>(load_shared_as<int8_t>(address)));
}
inline uint32_t ld_shared_u16(uint32_t address) { return load_shared_as<uint16_t>(address); }
inline uint32_t ld_shared(uint32_t address) { return load_shared_as<uint32_t>(address); }
inline uint2 ld_shared_v2(uint32_t address) { return load_shared_as<uint2>(address); }
inline void ld_shared_v2(uint32_t& low, uint32_t& high, uint32_t address) {
  const uint2 v = ld_shared_v2(address);
  low = v.x, high = v.y;
}
inline uint4 ld_shared_v4(uint32_t address) { return load_shared_as<uint4>(address); }
inline float4 ld_shared_f4(uint32_t address) { return load_shared_as<float4>(address); }
inline void ld_shared_v4(uint32_t* to, uint32_t address) {
  const uint4 v = ld_shared_v4(address);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
inline void st_shared_u16(uint32_t address, uint16_t v) { store_shared_as(address, v); }
inline void st_shared(uint32_t address, uint32_t v) { store_shared_as(address, v); }
inline void st_shared_v2(uint32_t address, uint32_t a, uint32_t b) { store_shared_as(address, uint2{a, b}); }
inline void st_shared_v4(uint32_t address, uint4 v) { store_shared_as(address, v); }

}  // namespace lpq::cuda
