// native/cuda/ptx/ldmatrix.cuh, simulated.
#pragma once
#include <array>

#include "simulator.h"

namespace lpq::cuda {

// Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i.
inline std::array<std::array<uint16_t, 64>, 4> matrices_at(const char* instruction, uint32_t address) {
  const simt::Lane* all = simt::gather(instruction, {{address}});
  std::array<std::array<uint16_t, 64>, 4> matrices{};
  for (size_t row = 0; row < 32; ++row)
    std::memcpy(&matrices[row / 8][row % 8 * 8], simt::shared_memory(all[row].words[0], 16), 16);
  return matrices;
}
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  const auto m = matrices_at("ldmatrix", address);
  const size_t lane = threadIdx.x & 31, at = lane / 4 * 8 + lane % 4 * 2;
  for (size_t i = 0; i < 4; ++i) r[i] = m[i][at] | static_cast<uint32_t>(m[i][at + 1]) << 16;
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  const auto m = matrices_at("ldmatrix.trans", address);
  const size_t lane = threadIdx.x & 31, row = lane / 4, column = lane % 4 * 2;
  for (size_t i = 0; i < 4; ++i)
    r[i] = m[i][column * 8 + row] | static_cast<uint32_t>(m[i][column * 8 + 8 + row]) << 16;
}
inline uint32_t movmatrix_trans(uint32_t v) {
  const simt::Lane* all = simt::gather("movmatrix", {{v}});
  const int lane = static_cast<int>(threadIdx.x & 31), row = lane / 4, column = lane % 4 * 2;
  const auto element = [&](int r, int c) { return all[4 * r + c / 2].words[0] >> 16 * (c & 1) & 0xffffu; };
  return element(column, row) | element(column + 1, row) << 16;
}
inline void stmatrix_x4_trans(uint32_t address, const uint32_t (&r)[4]) {
  const simt::Lane* all = simt::gather("stmatrix", {{r[0], r[1], r[2], r[3]}});
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3, column = lane & 7;
  uint16_t out[8];
  for (int row = 0; row < 8; ++row)
    out[row] = static_cast<uint16_t>(all[4 * row + column / 2].words[matrix] >> 16 * (column & 1));
  std::memcpy(simt::shared_memory(address, 16), out, 16);
}

}  // namespace lpq::cuda
