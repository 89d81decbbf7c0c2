// layout_pack: a matrix of elements -> the words of a pack layout. layout_unpack: its inverse. See lpq/layout_plan.h.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/layout/lanes.h"
#include "cpu/layout/rows.h"
#include "ops/layout_pack.h"

namespace lpq::layout {
namespace {

// The matrix side of both operations: codes as bytes or as bitstream rows, or 16- or 32-bit elements; logical extents.
struct Matrix {
  std::byte* data;
  int64_t rows, columns;
  int bits;
  bool stream;
  int64_t row_bytes;
};

Matrix matrix_of(const ops::LayoutPack& of) {
  return {of.matrix.raw(), of.rows, of.columns, of.spec.bits, of.streamed, of.row_bytes};
}

template <class T>
void load_tile(const Matrix& m, const Plan& plan, int64_t row0, int64_t column0, const int32_t* order, T pad,
               uint32_t bias, T* tile) {
  const int64_t tile_rows = plan.tile[0], tile_columns = plan.tile[1];
  const int64_t rows = std::clamp<int64_t>(m.rows - row0, 0, tile_rows);
  const int64_t columns = std::clamp<int64_t>(m.columns - column0, 0, tile_columns);
  const T mask = static_cast<T>(m.bits >= 32 ? ~0u : (1u << m.bits) - 1);
  for (int64_t r = 0; r < rows; ++r) {
    T* out = tile + r * tile_columns;
    const auto* row = reinterpret_cast<const uint8_t*>(m.data) + (row0 + r) * m.row_bytes;
    const int64_t readable = (m.rows - row0 - r) * m.row_bytes;  // later rows may be read along
    if (order) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t from = order[column0 + c];
        if (m.stream) {
          uint8_t code;
          expand_codes(row, readable, from, 1, m.bits, &code);
          out[c] = static_cast<T>(code);
        } else {
          std::memcpy(&out[c], row + from * static_cast<int64_t>(sizeof(T)), sizeof(T));
        }
      }
    } else if (m.stream) {
      if constexpr (sizeof(T) == 1) {
        if (columns > 0) expand_codes(row, readable, column0, columns, m.bits, out);
      }
    } else {
      std::memcpy(out, row + column0 * static_cast<int64_t>(sizeof(T)), static_cast<size_t>(columns) * sizeof(T));
    }
    if (bias || (!m.stream && m.bits < 8))
      for (int64_t c = 0; c < columns; ++c) out[c] = static_cast<T>((out[c] + bias) & mask);
    std::fill(out + columns, out + tile_columns, pad);
  }
  std::fill(tile + rows * tile_columns, tile + tile_rows * tile_columns, pad);
}

template <class T>
void store_tile(const Matrix& m, const Plan& plan, int64_t row0, int64_t column0, uint32_t bias, T* tile) {
  const int64_t tile_columns = plan.tile[1];
  const int64_t rows = std::clamp<int64_t>(m.rows - row0, 0, plan.tile[0]);
  const int64_t columns = std::clamp<int64_t>(m.columns - column0, 0, tile_columns);
  const T mask = static_cast<T>(m.bits >= 32 ? ~0u : (1u << m.bits) - 1);
  if (columns == 0) return;
  for (int64_t r = 0; r < rows; ++r) {
    T* in = tile + r * tile_columns;
    auto* row = reinterpret_cast<uint8_t*>(m.data) + (row0 + r) * m.row_bytes;
    if (bias)
      for (int64_t c = 0; c < columns; ++c) in[c] = static_cast<T>((in[c] - bias) & mask);
    if (m.stream) {
      if constexpr (sizeof(T) == 1) compact_codes(in, columns, m.bits, row + column0 * m.bits / 8);
    } else {
      std::memcpy(row + column0 * static_cast<int64_t>(sizeof(T)), in, static_cast<size_t>(columns) * sizeof(T));
    }
  }
}

