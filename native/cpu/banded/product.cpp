#include <cstring>

#include "cpu/banded/form.h"
#include "cpu/banded/kernels.h"
#include "cpu/linalg/flush.h"
#include "cpu/linalg/gemm_driver.h"
#include "cpu/linalg/kernels_common.h"

namespace lpq::banded {
namespace {

constexpr int64_t kBlock = linalg::kBlockK<float>;

const Kernels& active_kernels() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return kernels_avx512();
  if (active_isa() == Isa::avx2) return kernels_avx2();
#endif
  return kernels_generic();
}

bool has_pairs(Products products) { return products == Products::bf16 && bf16_instructions(); }

// What multiplies few rows; null: panels of products do.
void (*strip_of(DType dtype, Products products))(const Strip&) {
  if (products == Products::f32) return dtype == DType::bf16 ? active_kernels().bf16 : active_kernels().f16;
  if (dtype != DType::bf16) return nullptr;
#if defined(LPQ_X86)
  if (bf16_instructions()) return pairs_avx512bf16;
#endif
  return active_kernels().rounded;
}

// Some products of few rows: x as panels of at most kernels.rows rows, one after another, block by block of k.
struct Rows {
  int64_t m, k, each, block;  // each: rows a panel; block: floats of a whole block of k a row
  const float* panels;

  int64_t count() const { return (m + each - 1) / each; }
  int of(int64_t panel) const { return static_cast<int>(std::min(each, m - panel * each)); }
};

// Every panel of a band times all rows. sums [m, 128].
void multiply_band(const Form& form, const Rows& x, void (*strip)(const Strip&), const uint32_t* words, int64_t band,
                   bool add, float* sums) {
  const int64_t first = band * kBand, width = form.width(first);
  const int64_t blocks = (form.k + kBlock - 1) / kBlock;
  for (int64_t k = 0; k < form.k; k += kBlock)
    for (int64_t panel = 0; panel < x.count(); ++panel) {
      const int rows = x.of(panel);
      const float* from = x.panels + (panel * x.each * blocks + k / kBlock * rows) * x.block;
      strip({words + form.at(first, k / 2), width * kPanel, from, std::min(kBlock, form.k - k), rows,
             static_cast<int>(width), add || k > 0, sums + panel * x.each * kBand * kPanel});
    }
}

void few_rows(ThreadPool& pool, const Form& form, int64_t m, const float* x, const uint32_t* words, DType dtype,
              float beta, float* y, Products products, Exec* progress) {
  const linalg::Kernels<float>& panels = linalg::kernels_of(products);
  const auto strip = strip_of(dtype, products);
  const int64_t block = panels.depth(std::min(form.k, kBlock)), blocks = (form.k + kBlock - 1) / kBlock;
  static thread_local linalg::Scratch scratch;
  Rows rows{m, form.k, active_kernels().rows, block, nullptr};
  float* const packed = scratch.get<float>(static_cast<size_t>(m * block * blocks + linalg::kPanelPad));
  float* to = packed;
  for (int64_t i = 0; i < rows.count(); ++i)
    for (int64_t k = 0; k < form.k; k += kBlock) {  // ascending: packing writes past a panel's end
      panels.pack(to, {x + i * rows.each * form.k + k, DType::f32, form.k, 1}, rows.of(i), rows.of(i),
                  std::min(kBlock, form.k - k), 1.0f);
      to += rows.of(i) * block;
    }
  rows.panels = packed;
  const bool alone = static_cast<double>(form.n) * static_cast<double>(form.k) < 1e5;
  const int64_t bands = form.bands(), grain = alone ? bands : std::max<int64_t>(1, bands / (4 * pool.size()));
  if (progress) progress->total = bands;
  pool.parallel_for(bands, grain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float sums[kFew * kBand * kPanel];
    const auto all = [&] {
      for (int64_t band = begin; band < end; ++band) {
        const int64_t first = band * kBand * kPanel, here = std::min(kBand * kPanel, form.n - first);
        const auto bytes = static_cast<size_t>(here) * 4;
        for (int64_t r = 0; r < m && beta != 0; ++r)
          std::memcpy(sums + r * kBand * kPanel, y + r * form.n + first, bytes);
        multiply_band(form, rows, strip, words, band, beta != 0, sums);
        for (int64_t r = 0; r < m; ++r) std::memcpy(y + r * form.n + first, sums + r * kBand * kPanel, bytes);
      }
    };
    if (products == Products::bf16) {
      const linalg::FlushToZero flush;
      all();
    } else {
      all();
    }
    if (progress) progress->done += end - begin;
  });
}

// A panel of op(B) as linalg's kernels read it, from columns j and k p0 on.
void fill_panel(const Form& form, const uint32_t* words, DType dtype, Products products, float* to, int64_t j,
                int64_t p0, int64_t kc) {
  const linalg::Kernels<float>& kernel = linalg::kernels_of(products);
  const int64_t panel = j / kPanel, row = form.width(panel) * kPanel;
  const uint32_t* from = words + form.at(panel, p0 / 2) + j % kPanel;
  if (has_pairs(products) && dtype == DType::bf16) {
    for (int64_t pair = 0; pair < (kc + 1) / 2; ++pair) std::memcpy(to + pair * kPanel, from + pair * row, kPanel * 4);
    return;
  }
  const auto widen = dtype == DType::bf16 ? active_kernels().widen_bf16 : active_kernels().widen_f16;
  if (products == Products::f32) return widen(from, row, kc, kernel.nr, to);
  static thread_local linalg::Scratch scratch;
  float* const wide = scratch.get<float>(static_cast<size_t>(kBlock * kernel.nr));
  widen(from, row, kc, kernel.nr, wide);
  kernel.pack(to, {wide, DType::f32, 1, kernel.nr}, kernel.nr, kernel.nr, kc, 1.0f);
}

}  // namespace

void lay(ThreadPool& pool, const Form& form, const uint16_t* weight, uint32_t* words) {
  pool.for_each(form.panels(), 1, [&](int64_t panel) {
    const int64_t first = panel * kPanel, rows = std::min(kPanel, form.n - first), row = form.width(panel) * kPanel;
    uint32_t* const to = words + form.at(panel, 0);
    // Some pairs of all rows at a time, so that what is written stays in the cache until it is whole.
    for (int64_t p0 = 0; p0 < form.pairs(); p0 += 32)
      for (int64_t i = 0; i < kPanel; ++i)
        for (int64_t pair = p0; pair < std::min(p0 + 32, form.pairs()); ++pair) {
          const uint16_t* from = weight + (first + i) * form.k + 2 * pair;
          to[pair * row + i] =
              i >= rows ? 0 : from[0] | (2 * pair + 1 < form.k ? static_cast<uint32_t>(from[1]) << 16 : 0);
        }
  });
}

void multiply(ThreadPool& pool, const Form& form, int64_t m, const float* x, const uint32_t* words, DType dtype,
              float beta, float* y, Products products, Exec* progress) {
  if (m == 0 || form.n == 0) return;
  if (form.k > 0 && m <= kFew && strip_of(dtype, products))
    return few_rows(pool, form, m, x, words, dtype, beta, y, products, progress);
  gemm_panels(
      pool, m, form.n, form.k, x,
      [&](float* to, int64_t j, int64_t p0, int64_t kc) { fill_panel(form, words, dtype, products, to, j, p0, kc); },
      beta, y, products, progress);
}

}  // namespace lpq::banded
