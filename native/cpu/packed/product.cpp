#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/isa.h"
#include "cpu/linalg/scratch.h"
#include "cpu/packed/form.h"
#include "cpu/packed/kernels.h"
#include "lpq/half.h"

namespace lpq::packed {

const Kernels& active_kernels() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return vbmi_instructions() ? kernels_avx512vbmi() : kernels_avx512();
  if (active_isa() == Isa::avx2) return kernels_avx2();
#endif
  return kernels_generic();
}

namespace {

constexpr char kMagic[8] = {'L', 'P', 'Q', 'C', 'P', 'U', '0', '3'};
constexpr int64_t kMost = (int64_t{1} << 31) - 1024;

template <class T>
T* at(const Form& form, int64_t offset) {
  return offset ? reinterpret_cast<T*>(reinterpret_cast<std::byte*>(const_cast<Form*>(&form)) + offset) : nullptr;
}

void put(void* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::f32) static_cast<float*>(data)[i] = value;
  else static_cast<uint16_t*>(data)[i] = dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
}

// sum (+ bias) of neighbouring outputs, as numbers of another type.
template <class T, class Number>
void put_as(T* to, const float* sum, const float* bias, int64_t count, const Number& number) {
  if (bias)
    for (int64_t j = 0; j < count; ++j) to[j] = number(sum[j] + bias[j]);
  else
    for (int64_t j = 0; j < count; ++j) to[j] = number(sum[j]);
}

void put_row(void* data, DType dtype, int64_t i, const float* sum, const float* bias, int64_t count) {
  if (dtype == DType::f32) put_as(static_cast<float*>(data) + i, sum, bias, count, [](float each) { return each; });
  else if (dtype == DType::f16) put_as(static_cast<uint16_t*>(data) + i, sum, bias, count, f32_to_f16);
  else put_as(static_cast<uint16_t*>(data) + i, sum, bias, count, f32_to_bf16);
}

int64_t group_of(const Form& form, int64_t k) { return form.group_size ? k / form.group_size : 0; }

// Rows of x as floats in the order of the weights, padded with zeros, and their sums by groups; until the next call.
struct Activations {
  const float *x, *sums;
};

// One row of x as floats; `order` may be null.
template <class T, class Number>
void copy_row(const void* x, int64_t k, const int32_t* order, float* row, const Number& number) {
  const T* from = static_cast<const T*>(x);
  if (order)
    for (int64_t j = 0; j < k; ++j) row[j] = number(from[order[j]]);
  else
    for (int64_t j = 0; j < k; ++j) row[j] = number(from[j]);
}

Activations activations(const Form& form, int64_t m, DType dtype, const void* x, ThreadPool& pool) {
  const int32_t* order = at<int32_t>(form, form.permutation);
  const bool in_place = form.whole && active_kernels().in_place[form.bits - 1];
  if (dtype == DType::f32 && !order && !in_place && !form.shifts && form.k == form.k_padded)
    return {static_cast<const float*>(x), nullptr};
  static thread_local linalg::Scratch scratch;
  float* const copies = scratch.get<float>(static_cast<size_t>(m * (form.k_padded + form.groups)));
  float* const sums = copies + m * form.k_padded;
  float factors[kChunk];
  for (int64_t i = 0; i < kChunk; ++i) factors[i] = std::ldexp(1.0f, -place_of(form.bits, i));
  pool.for_each(m, std::max<int64_t>(1, 65536 / form.k_padded), [&](int64_t i) {
    float* row = copies + i * form.k_padded;
    std::fill(row + form.k, row + form.k_padded, 0.0f);
    const int64_t first = i * form.k;
    if (dtype == DType::f32)
      copy_row<float>(static_cast<const float*>(x) + first, form.k, order, row, [](float each) { return each; });
    else if (dtype == DType::f16)
      copy_row<uint16_t>(static_cast<const uint16_t*>(x) + first, form.k, order, row, f16_to_f32);
    else copy_row<uint16_t>(static_cast<const uint16_t*>(x) + first, form.k, order, row, bf16_to_f32);
    if (form.shifts) {
      std::fill(sums + i * form.groups, sums + (i + 1) * form.groups, 0.0f);
      for (int64_t j = 0; j < form.k; ++j) sums[i * form.groups + group_of(form, j)] += row[j];
    }
    if (in_place)
      for (int64_t chunk = 0; chunk < form.k_padded; chunk += kChunk)
        for (int64_t j = 0; j < kChunk; ++j) row[chunk + j] *= factors[j];
  });
  return {copies, sums};
}

