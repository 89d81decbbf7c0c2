// Reading and writing scales and zeros on the device, with the rounding of cpu/quant/scale.cpp bit for bit.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/quant/grid.cuh"

namespace lpq::cuda {

enum DeviceNumberType : int { kNumberF32, kNumberF16, kNumberBf16, kNumberE8m0, kNumberE4m3, kNumberU8, kNumberI16 };

// Any byte address will do.
__device__ __forceinline__ uint32_t load_bytes(const uint8_t* p, int bytes) {
  uint32_t bits = 0;
  for (int i = 0; i < bytes; ++i) bits |= static_cast<uint32_t>(p[i]) << (8 * i);
  return bits;
}

__device__ __forceinline__ float e8m0_value(int code) {
  if (code == 255) return __int_as_float(0x7fc00000);
  return __int_as_float(code == 0 ? 0x00400000 : code << 23);
}

// f8e4m3 as DeviceGrid<true> takes it.
__device__ __forceinline__ GridSpec e4m3_spec() {
  GridSpec s{};
  s.is_float = 1;
  s.bits = 8;
  s.mask = 255;
  s.sign = 128;
  s.low = -448.0f;
  s.high = 448.0f;
  s.shift = 20;
  s.least_power = 121u << 23;
  s.lift = 20u << 23;
  s.rebias = 120u << 3;
  s.quantum_base = __uint_as_float((121u << 23) + (20u << 23));
  return s;
}

__device__ __forceinline__ float read_number(int type, const uint8_t* data, int64_t i) {
  switch (type) {
    case kNumberF32:
      return __uint_as_float(reinterpret_cast<uintptr_t>(data) % 4 == 0 ? reinterpret_cast<const uint32_t*>(data)[i]
                                                                        : load_bytes(data + 4 * i, 4));
    case kNumberF16:
    case kNumberBf16: {
      const uint32_t bits = reinterpret_cast<uintptr_t>(data) % 2 == 0 ? reinterpret_cast<const uint16_t*>(data)[i]
                                                                       : load_bytes(data + 2 * i, 2);
      return type == kNumberBf16 ? __uint_as_float(bits << 16)
                                 : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    }
    case kNumberE8m0: return e8m0_value(data[i]);
    case kNumberE4m3:
      return (data[i] & 127) == 127 ? __int_as_float(0x7fc00000) : DeviceGrid<true>(e4m3_spec()).value(data[i]);
    case kNumberU8: return static_cast<float>(data[i]);
    default: return static_cast<float>(static_cast<int16_t>(load_bytes(data + 2 * i, 2)));
  }
}

// floor(log2 x) for finite x > 0.
__device__ __forceinline__ int floor_log2(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : -118 - __clz(bits);
}

// Stores `value` at element i and returns what it reads back as. 16-bit data is aligned.
__device__ __forceinline__ float write_number(int type, uint8_t* data, int64_t i, float value) {
  switch (type) {
    case kNumberF32: reinterpret_cast<float*>(data)[i] = value; break;
    case kNumberF16: reinterpret_cast<__half*>(data)[i] = __float2half_rn(value); break;
    case kNumberBf16: reinterpret_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value); break;
    case kNumberE8m0: {
      int code = 255;
      if (value > 0 && isfinite(value)) {
        const int e = floor_log2(value);
        code = min(max(e + (ldexpf(value, -e) > 0x1.6a09e6p0f ? 1 : 0) + 127, 0), 254);  // beyond sqrt(2)
      }
      data[i] = static_cast<uint8_t>(code);
      break;
    }
    case kNumberE4m3: {
      uint32_t code = 0x7f;
      if (value == value) {
        const DeviceGrid<true> grid(e4m3_spec());
        grid.nearest(value, grid.step(1.0f, 0.0f), &code);
      }
      data[i] = static_cast<uint8_t>(code);
      break;
    }
    case kNumberU8: data[i] = static_cast<uint8_t>(static_cast<int>(value)); break;
    default: reinterpret_cast<int16_t*>(data)[i] = static_cast<int16_t>(static_cast<int>(value));
  }
  return read_number(type, data, i);
}

}  // namespace lpq::cuda
