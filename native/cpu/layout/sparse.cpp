// sparse_compress: a 2:4 matrix as mma.sp reads operand A: the kept codes, and metadata that says where they stood.
//
//   in:  codes U8 [N, ceil(K*bits/8)] bitstream rows, mask U8 [N, ceil(K/8)] bitstream rows (1: kept), both in the
//   order of
//        K
//   out: kept U8 [N, K/2], of every four codes the two kept ones in order; metadata U16 [N, ceil(K/16)], four codes a
//   nibble:
//        the low two bits are the place of the first kept code among the four, the high two that of the second; info
//        I64 [5] = {fours that do not keep two, or hold another code than `zero` where pruned; row and column of the
//        first such four; codes kept in it; its code that should be zero, -1 when the number kept is wrong}
//   params: bits, zero
// Fours behind the end of a row have metadata (2, 3), as the reference implementation stores fours without weights.
#include <algorithm>
#include <mutex>

#include "cpu/quant/bitstream.h"
#include "ops/arguments.h"

namespace lpq {
namespace {

struct Misfit {
  int64_t count = 0, row = -1, column = -1, kept = 0, code = -1;
  void merge(const Misfit& o) {
    if (o.count == 0) return;
    const int64_t sum = count + o.count;
    if (count == 0 || o.row < row || (o.row == row && o.column < column)) *this = o;
    count = sum;
  }
};

void sparse_compress(Call& call, Exec& exec) {
  Arguments a(call, "sparse_compress");
  const int bits = static_cast<int>(a.integer("bits"));
  const uint8_t zero = static_cast<uint8_t>(a.integer("zero"));
  require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits, not " + std::to_string(bits));
  const Tensor& kept = a.output("kept", {DType::u8}, {-1, -1});
  const int64_t n = kept.dim(0), k = 2 * kept.dim(1), quads = k / 4, words = (k + 15) / 16;
  require(k % 4 == 0, "2:4 needs K divisible by 4");
  const Tensor &codes = a.input("codes", {DType::u8}, {n, stream_bytes(k, bits)}),
               &mask = a.input("mask", {DType::u8}, {n, stream_bytes(k, 1)}),
               &metadata = a.output("metadata", {DType::u16}, {n, words}), &info = a.output("info", {DType::i64}, {5});
  a.done();
  Misfit all;
  std::mutex mutex;
  exec.pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
    std::vector<uint8_t> line(static_cast<size_t>(k));
    Misfit found;
    for (int64_t row = begin; row < end; ++row) {
      unpack_row(codes.data<uint8_t>() + row * codes.dim(1), k, bits, line.data());
      const uint8_t* bit = mask.data<uint8_t>() + row * mask.dim(1);
      uint8_t* out = kept.data<uint8_t>() + row * (k / 2);
      uint16_t* meta = metadata.data<uint16_t>() + row * words;
      std::fill(meta, meta + words, uint16_t{0xeeee});
      for (int64_t q = 0; q < quads; ++q) {
        const unsigned pair = bit[q >> 1] >> (q & 1 ? 4 : 0) & 0xfu;
        Misfit one{0, row, 4 * q, __builtin_popcount(pair), -1};
        if (one.kept != 2) one.count = 1;
        unsigned place[2] = {2, 3};
        for (unsigned c = 0, next = 0; c < 4; ++c) {
          if (pair >> c & 1) {
            if (next < 2) place[next++] = c;
          } else if (line[static_cast<size_t>(4 * q + c)] != zero && one.count == 0) {
            one.count = 1;
            one.code = line[static_cast<size_t>(4 * q + c)];
          }
        }
        found.merge(one);
        out[2 * q] = line[static_cast<size_t>(4 * q + place[0])];
        out[2 * q + 1] = line[static_cast<size_t>(4 * q + place[1])];
        const int shift = static_cast<int>(4 * (q & 3));
        meta[q >> 2] = static_cast<uint16_t>((meta[q >> 2] & ~(0xfu << shift)) | (place[0] | place[1] << 2) << shift);
      }
    }
    std::lock_guard lock(mutex);
    all.merge(found);
  });
  int64_t* report = info.data<int64_t>();
  report[0] = all.count, report[1] = all.row, report[2] = all.column, report[3] = all.kept, report[4] = all.code;
}

LPQ_OP(sparse_compress, "sparse_compress");

}  // namespace
}  // namespace lpq
