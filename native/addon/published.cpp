// Weights that are published in few bits, as floats, on several threads: MXFP4, E4M3 with scales of blocks, integers of
// 4 bits in groups.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "addon/handles.h"
#include "addon/parts.h"
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

// Numbers of e4m3; the patterns with all exponent and fraction bits set are NaN.
const std::array<float, 256>& e4m3() {
  static const auto table = [] {
    std::array<float, 256> made{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, fraction = code & 7;
      const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                       : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
      const float value = (code & 127) == 127 ? std::numeric_limits<float>::quiet_NaN() : size;
      made[static_cast<size_t>(code)] = code & 128 ? -value : value;
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
    in_parts(n, kTile, threads, [&](int64_t begin, int64_t end) {
      decode(blocks.Data(), scales.Data(), n, k, out.data<uint16_t>(), begin, end);
    });
    return env.Undefined();
  });
}

// decodeFp8(codes, scales, columns, blockN, blockK, out, threads): codes of e4m3 [N,K] times scales f32
// [ceil(N/blockN), columns], columns = ceil(K/blockK), out f32 [N,K]; one product, rounded to f32.
Napi::Value decode_fp8_js(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    require(info.Length() == 7 && info[0].IsTypedArray() && info[1].IsTypedArray(),
            "decodeFp8() takes codes, scales, their columns, the block's sizes, a tensor and a number of threads");
    const auto codes = info[0].As<Napi::Uint8Array>();
    const auto scales = info[1].As<Napi::Float32Array>();
    const int64_t columns = info[2].ToNumber().Int64Value(), block_n = info[3].ToNumber().Int64Value(),
                  block_k = info[4].ToNumber().Int64Value(),
                  threads = std::max<int64_t>(1, info[6].ToNumber().Int64Value());
    const Tensor& out = TensorHandle::unwrap(info[5]);
    require_tensor(out, "out", DType::f32, {-1, -1});
    const int64_t n = out.dim(0), k = out.dim(1);
    require(block_n > 0 && block_k > 0 && columns == (k + block_k - 1) / block_k &&
                scales.ElementLength() == static_cast<size_t>((n + block_n - 1) / block_n * columns) &&
                codes.ByteLength() == static_cast<size_t>(n * k),
            "codes or scales are not those of the matrix");
    const auto& table = e4m3();
    in_parts(n, 1, threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t c = 0; c < columns; ++c) {
          const float scale = scales.Data()[row / block_n * columns + c];
          const int64_t last = row * k + std::min(k, (c + 1) * block_k);
          for (int64_t i = row * k + c * block_k; i < last; ++i) out.data<float>()[i] = table[codes.Data()[i]] * scale;
        }
    });
    return env.Undefined();
  });
}

// decodeInt4(words, scales, group, out, threads): of each word eight codes, the first in its low bits; out f32 = (code
// - 8) times the scale f32 of each `group` of them, a multiple of 8, rounded to f32.
Napi::Value decode_int4_js(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    require(info.Length() == 5 && info[0].IsTypedArray() && info[1].IsTypedArray(),
            "decodeInt4() takes words, scales, a group's size, a tensor and a number of threads");
    const auto words = info[0].As<Napi::Int32Array>();
    const auto scales = info[1].As<Napi::Float32Array>();
    const int64_t group = info[2].ToNumber().Int64Value(),
                  threads = std::max<int64_t>(1, info[4].ToNumber().Int64Value());
    const Tensor& out = TensorHandle::unwrap(info[3]);
    require_dtype(out, "out", {DType::f32});
    const auto count = static_cast<int64_t>(words.ElementLength());
    require(group > 0 && group % 8 == 0 && out.elements() == 8 * count &&
                scales.ElementLength() == static_cast<size_t>((8 * count + group - 1) / group),
            "words or scales are not those of the tensor");
    in_parts(count, 1, threads, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        const auto word = static_cast<uint32_t>(words.Data()[w]);
        const float scale = scales.Data()[8 * w / group];
        for (int64_t i = 0; i < 8; ++i)
          out.data<float>()[8 * w + i] = static_cast<float>(static_cast<int>(word >> 4 * i & 15) - 8) * scale;
      }
    });
    return env.Undefined();
  });
}

}  // namespace lpq::addon