void pack_panel(const Form& form, const Elements& elements, int64_t panel, uint8_t* codes) {
  float* scales = at<float>(form, form.scales);
  float* shifts = at<float>(form, form.shifts);
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    const int64_t n = panel * kPanel + lane;
    if (n >= form.n) break;
    elements.codes(n, codes);
    for (int64_t k = 0; k < form.k; ++k) {
      codes[k] ^= static_cast<uint8_t>(form.flipped);
      const int64_t bit = k % kChunk * form.bits, word = bit / 32, place = bit % 32;
      uint32_t* to = at<uint32_t>(form, form.words) + form.words_at(panel, k / kChunk * form.bits + word) + lane;
      *to |= static_cast<uint32_t>(codes[k]) << place;
      if (place + form.bits > 32) to[form.width(panel) * kPanel] |= static_cast<uint32_t>(codes[k]) >> (32 - place);
    }
    for (int64_t g = 0; g < form.groups; ++g) {
      scales[form.side_at(panel, g) + lane] = elements.scale(n, g);
      if (shifts) shifts[form.side_at(panel, g) + lane] = elements.shift(n, g);
    }
  }
}

}  // namespace

Form form_of(const QuantType& type, int64_t n, int64_t k, int64_t group_size, float constant, bool shifts,
             bool permutation, bool bias) {
  require(n >= 1 && n < kMost && k >= 1 && k < kMost, "N or K is 0, negative, or 2^31 or more");
  require(group_size >= 0 && group_size < kMost && group_size % kChunk == 0,
          "the group size is " + std::to_string(group_size) + ", not 0 (one scale a row) or a multiple of 32");
  require(type.bits >= 1 && type.bits <= 8, "the type has " + std::to_string(type.bits) + " bits, not 1 to 8");
  require(type.kind == QuantType::Kind::integer || constant == 0, "floating-point types have no zero point");
  Form form{};
  std::memcpy(form.magic, kMagic, sizeof kMagic);
  form.bits = type.bits;
  form.whole = type.kind == QuantType::Kind::integer;
  form.flipped = form.whole && type.is_signed ? 1 << (type.bits - 1) : 0;
  form.constant = constant + static_cast<float>(form.flipped);
  form.n = n, form.k = k, form.k_padded = (k + kChunk - 1) / kChunk * kChunk;
  form.group_size = group_size, form.groups = group_size ? (k + group_size - 1) / group_size : 1;
  int64_t end = (static_cast<int64_t>(sizeof(Form)) + 63) / 64 * 64;
  const auto place = [&](bool there, int64_t bytes) {
    const int64_t start = end;
    if (!there) return int64_t{0};
    end += (bytes + 63) / 64 * 64;
    return start;
  };
  const int64_t side = form.panels() * form.groups * kPanel * 4;
  form.table = place(true, 256 * 4);
  form.scales = place(true, side);
  form.shifts = place(shifts, side);
  form.permutation = place(permutation, 4 * k);
  form.bias = place(bias, 4 * n);
  form.words = place(true, form.panels() * form.chunks() * form.bits * kPanel * 4);
  form.bytes = end;
  return form;
}

const Form& opened(const void* memory, size_t bytes) {
  require(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 64 == 0,
          "the packed weight is NULL or does not start at a multiple of 64 bytes");
  const Form& form = *static_cast<const Form*>(memory);
  const bool head = bytes >= sizeof(Form) && std::memcmp(form.magic, kMagic, sizeof kMagic) == 0;
  require(head, "the memory holds no packed weight of this library");
  const QuantType type{form.whole ? QuantType::Kind::integer : QuantType::Kind::floating, form.bits, form.flipped != 0};
  Form again =
      form_of(type, form.n, form.k, form.group_size, 0, form.shifts != 0, form.permutation != 0, form.bias != 0);
  again.constant = form.constant;
  require(std::memcmp(&again, &form, sizeof(Form)) == 0, "the head of the packed weight contradicts itself");
  require(static_cast<int64_t>(bytes) >= form.bytes,
          "the packed weight has " + std::to_string(bytes) + " bytes, and its head says " + std::to_string(form.bytes));
  return form;
}

void pack(const Form& wanted, const Elements& elements, const float* bias, void* memory, ThreadPool& pool) {
  std::memset(memory, 0, static_cast<size_t>(wanted.bytes));
  std::memcpy(memory, &wanted, sizeof(Form));
  const Form& form = *static_cast<const Form*>(memory);
  float* table = at<float>(form, form.table);
  for (uint32_t code = 0; code < elements.type.codes(); ++code)
    table[code] = (form.whole ? static_cast<float>(code) : elements.type.decode(code)) - form.constant;
  if (form.bias) std::copy(bias, bias + form.n, at<float>(form, form.bias));
  if (form.permutation) {
    const int32_t* order = elements.permutation->data<int32_t>();
    for (int64_t j = 0; j < form.k; ++j)
      require(order[j] >= 0 && order[j] < form.k, "the permutation names a column that x does not have");
    std::copy(order, order + form.k, at<int32_t>(form, form.permutation));
  }
  pool.parallel_for(form.panels(), 1, [&](int64_t begin, int64_t end, int) {
    std::vector<uint8_t> codes(static_cast<size_t>(form.k));
    for (int64_t panel = begin; panel < end; ++panel) pack_panel(form, elements, panel, codes.data());
  });
}

