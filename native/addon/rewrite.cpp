// Matrices of a checkpoint on their way out of it (src/model/folded.ts), on several threads: rows and columns in
// another order, channels times powers of two.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "addon/handles.h"
#include "addon/parts.h"
#include "lpq/checks.h"

namespace lpq::addon {
namespace {

int64_t rows_of(const Tensor& t) { return t.shape.empty() ? 1 : t.dim(0); }
int64_t columns_of(const Tensor& t) { return t.shape.size() < 2 ? 1 : t.dim(1); }

// A list of `count` numbers; null where JavaScript gives undefined.
const int32_t* list_of(const Napi::Value& value, int64_t count, const char* name) {
  if (value.IsUndefined()) return nullptr;
  require(value.IsTypedArray(), std::string(name) + " is no Int32Array");
  const auto list = value.As<Napi::Int32Array>();
  require(
      list.ElementLength() == static_cast<size_t>(count),
      std::string(name) + " has " + std::to_string(list.ElementLength()) + " entries, not " + std::to_string(count));
  return list.Data();
}

const int32_t* order_of(const Napi::Value& value, int64_t count, const char* name) {
  const int32_t* order = list_of(value, count, name);
  for (int64_t i = 0; order && i < count; ++i)
    require(order[i] >= 0 && order[i] < count, std::string(name) + " leaves the matrix");
  return order;
}

// Element i of a matrix that a mapped file may hold at any byte.
template <class Number>
Number element(const std::byte* matrix, int64_t i) {
  Number value;
  std::memcpy(&value, matrix + i * static_cast<int64_t>(sizeof(Number)), sizeof(Number));
  return value;
}

template <class Word>
void permute(const Tensor& from, const Tensor& to, const int32_t* rows, const int32_t* columns, int64_t threads) {
  const int64_t count = rows_of(from), width = columns_of(from);
  const std::byte* source = from.raw();
  auto* target = reinterpret_cast<Word*>(to.raw());
  const int64_t line = width * static_cast<int64_t>(sizeof(Word));
  in_parts(count, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const std::byte* x = source + (rows ? rows[r] : r) * line;
      Word* y = target + r * width;
      if (!columns) std::memcpy(y, x, static_cast<size_t>(line));
      else
        for (int64_t c = 0; c < width; ++c) y[c] = element<Word>(x, columns[c]);
    }
  });
}

// An element times 2^power; `bad` is set where that is out of its type's range. Infinities, NaN and zeros stay.
float raised(float value, int power, bool& bad) {
  const double result = std::ldexp(static_cast<double>(value), power);
  const auto made = static_cast<float>(result);
  bad |= std::isfinite(value) && static_cast<double>(made) != result;
  return made;
}
struct Bf16 {
  uint16_t bits;
};
Bf16 raised(Bf16 value, int power, bool& bad) {
  const int bits = value.bits, exponent = bits >> 7 & 255, moved = exponent + power;
  const bool stays = (power == 0) | (exponent == 255) | ((bits & 0x7fff) == 0);
  bad |= !stays && ((exponent == 0) | (moved <= 0) | (moved >= 255));
  return Bf16{static_cast<uint16_t>(stays ? bits : (bits & 0x807f) | (moved & 255) << 7)};
}
// Half-precision results below 2^-14 are rounded to the nearest multiple of 2^-24, ties to even.
struct F16 {
  uint16_t bits;
};
F16 raised(F16 value, int power, bool& bad) {
  const int bits = value.bits, exponent = bits >> 10 & 31, fraction = bits & 1023, sign = bits & 0x8000;
  if (power == 0 || exponent == 31 || (bits & 0x7fff) == 0) return value;
  const double size = std::ldexp(exponent == 0 ? fraction : 1024 + fraction, std::max(exponent, 1) - 25 + power);
  if (size > 65504) {
    bad = true;
    return value;
  }
  int units = 0;
  if (size >= 0x1p-14) {
    const int top = std::ilogb(size);
    units = (top + 15) << 10 | static_cast<int>(std::ldexp(size, 10 - top) - 1024);
  } else {
    units = static_cast<int>(std::nearbyint(std::ldexp(size, 24)));
  }
  return F16{static_cast<uint16_t>(sign | units)};
}

