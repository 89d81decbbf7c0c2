// Shared by the instruction sets: F is 16 floats, U 16 words, kTile how many rows of x have their sums in registers,
// kPanels how many panels of one row have, Values<bits, whole> what codes mean: kInPlace, or of(words, which) looks up
// one of kCodes codes that a word's lowest bits hold, or, where kSigned, of(magnitudes, signs) looks up a code
// that begins at bit kPlace, and may take its sign from bit 31 of the other; or at(words, bit) looks up the code that
// begins at that bit. LPQ_EVERY_COLUMN what stands
// before a loop over a chunk's columns: unrolled, shifts are constants. Included inside an unnamed namespace.

// Codes of column i of a chunk, whose words are `row` apart, in the low bits of each word; what stands above them is
// not theirs.
template <int B>
inline U codes_of(const uint32_t* chunk, int64_t row, int i) {
  const int bit = i * B, word = bit / 32, at = bit % 32;
  const U low = right(load_words(chunk + word * row), at);
  return at + B <= 32 ? low : either(low, left(load_words(chunk + (word + 1) * row), 32 - at));
}

// `u` with what is at bit `from` at bit `to`.
inline U moved(U u, int from, int to) { return from > to ? right(u, from - to) : from < to ? left(u, to - from) : u; }

// What x of column i is multiplied by: table[code], or (code - constant) * 2^place of integers in place.
template <int B, bool Whole>
inline F value_of(const uint32_t* chunk, int64_t row, int i, const Values<B, Whole>& values) {
  const int bit = i * B, at = bit % 32;
  const uint32_t* word = chunk + bit / 32 * row;
  if constexpr (Values<B, Whole>::kInPlace) {
    const int place = at + B < 32 ? at : 0;
    const uint32_t mask = ((1u << B) - 1) << place;
    // A code that ends its word has nothing above it.
    const U code = at + B < 32    ? both(load_words(word), words(mask))
                   : at + B == 32 ? right(load_words(word), at)
                                  : both(codes_of<B>(chunk, row, i), words(mask));
    return minus(number(code), values.constant * static_cast<float>(1u << place));
  } else if constexpr (requires { values.at(load_words(word), 0); }) {
    return at + B <= 32 ? values.at(load_words(word), at) : values.at(codes_of<B>(chunk, row, i), 0);
  } else if constexpr (Values<B, Whole>::kSigned) {
    const bool within = at + B <= 32;
    const U code = within ? load_words(word) : codes_of<B>(chunk, row, i);
    const int first = within ? at : 0;
    return values.of(moved(code, first, values.kPlace), moved(code, first + B - 1, 31));
  } else if constexpr (Values<B, Whole>::kCodes > 1) {
    // One shift for several codes, each of which has a table by all of them.
    constexpr int window = Values<B, Whole>::kCodes * B;
    const int first = at / window * window;
    return values.of(right(load_words(word), first), (at - first) / B);
  } else {
    return values.of(codes_of<B>(chunk, row, i), 0);
  }
}

// How far ahead of its chunk the words of a row's product are fetched: processors alone fetch a stream too late. Whole
// rows, whatever a band's width.
constexpr int64_t kAhead = 1536;

// Fetches 32 words, or floats, of each of P panels.
template <int P, class T>
inline void ahead(const T* from) {
  for (int line = 0; line < 2 * P; ++line) __builtin_prefetch(from + 16 * line);
}

// P panels: each output is one chain of fma, and the registers of one panel leave most of the units idle.
template <int B, bool Whole, int P>
void one_row(const Panel& p) {
  const Values<B, Whole> values(p);
  const int64_t row = p.width * kPanel;
  F total[P][2];
  for (auto& each : total) each[0] = each[1] = zeros();
  const uint32_t* chunk = p.words;
  const float* x = p.x;
  for (int64_t g = 0, c = 0; g < p.groups; ++g) {
    F sum[P][2];
    for (auto& each : sum) each[0] = each[1] = zeros();
    ahead<P>(p.scales + (g + 4) * row);
    if (p.shifts) ahead<P>(p.shifts + (g + 4) * row);
    for (const int64_t end = p.group_chunks ? std::min(c + p.group_chunks, p.chunks) : p.chunks; c < end; ++c) {
      // A whole band is one run of lines. Of fewer panels, the lines between are of others.
      if constexpr (P == kBand) ahead<P * B>(chunk + kAhead);
      else
        for (int w = 0; w < B; ++w) ahead<P>(chunk + kAhead + w * row);
      LPQ_EVERY_COLUMN
      for (int i = 0; i < kChunk; ++i) {
        const F each = broadcast(x + i);
        for (int j = 0; j < P; ++j) {
          sum[j][0] = fma(value_of<B, Whole>(chunk + j * kPanel, row, i, values), each, sum[j][0]);
          sum[j][1] = fma(value_of<B, Whole>(chunk + j * kPanel + 16, row, i, values), each, sum[j][1]);
        }
      }
      chunk += B * row, x += kChunk;
    }
    for (int j = 0; j < P; ++j)
      for (int h = 0; h < 2; ++h) {
        const int64_t at = (g * p.width + j) * kPanel + 16 * h;
        total[j][h] = fma(load(p.scales + at), sum[j][h], total[j][h]);
        if (p.shifts) total[j][h] = fma(load(p.shifts + at), broadcast(p.sums + g), total[j][h]);
      }
  }
  for (int j = 0; j < P; ++j) store(p.y + j * kPanel, total[j][0]), store(p.y + j * kPanel + 16, total[j][1]);
}

