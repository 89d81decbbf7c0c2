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
#include "lpq/exec.h"

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
  const Tensor &codes = call.input(0), &mask = call.input(1);
  const Tensor &kept = call.output(0), &metadata = call.output(1), &info = call.output(2);
  const int bits = static_cast<int>(call.params.integer("bits"));
  const uint8_t zero = static_cast<uint8_t>(call.params.integer("zero"));
  require(kept.rank() == 2 && kept.dtype == DType::u8, "kept is U8 [N, K/2]");
  const int64_t n = kept.dim(0), k = 2 * kept.dim(1), quads = k / 4, words = (k + 15) / 16;
  require(k % 4 == 0, "2:4 needs K divisible by 4");
  require(codes.shape == std::vector<int64_t>({n, (k * bits + 7) / 8}) &&
              mask.shape == std::vector<int64_t>({n, (k + 7) / 8}),
          "codes and mask are bitstream rows of [N, K]");
  require(metadata.dtype == DType::u16 && metadata.shape == std::vector<int64_t>({n, words}),
          "metadata is U16 [N, ceil(K/16)]");
  require(info.elements() == 5, "info has five elements");
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
