#include "cpu/quant/bitstream.h"

#include <algorithm>

#include "ops/quant.h"

namespace lpq {
namespace {

// Eight byte codes and the 8*B low bits of a word, by halving: neighbouring fields close up in three steps. Works on
// any 64-bit machine; pext would do it in one, but costs hundreds of cycles on some.
template <int B>
struct Fields {
  static constexpr uint64_t kByte = (1ull << B) - 1, kPair = (1ull << (2 * B)) - 1, kQuad = (1ull << (4 * B)) - 1;
  static constexpr uint64_t kEvenBytes = kByte * 0x0001000100010001ull, kOddBytes = kEvenBytes << 8;
  static constexpr uint64_t kEvenPairs = kPair * 0x0000000100000001ull, kOddPairs = kEvenPairs << 16;
};
template <int B>
uint64_t gather(uint64_t x) {
  using F = Fields<B>;
  x = (x & F::kEvenBytes) | ((x & F::kOddBytes) >> (8 - B));
  x = (x & F::kEvenPairs) | ((x & F::kOddPairs) >> (16 - 2 * B));
  return (x & F::kQuad) | ((x & (F::kQuad << 32)) >> (32 - 4 * B));
}
template <int B>
uint64_t spread(uint64_t x) {
  using F = Fields<B>;
  x = (x & F::kQuad) | ((x & (F::kQuad << (4 * B))) << (32 - 4 * B));
  x = (x & F::kEvenPairs) | ((x & (F::kEvenPairs << (2 * B))) << (16 - 2 * B));
  return (x & F::kEvenBytes) | ((x & (F::kEvenBytes << B)) << (8 - B));
}

template <int B>
void pack_bits(const uint8_t* codes, int64_t k, uint8_t* stream) {
  const int64_t words = k / 8;
  int64_t i = 0;
  // Whole 8-byte stores while they stay inside the row: the bytes past B are overwritten by the next word's.
  for (; i < words && (words - i) * B >= 8; ++i) {
    uint64_t x;
    std::memcpy(&x, codes + i * 8, 8);
    x = gather<B>(x);
    std::memcpy(stream + i * B, &x, 8);
  }
  for (; i < words; ++i) {
    uint64_t x;
    std::memcpy(&x, codes + i * 8, 8);
    x = gather<B>(x);
    std::memcpy(stream + i * B, &x, B);
  }
  const int64_t rest = k - words * 8;
  if (rest == 0) return;
  uint64_t x = 0;
  std::memcpy(&x, codes + words * 8, static_cast<size_t>(rest));
  x = gather<B>(x);
  std::memcpy(stream + words * B, &x, static_cast<size_t>((rest * B + 7) / 8));
}

template <int B>
void unpack_bits(const uint8_t* stream, int64_t k, uint8_t* codes) {
  const int64_t words = k / 8, bytes = stream_bytes(k, B);
  for (int64_t i = 0; i < words; ++i) {
    uint64_t x = 0;
    if (i * B + 8 <= bytes) std::memcpy(&x, stream + i * B, 8);
    else std::memcpy(&x, stream + i * B, B);
    x = spread<B>(x);
    std::memcpy(codes + i * 8, &x, 8);
  }
  const int64_t rest = k - words * 8;
  if (rest == 0) return;
  uint64_t x = 0;
  std::memcpy(&x, stream + words * B, static_cast<size_t>(bytes - words * B));
  x = spread<B>(x);
  std::memcpy(codes + words * 8, &x, static_cast<size_t>(rest));
}

template <class Row>
void by_row(Exec& exec, int64_t rows, int64_t k, Row&& row) {
  exec.total = rows;
  const int64_t grain = std::max<int64_t>(1, (1 << 18) / std::max<int64_t>(k, 1));
  exec.pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) row(n);
    exec.done += end - begin;
  });
}

void pack_codes(Call& call, Exec& exec) {
  const ops::Bitstream a(call, true);
  const uint8_t* from = a.codes.data<uint8_t>();
  uint8_t* to = a.stream.data<uint8_t>();
  const int64_t k = a.codes.dim(1), bytes = a.stream.dim(1);
  by_row(exec, a.codes.dim(0), k, [&](int64_t n) { pack_row(from + n * k, k, a.bits, to + n * bytes); });
}

void unpack_codes(Call& call, Exec& exec) {
  const ops::Bitstream a(call, false);
  const uint8_t* from = a.stream.data<uint8_t>();
  uint8_t* to = a.codes.data<uint8_t>();
  const int64_t k = a.codes.dim(1), bytes = a.stream.dim(1);
  by_row(exec, a.codes.dim(0), k, [&](int64_t n) { unpack_row(from + n * bytes, k, a.bits, to + n * k); });
}

LPQ_OP(pack_codes, "pack_codes");
LPQ_OP(unpack_codes, "unpack_codes");

}  // namespace

void pack_row(const uint8_t* codes, int64_t k, int bits, uint8_t* stream) {
  switch (bits) {
    case 1: return pack_bits<1>(codes, k, stream);
    case 2: return pack_bits<2>(codes, k, stream);
    case 3: return pack_bits<3>(codes, k, stream);
    case 4: return pack_bits<4>(codes, k, stream);
    case 5: return pack_bits<5>(codes, k, stream);
    case 6: return pack_bits<6>(codes, k, stream);
    case 7: return pack_bits<7>(codes, k, stream);
    default: std::memcpy(stream, codes, static_cast<size_t>(k));
  }
}

void unpack_row(const uint8_t* stream, int64_t k, int bits, uint8_t* codes) {
  switch (bits) {
    case 1: return unpack_bits<1>(stream, k, codes);
    case 2: return unpack_bits<2>(stream, k, codes);
    case 3: return unpack_bits<3>(stream, k, codes);
    case 4: return unpack_bits<4>(stream, k, codes);
    case 5: return unpack_bits<5>(stream, k, codes);
    case 6: return unpack_bits<6>(stream, k, codes);
    case 7: return unpack_bits<7>(stream, k, codes);
    default: std::memcpy(codes, stream, static_cast<size_t>(k));
  }
}

}  // namespace lpq
