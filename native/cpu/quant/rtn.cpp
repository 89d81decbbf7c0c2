// Round-to-nearest quantization of a weight: codes straight into the bitstream, scales, zeros, and what was lost.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "cpu/isa.h"
#include "cpu/quant/bitstream.h"
#include "cpu/quant/rtn_kernels.h"
#include "ops/quant.h"

namespace lpq {

const RtnKernels& rtn_kernels() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return rtn_kernels_avx512();
  if (active_isa() == Isa::avx2) return rtn_kernels_avx2();
#endif
  return rtn_kernels_generic();
}

namespace {

// Order of the f64 stats output; src/quantize/rtn.ts names them too.
enum Stat { kError, kNorm, kOverflow, kUnderflow, kNotFinite, kFirstNotFinite, kGlobal, kSmallest, kLargest, kStats };

struct RowStats {
  RtnSums sums;
  int64_t overflow = 0, underflow = 0, not_finite = 0, first = -1;
  float smallest = std::numeric_limits<float>::infinity(), largest = 0;  // ideal scales of groups that are not all 0
};

bool finite(float x) { return (as_bits(x) & 0x7f800000u) != 0x7f800000u; }

void rtn(Call& call, Exec& exec) {
  const ops::Rtn a(call);
  const QuantType& type = a.type;
  const Tensor &w = a.w, &stream = a.codes, &scales = a.scales, *zeros = a.zeros;
  const int64_t n = w.dim(0), k = w.dim(1), length = a.length, groups = a.groups, bytes = stream.dim(1);
  ScaleRule rule(type, scales.dtype);
  rule.constant_zero = a.zero, rule.cover = a.cover, rule.has_global = a.global;
  if (zeros) {
    rule.zero_mode = a.whole_zeros ? ZeroMode::whole : ZeroMode::real;
    rule.zero_dtype = zeros->dtype;
  }

  const RtnKernels& run = rtn_kernels();
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
        ScaleChoice& choice = room.choices[g] = rule.choose(room.extents[g]);
        if (a.given) {
          choice.codes = choice.stored = read_number(scales.dtype, scales.raw(), row * groups + g);
          if (!std::isfinite(choice.stored)) choice.issue = ScaleIssue::overflow;
        }
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
  double* out = a.stats.data<double>();
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