namespace {

// Rows first .. of x times panels `panel` .. of one band.
void multiply_panels(const Form& form, const Activations& given, int64_t m, int64_t first, int64_t panel, int panels,
                     DType dtype, void* y, const float* bias) {
  const Kernels& kernels = active_kernels();
  alignas(64) float sums[kBand * kMostRows * kPanel];
  Panel p{};
  p.words = at<uint32_t>(form, form.words) + form.words_at(panel, 0);
  p.scales = at<float>(form, form.scales) + form.side_at(panel, 0);
  p.shifts = form.shifts ? at<float>(form, form.shifts) + form.side_at(panel, 0) : nullptr;
  p.width = static_cast<int>(form.width(panel));
  p.table = at<float>(form, form.table);
  p.x = given.x + first * form.k_padded;
  p.sums = form.shifts ? given.sums + first * form.groups : nullptr;
  p.pitch = form.k_padded, p.chunks = form.chunks(), p.groups = form.groups;
  p.group_chunks = form.group_size / kChunk;
  p.rows = static_cast<int>(std::min(kMostRows, m - first)), p.panels = panels;
  p.constant = form.constant;
  p.y = sums;
  (form.whole ? kernels.whole : kernels.multiply)[form.bits - 1](p);
  const int64_t n0 = panel * kPanel, last = std::min(n0 + panels * kPanel, form.n);
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t n = n0; n < last; n += kPanel) {
      const float* sum = sums + ((n - n0) / kPanel * p.rows + r) * kPanel;
      put_row(y, dtype, (first + r) * form.n + n, sum, bias ? bias + n : nullptr, std::min(kPanel, last - n));
    }
}

}  // namespace

void multiply(const Form& form, int64_t m, DType dtype, const void* x, void* y, ThreadPool& pool, const float* bias) {
  if (m == 0) return;
  if (form.bias) bias = at<float>(form, form.bias);
  const Activations given = activations(form, m, dtype, x, pool);
  // Rows outermost: a worker's neighbours read the same x, and the weights of a few panels stay in its cache. As many
  // panels as kernels take at once, unless threads would have too few pieces to share evenly. 1, 2 and 4 divide a band.
  const int64_t most = active_kernels().panels, share = form.panels() / pool.size() / (m == 1 ? 1 : 4);
  const int64_t wide = share >= most ? most : share >= 2 ? std::min<int64_t>(most, 2) : 1;
  const int64_t items = (form.panels() + wide - 1) / wide, parts = (m + kMostRows - 1) / kMostRows;
  const int64_t work = std::max<int64_t>(1, std::min(m, kMostRows) * wide * kPanel * form.k);
  pool.parallel_for(
      items * parts, std::max<int64_t>(1, (int64_t{1} << 18) / work), [&](int64_t begin, int64_t end, int) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t panel = item % items * wide, panels = std::min(wide, form.panels() - panel);
          multiply_panels(form, given, m, item / items * kMostRows, panel, static_cast<int>(panels), dtype, y, bias);
        }
      });
}

void rows(const Form& form, int64_t count, const int64_t* rows, DType dtype, void* y, ThreadPool& pool) {
  for (int64_t i = 0; i < count; ++i)
    require(rows[i] >= 0 && rows[i] < form.n,
            "row " + std::to_string(rows[i]) + " is asked for, and there are " + std::to_string(form.n));
  const int32_t* order = at<int32_t>(form, form.permutation);
  const float* table = at<float>(form, form.table);
  pool.for_each(count, std::max<int64_t>(1, 16384 / form.k), [&](int64_t i) {
    const int64_t panel = rows[i] / kPanel, lane = rows[i] % kPanel;
    for (int64_t k = 0; k < form.k; ++k) {
      const int64_t bit = k % kChunk * form.bits, place = bit % 32, g = group_of(form, k);
      const uint32_t* word =
          at<uint32_t>(form, form.words) + form.words_at(panel, k / kChunk * form.bits + bit / 32) + lane;
      uint32_t code = *word >> place;
      if (place + form.bits > 32) code |= word[form.width(panel) * kPanel] << (32 - place);
      const float value = table[code & ((1u << form.bits) - 1)],
                  scale = at<float>(form, form.scales)[form.side_at(panel, g) + lane];
      const float shift = form.shifts ? at<float>(form, form.shifts)[form.side_at(panel, g) + lane] : 0.0f;
      put(y, dtype, i * form.k + (order ? order[k] : k), std::fma(value, scale, shift));
    }
  });
}

}  // namespace lpq::packed