// Words of `slots` whole elements each: shifts are constants, so a word is a run of loads and ors.
template <class Word, class T, int bits>
void pack_aligned(const Plan& plan, const T* tile, std::byte* out) {
  constexpr int slots = static_cast<int>(sizeof(Word)) * 8 / bits;
  const uint16_t* element = plan.aligned.data();
  for (int64_t offset : plan.words) {
    uint32_t word = 0;
    for (int i = 0; i < slots; ++i) word |= static_cast<uint32_t>(tile[element[i]]) << (i * bits);
    element += slots;
    const auto value = static_cast<Word>(word);
    std::memcpy(out + offset * static_cast<int64_t>(sizeof(Word)), &value, sizeof(Word));
  }
}

template <class Word, class T>
void pack_pieces(const Plan& plan, const T* tile, std::byte* out) {
  const Piece* piece = plan.pieces.data();
  for (size_t w = 0; w < plan.words.size(); ++w) {
    uint32_t word = 0;
    for (const Piece* end = plan.pieces.data() + plan.first[w + 1]; piece < end; ++piece)
      word |= static_cast<uint32_t>(static_cast<uint64_t>(tile[piece->element]) << piece->shift >> 32) & piece->mask;
    const auto value = static_cast<Word>(word);
    std::memcpy(out + plan.words[w] * static_cast<int64_t>(sizeof(Word)), &value, sizeof(Word));
  }
}

// Words of pairs out of a tile of 16-bit elements. step: bits between pairs, a constant; 0: as each pair says.
template <int step>
void pack_pairs(const Plan& plan, const uint16_t* tile, std::byte* out) {
  const Pair* pair = plan.pairs.data();
  for (size_t w = 0; w < plan.words.size(); ++w) {
    uint32_t word = 0;
    if constexpr (step > 0) {
      for (int i = 0; i < 16 / step; ++i, ++pair) {
        uint32_t both;
        std::memcpy(&both, tile + pair->element, 4);
        word |= both << (i * step);
      }
    } else {
      for (const Pair* end = plan.pairs.data() + plan.first[w + 1] / 2; pair < end; ++pair) {
        uint32_t both;
        std::memcpy(&both, tile + pair->element, 4);
        word |= static_cast<uint32_t>(static_cast<uint64_t>(both) << pair->shift >> 32) & pair->mask;
      }
    }
    std::memcpy(out + plan.words[w] * 4, &word, 4);
  }
}

void pack_pairs(const Plan& plan, const uint16_t* tile, std::byte* out) {
  switch (plan.pair_step) {
    case 1: return pack_pairs<1>(plan, tile, out);
    case 2: return pack_pairs<2>(plan, tile, out);
    case 4: return pack_pairs<4>(plan, tile, out);
    case 8: return pack_pairs<8>(plan, tile, out);
    default: return pack_pairs<0>(plan, tile, out);
  }
}

// Four words at a time out of a tile of bytes.
void pack_quads(const Plan& plan, const uint8_t* tile, std::byte* out) {
  const QuadStep* step = plan.quad_steps.data();
  const auto collect = [&](uint32_t end_at) {
    uint64_t bits = 0;
    for (const QuadStep* end = plan.quad_steps.data() + end_at; step < end; ++step) {
      uint64_t codes;
      std::memcpy(&codes, tile + step->element, 8);
      bits |= std::rotl(codes, static_cast<int>(step->rotate)) & step->mask;
    }
    return bits;
  };
  for (const Quad& quad : plan.quads) {
    const uint64_t lower = collect(quad.middle), upper = collect(quad.end);
    uint8_t low[8], high[8], words[16];
    std::memcpy(low, &lower, 8);
    std::memcpy(high, &upper, 8);
    for (int i = 0; i < 8; ++i) words[2 * i] = low[i], words[2 * i + 1] = high[i];
    for (int t = 0; t < 4; ++t) std::memcpy(out + plan.words[quad.word[t]] * 4, words + 4 * t, 4);
  }
}

