// Round-to-nearest quantization of a weight: codes straight into the bitstream, scales, zeros, and what was lost.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "cpu/isa.h"
#include "cpu/quant/bitstream.h"
#include "cpu/quant/rtn_kernels.h"
#include "lpq/exec.h"

namespace lpq {
namespace {

// Order of the f64 stats output; src/quantize/rtn.ts names them too.
enum Stat { kError, kNorm, kOverflow, kUnderflow, kNotFinite, kFirstNotFinite, kGlobal, kSmallest, kLargest, kStats };

struct RowStats {
  RtnSums sums;
  int64_t overflow = 0, underflow = 0, not_finite = 0, first = -1;
  float smallest = std::numeric_limits<float>::infinity(), largest = 0;  // ideal scales of groups that are not all 0
};

const RtnKernels& kernels() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return rtn_kernels_avx512();
  if (active_isa() == Isa::avx2) return rtn_kernels_avx2();
#endif
  return rtn_kernels_generic();
}

bool finite(float x) { return (as_bits(x) & 0x7f800000u) != 0x7f800000u; }

void rtn(Call& call, Exec& exec) {
  const Params& params = call.params;
  const QuantType type = QuantType::from(params);
  const Tensor &w = call.input(0), &stream = call.output(0), &scales = call.output(1), &stats = call.output(2);
  const bool symmetric = params.integer("symmetric") != 0;
  const Tensor* zeros = symmetric ? nullptr : &call.output(3);
  const int64_t length = params.integer("groupLength");

  require(w.rank() == 2, "the weight is [N,K]");
  require(w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16, "the weight is f32, f16 or bf16");
  const int64_t n = w.dim(0), k = w.dim(1);
  require(length > 0 && k % length == 0,
          "groups of " + std::to_string(length) + " do not divide K = " + std::to_string(k));
  const int64_t groups = k / length, bytes = stream_bytes(k, type.bits);
  require(stream.dtype == DType::u8 && stream.shape == std::vector<int64_t>({n, bytes}),
          "the codes are u8 [N, ceil(K*bits/8)]");
  require(scales.shape == std::vector<int64_t>({n, groups}), "the scales are [N, K/groupLength]");
  require(stats.dtype == DType::f64 && stats.elements() == kStats,
          "the stats are f64 [" + std::to_string(kStats) + "]");

  ScaleRule rule(type, scales.dtype, params);
  if (zeros) {
    require(type.kind == QuantType::Kind::integer, "only integers have asymmetric grids");
    require(zeros->shape == scales.shape, "the zeros are [N, K/groupLength]");
    const bool whole = zeros->dtype == DType::i16 || (zeros->dtype == DType::u8 && !type.is_signed);
    require(whole || zeros->dtype == DType::f16 || zeros->dtype == DType::f32,
            "zeros are u8 (unsigned types), i16, f16 or f32");
    rule.zero_mode = whole ? ZeroMode::whole : ZeroMode::real;
    rule.zero_dtype = zeros->dtype;
  }
  rule.has_global = params.integer("global", 0) != 0;
  require(!rule.has_global || scales.dtype == DType::f8_e4m3, "only e4m3 scales have a second level");

  const RtnKernels& run = kernels();
  const bool integer = type.kind == QuantType::Kind::integer;
  const std::optional<IntGrid> int_grid = integer ? std::optional<IntGrid>(type) : std::nullopt;
  const std::optional<FloatGrid> float_grid = integer ? std::nullopt : std::optional<FloatGrid>(type);
  const std::byte* from = w.raw();
  const int64_t row_bytes = k * static_cast<int64_t>(dtype_bytes(w.dtype));
  const int64_t grain = std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(k, 1));
  struct Room {
    std::vector<float> line;
    std::vector<uint8_t> codes;
    std::vector<Extent> extents;
    std::vector<ScaleChoice> choices;
  };
  std::vector<Room> rooms(static_cast<size_t>(exec.pool.size()));
  for (Room& room : rooms) {
    room.line.resize(static_cast<size_t>(k));
    room.codes.resize(static_cast<size_t>(k));
    room.extents.resize(static_cast<size_t>(groups));
    room.choices.resize(static_cast<size_t>(groups));
  }
  std::vector<RowStats> rows(static_cast<size_t>(n));
  exec.total = rule.has_global ? 2 * n : n;

