// Weights of 16 bits as products of few rows read them: each word once, in the order in which memory has them.
//
// W [N,K], f16 or bf16, as [ceil(N/32), ceil(K/2), 64] of the same type. Outputs stand in panels of 32, four panels
// make a band (the last may have fewer), and two k of an output are a word, the first k in the low half. So one load
// gives 16 outputs the same two k, and all of a panel's outputs share an element of x. A band's rows follow each other
// as one stream: the first pair of each of its panels, the second of each, and on to the last. What lies beyond N and K
// is 0.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cpu/linalg/gemm.h"

namespace lpq::banded {

constexpr int64_t kPanel = 32, kBand = 4;
// Rows that read a weight in place; more are worth the panels of large products.
constexpr int64_t kFew = 8;

struct Form {
  int64_t n, k;
  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  int64_t bands() const { return (panels() + kBand - 1) / kBand; }
  int64_t pairs() const { return (k + 1) / 2; }
  // Panels in the band of this one.
  int64_t width(int64_t panel) const { return std::min(kBand, panels() - panel / kBand * kBand); }
  // Where the words of a panel's pair begin.
  int64_t at(int64_t panel, int64_t pair) const {
    const int64_t band = panel / kBand * kBand;
    return (band * pairs() + pair * width(panel) + panel - band) * kPanel;
  }
};

// words [panels, pairs, 32] of weight [N,K], 16 bits an element.
void lay(ThreadPool& pool, const Form& form, const uint16_t* weight, uint32_t* words);

// y[m,N] = x[m,K] W^T, added to the start value beta * y (beta 0 or 1): arithmetic and bytes as of gemm_weight.
void multiply(ThreadPool& pool, const Form& form, int64_t m, const float* x, const uint32_t* words, DType dtype,
              float beta, float* y, Products products, Exec* progress = nullptr);

}  // namespace lpq::banded
