// A Sparse-MARLIN module back into canonical order: codes of all K, 0 where pruned, and the mask.
#include <vector>

#include "cpu/verify/sparse_words.h"
#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

// B I32 [kp/32, np*bits/2], meta I16 [kp/32, 2np] -> codes U8 [N, ceil(K*bits/8)] (each exclusive-or flip; `pad`, the
// stored code of 0, where pruned), mask U8 [N, ceil(K/8)], padding I64 [5]: stored codes outside [N, K] that are not
// `pad`, or metadata there that is not (2, 3); places I64 [5]: fours whose two places are not in ascending order (row
// n, column k of the four, the metadata, the least that is allowed with its first place).
void decode_sparse(Call& call, Exec& exec) {
  Arguments a(call, "verify_decode_sparse");
  const Tensor &packed = a.input("B"), &meta = a.input("meta");
  const int bits = static_cast<int>(a.integer("bits"));
  const int64_t np = a.integer("np"), kp = a.integer("kp"), k_true = a.integer("k");
  const Tensor& codes = a.output("codes", {DType::u8}, {-1, ceil_div(k_true * bits, 8)});
  const int64_t n_true = codes.dim(0);
  const Tensor& mask = a.output("mask", {DType::u8}, {n_true, ceil_div(k_true, 8)});
  const Tensor &padding_info = report_output(a, "padding"), &places_info = report_output(a, "places");
  const uint32_t flip = static_cast<uint32_t>(a.integer("flip")), pad = static_cast<uint32_t>(a.integer("pad"));
  a.done();
  require(bits == 4 || bits == 8, "codes of 4 or 8 bits");
  require(np % kSparseN == 0 && kp % kSparseK == 0 && n_true <= np && k_true <= kp && k_true % 4 == 0,
          "the padded shape is whole tiles");
  require(
      static_cast<int64_t>(packed.bytes()) * 16 == np * kp * bits && static_cast<int64_t>(meta.bytes()) * 8 == np * kp,
      "the packed tensors hold the padded shape");
  const auto* words = reinterpret_cast<const uint32_t*>(packed.raw());
  const auto* metadata = reinterpret_cast<const uint32_t*>(meta.raw());
  const int64_t strips = np / kSparseN, steps = kp / kSparseK;
  exec.total = strips;
  WrongReport padding, places;
  exec.pool.parallel_for(strips, 1, [&](int64_t begin, int64_t end, int) {
    Wrong outside, unordered;
    std::vector<uint8_t> dense(static_cast<size_t>(kSparseN * kp)), kept(dense.size());
    for (int64_t nt = begin; nt < end; ++nt) {
      std::fill(dense.begin(), dense.end(), static_cast<uint8_t>(pad));
      std::fill(kept.begin(), kept.end(), uint8_t{0});
      for (int64_t kt = 0; kt < steps; ++kt) {
        const SparseTile tile = sparse_tile(words, metadata, bits, strips, nt, kt);
        for (int j = 0; j < 4; ++j) {
          for (int row = 0; row < 16; ++row)
            for (int quad = 0; quad < 8; ++quad) {
              const uint32_t pair = tile.places(j, row, quad);
              const int64_t n = nt * kSparseN + sparse_feature(j, row), k = kt * kSparseK + 4 * quad;
              if ((pair & 3) >= pair >> 2)
                unordered.see(n, k, pair, (pair & 3) == 3 ? 0xe : (pair & 3) | ((pair & 3) + 1) << 2);
              if ((n >= n_true || k >= k_true) && pair != 0xe) outside.see(n, k, pair, 0xe);
            }
          for (int lane = 0; lane < kLanes; ++lane)
            for (int i = 0; i < 8; ++i) {
              const Cell cell = fragment_a(lane, i);
              const uint32_t pair = tile.places(j, cell.row, cell.col / 2);
              const int place = static_cast<int>(pair >> 2 * (cell.col % 2) & 3);
              const int64_t k = kt * kSparseK + 4 * (cell.col / 2) + place;
              const size_t at = static_cast<size_t>(sparse_feature(j, cell.row) * kp + k);
              dense[at] = static_cast<uint8_t>(tile.code(lane, j, i));
              kept[at] = 1;
            }
        }
      }
      for (int r = 0; r < kSparseN; ++r) {
        const int64_t n = nt * kSparseN + r;
        const uint8_t* line = &dense[static_cast<size_t>(r * kp)];
        for (int64_t k = n < n_true ? k_true : 0; k < kp; ++k)
          if (line[k] != pad) outside.see(n, k, line[k], pad);
        if (n >= n_true) continue;
        uint8_t *to = codes.data<uint8_t>() + n * codes.dim(1), *bit = mask.data<uint8_t>() + n * mask.dim(1);
        std::memset(to, 0, static_cast<size_t>(codes.dim(1)));
        std::memset(bit, 0, static_cast<size_t>(mask.dim(1)));
        for (int64_t k = 0; k < k_true; ++k) {
          const int64_t at = k * bits;
          to[at >> 3] = static_cast<uint8_t>(to[at >> 3] | (line[k] ^ flip) << (at & 7));
          bit[k >> 3] = static_cast<uint8_t>(bit[k >> 3] | kept[static_cast<size_t>(r * kp + k)] << (k & 7));
        }
      }
      ++exec.done;
    }
    padding.merge(outside);
    places.merge(unordered);
  });
  padding.write(padding_info);
  places.write(places_info);
}
LPQ_OP(decode_sparse, "verify_decode_sparse");

}  // namespace
}  // namespace lpq::verify
