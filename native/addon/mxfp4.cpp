// Experts that are published in MXFP4, as bf16, on several threads.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <system_error>
#include <thread>
#include <vector>

#include "addon/handles.h"
#include "lpq/checks.h"

namespace lpq::addon {
namespace {

constexpr int64_t kBlock = 32, kTile = 32;

// bf16 patterns of the codes of e2m1 under every scale of e8m0: code 2^(scale - 127), exact; infinity from 2^128 on,
// NaN under 255.
const std::array<uint16_t, 256 * 16>& patterns() {
  static const auto table = [] {
    constexpr float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    std::array<uint16_t, 256 * 16> made{};
    for (int scale = 0; scale < 256; ++scale)
      for (int code = 0; code < 16; ++code) {
        const float value = std::ldexp(code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7], scale - 127);
        made[static_cast<size_t>(scale * 16 + code)] =
            scale == 255 ? uint16_t{0x7fc0} : static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      }
    return made;
  }();
  return table;
}

// Columns [begin, end) of out [K,N]. A tile goes through a buffer: its rows lie a power of two apart, which one set of
// a cache does not hold.
void decode(const uint8_t* blocks, const uint8_t* scales, int64_t n, int64_t k, uint16_t* out, int64_t begin,
            int64_t end) {
  const auto& table = patterns();
  uint16_t tile[kBlock][kTile];
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t width = std::min(kTile, end - first);
    for (int64_t block = 0; block < k / kBlock; ++block) {
      for (int64_t row = 0; row < width; ++row) {
        const uint16_t* values = table.data() + size_t{scales[(first + row) * (k / kBlock) + block]} * 16;
        const uint8_t* codes = blocks + (first + row) * (k / 2) + block * (kBlock / 2);
        for (int64_t i = 0; i < kBlock / 2; ++i) {
          tile[2 * i][row] = values[codes[i] & 15];
          tile[2 * i + 1][row] = values[codes[i] >> 4];
        }
      }
      for (int64_t i = 0; i < kBlock; ++i) std::copy_n(tile[i], width, out + (block * kBlock + i) * n + first);
    }
  }
}

}  // namespace

// decodeMxfp4(blocks, scales, n, k, out, threads), out bf16 [K,N].
Napi::Value decode_mxfp4_js(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    require(info.Length() == 6 && info[0].IsTypedArray() && info[1].IsTypedArray(),
            "decodeMxfp4() takes blocks, scales, n, k, a tensor and a number of threads");
    const auto blocks = info[0].As<Napi::Uint8Array>(), scales = info[1].As<Napi::Uint8Array>();
    const int64_t n = info[2].ToNumber().Int64Value(), k = info[3].ToNumber().Int64Value(),
                  threads = std::max<int64_t>(1, info[5].ToNumber().Int64Value());
    const Tensor& out = TensorHandle::unwrap(info[4]);
    require(n >= 0 && k >= 0 && k % kBlock == 0, "k is no multiple of 32");
    require(blocks.ByteLength() == static_cast<size_t>(n * k / 2) &&
                scales.ByteLength() == static_cast<size_t>(n * k / kBlock),
            "blocks or scales are not those of the matrix");
    require_tensor(out, "out", DType::bf16, {k, n});
    const int64_t tiles = (n + kTile - 1) / kTile, parts = std::min(threads, tiles);
    const auto part = [&](int64_t i) {
      decode(blocks.Data(), scales.Data(), n, k, out.data<uint16_t>(), i * tiles / parts * kTile,
             std::min(n, (i + 1) * tiles / parts * kTile));
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < parts; ++i) {
      try {
        others.emplace_back(part, i);
      } catch (const std::system_error&) {
        part(i);  // no thread to be had
      }
    }
    if (parts > 0) part(0);
    for (std::thread& other : others) other.join();
    return env.Undefined();
  });
}

}  // namespace lpq::addon
