// How an operation reads its call: tensors in the order of its signature, parameters by name, each checked as it is
// read. A refusal names the tensor or the parameter. A parse() reads everything and ends with done(), which refuses
// what was given and not read, so that nothing has run by then.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "lpq/checks.h"
#include "lpq/quant_type.h"

namespace lpq::ops {

using Types = std::initializer_list<DType>;
using Dims = std::vector<int64_t>;  // -1 takes any size

// What weights may be, and activations on CUDA.
inline constexpr Types kFloats = {DType::f32, DType::f16, DType::bf16};

class Arguments {
 public:
  Arguments(const Call& call, const char* op) : call_(call), op_(op), read_(call.params.size()) {}

  // The next input, the next output. Throws Failure("LPQ_NATIVE_ARGUMENT").
  const Tensor& input(const char* name) {
    if (inputs_ == call_.in.size()) refuse("the input ", name, " is missing");
    return call_.in[inputs_++];
  }
  const Tensor& output(const char* name) {
    if (outputs_ == call_.out.size()) refuse("the output ", name, " is missing");
    const Tensor& tensor = call_.out[outputs_++];
    if (!tensor.writable) refuse("the output ", name, " is a read-only view of a file");
    return tensor;
  }
  const Tensor& input(const char* name, const Dims& shape) { return checked(input(name), name, shape); }
  const Tensor& output(const char* name, const Dims& shape) { return checked(output(name), name, shape); }
  const Tensor& input(const char* name, Types types, const Dims& shape) {
    return checked(input(name), name, types, shape);
  }
  const Tensor& output(const char* name, Types types, const Dims& shape) {
    return checked(output(name), name, types, shape);
  }
  // The next input where `given`, else null.
  const Tensor* input_if(bool given, const char* name, Types types, const Dims& shape) {
    return given ? &input(name, types, shape) : nullptr;
  }
  // Inputs not read yet.
  size_t left() const { return call_.in.size() - inputs_; }

  // Throw Failure("LPQ_NATIVE_PARAM") where the parameter is missing without a fallback, or of another kind.
  bool has(const std::string& name) { return read(name), call_.params.has(name); }
  double number(const std::string& name) { return read(name), call_.params.number(name); }
  double number(const std::string& name, double fallback) { return has(name) ? number(name) : fallback; }
  float real(const std::string& name) { return static_cast<float>(number(name)); }
  float real(const std::string& name, double fallback) { return static_cast<float>(number(name, fallback)); }
  int64_t integer(const std::string& name) {
    const double value = number(name);
    if (!(std::fabs(value) <= 0x1p53 && value == std::trunc(value)))
      throw Failure("LPQ_NATIVE_PARAM", "'" + name + "' is " + std::to_string(value) + ", not a whole number");
    return static_cast<int64_t>(value);
  }
  int64_t integer(const std::string& name, int64_t fallback) { return has(name) ? integer(name) : fallback; }
  bool flag(const std::string& name, bool fallback = false) { return number(name, fallback) != 0; }
  const std::string& text(const std::string& name) { return read(name), call_.params.text(name); }
  const std::vector<double>& list(const std::string& name) { return read(name), call_.params.list(name); }
  // The place of a text among `names`. Throws Failure("LPQ_NATIVE_ARGUMENT").
  int one_of(const std::string& name, std::initializer_list<const char*> names) {
    const std::string& given = text(name);
    std::string all;
    int place = 0;
    for (const char* each : names) {
      if (given == each) return place;
      ++place;
      all += (place == 1 ? "" : place == static_cast<int>(names.size()) ? " or " : ", ") + std::string(each);
    }
    throw Failure("LPQ_NATIVE_ARGUMENT", name + " is '" + given + "', not " + all);
  }
  int one_of(const std::string& name, std::initializer_list<const char*> names, int fallback) {
    return has(name) ? one_of(name, names) : fallback;
  }
  // For a reader of these names.
  const Params& params(std::initializer_list<const char*> names) {
    for (const char* name : names) read(name);
    return call_.params;
  }
  // What typeParams() of src/core/quant-type.ts says.
  QuantType quant_type() {
    return QuantType::from(params({"kind", "bits", "signed", "exponent", "mantissa", "bias", "special"}));
  }
  // `width` columns of a matrix: from the one that parameter `key` names on, or all that there are where it is not
  // given.
  Columns columns(const std::string& key, const Tensor& matrix, const char* name, int64_t width) {
    const int64_t first = integer(key, -1);
    require_shape(matrix, name, {-1, first == -1 ? width : -1});
    if (first == -1) return {0, width};
    require(first >= 0 && first + width <= matrix.dim(1), std::string(name) + " has " + std::to_string(matrix.dim(1)) +
                                                              " columns, not " + std::to_string(width) +
                                                              " from column " + std::to_string(first) + " on");
    return {first, matrix.dim(1)};
  }

  // Throws Failure("LPQ_NATIVE_PARAM") for a parameter that was not read, Failure("LPQ_NATIVE_ARGUMENT") for a tensor.
  void done() const {
    for (size_t i = 0; i < read_.size(); ++i)
      if (!read_[i])
        throw Failure("LPQ_NATIVE_PARAM",
                      "no parameter of " + std::string(op_) + " is called '" + call_.params.name(i) + "'");
    count("input", inputs_, call_.in.size());
    count("output", outputs_, call_.out.size());
  }

 private:
  static const Tensor& checked(const Tensor& tensor, const char* name, const Dims& shape) {
    require_shape(tensor, name, shape);
    return tensor;
  }
  static const Tensor& checked(const Tensor& tensor, const char* name, Types types, const Dims& shape) {
    require_dtype(tensor, name, types);
    return checked(tensor, name, shape);
  }
  void read(const std::string& name) {
    if (const int i = call_.params.place(name); i >= 0) read_[static_cast<size_t>(i)] = 1;
  }
  void count(const char* what, size_t takes, size_t given) const {
    if (takes == given) return;
    const std::string asks = std::to_string(takes) + " " + what + (takes == 1 ? "" : "s");
    refuse(op_, " takes ", asks + ", not " + std::to_string(given));
  }
  [[noreturn]] static void refuse(const std::string& subject, const char* verb, const std::string& object) {
    throw Failure("LPQ_NATIVE_ARGUMENT", subject + verb + object);
  }
  const Call& call_;
  const char* op_;
  size_t inputs_ = 0, outputs_ = 0;
  std::vector<char> read_;  // by place among the parameters
};

}  // namespace lpq::ops