  if (rule.has_global) {
    // The second level needs every group's scale first.
    std::vector<float> largest(static_cast<size_t>(n), 0.0f);
    exec.pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int worker) {
      Room& room = rooms[worker];
      for (int64_t row = begin; row < end; ++row) {
        run.load(from + row * row_bytes, w.dtype, k, room.line.data());
        if (!run.extents(room.line.data(), groups, length, room.extents.data())) continue;
        for (const Extent& extent : room.extents) largest[row] = std::max(largest[row], rule.ideal(extent));
      }
      exec.done += end - begin;
    });
    rule.global = ScaleRule::global_for(*std::max_element(largest.begin(), largest.end()));
  }

  exec.pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int worker) {
    Room& room = rooms[worker];
    for (int64_t row = begin; row < end; ++row) {
      RowStats& stat = rows[row];
      run.load(from + row * row_bytes, w.dtype, k, room.line.data());
      if (!run.extents(room.line.data(), groups, length, room.extents.data())) {
        for (int64_t i = 0; i < k; ++i) {
          if (finite(room.line[i])) continue;
          if (stat.first < 0) stat.first = row * k + i;
          ++stat.not_finite;
        }
        // The caller refuses the whole result; its bytes are only made definite.
        std::fill(room.line.begin(), room.line.end(), 0.0f);
        std::fill(room.extents.begin(), room.extents.end(), Extent{});
      }
      for (int64_t g = 0; g < groups; ++g) {
        const ScaleChoice choice = room.choices[g] = rule.choose(room.extents[g]);
        if (choice.ideal > 0) {
          stat.smallest = std::min(stat.smallest, choice.ideal);
          stat.largest = std::max(stat.largest, choice.ideal);
        }
        stat.overflow += choice.issue == ScaleIssue::overflow;
        stat.underflow += choice.issue == ScaleIssue::underflow;
        write_number(scales.dtype, scales.raw(), row * groups + g, choice.stored);
        if (zeros) write_number(zeros->dtype, zeros->raw(), row * groups + g, choice.zero);
      }
      const RtnRow job{room.line.data(),  groups,    length, room.choices.data(), rule.global,
                       room.codes.data(), &stat.sums};
      if (integer) run.round_integer(*int_grid, job);
      else run.round_float(*float_grid, job);
      pack_row(room.codes.data(), k, type.bits, stream.data<uint8_t>() + row * bytes);
    }
    exec.done += end - begin;
  });

  RowStats total;
  for (const RowStats& row : rows) {
    total.sums.error += row.sums.error;
    total.sums.norm += row.sums.norm;
    total.overflow += row.overflow;
    total.underflow += row.underflow;
    total.not_finite += row.not_finite;
    if (total.first < 0) total.first = row.first;
    total.smallest = std::min(total.smallest, row.smallest);
    total.largest = std::max(total.largest, row.largest);
  }
  double* out = stats.data<double>();
  out[kError] = total.sums.error;
  out[kNorm] = total.sums.norm;
  out[kOverflow] = static_cast<double>(total.overflow);
  out[kUnderflow] = static_cast<double>(total.underflow);
  out[kNotFinite] = static_cast<double>(total.not_finite);
  out[kFirstNotFinite] = static_cast<double>(total.first);
  out[kGlobal] = rule.global;
  out[kSmallest] = total.largest > 0 ? total.smallest : 0;
  out[kLargest] = total.largest;
}

LPQ_OP(rtn, "rtn");

}  // namespace
}  // namespace lpq
