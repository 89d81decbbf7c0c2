// Where the elements of a packed cache of keys and values lie: the modes of a pack layout (src/layout/memory.ts), one
// table for the rows of a page (tokens, or groups of them) and one for its columns (dims of all heads, or groups of
// them).
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ops/arguments.h"

namespace lpq::kv {

// One part of a page: codes, scales or zeros. Element (row, column) begins at bit base + row[r] + column[c] of the
// page.
class Place {
 public:
  // Reads NAMEBits, NAMEDims, NAMESizes, NAMEStrides and NAMEBase; `pages` U8 [pages, bytes]. Throws
  // LPQ_NATIVE_ARGUMENT for elements beyond a page.
  Place(Arguments& a, const std::string& name, const Tensor& pages)
      : bits_(static_cast<int>(a.integer(name + "Bits"))), base_(a.integer(name + "Base")) {
    require_dtype(pages, name.c_str(), {DType::u8});
    require(pages.rank() == 2, name + " is not [pages, bytes]");
    bytes_ = reinterpret_cast<const uint8_t*>(pages.raw());
    count_ = pages.dim(0), page_bytes_ = pages.dim(1);
    require(bits_ == 2 || bits_ == 4 || bits_ == 8 || bits_ == 16, name + "Bits is " + std::to_string(bits_));
    const std::vector<double>&dims = a.list(name + "Dims"), &sizes = a.list(name + "Sizes"),
          &strides = a.list(name + "Strides");
    require(dims.size() == sizes.size() && sizes.size() == strides.size(),
            "the modes of " + name + " have no equal lists");
    const int64_t bits = 8 * page_bytes_;
    std::vector<int64_t> offsets[2] = {{0}, {0}};
    for (size_t i = 0; i < dims.size(); ++i) {  // the most significant mode comes first
      require(dims[i] == 0 || dims[i] == 1, "a mode of " + name + " is of no dimension");
      const int64_t size = static_cast<int64_t>(sizes[i]), stride = static_cast<int64_t>(strides[i]);
      // No offset, and no number of them, is above a page's bits: checked before lists grow.
      require(size > 0 && size <= bits && stride <= bits &&
                  static_cast<int64_t>(offsets[static_cast<int>(dims[i])].size()) <= bits / size,
              "a mode of " + name + " is larger than its page");
      require(stride >= 0 && stride % (bits_ < 8 ? bits_ : 8) == 0, "a mode of " + name + " is wrong");
      std::vector<int64_t>& list = offsets[static_cast<int>(dims[i])];
      std::vector<int64_t> next;
      for (const int64_t offset : list)
        for (int64_t digit = 0; digit < size; ++digit) next.push_back(offset + digit * stride);
      list = std::move(next);
    }
    row_ = std::move(offsets[0]), column_ = std::move(offsets[1]);
    int64_t last[2] = {0, 0};
    for (const int64_t offset : row_) last[0] = std::max(last[0], offset);
    for (const int64_t offset : column_) last[1] = std::max(last[1], offset);
    require(
        base_ >= 0 && base_ <= bits && last[0] <= bits && last[1] <= bits && base_ + last[0] + last[1] + bits_ <= bits,
        name + " reaches beyond its page");
  }
  int64_t pages() const { return count_; }
  int64_t rows() const { return static_cast<int64_t>(row_.size()); }
  int64_t columns() const { return static_cast<int64_t>(column_.size()); }
  int bits() const { return bits_; }
  uint32_t at(int64_t page, int64_t row, int64_t column) const {
    const int64_t bit = base_ + row_[static_cast<size_t>(row)] + column_[static_cast<size_t>(column)];
    const uint8_t* byte = bytes_ + page * page_bytes_ + (bit >> 3);
    if (bits_ == 16) return static_cast<uint32_t>(byte[0] | byte[1] << 8);
    return static_cast<uint32_t>(*byte >> (bit & 7)) & ((1u << bits_) - 1);
  }

 private:
  int bits_;
  int64_t base_, count_ = 0, page_bytes_ = 0;
  const uint8_t* bytes_ = nullptr;
  std::vector<int64_t> row_, column_;
};

// Keys, or values, of a cache.
struct Side {
  Place codes, scales, zeros;
  int64_t page_tokens, columns, group_tokens, group_dims;
  // The next three inputs hold codes, scales and zeros (one tensor may hold them all); parameters NAMECodes...,
  // NAMEScales..., NAMEZeros...
  Side(Arguments& a, const std::string& name)
      : codes(a, name + "Codes", a.input((name + ".codes").c_str())),
        scales(a, name + "Scales", a.input((name + ".scales").c_str())),
        zeros(a, name + "Zeros", a.input((name + ".zeros").c_str())),
        page_tokens(codes.rows()),
        columns(codes.columns()) {
    require(codes.bits() <= 8 && scales.bits() == 16 && zeros.bits() == 16,
            name + ": codes of up to 8 bits, scales and zeros of 16");
    require(scales.rows() == zeros.rows() && scales.columns() == zeros.columns() && page_tokens % scales.rows() == 0 &&
                columns % scales.columns() == 0,
            name + ": scales do not divide the page");
    require(codes.pages() == scales.pages() && codes.pages() == zeros.pages(),
            name + ": tensors of unequal numbers of pages");
    group_tokens = page_tokens / scales.rows(), group_dims = columns / scales.columns();
  }
};

}  // namespace lpq::kv