// Words of bits that are neighbours in the source too.
void pack_runs(const Plan& plan, const uint8_t* tile, std::byte* out) {
  const Run* run = plan.runs.data();
  for (size_t w = 0; w < plan.words.size(); ++w) {
    uint32_t word = 0;
    for (const Run* end = plan.runs.data() + plan.run_first[w + 1]; run < end; ++run) {
      uint64_t bits;
      std::memcpy(&bits, tile + run->byte, 8);
      word |= (static_cast<uint32_t>(bits >> run->drop) & run->mask) << run->bit;
    }
    std::memcpy(out + plan.words[w] * 4, &word, 4);
  }
}

template <class Word, class T>
void unpack_tile(const Plan& plan, const std::byte* in, T* tile) {
  std::memset(tile, 0, static_cast<size_t>(plan.tile[0] * plan.tile[1]) * sizeof(T));
  const Piece* piece = plan.pieces.data();
  for (size_t w = 0; w < plan.words.size(); ++w) {
    Word value;
    std::memcpy(&value, in + plan.words[w] * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    for (const Piece* end = plan.pieces.data() + plan.first[w + 1]; piece < end; ++piece)
      tile[piece->element] |= static_cast<T>((static_cast<uint64_t>(value & piece->mask) << 32) >> piece->shift);
  }
}

template <class Word, class T>
void pack_tile(const Plan& plan, int bits, const T* tile, std::byte* out) {
  if (plan.aligned.empty()) return pack_pieces<Word, T>(plan, tile, out);
  constexpr int width = static_cast<int>(sizeof(Word)) * 8;
  switch (bits) {
    case 1: return pack_aligned<Word, T, 1>(plan, tile, out);
    case 2: return pack_aligned<Word, T, 2>(plan, tile, out);
    case 4: return pack_aligned<Word, T, 4>(plan, tile, out);
    case 8: return pack_aligned<Word, T, 8>(plan, tile, out);
    case 16:
      if constexpr (width >= 16) return pack_aligned<Word, T, 16>(plan, tile, out);
      break;
    default:
      if constexpr (width >= 32) return pack_aligned<Word, T, 32>(plan, tile, out);
  }
}

template <class T>
void run(Exec& exec, const Plan& plan, const Matrix& m, std::byte* packed, bool inverse, const int32_t* order, T pad,
         uint32_t bias) {
  const int64_t across = static_cast<int64_t>(plan.outer[1].size()), tiles = plan.tiles();
  const int64_t elements = plan.tile[0] * plan.tile[1];
  std::vector<std::vector<T>> buffers(static_cast<size_t>(exec.pool.size()));
  // Codes that move in runs of bits need not be taken apart; those of four lanes move together
  // as bytes; those that move in pairs otherwise are taken apart to 16 bits.
  const bool runs = sizeof(T) == 1 && !inverse && !plan.runs.empty() && m.stream && !order && bias == 0;
  const bool quads = sizeof(T) == 1 && !inverse && m.bits < 8 && !plan.quads.empty();
  const bool lanes = quads && !plan.lane_groups.empty();
  const bool pairs = sizeof(T) == 1 && !inverse && m.bits < 8 && !quads && !plan.pairs.empty();
  const int64_t row_bytes = run_row_bytes(plan.tile[1], m.bits);
  std::vector<std::vector<uint8_t>> streams(runs ? static_cast<size_t>(exec.pool.size()) : 0);
  std::vector<std::vector<uint64_t>> halves(lanes ? static_cast<size_t>(exec.pool.size()) : 0);
  std::vector<std::vector<uint16_t>> wide(pairs ? static_cast<size_t>(exec.pool.size()) : 0);
  const int64_t grain = std::max<int64_t>(1, 65536 / elements);
  exec.total = tiles;
  exec.pool.parallel_for(tiles, grain, [&](int64_t begin, int64_t end, int worker) {
    auto& tile = buffers[static_cast<size_t>(worker)];
    tile.resize(static_cast<size_t>(elements));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t tr = t / across, tc = t % across;
      const int64_t offset = plan.outer[0][static_cast<size_t>(tr)] + plan.outer[1][static_cast<size_t>(tc)];
      std::byte* at = packed + offset * (plan.word_bits / 8);
      const int64_t row0 = tr * plan.tile[0], column0 = tc * plan.tile[1];
      if (runs && row0 + plan.tile[0] <= m.rows && column0 + plan.tile[1] <= m.columns) {
        auto& stream = streams[static_cast<size_t>(worker)];
        stream.resize(static_cast<size_t>(plan.tile[0] * row_bytes));
        const auto* from = reinterpret_cast<const uint8_t*>(m.data) + row0 * m.row_bytes + column0 * m.bits / 8;
        for (int64_t r = 0; r < plan.tile[0]; ++r)
          std::memcpy(stream.data() + r * row_bytes, from + r * m.row_bytes, static_cast<size_t>(row_bytes - 8));
        pack_runs(plan, stream.data(), at);
        continue;
      }
      if (!inverse) load_tile<T>(m, plan, row0, column0, order, pad, bias, tile.data());
      if (lanes) {
        auto& sums = halves[static_cast<size_t>(worker)];
        sums.resize(2 * plan.quads.size());
        if constexpr (sizeof(T) == 1) pack_lanes(plan, m.bits, tile.data(), sums.data(), at);
      } else if (quads) {
        if constexpr (sizeof(T) == 1) pack_quads(plan, tile.data(), at);
      } else if (pairs) {
        auto& both = wide[static_cast<size_t>(worker)];
        both.assign(tile.begin(), tile.end());
        pack_pairs(plan, both.data(), at);
      } else if (plan.word_bits == 32) {
        inverse ? unpack_tile<uint32_t, T>(plan, at, tile.data())
                : pack_tile<uint32_t, T>(plan, m.bits, tile.data(), at);
      } else if (plan.word_bits == 16) {
        inverse ? unpack_tile<uint16_t, T>(plan, at, tile.data())
                : pack_tile<uint16_t, T>(plan, m.bits, tile.data(), at);
      } else {
        inverse ? unpack_tile<uint8_t, T>(plan, at, tile.data()) : pack_tile<uint8_t, T>(plan, m.bits, tile.data(), at);
      }
      if (inverse) store_tile<T>(m, plan, row0, column0, bias, tile.data());
    }
    exec.done += end - begin;
  });
}

