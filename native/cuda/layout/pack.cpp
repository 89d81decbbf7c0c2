// layout_pack and layout_unpack: the plan is made on the CPU, as for the CPU's engine, and its tables
// go along with the call.
#include <algorithm>
#include <bit>
#include <deque>
#include <memory>
#include <mutex>

#include "cuda/exec.h"
#include "cuda/layout/pack.h"
#include "ops/layout_pack.h"

namespace lpq::cuda {
namespace {

using layout::Plan;

template <class T>
Scratch upload(CudaExec& exec, const std::vector<T>& table) {
  Scratch room = exec.scratch(std::max<size_t>(16, table.size() * sizeof(T)));
  exec.write_small(room.as<void>(), table.data(), table.size() * sizeof(T));
  return room;
}

LayoutArgs matrix_of(const ops::LayoutPack& of) {
  require_aligned(of.matrix, "matrix");
  LayoutArgs a{};
  a.matrix = reinterpret_cast<uint8_t*>(of.matrix.raw());
  a.bits = of.spec.bits;
  a.stream = of.streamed;
  a.rows = of.rows;
  a.columns = of.columns;
  a.row_bytes = of.row_bytes;
  a.bias = of.bias;
  a.pad = of.pad;
  return a;
}

void run(CudaExec& exec, const char* kernel, LayoutArgs a, const Plan& plan, const Tensor& packed,
         const std::vector<uint32_t>& first, const Scratch& pieces, int64_t work) {
  const Scratch rows = upload(exec, plan.outer[0]), columns = upload(exec, plan.outer[1]),
                words = upload(exec, plan.words), starts = upload(exec, first);
  a.packed = reinterpret_cast<uint8_t*>(packed.raw());
  a.word_bytes = plan.word_bits / 8;
  require(reinterpret_cast<uintptr_t>(a.packed) % static_cast<size_t>(a.word_bytes) == 0,
          "the packed tensor does not start at a whole word");
  a.tile_rows = plan.tile[0];
  a.tile_columns = plan.tile[1];
  a.tiles_down = static_cast<int64_t>(plan.outer[0].size());
  a.tiles_across = static_cast<int64_t>(plan.outer[1].size());
  a.outer_rows = rows.as<int64_t>();
  a.outer_columns = columns.as<int64_t>();
  a.words = words.as<int64_t>();
  a.word_count = static_cast<int64_t>(plan.words.size());
  a.first = starts.as<uint32_t>();
  a.pieces = pieces.as<void>();
  if (work > 0)
    exec.launch(kernel, Dim3(std::min<int64_t>((work + 255) / 256, int64_t{exec.device().multiprocessors} * 32)),
                Dim3(256), 0, a);
}

int64_t up_to(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// How far apart rows of a tile of codes lie: of some choices the one where the 16 threads that load 8 bytes at once
// (half a warp, halves of neighbouring quads) meet in the fewest banks, counted over everybody's first step.
int64_t quad_pitch(const Plan& plan) {
  std::vector<uint32_t> elements;
  for (size_t q = 0; q < plan.quads.size(); ++q)
    for (const uint32_t begin : {q == 0 ? 0u : plan.quads[q - 1].end, plan.quads[q].middle})
      elements.push_back(begin < plan.quad_steps.size() ? plan.quad_steps[begin].element : 0);
  int64_t best = 0, least = -1;
  for (int64_t extra = 0; extra < 128; extra += 8) {
    const int64_t pitch = up_to(plan.tile[1], 8) + extra;
    int64_t turns = 0;
    for (size_t first = 0; first < elements.size(); first += 16) {
      int meeting[16] = {};
      for (size_t i = first; i < std::min(first + 16, elements.size()); ++i)
        ++meeting[(elements[i] / plan.tile[1] * pitch + elements[i] % plan.tile[1]) / 8 % 16];
      turns += *std::max_element(meeting, meeting + 16);
    }
    if (least < 0 || turns < least) best = pitch, least = turns;
  }
  return best;
}

// Tables of a plan, one after the other, so that there is one copy to the device.
struct Tables {
  std::vector<std::byte> bytes;

  template <class List>
  size_t add(const List& list) {
    const size_t at = bytes.size(), length = list.size() * sizeof(list[0]);
    bytes.resize(static_cast<size_t>(up_to(static_cast<int64_t>(at + length), 16)));
    std::copy_n(reinterpret_cast<const std::byte*>(list.data()), length, bytes.begin() + static_cast<int64_t>(at));
    return at;
  }
};

// What pack_quads() makes of a plan, whatever the matrix.
struct QuadTables : Tables {
  bool any = false;
  int64_t pitch = 0;
  size_t steps = 0, quads = 0, words = 0, rows = 0, columns = 0, step_count = 0;
  uint32_t half_steps = 0;
  bool in_a_row = false;  // the words of a tile, at multiples of four words

  explicit QuadTables(const Plan& plan) {
    const int64_t across = plan.tile[1], count = static_cast<int64_t>(plan.words.size());
    if (plan.quads.empty() || plan.word_bits != 32 || across % 8 != 0 || (across & (across - 1)) != 0 ||
        plan.tiles() > INT32_MAX)
      return;
    if (plan.words.back() > UINT32_MAX || count > UINT16_MAX || plan.quad_steps.size() > UINT16_MAX) return;
    pitch = quad_pitch(plan);
    if (plan.tile[0] * pitch > UINT16_MAX) return;
    // Halves have equally many steps: those with fewer get some that move nothing. Threads take halves side by side,
    // and so do banks.
    const size_t halves = 2 * plan.quads.size();
    uint32_t begin = 0;
    for (const layout::Quad& quad : plan.quads) {
      half_steps = std::max({half_steps, quad.middle - begin, quad.end - quad.middle});
      begin = quad.end;
    }
    std::vector<uint32_t> moves(half_steps * halves, 0);
    std::vector<uint16_t> made;
    begin = 0;
    for (size_t half = 0; half < halves; ++half) {
      const layout::Quad& quad = plan.quads[half / 2];
      const uint32_t end = half % 2 ? quad.end : quad.middle;
      for (uint32_t i = begin; i < end; ++i) {
        const layout::QuadStep& step = plan.quad_steps[i];
        if (step.element % 8 != 0 || (step.rotate > 7 && step.rotate < 57)) return;
        const int64_t byte = step.element / across * pitch + step.element % across;
        moves[(i - begin) * halves + half] =
            static_cast<uint32_t>(byte) | (step.rotate & 31u) << 16 | static_cast<uint32_t>(step.mask & 0xff) << 24;
      }
      begin = end;
      if (half % 2 == 0)
        for (uint32_t word : quad.word) made.push_back(static_cast<uint16_t>(word));
    }
    step_count = moves.size();
    const auto fours = [](const std::vector<int64_t>& list) {
      return std::all_of(list.begin(), list.end(), [](int64_t each) { return each % 4 == 0; });
    };
    in_a_row = count % 4 == 0 && plan.words.front() % 4 == 0 && plan.words.back() - plan.words.front() == count - 1 &&
               fours(plan.outer[0]) && fours(plan.outer[1]);
    steps = add(moves), quads = add(made), words = add(std::vector<uint32_t>(plan.words.begin(), plan.words.end()));
    rows = add(plan.outer[0]), columns = add(plan.outer[1]);
    any = true;
  }
};

// What pack_runs() makes of a plan: that of words which are one run of a row's bits each.
struct RunTables : Tables {
  bool any = false;
  size_t runs = 0, words = 0, rows = 0, columns = 0, first = 0, pieces = 0;

  explicit RunTables(const Plan& plan, int bits) {
    const size_t count = plan.words.size();
    if (plan.runs.size() != count || count == 0 || plan.word_bits != 32 || plan.words.back() > UINT32_MAX ||
        plan.tiles() > INT32_MAX)
      return;
    const int64_t row_bytes = layout::run_row_bytes(plan.tile[1], bits);
    std::vector<LayoutRunWord> list;
    for (size_t w = 0; w < count; ++w) {
      const layout::Run& run = plan.runs[w];
      if (run.bit != 0 || plan.run_first[w] != w) return;
      LayoutRunWord word{static_cast<uint32_t>(run.byte % row_bytes * 8 + run.drop),
                         static_cast<uint32_t>(run.byte / row_bytes), run.mask, 0};
      for (uint32_t i = plan.first[w]; i < plan.first[w + 1]; ++i) {
        const layout::Piece& piece = plan.pieces[i];
        const int bit = std::countr_zero(piece.mask), length = std::popcount(piece.mask);
        if (32 + bit - static_cast<int>(piece.shift) + length == bits) word.flip |= uint32_t{1} << (bit + length - 1);
      }
      list.push_back(word);
    }
    runs = add(list), words = add(std::vector<uint32_t>(plan.words.begin(), plan.words.end()));
    rows = add(plan.outer[0]), columns = add(plan.outer[1]);
    // Last, for the matrix's edges only.
    first = add(plan.first), pieces = add(plan.pieces);
    any = true;
  }
};

// The tables of the last plans, which plan_for() keeps too.
template <class T, class... More>
std::shared_ptr<const T> tables_of(const std::shared_ptr<const Plan>& plan, More... more) {
  static std::mutex lock;
  static std::deque<std::pair<std::shared_ptr<const Plan>, std::shared_ptr<const T>>> kept;
  const std::lock_guard<std::mutex> hold(lock);
  for (const auto& [of, tables] : kept)
    if (of == plan) return tables;
  if (kept.size() == 8) kept.pop_front();
  return kept.emplace_back(plan, std::make_shared<const T>(*plan, more...)).second;
}

// Packs by quads where the layout has them and a tile fits shared memory; false: the general kernel has to.
bool pack_quads(CudaExec& exec, const LayoutArgs& a, const std::shared_ptr<const Plan>& kept, const Tensor& out) {
  const Plan& plan = *kept;
  if (!a.stream || a.order || reinterpret_cast<uintptr_t>(out.raw()) % 4 != 0) return false;
  const std::shared_ptr<const QuadTables> t = tables_of<QuadTables>(kept);
  if (!t->any) return false;
  const auto n = [](auto size) { return static_cast<int64_t>(size); };
  const int64_t columns = plan.tile[1], words = n(plan.words.size());
  const int64_t shared = up_to(n(t->step_count) * 4, 16) + up_to(n(plan.quads.size()) * 8, 16) + up_to(words * 4, 16) +
                         up_to(plan.tile[0] * t->pitch, 16) + words * 4;
  if (shared > exec.device().shared_per_block) return false;
  const Scratch tables = exec.scratch(t->bytes.size());
  exec.write_small(tables.as<void>(), t->bytes.data(), t->bytes.size());
  LayoutQuadArgs q{};
  q.matrix = a.matrix;
  q.rows = a.rows, q.columns = a.columns, q.row_bytes = a.row_bytes;
  q.bias = a.bias, q.pad = a.pad;
  q.packed = reinterpret_cast<uint8_t*>(out.raw());
  q.tiles_down = static_cast<unsigned>(plan.outer[0].size()),
  q.tiles_across = static_cast<unsigned>(plan.outer[1].size());
  q.outer_rows = tables.as<int64_t>(t->rows), q.outer_columns = tables.as<int64_t>(t->columns);
  q.tile_rows = static_cast<int>(plan.tile[0]), q.pitch = static_cast<int>(t->pitch);
  q.log_units = std::countr_zero(static_cast<uint64_t>(columns / 8));
  q.aligned = a.row_bytes % 4 == 0 && reinterpret_cast<uintptr_t>(a.matrix) % 4 == 0;
  q.wide = !q.aligned || columns % 32 != 0                                            ? 0
           : a.row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(a.matrix) % 16 == 0 ? 2
                                                                                      : 1;
  q.word_count = static_cast<int>(words), q.words = tables.as<uint32_t>(t->words);
  q.vectors = t->in_a_row && reinterpret_cast<uintptr_t>(out.raw()) % 16 == 0;
  q.quad_count = static_cast<int>(plan.quads.size()), q.quads = tables.as<uint16_t>(t->quads);
  q.half_steps = static_cast<int>(t->half_steps), q.step_count = static_cast<int>(t->step_count),
  q.steps = tables.as<uint32_t>(t->steps);
  constexpr int kThreads = 256;
  const std::string kernel = "lpq_layout_pack_quads_" + std::to_string(a.bits);
  const int fit = std::max(1, exec.occupancy(kernel, kThreads, static_cast<unsigned>(shared)));
  exec.launch(kernel, Dim3(std::min<int64_t>(plan.tiles(), int64_t{exec.device().multiprocessors} * fit)),
              Dim3(kThreads), static_cast<unsigned>(shared), q);
  return true;
}

// Packs where every word is one run of a row's bits and the tiles of several side by side fit shared memory; false:
// others have to.
bool pack_runs(CudaExec& exec, LayoutArgs a, const std::shared_ptr<const Plan>& kept, const Tensor& out) {
  const Plan& plan = *kept;
  if (!a.stream || a.order || reinterpret_cast<uintptr_t>(out.raw()) % 4 != 0) return false;
  if (a.bias != 0 && a.bias != 1u << (a.bits - 1)) return false;
  const std::shared_ptr<const RunTables> t = tables_of<RunTables>(kept, a.bits);
  if (!t->any) return false;
  const int64_t tile_bytes = plan.tile[1] * a.bits / 8, words = static_cast<int64_t>(plan.words.size());
  const int64_t down = static_cast<int64_t>(plan.outer[0].size()), across = static_cast<int64_t>(plan.outer[1].size());
  // At least 128 bytes of a row, and some 4000 words in all, while 24 KiB hold them.
  int64_t tiles = std::max<int64_t>(
      1, std::min(std::max(int64_t{128} / std::max<int64_t>(1, tile_bytes), int64_t{4096} / words), across));
  const auto pitch = [&](int64_t count) { return ((count * tile_bytes + 3) / 4 + 1) | 1; };
  while (tiles > 1 && plan.tile[0] * pitch(tiles) * 4 > 24 << 10) --tiles;
  const int64_t shared = up_to(plan.tile[0] * pitch(tiles) * 4 + 4, 16);
  if (shared > exec.device().shared_per_block) return false;
  const bool edges = a.rows % plan.tile[0] != 0 || a.columns % plan.tile[1] != 0 || a.rows / plan.tile[0] != down ||
                     a.columns / plan.tile[1] != across;
  const size_t bytes = edges ? t->bytes.size() : t->first;
  const Scratch tables = exec.scratch(bytes);
  exec.write_small(tables.as<void>(), t->bytes.data(), bytes);
  LayoutRunsArgs r{};
  a.packed = reinterpret_cast<uint8_t*>(out.raw());
  a.word_bytes = 4;
  a.tile_rows = plan.tile[0], a.tile_columns = plan.tile[1];
  a.tiles_down = down, a.tiles_across = across;
  a.outer_rows = tables.as<int64_t>(t->rows), a.outer_columns = tables.as<int64_t>(t->columns);
  a.word_count = words;
  if (edges) a.first = tables.as<uint32_t>(t->first), a.pieces = tables.as<uint8_t>(t->pieces);
  r.general = a;
  r.tiles_down = static_cast<unsigned>(down), r.tiles_across = static_cast<unsigned>(across);
  r.tiles = static_cast<unsigned>(tiles), r.pitch = static_cast<int>(pitch(tiles));
  r.aligned = a.row_bytes % 4 == 0 && tile_bytes % 4 == 0 && reinterpret_cast<uintptr_t>(a.matrix) % 4 == 0;
  r.runs = tables.as<LayoutRunWord>(t->runs), r.words = tables.as<uint32_t>(t->words);
  constexpr int kThreads = 256;
  const int64_t fit = std::max(1, exec.occupancy("lpq_layout_pack_runs", kThreads, static_cast<unsigned>(shared)));
  exec.launch("lpq_layout_pack_runs",
              Dim3(std::min(down * ((across + tiles - 1) / tiles), exec.device().multiprocessors * fit)),
              Dim3(kThreads), static_cast<unsigned>(shared), r);
  return true;
}

void layout_pack(Call& call, CudaExec& exec) {
  const ops::LayoutPack of(call, true);
  const Tensor& out = of.packed;
  LayoutArgs a = matrix_of(of);
  if (of.order) {
    a.order = of.order->data<int32_t>();
    if (a.columns > 0)
      exec.launch("lpq_layout_check_order", Dim3((a.columns + 255) / 256), Dim3(256), 0, a.order, a.columns,
                  exec.fault("LPQ_NATIVE_ARGUMENT", "the order names a column that is not there"));
  }
  const std::shared_ptr<const Plan> kept = layout::plan_for(of.spec, 1);
  const Plan& plan = *kept;
  if (!plan.fills && !of.keep) exec.fill_zero(out.raw(), out.bytes());
  if (plan.tiles() > 0 && (pack_runs(exec, a, kept, out) || pack_quads(exec, a, kept, out))) return;
  run(exec, "lpq_layout_pack", a, plan, out, plan.first, upload(exec, plan.pieces),
      plan.tiles() * static_cast<int64_t>(plan.words.size()));
}

void layout_unpack(Call& call, CudaExec& exec) {
  const ops::LayoutPack of(call, false);
  const Tensor& packed = of.packed;
  const LayoutArgs a = matrix_of(of);
  const std::shared_ptr<const Plan> kept = layout::plan_for(of.spec, a.stream ? 8 : 1);
  const Plan& plan = *kept;
  // The pieces by element instead of by word.
  const size_t elements = static_cast<size_t>(plan.tile[0] * plan.tile[1]);
  std::vector<uint32_t> first(elements + 1, 0);
  for (const layout::Piece& piece : plan.pieces) ++first[piece.element + 1];
  for (size_t i = 0; i < elements; ++i) first[i + 1] += first[i];
  std::vector<LayoutRun> runs(plan.pieces.size());
  std::vector<uint32_t> next(first.begin(), first.end() - 1);
  for (size_t w = 0; w < plan.words.size(); ++w)
    for (uint32_t i = plan.first[w]; i < plan.first[w + 1]; ++i)
      runs[next[plan.pieces[i].element]++] = {static_cast<uint32_t>(w), plan.pieces[i].mask, plan.pieces[i].shift};
  run(exec, "lpq_layout_unpack", a, plan, packed, first, upload(exec, runs),
      a.rows * (a.stream ? a.row_bytes : a.columns));
}

LPQ_CUDA_OP(layout_pack, "layout_pack");
LPQ_CUDA_OP(layout_unpack, "layout_unpack");

}  // namespace
}  // namespace lpq::cuda
