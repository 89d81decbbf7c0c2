// A W4Ax product laid out by its closed forms (native/w4ax-ops.ts, docs/internals/layouts/comet.md), for kernels that
// run on the simulator.
#pragma once
#include <random>
#include <string>
#include "asynchronous.h"
#include "memory.h"

#include "cuda/gemm/families/w4ax_mixed.h"
#include "lpq/half.h"

inline std::mt19937_64 engine(23);
inline int between(int low, int high) {
  return static_cast<int>(engine() % static_cast<uint64_t>(high - low + 1)) + low;
}

// Codes of activations i8 [m, k] and of weights i8 [n, k], what kernels read of them, and y full of rubbish with some
// behind it. `fours`: blocks of 4 bits of a hundred; `size`: bytes of an output. Kernels may read these tensors, and no
// other memory.
struct W4ax {
  int m, n, k, k_blocks, eights = 0, fours = 0, x_pitch, w_pitch;
  size_t size;
  std::vector<int> blocks;
  std::vector<int8_t> x, w;
  std::vector<float> sx, sw, bias;
  Memory<signed char> m8;
  Memory<unsigned char> m4, mw;
  Memory<float> msx, msw, mbias;
  std::vector<unsigned char> y;

  W4ax(int m_, int n_, int k_blocks_, int fours_of_hundred, size_t size_)
      : m(m_),
        n(n_),
        k(128 * k_blocks_),
        k_blocks(k_blocks_),
        x_pitch((m_ + 3) / 4 * 4),
        w_pitch((n_ + 3) / 4 * 4),
        size(size_),
        blocks(static_cast<size_t>(k_blocks_)),
        x(static_cast<size_t>(m_ * k)),
        w(static_cast<size_t>(n_ * k)),
        sx(static_cast<size_t>(k_blocks * x_pitch), NAN),
        sw(static_cast<size_t>(k_blocks * w_pitch), NAN),
        bias(static_cast<size_t>(n_)),
        m8({}),
        m4({}),
        mw({}),
        msx({}),
        msw({}),
        mbias({}),
        y((static_cast<size_t>(m_ * n_) + 16) * size_, 0xd5) {
    for (int& b : blocks) b = between(1, 100) <= fours_of_hundred ? ~fours++ : eights++;
    for (int8_t& v : w) v = static_cast<int8_t>(between(-8, 7));
    std::vector<signed char> x8(static_cast<size_t>(m * 128 * eights));
    std::vector<unsigned char> x4(static_cast<size_t>(m * 64 * fours));
    for (int t = 0; t < m; ++t)
      for (int i = 0; i < k; ++i) {
        const int place = blocks[static_cast<size_t>(i / 128)];
        const int code = place >= 0 ? between(-127, 127) : between(-7, 7);
        x[static_cast<size_t>(t * k + i)] = static_cast<int8_t>(code);
        if (place >= 0) x8[static_cast<size_t>((t * eights + place) * 128 + i % 128)] = static_cast<signed char>(code);
        else
          x4[static_cast<size_t>((t * fours + ~place) * 64 + i % 128 / 32 * 16 + i % 16)] |=
              static_cast<unsigned char>((code & 15) << 4 * (i % 32 / 16));
      }
    std::vector<unsigned char> words(static_cast<size_t>((n + 15) / 16 * k_blocks * 1024));
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < k; ++i) {
        const int chunk = i % 128 / 32,
                  word = 128 * (chunk / 2) + 4 * (4 * (r % 8) + i % 16 / 4) + 2 * (chunk % 2) + r % 16 / 8;
        words[static_cast<size_t>((r / 16 * k_blocks + i / 128) * 1024 + 4 * word + i % 4)] |=
            static_cast<unsigned char>((w[static_cast<size_t>(r * k + i)] & 15) << 4 * (i % 32 / 16));
      }
    for (int b = 0; b < k_blocks; ++b) {
      for (int t = 0; t < m; ++t) sx[static_cast<size_t>(b * x_pitch + t)] = static_cast<float>(between(1, 999)) / 4096;
      for (int r = 0; r < n; ++r)
        sw[static_cast<size_t>(b * w_pitch + r)] = static_cast<float>(between(1, 999)) / 65536;
    }
    for (float& v : bias) v = static_cast<float>(between(-99, 99)) / 16;
    m8 = Memory<signed char>(x8), m4 = Memory<unsigned char>(x4), mw = Memory<unsigned char>(words),
    msx = Memory<float>(sx), msw = Memory<float>(sw), mbias = Memory<float>(bias);
    const auto area = [](const auto& memory) {
      return std::pair<const unsigned char*, size_t>(reinterpret_cast<const unsigned char*>(memory.words.data()),
                                                     memory.words.size() * 8 - 16);
    };
    simt::readable = {area(m8), area(m4), area(mw), area(msx), area(msw)};
  }

  void tell(lpq::cuda::MixedArgs& a, int store, bool with_bias) {
    a.y = y.data(), a.x8 = m8.data(), a.x4 = m4.data(), a.w = mw.data(), a.x_scales = msx.data(),
    a.w_scales = msw.data(), a.bias = with_bias ? mbias.data() : nullptr, a.blocks = blocks.data();
    a.m = m, a.n = n, a.k_blocks = k_blocks, a.eights = eights, a.fours = fours, a.x_pitch = x_pitch,
    a.w_pitch = w_pitch, a.store = store;
  }
  // The exact sum of block b, and its factor as kernels round it.
  float part(int t, int r, int b) const {
    int64_t sum = 0;
    for (int i = b * 128; i < b * 128 + 128; ++i)
      sum += int64_t{x[static_cast<size_t>(t * k + i)]} * w[static_cast<size_t>(r * k + i)];
    return static_cast<float>(sum);
  }
  float factor(int t, int r, int b) const {
    return sx[static_cast<size_t>(b * x_pitch + t)] * sw[static_cast<size_t>(b * w_pitch + r)];
  }
  float got(int t, int r, bool bf16) const {
    const unsigned char* const at = y.data() + static_cast<size_t>(t * n + r) * size;
    float wide;
    uint16_t half;
    std::memcpy(&half, at, 2);
    std::memcpy(&wide, at, size == 4 ? 4 : 2);
    return size == 4 ? wide : bf16 ? lpq::bf16_to_f32(half) : lpq::f16_to_f32(half);
  }
  float rounded(float v, bool bf16) const {
    return size == 4 ? v : bf16 ? lpq::bf16_to_f32(lpq::f32_to_bf16(v)) : lpq::f16_to_f32(lpq::f32_to_f16(v));
  }
  bool overrun() const {
    for (size_t i = static_cast<size_t>(m * n) * size; i < y.size(); ++i)
      if (y[i] != 0xd5) return true;
    return false;
  }
};
