#include "cpu/verify/warp.h"

#include <cmath>
#include <cstring>

#include "cpu/verify/half.h"

namespace lpq::verify {
namespace {

template <class F>
Lanes each(const Lanes& a, const Lanes& b, const F& f) {
  Lanes out;
  out.same = a.same && b.same;
  for (int i = 0; i < (out.same ? 1 : kLanes); ++i) out.lane[static_cast<size_t>(i)] = f(a.at(i), b.at(i));
  return out;
}

// Both fp16 numbers of each pair.
template <class F>
Lanes pairs(const Lanes& a, const Lanes& b, const F& f) {
  return each(a, b, [&](uint32_t x, uint32_t y) {
    const uint32_t low = f(static_cast<uint16_t>(x), static_cast<uint16_t>(y));
    return low | uint32_t{f(static_cast<uint16_t>(x >> 16), static_cast<uint16_t>(y >> 16))} << 16;
  });
}

Lanes operate(Operator op, const Lanes& left, const Lanes& right, int line) {
  const auto all = [&](const auto& f) { return each(left, right, f); };
  switch (op) {
    case Operator::bit_or: return all([](uint32_t a, uint32_t b) { return a | b; });
    case Operator::bit_xor: return all([](uint32_t a, uint32_t b) { return a ^ b; });
    case Operator::bit_and: return all([](uint32_t a, uint32_t b) { return a & b; });
    case Operator::equal: return all([](uint32_t a, uint32_t b) { return uint32_t{a == b}; });
    case Operator::less: return all([](uint32_t a, uint32_t b) { return uint32_t{a < b}; });
    case Operator::left: return all([](uint32_t a, uint32_t b) { return b > 31 ? 0 : a << b; });
    case Operator::right: return all([](uint32_t a, uint32_t b) { return b > 31 ? 0 : a >> b; });
    case Operator::add: return all([](uint32_t a, uint32_t b) { return a + b; });
    case Operator::sub: return all([](uint32_t a, uint32_t b) { return a - b; });
    case Operator::mul: return all([](uint32_t a, uint32_t b) { return a * b; });
    case Operator::div:
    case Operator::mod: break;
  }
  return all([&](uint32_t a, uint32_t b) {
    if (b == 0) refuse_line(line, "a division by 0");
    return op == Operator::div ? a / b : a % b;
  });
}

// The PTX ISA, "Matrix Fragments for mma.m8n8k4": threads 4p .. 4p + 3 and 4p + 16 .. 4p + 19 multiply by themselves,
// and each holds one column of B, four k. Columns of the four products are counted one after another.
int column_884(int lane) { return 8 * (lane % 16 / 4) + 4 * (lane / 16) + lane % 4; }

}  // namespace

void Warp::run(const std::vector<Statement>& statements, int64_t step) {
  step_ = step;
  for (const Statement& each : statements) execute(each);
}

void Warp::execute(const Statement& s) {
  switch (s.kind) {
    case Statement::assignment: slots[place(s.target)] = value(s.value); return;
    case Statement::call: call(s.value); return;
    case Statement::choice: run(uniform(s.value) ? s.body : s.otherwise, step_); return;
    case Statement::loop: break;
  }
  const uint32_t times = uniform(s.value);
  if (times > kArray) refuse_line(s.value.line, "a loop of " + std::to_string(times));
  for (uint32_t i = 0; i < times; ++i) slots[place(s.target)] = Lanes{{i}}, run(s.body, step_);
}

uint32_t Warp::place(const Expression& e) const {
  if (e.kind == Expression::variable) return e.value;
  const uint32_t index = uniform(e.inside[0]);
  if (index >= kArray) refuse_line(e.line, "an array has no element " + std::to_string(index));
  return e.value + index;
}

uint32_t Warp::uniform(const Expression& e) const {
  const Lanes all = value(e);
  if (!all.same) refuse_line(e.line, "lanes differ in what must be one number");
  return all.lane[0];
}

Lanes Warp::load(const Expression& e) const {
  if (e.inside[0].value >= data_.tensors.size()) refuse_line(e.line, "the module has no such tensor");
  const Tensor& tensor = *data_.tensors[e.inside[0].value];
  const auto is = static_cast<Function>(e.value);
  const size_t bytes = is == Function::word   ? 4
                       : is == Function::half ? 2
                       : is == Function::byte ? 1
                                              : dtype_bytes(tensor.dtype);
  const Lanes index = value(e.inside[1]);
  return each(index, index, [&](uint32_t i, uint32_t) {
    if ((i + size_t{1}) * bytes > tensor.bytes())
      refuse_line(e.line, "element " + std::to_string(i) + " is beyond the end");
    uint32_t raw = 0;
    std::memcpy(&raw, tensor.raw() + i * bytes, bytes);
    if (is != Function::scale || tensor.dtype == DType::f16) return raw;
    // ue8m0 -> bf16 -> half
    const float number =
        bytes == 1 ? std::ldexp(1.0f, static_cast<int>(raw) - 127) : bfloat_value(static_cast<uint16_t>(raw));
    return uint32_t{half_from_float(number)};
  });
}

Lanes Warp::value(const Expression& e) const {
  if (e.kind == Expression::variable || e.kind == Expression::element) {
    const Lanes& held = slots[place(e)];
    if (!held.written) refuse_line(e.line, "it reads what was given no value");
    return held;
  }
  Lanes first;
  first.lane[0] = e.value;
  if (e.kind == Expression::constant) return first;
  const auto is = static_cast<Function>(e.value);
  if (e.kind == Expression::call && is <= kLastLoad) return load(e);
  if (e.kind == Expression::call && is >= kFirstStatement) refuse_line(e.line, "a statement has no value");
  first = value(e.inside[0]);
  const Lanes second = e.inside.size() > 1 ? value(e.inside[1]) : first;
  if (e.kind == Expression::operation) return operate(static_cast<Operator>(e.value), first, second, e.line);
  const auto number = [&](uint32_t code) {
    if (code >= data_.numbers.size()) refuse_line(e.line, "there is no code " + std::to_string(code));
    return data_.numbers[code];
  };
  switch (is) {
    case Function::min: return each(first, second, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
    case Function::pair: return each(first, second, [](uint32_t a, uint32_t b) { return (a & 0xffff) | b << 16; });
    case Function::number:
      return each(first, first, [](uint32_t a, uint32_t) { return half_from_float(static_cast<float>(a)); });
    case Function::numbers2: return pairs(first, first, [&](uint16_t a, uint16_t) { return number(a); });
    case Function::sub2: return pairs(first, second, half_sub);
    case Function::mul2: return pairs(first, second, half_mul);
    default: break;
  }
  const Lanes third = value(e.inside[2]);  // fma2
  Lanes out;
  out.same = first.same && second.same && third.same;
  for (int i = 0; i < (out.same ? 1 : kLanes); ++i) {
    const uint32_t a = first.at(i), b = second.at(i), c = third.at(i);
    const uint32_t high = half_fma(uint16_t(a >> 16), uint16_t(b >> 16), uint16_t(c >> 16));
    out.lane[static_cast<size_t>(i)] = half_fma(uint16_t(a), uint16_t(b), uint16_t(c)) | high << 16;
  }
  return out;
}

void Warp::call(const Expression& e) {
  const auto is = static_cast<Function>(e.value);
  if (is >= Function::scale_a) scale(e, is == Function::scale_a);
  else multiply(e, is);
}

uint32_t Warp::feature(const Expression& e, const Lanes& n, int i) const {
  const uint32_t feature = n.at(i);
  if (feature >= data_.tile_n) refuse_line(e.line, "feature " + std::to_string(feature) + " is outside of the tile");
  return feature;
}

// Scales as the accumulators have their sums: two registers of a lane are of one feature (a), or of two (b).
void Warp::scale(const Expression& e, bool a) {
  const Lanes n = value(e.inside[0]), first = value(e.inside[1]), second = value(e.inside[2]);
  scales.resize(sums.size(), 0x7e00);
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 4; ++i) {
      const auto [row, col] = fragment_c(lane, i);
      const uint32_t of = feature(e, n, a ? row : col);
      const int token = a ? col : row;
      if (token >= data_.tokens) refuse_line(e.line, "the instruction has another number of tokens");
      scales[of * static_cast<size_t>(data_.tokens) + static_cast<size_t>(token)] =
          static_cast<uint16_t>(((a ? i / 2 : i % 2) ? second : first).at(lane));
    }
}

// A fragment's registers hold two elements each, the lower half first.
void Warp::multiply(const Expression& e, Function is) {
  const bool b = is == Function::mma_b, sparse = is == Function::mma_sp, narrow = is == Function::mma_884;
  if (data_.tokens != (b ? 16 : 8)) refuse_line(e.line, "the instruction has another number of tokens");
  const int features = b ? 8 : narrow ? 32 : 16, depth = narrow ? 4 : 16;
  std::array<uint16_t, 32 * 16> weight;
  std::array<uint8_t, 32 * 16> along;  // where each lies along k
  const size_t first = sparse ? 4 : 2;
  for (size_t r = 0; first + r < e.inside.size(); ++r) {
    const Lanes held = value(e.inside[first + r]);
    for (int lane = 0; lane < kLanes; ++lane)
      for (int half = 0; half < 2; ++half) {
        const int i = 2 * static_cast<int>(r) + half;
        const Cell cell = b ? fragment_b(lane, i) : fragment_a(lane, i);
        const int row = narrow ? column_884(lane) : b ? cell.col : cell.row;
        const int k = narrow ? i : b ? cell.row : cell.col;
        const auto at = static_cast<size_t>(row * depth + k);
        weight[at] = static_cast<uint16_t>(held.at(lane) >> 16 * half);
        along[at] = static_cast<uint8_t>(k);
      }
  }
  if (sparse) {
    // Metadata of mma.sp.m16n8k32: threads 4 g + 2 s and 4 g + 2 s + 1 give that of rows g (low half) and g + 8 (high
    // half), of the first and the last 16 of k; s is the selector. Of each four of k the two places that are kept.
    const Lanes metadata = value(e.inside[2]);
    const uint32_t selector = uniform(e.inside[3]);
    if (selector > 1) refuse_line(e.line, "the selector is 0 or 1");
    for (int row = 0; row < 16; ++row)
      for (int c = 0; c < 16; ++c) {
        const int quad = c / 2, thread = 4 * (row % 8) + 2 * static_cast<int>(selector) + quad / 4;
        const uint32_t place = metadata.at(thread) >> (16 * (row / 8) + 4 * (quad % 4) + 2 * (c % 2)) & 3;
        along[static_cast<size_t>(16 * row + c)] = static_cast<uint8_t>(4 * quad + static_cast<int>(place));
      }
  }
  const Lanes n = value(e.inside[0]);
  const int64_t k = uniform(e.inside[1]);
  const auto tokens = static_cast<size_t>(data_.tokens);
  for (int row = 0; row < features; ++row) {
    const uint32_t of = feature(e, n, row);
    float* __restrict into = &sums[of * tokens];
    for (int c = 0; c < depth; ++c) {
      const auto at = static_cast<size_t>(row * depth + c);
      if (k + along[at] >= data_.tile_k) refuse_line(e.line, "k is outside of the tile");
      see_(of, k + along[at], weight[at]);
      const float w = half_value(weight[at]);
      const float* x = data_.activations + static_cast<size_t>(step_ * data_.tile_k + k + along[at]) * tokens;
      for (size_t t = 0; t < tokens; ++t) into[t] = into[t] + x[t] * w;
    }
  }
}

}  // namespace lpq::verify
