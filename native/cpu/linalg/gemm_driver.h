// Blocks, packs and spreads a matrix product over the pool. Private to cpu/linalg; gemm.h has the contract.
#pragma once
#include <algorithm>
#include <functional>

#include "cpu/linalg/gemm.h"
#include "cpu/linalg/kernels.h"
#include "cpu/linalg/scratch.h"

namespace lpq::linalg {

inline const Kernels<float>& kernels_of(Products products) {
  return products == Products::bf16 ? bf16_kernels() : kernels<float>();
}

enum class Region { all, lower };  // lower: tiles that touch i >= j; others are left alone

template <class T>
struct Product {
  int64_t m, n, k;
  PackSource a, b;  // element (i, p) of op(A); element (j, p) of op(B)
  T alpha = 1;
  Region region = Region::all;
  const Kernels<T>& kernel = kernels<T>();
  // Fills a panel of op(B), of columns j .. and k p0 .. p0 + kc, where `b` does not say where it lies; or null.
  const std::function<void(T* to, int64_t j, int64_t p0, int64_t kc)>* fill = nullptr;

  void pack_b(T* to, int64_t j, int64_t p0, int cols, int64_t kc) const;
};

inline PackSource shifted(PackSource s, int64_t i, int64_t p) {
  s.data =
      static_cast<const char*>(s.data) + (i * s.step_i + p * s.step_p) * static_cast<int64_t>(dtype_bytes(s.dtype));
  return s;
}

template <class T>
void Product<T>::pack_b(T* to, int64_t j, int64_t p0, int cols, int64_t kc) const {
  if (fill) (*fill)(to, j, p0, kc);
  else kernel.pack(to, shifted(b, j, p0), cols, kernel.nr, kc, T(1));
}

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

constexpr int64_t kFewRows = 64;

// run_product for m <= kFewRows, where reading op(B) costs as much as the products: each worker packs a strip of op(B)
// for one k block into a buffer of its own, which stays in its cache, and uses it at once.
template <class T, class Sink>
void few_rows(ThreadPool& pool, const Product<T>& product, const Sink& sink, Exec* progress) {
  const Kernels<T>& kernel = product.kernel;
  const int mr = kernel.mr, nr = kernel.nr;
  // No structured binding: lambdas below use them, which clang takes from 16 on.
  const int64_t m = product.m, n = product.n, k = product.k;
  const PackSource a = product.a;
  const T alpha = product.alpha;
  const int64_t a_count = (m + mr - 1) / mr, strips = (n + nr - 1) / nr;
  const int64_t kc_most = std::min(k, kBlockK<T>), k_blocks = (k + kBlockK<T> - 1) / kBlockK<T>;
  const int64_t a_stride = round_up(kernel.depth(kc_most) * mr, 16) + kPanelPad;
  static thread_local Scratch a_scratch;
  T* const a_panels = a_scratch.get<T>(static_cast<size_t>(a_count * k_blocks * a_stride));
  pool.parallel_for(
      a_count * k_blocks, std::max<int64_t>(1, 65536 / (kc_most * mr)), [&](int64_t begin, int64_t end, int) {
        for (int64_t panel = begin; panel < end; ++panel) {
          const int64_t i = panel % a_count * mr, p0 = panel / a_count * kBlockK<T>;
          kernel.pack(a_panels + panel * a_stride, shifted(a, i, p0), static_cast<int>(std::min<int64_t>(mr, m - i)),
                      mr, std::min(kBlockK<T>, k - p0), alpha);
        }
      });
  const int64_t grain = std::max<int64_t>(1, std::min(strips / (4 * pool.size()), (int64_t{1} << 22) / (nr * k)));
  const bool alone = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < 3e5;
  pool.parallel_for(strips, alone ? strips : grain, [&](int64_t begin, int64_t end, int worker) {
    static thread_local Scratch strip_scratch;
    T* const panel = strip_scratch.get<T>(static_cast<size_t>(kernel.depth(kBlockK<T>) * nr + kPanelPad));
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t j = strip * nr;
      const int cols = static_cast<int>(std::min<int64_t>(nr, n - j));
      for (int64_t block = 0; block < k_blocks; ++block) {
        const int64_t p0 = block * kBlockK<T>, kc = std::min(kBlockK<T>, k - p0);
        product.pack_b(panel, j, p0, cols, kc);
        for (int64_t ap = 0; ap < a_count; ++ap)
          sink(worker, kc, a_panels + (block * a_count + ap) * a_stride, panel, ap * mr, j,
               static_cast<int>(std::min<int64_t>(mr, m - ap * mr)), cols, block == 0);
      }
      if (progress) progress->done += m * cols * k_blocks;
    }
  });
}