void dispatch(Exec& exec, const ops::LayoutPack& of, const Plan& plan, bool inverse) {
  const Matrix m = matrix_of(of);
  std::byte* const packed = of.packed.raw();
  const int32_t* const order = of.order ? of.order->data<int32_t>() : nullptr;
  const uint32_t pad = of.pad, bias = of.bias;
  if (m.bits <= 8) return run<uint8_t>(exec, plan, m, packed, inverse, order, static_cast<uint8_t>(pad), bias);
  if (m.bits == 16) return run<uint16_t>(exec, plan, m, packed, inverse, order, static_cast<uint16_t>(pad), bias);
  return run<uint32_t>(exec, plan, m, packed, inverse, order, pad, bias);
}

void layout_pack(Call& call, Exec& exec) {
  const ops::LayoutPack of(call, true);
  for (int64_t c = 0; of.order && c < of.columns; ++c) {
    const int32_t from = of.order->data<int32_t>()[c];
    if (from < 0 || from >= of.columns) require(false, "the order names a column that is not there");
  }
  const std::shared_ptr<const Plan> plan = plan_for(of.spec, 1);
  if (!plan->fills && !of.keep) {
    exec.pool.parallel_for(static_cast<int64_t>(of.packed.bytes()), 1 << 20, [&](int64_t begin, int64_t end, int) {
      std::memset(of.packed.raw() + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  dispatch(exec, of, *plan, false);
}
LPQ_OP(layout_pack, "layout_pack");

void layout_unpack(Call& call, Exec& exec) {
  const ops::LayoutPack of(call, false);
  dispatch(exec, of, *plan_for(of.spec, of.streamed ? 8 : 1), true);
}
LPQ_OP(layout_unpack, "layout_unpack");

}  // namespace
}  // namespace lpq::layout
