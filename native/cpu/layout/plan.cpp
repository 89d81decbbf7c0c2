#include "lpq/layout_plan.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>

namespace lpq::layout {
namespace {

// Elements of a tile: enough to read rows of the source in cache lines, few enough for its table to stay in L1 and L2.
constexpr int64_t kColumns = 128, kRows = 64, kElements = 8192, kLargestWide = 1 << 16, kLargestTile = 1 << 22;

// Sum of all digits' largest values: the distance from the first to the last element.
int64_t reach(const std::vector<Mode>& modes, bool stream) {
  int64_t sum = 0;
  for (const Mode& m : modes)
    if (m.stream == stream) sum += (m.size - 1) * m.stride;
  return sum;
}

// Each stride is at least what lies below it: sums of digits times strides are then all different and do not overlap.
void require_nested(std::vector<std::pair<int64_t, int64_t>> stride_size, int64_t element) {
  std::sort(stride_size.begin(), stride_size.end());
  int64_t below = element;
  for (auto [stride, size] : stride_size) {
    if (size == 1) continue;
    require(stride >= below, "elements of the layout may overlap: a stride of " + std::to_string(stride) +
                                 " bits is smaller than the " + std::to_string(below) + " bits below it");
    below = stride * size;
  }
}

// Splits a mode so that its lower part has `inner` values, if that divides it.
void split(std::vector<Mode>& modes, size_t at, int64_t inner) {
  if (inner <= 1 || modes[at].size % inner != 0 || modes[at].size == inner) return;
  Mode low = modes[at];
  low.size = inner;
  modes[at].size /= inner;
  modes[at].stride *= inner;
  modes.insert(modes.begin() + static_cast<int64_t>(at) + 1, low);
}

int64_t largest_divisor(int64_t n, int64_t limit) {
  for (int64_t d = std::min(n, limit); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

struct Cut {
  std::vector<Mode> outer, inner;
  int64_t tile[2] = {1, 1};
};

// Which modes a tile must hold so that it fills words of `word` bits alone, and then more, to be worth a table.
Cut cut_tile(const Spec& spec, int word, int column_bits) {
  std::vector<Mode> modes = spec.modes;
  const int64_t period = std::max<int64_t>(1, static_cast<int64_t>(spec.order.size()));
  for (size_t i = 0; i < modes.size(); ++i) {
    const int64_t whole = modes[i].stream && spec.unit ? std::lcm(std::lcm<int64_t>(spec.unit, word), period) : word;
    split(modes, i, whole / std::gcd(modes[i].stride, whole));
  }
  int64_t top = -1;  // largest stride that is not whole words; everything below it stays in the tile too
  std::vector<bool> needed(modes.size(), false);
  for (size_t i = 0; i < modes.size(); ++i) {
    Mode& m = modes[i];
    if (m.stream && spec.unit) {
      if (m.stride % spec.unit == 0 && m.stride % period == 0 &&
          (m.stride / spec.unit * spec.unit_stride) % word == 0) {
        m.stride = m.stride / spec.unit * spec.unit_stride;
        m.stream = false;
      } else {
        needed[i] = m.size > 1;
      }
    } else if (m.stride % word != 0 && m.size > 1) {
      needed[i] = true;
      top = std::max(top, m.stride);
    }
  }
  if (spec.unit && spec.unit_stride % word != 0) top = std::max(top, spec.unit_stride);
  for (size_t i = 0; i < modes.size(); ++i)
    if (!modes[i].stream && modes[i].stride < top && modes[i].size > 1) needed[i] = true;
  Cut cut;
  std::vector<Mode> mine[2];
  size_t from[2];  // the tile holds mine[dim][from[dim]] and what follows
  for (int dim : {0, 1}) {
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < modes.size(); ++i)
      if (modes[i].dim == dim) {
        if (needed[i] && first == SIZE_MAX) first = mine[dim].size();
        mine[dim].push_back(modes[i]);
      }
    from[dim] = std::min(first, mine[dim].size());
    for (size_t i = from[dim]; i < mine[dim].size(); ++i) cut.tile[dim] *= mine[dim][i].size;
    // A tile of bitstream rows begins and ends at whole bytes.
    while (dim == 1 && from[1] > 0 && cut.tile[1] * spec.bits % column_bits != 0)
      cut.tile[1] *= mine[1][--from[1]].size;
  }
  for (int dim : {1, 0}) {
    const int64_t target = std::min(dim == 1 ? kColumns : kRows, kElements / cut.tile[1 - dim]);
    while (from[dim] > 0 && cut.tile[dim] * 2 <= target) {
      const int64_t size = mine[dim][from[dim] - 1].size;
      const int64_t take = largest_divisor(size, target / cut.tile[dim]);
      cut.tile[dim] *= take;
      if (take == size) {
        --from[dim];
        continue;
      }
      split(mine[dim], from[dim] - 1, take);
      break;
    }
  }
  for (int dim : {0, 1}) {
    const auto at = mine[dim].begin() + static_cast<int64_t>(from[dim]);
    cut.outer.insert(cut.outer.end(), mine[dim].begin(), at);
    cut.inner.insert(cut.inner.end(), at, mine[dim].end());
  }
  return cut;
}

// Sums of digits times strides over the modes of one dimension, for every index of it: [address, stream].
std::vector<std::pair<int64_t, int64_t>> offsets(const std::vector<Mode>& modes, int dim) {
  std::vector<std::pair<int64_t, int64_t>> list{{0, 0}};
  for (const Mode& m : modes) {
    if (m.dim != dim) continue;
    std::vector<std::pair<int64_t, int64_t>> next;
    next.reserve(list.size() * static_cast<size_t>(m.size));
    for (auto [address, stream] : list)
      for (int64_t digit = 0; digit < m.size; ++digit)
        next.emplace_back(address + (m.stream ? 0 : digit * m.stride), stream + (m.stream ? digit * m.stride : 0));
    list = std::move(next);
  }
  return list;
}

// Where a bit of a stream goes by the word order.
int64_t ordered(const Spec& spec, int64_t p) {
  if (spec.order.empty()) return p;
  const int64_t q = p % static_cast<int64_t>(spec.order.size());
  return p - q + spec.order[static_cast<size_t>(q)];
}

void find_pairs(Plan& plan, int bits) {
  if (plan.pieces.size() % 2 != 0) return;
  std::vector<Pair> pairs;
  bool even = 16 % bits == 0;
  for (size_t w = 0; w < plan.words.size(); ++w) {
    // In order of bit position: the lower half's pieces are the first of the word.
    const size_t begin = plan.first[w], end = plan.first[w + 1], half = (end - begin) / 2;
    if ((end - begin) % 2 != 0) return;
    even = even && static_cast<int>(half) * bits == 16;
    for (size_t i = begin; i < begin + half; ++i) {
      const Piece &low = plan.pieces[i], &high = plan.pieces[i + half];
      const bool beside = high.element == low.element + 1 && high.element % plan.tile[1] != 0;
      if (!beside || low.mask > 0xffff || high.mask != low.mask << 16 || high.shift != low.shift + 16) return;
      even = even && low.shift == 32 + (i - begin) * static_cast<size_t>(bits);
      pairs.push_back({low.element, low.mask | high.mask, low.shift});
    }
  }
  plan.pairs = std::move(pairs);
  plan.pair_step = even ? bits : 0;
}

void find_quads(Plan& plan) {
  const size_t words = plan.words.size();
  if (plan.pairs.empty() || words % 4 != 0) return;
  const auto pairs_of = [&](size_t w) { return std::pair(plan.first[w] / 2, plan.first[w + 1] / 2); };
  // By their first pair's element and field, so that the other three words of a quad are found.
  std::map<std::pair<uint32_t, uint32_t>, size_t> starts;
  for (size_t w = 0; w < words; ++w) {
    const auto [begin, end] = pairs_of(w);
    if (begin == end) return;
    starts[{plan.pairs[begin].element, plan.pairs[begin].mask}] = w;
  }
  std::vector<bool> taken(words, false);
  std::vector<Quad> quads;
  std::vector<QuadStep> steps;
  for (size_t w = 0; w < words; ++w) {
    if (taken[w]) continue;
    const auto [begin, end] = pairs_of(w);
    Quad quad{{static_cast<uint32_t>(w)}, 0, 0};
    taken[w] = true;
    for (uint32_t t = 1; t < 4; ++t) {
      const Pair& head = plan.pairs[begin];
      const auto found = starts.find({head.element + 2 * t, head.mask});
      if (found == starts.end() || taken[found->second]) return;
      const auto [from, to] = pairs_of(found->second);
      if (to - from != end - begin) return;
      for (uint32_t i = 0; i < end - begin; ++i) {
        const Pair &mine = plan.pairs[begin + i], &other = plan.pairs[from + i];
        const bool row = mine.element / plan.tile[1] == (other.element + 1) / plan.tile[1];
        if (other.element != mine.element + 2 * t || other.mask != mine.mask || other.shift != mine.shift || !row)
          return;
      }
      taken[found->second] = true;
      quad.word[t] = static_cast<uint32_t>(found->second);
    }
    for (int upper : {0, 1}) {
      for (uint32_t i = begin; i < end; ++i) {
        const Pair& pair = plan.pairs[i];
        const uint64_t byte = pair.mask >> (8 * upper) & 0xff;
        const int shift = static_cast<int>(pair.shift) - 32 - 8 * upper;
        if (byte) steps.push_back({pair.element, static_cast<uint32_t>(shift & 63), byte * 0x0101010101010101});
      }
      if (upper == 0) quad.middle = static_cast<uint32_t>(steps.size());
    }
    quad.end = static_cast<uint32_t>(steps.size());
    quads.push_back(quad);
  }
  plan.quads = std::move(quads);
  plan.quad_steps = std::move(steps);
}

bool find_lanes(Plan& plan, int bits, int fold) {
  const int all = 8 / bits, steps = all / fold;
  if (steps < 1 || 2 * plan.quads.size() % static_cast<size_t>(4 / fold) != 0) return false;
  struct Half {
    std::vector<uint32_t> elements;
    uint32_t index;
  };
  std::vector<Half> halves;
  uint32_t at = 0;
  for (size_t q = 0; q < plan.quads.size(); ++q)
    for (uint32_t upper : {0u, 1u}) {
      Half half{{}, static_cast<uint32_t>(2 * q) + upper};
      for (const uint32_t end = upper ? plan.quads[q].end : plan.quads[q].middle; at < end; ++at)
        half.elements.push_back(plan.quad_steps[at].element);
      if (static_cast<int>(half.elements.size()) != all) return false;
      for (int i = 0; i < all; ++i)
        if (half.elements[static_cast<size_t>(i)] !=
            half.elements[static_cast<size_t>(i % steps)] + static_cast<uint32_t>(8 * (i / steps)))
          return false;
      halves.push_back(std::move(half));
    }
  std::sort(halves.begin(), halves.end(), [](const Half& a, const Half& b) { return a.elements < b.elements; });
  // Halves that lie side by side are neighbours in this order, or farther apart: taken as they come.
  std::map<std::vector<uint32_t>, const Half*> by_place;
  for (const Half& half : halves) by_place[half.elements] = &half;
  std::vector<LaneGroup> groups;
  std::vector<uint32_t> elements;
  std::vector<bool> taken(halves.size(), false);
  for (const Half& first : halves) {
    if (taken[first.index]) continue;
    LaneGroup group{};
    std::vector<uint32_t> place = first.elements;
    for (int i = 0; i < 4 / fold; ++i) {
      const auto found = by_place.find(place);
      if (found == by_place.end() || taken[found->second->index]) return false;
      taken[found->second->index] = true;
      group.half[i] = found->second->index;
      for (uint32_t& element : place) element += static_cast<uint32_t>(8 * fold);
    }
    groups.push_back(group);
    elements.insert(elements.end(), first.elements.begin(), first.elements.begin() + steps);
  }
  plan.lane_groups = std::move(groups);
  plan.lane_elements = std::move(elements);
  plan.lane_fold = fold;
  plan.lane_steps = steps;
  return true;
}

void find_lanes(Plan& plan, int bits) {
  if (plan.quads.empty() || plan.pair_step == 0 || bits > 4) return;
  for (int fold : {1, 2, 4})
    if (find_lanes(plan, bits, fold)) return;
}

void find_runs(Plan& plan, int bits) {
  if (plan.tile[1] * bits % 8 != 0) return;
  const int64_t row_bits = 8 * run_row_bytes(plan.tile[1], bits);
  std::vector<Run> runs;
  std::vector<uint32_t> first;
  for (size_t w = 0; w < plan.words.size(); ++w) {
    first.push_back(static_cast<uint32_t>(runs.size()));
    int64_t source = -1;
    int at = 0;
    for (size_t i = plan.first[w]; i < plan.first[w + 1]; ++i) {
      const Piece& piece = plan.pieces[i];
      const int bit = std::countr_zero(piece.mask), length = std::popcount(piece.mask);
      const int64_t from = piece.element / plan.tile[1] * row_bits + piece.element % plan.tile[1] * bits + 32 + bit -
                           static_cast<int64_t>(piece.shift);
      if (from == source && bit == at) {
        runs.back().mask = runs.back().mask << length | ((1u << length) - 1);
      } else {
        runs.push_back({static_cast<uint32_t>(from / 8), piece.mask >> bit, static_cast<uint8_t>(from % 8),
                        static_cast<uint8_t>(bit)});
      }
      source = from + length;
      at = bit + length;
    }
    if (4 * runs.size() > plan.pieces.size()) return;
  }
  first.push_back(static_cast<uint32_t>(runs.size()));
  plan.runs = std::move(runs);
  plan.run_first = std::move(first);
}

}  // namespace

Spec read_spec(Arguments& a, size_t out_bytes) {
  Spec spec;
  spec.bits = static_cast<int>(a.integer("bits"));
  require((spec.bits >= 1 && spec.bits <= 8) || spec.bits == 16 || spec.bits == 32, "bits is 1 to 8, 16 or 32");
  const auto& dims = a.list("modeDims");
  const auto& sizes = a.list("modeSizes");
  const auto& strides = a.list("modeStrides");
  const auto& stream = a.list("modeStream");
  require(dims.size() == sizes.size() && dims.size() == strides.size() && dims.size() == stream.size(),
          "modeDims, modeSizes, modeStrides and modeStream have one entry a mode each");
  spec.extent[0] = spec.extent[1] = 1;
  spec.unit = a.integer("unit", 0);
  spec.unit_stride = a.integer("unitStride", 0);
  spec.base = a.integer("base", 0);
  spec.word = static_cast<int>(a.integer("word", 0));
  spec.out_bits = static_cast<int64_t>(out_bytes) * 8;
  if (a.has("wordOrder")) {
    const auto& order = a.list("wordOrder");
    require(spec.unit > 0 && order.size() <= 4096, "a word order of at most 4096 bits goes with units");
    std::vector<bool> seen(order.size(), false);
    for (double bit : order) {
      const bool inside = bit >= 0 && bit < static_cast<double>(order.size());
      require(inside && !seen[static_cast<size_t>(bit)], "a word order names every bit once");
      seen[static_cast<size_t>(bit)] = true;
      spec.order.push_back(static_cast<int32_t>(bit));
    }
  }
  require(spec.unit == 0 || (spec.unit >= spec.bits && spec.unit % 8 == 0),
          "a unit is whole bytes and holds an element");
  require(spec.base >= 0 && spec.unit >= 0 && spec.unit_stride >= 0, "strides are not negative");
  std::vector<std::pair<int64_t, int64_t>> address, streamed;
  for (size_t i = 0; i < dims.size(); ++i) {
    Mode m{static_cast<int>(dims[i]), static_cast<int64_t>(sizes[i]), static_cast<int64_t>(strides[i]), stream[i] != 0};
    require(m.dim == 0 || m.dim == 1, "a mode belongs to dimension 0 or 1");
    require(m.size >= 1 && m.stride >= 0 && m.size < (1LL << 40) && m.stride < (1LL << 50),
            "a mode's size or stride is out of range");
    if (spec.unit == 0) m.stream = false;
    (m.stream ? streamed : address).emplace_back(m.stride, m.size);
    spec.extent[m.dim] *= m.size;
    require(spec.extent[m.dim] < (1LL << 40) && static_cast<double>(m.size) * static_cast<double>(m.stride) < 1e16,
            "the layout is too large");
    spec.modes.push_back(m);
  }
  int64_t last = spec.base + reach(spec.modes, false);
  if (spec.unit) {
    const int64_t period = std::max<int64_t>(1, static_cast<int64_t>(spec.order.size()));
    const int64_t length = (reach(spec.modes, true) + spec.bits + period - 1) / period * period;  // of a stream
    const int64_t units = (length + spec.unit - 1) / spec.unit;
    require_nested(streamed, spec.bits);
    address.emplace_back(spec.unit_stride, units);
    require_nested(address, spec.unit);
    last += (units - 1) * spec.unit_stride + spec.unit;
  } else {
    require_nested(address, spec.bits);
    last += spec.bits;
  }
  require(last <= spec.out_bits,
          "the layout reaches bit " + std::to_string(last) + " of an output of " + std::to_string(spec.out_bits));
  return spec;
}

Plan make_plan(const Spec& spec, int column_bits) {
  Plan plan;
  Cut cut;
  bool found = false;
  for (int word : {32, 16, 8}) {
    if (spec.out_bits % word != 0 || spec.base % word != 0 || (spec.word && word > spec.word)) continue;
    plan.word_bits = word;
    cut = cut_tile(spec, word, column_bits);
    const int64_t elements = cut.tile[0] * cut.tile[1];
    found = elements <= kLargestTile;
    if (elements <= kLargestWide) break;
  }
  require(found, "the layout does not divide into tiles of whole bytes");
  plan.tile[0] = cut.tile[0];
  plan.tile[1] = cut.tile[1];
  const int word = plan.word_bits;
  for (int dim : {0, 1})
    for (auto [address, stream] : offsets(cut.outer, dim)) plan.outer[dim].push_back(address / word);

  const auto rows = offsets(cut.inner, 0), columns = offsets(cut.inner, 1);
  struct Placed {
    int64_t word;
    int bit;
    Piece piece;
  };
  std::vector<Placed> placed;
  placed.reserve(rows.size() * columns.size());
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto element = static_cast<uint32_t>(r * columns.size() + c);
      const int64_t address = spec.base + rows[r].first + columns[c].first;
      const int64_t p = rows[r].second + columns[c].second;
      // Runs of the element's bits that stay in one unit and one word.
      for (int done = 0; done < spec.bits;) {
        int in_order = spec.bits - done;  // bits that stay neighbours in the word order
        const int64_t q = ordered(spec, p + done);
        for (int i = 1; !spec.order.empty() && i < in_order; ++i)
          if (ordered(spec, p + done + i) != q + i) in_order = i;
        const int64_t at = spec.unit ? address + q / spec.unit * spec.unit_stride + q % spec.unit : address + done;
        int run = in_order;
        run = static_cast<int>(std::min<int64_t>(run, word - at % word));
        if (spec.unit) run = static_cast<int>(std::min<int64_t>(run, spec.unit - q % spec.unit));
        const int bit = static_cast<int>(at % word);
        const auto mask = static_cast<uint32_t>(((uint64_t{1} << run) - 1) << bit);
        placed.push_back({at / word, bit, {element, mask, static_cast<uint32_t>(32 + bit - done)}});
        done += run;
      }
    }
  std::sort(placed.begin(), placed.end(),
            [](const Placed& a, const Placed& b) { return a.word != b.word ? a.word < b.word : a.bit < b.bit; });
  const int slots = word % spec.bits == 0 ? word / spec.bits : 0;
  bool aligned = slots > 0 && rows.size() * columns.size() <= UINT16_MAX + size_t{1};
  for (const Placed& each : placed) {
    if (plan.words.empty() || plan.words.back() != each.word) {
      plan.words.push_back(each.word);
      plan.first.push_back(static_cast<uint32_t>(plan.pieces.size()));
    }
    const auto slot = static_cast<int>(plan.pieces.size() - plan.first.back());
    aligned = aligned && slot < slots && each.bit == slot * spec.bits;
    plan.pieces.push_back(each.piece);
  }
  plan.first.push_back(static_cast<uint32_t>(plan.pieces.size()));
  aligned = aligned && plan.pieces.size() == plan.words.size() * static_cast<size_t>(slots);
  if (aligned)
    for (const Piece& piece : plan.pieces) plan.aligned.push_back(static_cast<uint16_t>(piece.element));
  if (spec.bits <= 8 && word == 32) {
    find_pairs(plan, spec.bits);
    find_quads(plan);
    find_lanes(plan, spec.bits);
    find_runs(plan, spec.bits);
  }
  plan.fills = plan.tiles() * static_cast<int64_t>(plan.words.size()) * word == spec.out_bits;
  return plan;
}

std::shared_ptr<const Plan> plan_for(const Spec& spec, int column_bits) {
  constexpr size_t kKept = 16;
  struct Entry {
    Spec spec;
    int column_bits;
    std::shared_ptr<const Plan> plan;
  };
  static std::mutex mutex;
  static std::deque<Entry> kept;
  {
    std::lock_guard lock(mutex);
    for (const Entry& entry : kept)
      if (entry.column_bits == column_bits && entry.spec == spec) return entry.plan;
  }
  auto plan = std::make_shared<const Plan>(make_plan(spec, column_bits));
  std::lock_guard lock(mutex);
  kept.push_front({spec, column_bits, plan});
  if (kept.size() > kKept) kept.pop_back();
  return plan;
}

}  // namespace lpq::layout