// The first element that leaves its range; -1: none.
template <class Number>
int64_t raise(const Tensor& from, const Tensor& to, const int32_t* rows, const int32_t* columns, int64_t threads) {
  const int64_t count = rows_of(from), width = columns_of(from);
  const std::byte* source = from.raw();
  auto* target = reinterpret_cast<Number*>(to.raw());
  std::atomic<int64_t> first{count * width};
  in_parts(count, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      bool bad = false;
      for (int64_t c = 0; c < width; ++c)
        target[r * width + c] = raised(element<Number>(source, r * width + c), rows[r] + columns[c], bad);
      if (!bad) continue;
      int64_t at = r * width;
      for (bool here = false; !here; at += here ? 0 : 1)
        raised(element<Number>(source, at), rows[r] + columns[at - r * width], here);
      int64_t before = first;
      while (at < before && !first.compare_exchange_weak(before, at)) {
      }
      return;
    }
  });
  return first == count * width ? -1 : first.load();
}

// Two tensors of one dtype and shape, of one or two dimensions.
std::pair<const Tensor&, const Tensor&> pair_of(const Napi::CallbackInfo& info) {
  const Tensor &from = TensorHandle::unwrap(info[0]), &to = TensorHandle::unwrap(info[1]);
  require(from.dtype == to.dtype && from.shape == to.shape && from.shape.size() <= 2 && from.raw() != to.raw(),
          "the matrices differ in dtype or shape, or are one");
  return {from, to};
}

}  // namespace

// permuteMatrix(from, to, rows, columns, threads): to[i, j] = from[rows[i], columns[j]]; undefined: as they are.
Napi::Value permute_matrix_js(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    require(info.Length() == 5, "permuteMatrix() takes two tensors, two orders and a number of threads");
    const auto [from, to] = pair_of(info);
    const int32_t *rows = order_of(info[2], rows_of(from), "rows"),
                  *columns = order_of(info[3], columns_of(from), "columns");
    const int64_t threads = std::max<int64_t>(1, info[4].ToNumber().Int64Value());
    switch (from.elements() == 0 ? 0 : from.bytes() / static_cast<size_t>(from.elements())) {
      case 0: break;
      case 1: permute<uint8_t>(from, to, rows, columns, threads); break;
      case 2: permute<uint16_t>(from, to, rows, columns, threads); break;
      case 4: permute<uint32_t>(from, to, rows, columns, threads); break;
      default: permute<uint64_t>(from, to, rows, columns, threads);
    }
    return env.Undefined();
  });
}

// raiseMatrix(from, to, rows, columns, threads): to[i, j] = from[i, j] 2^(rows[i] + columns[j]) of f32, bf16 or f16.
// The place of the first element that leaves the type's range, -1 where none does.
Napi::Value raise_matrix_js(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    require(info.Length() == 5 && info[2].IsTypedArray() && info[3].IsTypedArray(),
            "raiseMatrix() takes two tensors, two lists of powers and a number of threads");
    const auto [from, to] = pair_of(info);
    require_dtype(from, "from", {DType::f32, DType::bf16, DType::f16});
    const int32_t *rows = list_of(info[2], rows_of(from), "rows"),
                  *columns = list_of(info[3], columns_of(from), "columns");
    const int64_t threads = std::max<int64_t>(1, info[4].ToNumber().Int64Value());
    int64_t bad = -1;
    if (from.dtype == DType::f32) bad = raise<float>(from, to, rows, columns, threads);
    else if (from.dtype == DType::bf16) bad = raise<Bf16>(from, to, rows, columns, threads);
    else bad = raise<F16>(from, to, rows, columns, threads);
    return Napi::Number::New(env, static_cast<double>(bad));
  });
}

}  // namespace lpq::addon