// For every tile of C and every k block, in ascending k order for one tile, calls
//   sink(worker, kc, a_panel, b_panel, i, j, rows, cols, first)
// which is to compute and store C[i..i+rows, j..j+cols]; `first` on the first k block.
template <class T, class Sink>
void run_product(ThreadPool& pool, const Product<T>& product, const Sink& sink, Exec* progress = nullptr) {
  const Kernels<T>& kernel = product.kernel;
  const int mr = kernel.mr, nr = kernel.nr;
  const int64_t m = product.m, n = product.n, k = product.k;
  const PackSource a = product.a;
  const T alpha = product.alpha;
  const Region region = product.region;
  if (m <= 0 || n <= 0 || k <= 0) return;
  constexpr int64_t kMostBytes = 8 << 20;  // of packed op(A), and of packed op(B)
  const int64_t kc_most = std::min(k, kBlockK<T>);
  const int64_t span = kMostBytes / static_cast<int64_t>(sizeof(T)) / kernel.depth(kc_most);
  const int64_t m_span = std::max<int64_t>(span / mr, 1) * mr, n_span = std::max<int64_t>(span / nr, 1) * nr;
  const int64_t depth = kernel.depth(kc_most);
  const int64_t a_stride = round_up(depth * mr, 16) + kPanelPad, b_stride = round_up(depth * nr, 16) + kPanelPad;
  // Work too small to be worth waking others runs on this thread: one chunk.
  const bool alone = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < 3e5;

  const int64_t k_blocks = (k + kBlockK<T> - 1) / kBlockK<T>;
  if (progress) progress->total = m * n * k_blocks;
  if (m <= kFewRows && region == Region::all) {
    few_rows(pool, product, sink, progress);
    return;
  }
  static thread_local Scratch a_scratch, b_scratch;
  T* const a_panels = a_scratch.get<T>(static_cast<size_t>((std::min(m, m_span) + mr - 1) / mr * a_stride));
  T* const b_panels = b_scratch.get<T>(static_cast<size_t>((std::min(n, n_span) + nr - 1) / nr * b_stride));

  for (int64_t i0 = 0; i0 < m; i0 += m_span)
    for (int64_t j0 = 0; j0 < n; j0 += n_span) {
      const int64_t m_here = std::min(m_span, m - i0), n_here = std::min(n_span, n - j0);
      if (region == Region::lower && j0 > i0 + m_here - 1) {
        if (progress) progress->done += m_here * n_here * k_blocks;
        continue;
      }
      const int64_t a_count = (m_here + mr - 1) / mr, b_count = (n_here + nr - 1) / nr;
      // A task is a block of tiles; op(A)'s share of it (about 170 rows) is meant to stay in the L2 cache.
      int64_t a_per = std::max<int64_t>(168 / mr, 1), b_per = std::max<int64_t>(512 / nr, 1);
      auto tasks = [&] { return ((a_count + a_per - 1) / a_per) * ((b_count + b_per - 1) / b_per); };
      while (tasks() < 6 * pool.size() && a_per * b_per > 2) {
        int64_t& longer = a_per > 1 && (b_per == 1 || a_per * mr >= b_per * nr) ? a_per : b_per;
        longer = (longer + 1) / 2;
      }
      const int64_t a_tasks = (a_count + a_per - 1) / a_per, b_tasks = (b_count + b_per - 1) / b_per;
      for (int64_t p0 = 0; p0 < k; p0 += kBlockK<T>) {
        const int64_t kc = std::min(kBlockK<T>, k - p0);
        const int64_t pack_grain = alone ? a_count + b_count : std::max<int64_t>(1, 32768 / (kc * mr));
        pool.parallel_for(a_count + b_count, pack_grain, [&](int64_t begin, int64_t end, int) {
          for (int64_t panel = begin; panel < end; ++panel) {
            if (panel < a_count) {
              const int64_t i = panel * mr;
              kernel.pack(a_panels + panel * a_stride, shifted(a, i0 + i, p0),
                          static_cast<int>(std::min<int64_t>(mr, m_here - i)), mr, kc, alpha);
            } else {
              const int64_t q = panel - a_count, j = q * nr;
              product.pack_b(b_panels + q * b_stride, j0 + j, p0, static_cast<int>(std::min<int64_t>(nr, n_here - j)),
                             kc);
            }
          }
        });
        pool.parallel_for(
            a_tasks * b_tasks, alone ? a_tasks * b_tasks : 1, [&](int64_t begin, int64_t end, int worker) {
              for (int64_t task = begin; task < end; ++task) {
                const int64_t at = task % a_tasks * a_per, bt = task / a_tasks * b_per;
                const int64_t a_end = std::min(at + a_per, a_count), b_end = std::min(bt + b_per, b_count);
                for (int64_t bp = bt; bp < b_end; ++bp)
                  for (int64_t ap = at; ap < a_end; ++ap) {
                    const int64_t i = i0 + ap * mr, j = j0 + bp * nr;
                    const int rows = static_cast<int>(std::min<int64_t>(mr, m - i));
                    const int cols = static_cast<int>(std::min<int64_t>(nr, n - j));
                    if (region == Region::lower && j > i + rows - 1) continue;
                    sink(worker, kc, a_panels + ap * a_stride, b_panels + bp * b_stride, i, j, rows, cols, p0 == 0);
                  }
                if (progress)
                  progress->done += (std::min(a_end * mr, m_here) - at * mr) * (std::min(b_end * nr, n_here) - bt * nr);
              }
            });
      }
    }
}

template <class T>
PackSource source_of(const T* data, Trans trans, int64_t ld, bool is_b) {
  constexpr DType dtype = sizeof(T) == 4 ? DType::f32 : DType::f64;
  // op(A)(i, p) is A[i*ld + p] untransposed; op(B)(p, j) is B[p*ld + j] untransposed.
  const bool k_runs = (trans == Trans::no) != is_b;
  return k_runs ? PackSource{data, dtype, ld, 1} : PackSource{data, dtype, 1, ld};
}

}  // namespace lpq::linalg
