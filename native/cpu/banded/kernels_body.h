// Shared by the instruction sets: F is 16 floats, U 16 words, kRows how many rows of x have their sums in registers,
// panels_of(rows) how many panels then have; low<T>(U) and high<T>(U) are the first and second k of words of T.
// Included inside an unnamed namespace.

// R rows and P panels. Second: products in bf16, where the second k of a pair comes first, in x as well.
template <class T, bool Second, int R, int P>
void sums_of(const Strip& s, int panel) {
  const uint32_t* words = s.words + panel * kPanel;
  const float* x = s.x;
  F sum[P][2][R];
  for (auto& of : sum)
    for (auto& half : of)
      for (F& each : half) each = zeros();
  const auto add = [&](const F& weight, F(&half)[R], int64_t k) {
    for (int r = 0; r < R; ++r) half[r] = fma(weight, broadcast(x + k * R + r), half[r]);
  };
  // Products in bf16 take a pair whole (x is padded with 0); a chain in fp32 ends with the last k.
  const int64_t whole = Second ? s.kc + s.kc % 2 : s.kc / 2 * 2;
  for (int64_t k = 0; k < whole; k += 2, words += s.row)
    for (int j = 0; j < P; ++j)
      for (int h = 0; h < 2; ++h) {
        const U both_k = load_words(words + j * kPanel + 16 * h);
        add(Second ? high<T>(both_k) : low<T>(both_k), sum[j][h], k);
        add(Second ? low<T>(both_k) : high<T>(both_k), sum[j][h], k + 1);
      }
  if (whole < s.kc)
    for (int j = 0; j < P; ++j)
      for (int h = 0; h < 2; ++h) add(low<T>(load_words(words + j * kPanel + 16 * h)), sum[j][h], whole);
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < P; ++j)
      for (int h = 0; h < 2; ++h) {
        float* to = s.sums + r * kBand * kPanel + (panel + j) * kPanel + 16 * h;
        store(to, s.add ? plus(load(to), sum[j][h][r]) : sum[j][h][r]);
      }
}

template <class T, bool Second, int R>
void all_panels(const Strip& s) {
  constexpr int wide = panels_of(R);
  int panel = 0;
  for (; panel + wide <= s.panels; panel += wide) sums_of<T, Second, R, wide>(s, panel);
  for (; panel < s.panels; ++panel) sums_of<T, Second, R, 1>(s, panel);
}

template <class T, bool Second, int R = kRows>
void strip(const Strip& s) {
  if (s.rows == R) all_panels<T, Second, R>(s);
  else if constexpr (R > 1) strip<T, Second, R - 1>(s);
}

template <class T>
void widen(const uint32_t* words, int64_t row, int64_t kc, int width, float* to) {
  for (int64_t k = 0; k < kc; k += 2, words += row, to += 2 * width)
    for (int i = 0; i < width; i += 16) {
      const U both_k = load_words(words + i);
      float part[16];
      float *first = width < 16 ? part : to + i, *second = width < 16 ? part : to + width + i;
      store(first, low<T>(both_k));
      if (width < 16) std::copy(part, part + width, to);
      if (k + 1 == kc) continue;
      store(second, high<T>(both_k));
      if (width < 16) std::copy(part, part + width, to + width);
    }
}

const Kernels kKernels = {strip<BF16, false>, strip<F16, false>, strip<BF16, true>, widen<BF16>, widen<F16>, kRows};