// Columns of one group and panel, as floats, and what they are multiplied by and added to.
struct Part {
  const float *values, *x;  // [columns, 32]; [rows, pitch]
  int64_t columns, group;
  bool begins, ends;     // the group does, with these columns
  float *sums, *totals;  // [rows, 32], of the group so far and of those before it
  const float *scales, *shifts;
};

// R rows of x from row `first`: their sums over the group's columns, and where it ends, their totals.
template <int R>
void tile(const Panel& p, const Part& part, int first) {
  const float* x = part.x + first * p.pitch;
  float *sums = part.sums + first * kPanel, *totals = part.totals + first * kPanel;
  F sum[R][2];
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h) sum[r][h] = part.begins ? zeros() : load(sums + r * kPanel + 16 * h);
  for (int64_t i = 0; i < part.columns; ++i) {
    const F low = load(part.values + i * kPanel), high = load(part.values + i * kPanel + 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const F each = broadcast(x + r * p.pitch + i);
      sum[r][0] = fma(low, each, sum[r][0]);
      sum[r][1] = fma(high, each, sum[r][1]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h) {
      const int at = r * kPanel + 16 * h;
      if (!part.ends) {
        store(sums + at, sum[r][h]);
        continue;
      }
      F total = fma(load(part.scales + 16 * h), sum[r][h], load(totals + at));
      if (part.shifts)
        total = fma(load(part.shifts + 16 * h), broadcast(p.sums + (first + r) * p.groups + part.group), total);
      store(totals + at, total);
    }
}

template <int R>
void rest_of(const Panel& p, const Part& part, int first) {
  if (p.rows - first == R) tile<R>(p, part, first);
  else if constexpr (R > 1) rest_of<R - 1>(p, part, first);
}

inline void all_rows(const Panel& p, const Part& part) {
  int first = 0;
  for (; first + kTile <= p.rows; first += kTile) tile<kTile>(p, part, first);
  if constexpr (kTile > 1)
    if (first < p.rows) rest_of<kTile - 1>(p, part, first);
}

// Some chunks' codes become floats once, for all rows: so many that sums are moved seldom, and values stay in the L1
// cache.
constexpr int64_t kChunks = 4;
template <int B, bool Whole>
void many_rows(const Panel& p) {
  const Values<B, Whole> values(p);
  alignas(64) float decoded[kChunks * kChunk * kPanel], sums[kPanels * kMostRows * kPanel];
  const int64_t rows = p.rows * kPanel, row = p.width * kPanel;
  std::fill(p.y, p.y + p.panels * rows, 0.0f);
  const uint32_t* chunk = p.words;
  const float* x = p.x;
  for (int64_t g = 0, c = 0; g < p.groups; ++g) {
    const int64_t begin = c, end = p.group_chunks ? std::min(c + p.group_chunks, p.chunks) : p.chunks;
    while (c < end) {
      const int64_t count = std::min(kChunks, end - c);
      for (int j = 0; j < p.panels; ++j) {
        if (c == begin) {
          ahead<1>(p.scales + ((g + 1) * p.width + j) * kPanel);
          if (p.shifts) ahead<1>(p.shifts + ((g + 1) * p.width + j) * kPanel);
        }
        for (int64_t each = 0; each < count; ++each) {
          const uint32_t* of = chunk + each * B * row + j * kPanel;
          float* to = decoded + each * kChunk * kPanel;
          // The same of the next chunks: nothing else asks for them before, and all at once they would wait for each
          // other.
          for (int64_t w = 0; w < B; ++w) ahead<1>(of + (count * B + w) * row);
          LPQ_EVERY_COLUMN
          for (int i = 0; i < kChunk; ++i) {
            store(to + i * kPanel, value_of<B, Whole>(of, row, i, values));
            store(to + i * kPanel + 16, value_of<B, Whole>(of + 16, row, i, values));
          }
        }
        const int64_t side = (g * p.width + j) * kPanel;
        all_rows(p, {decoded, x, count * kChunk, g, c == begin, c + count == end, sums + j * rows, p.y + j * rows,
                     p.scales + side, p.shifts ? p.shifts + side : nullptr});
      }
      chunk += count * B * row, x += count * kChunk, c += count;
    }
  }
}

template <int B, bool Whole, int P>
void some_panels(const Panel& p) {
  if (p.panels == P) one_row<B, Whole, P>(p);
  else if constexpr (P > 1) some_panels<B, Whole, P - 1>(p);
}

template <int B, bool Whole>
void multiply(const Panel& p) {
  if (p.rows == 1) some_panels<B, Whole, kPanels>(p);
  else many_rows<B, Whole>(p);
}

const Kernels kKernels = {
    {multiply<1, false>, multiply<2, false>, multiply<3, false>, multiply<4, false>, multiply<5, false>,
     multiply<6, false>, multiply<7, false>, multiply<8, false>},
    {multiply<1, true>, multiply<2, true>, multiply<3, true>, multiply<4, true>, multiply<5, true>, multiply<6, true>,
     multiply<7, true>, multiply<8, true>},
    {Values<1, true>::kInPlace, Values<2, true>::kInPlace, Values<3, true>::kInPlace, Values<4, true>::kInPlace,
     Values<5, true>::kInPlace, Values<6, true>::kInPlace, Values<7, true>::kInPlace, Values<8, true>::kInPlace},
    kPanels};
