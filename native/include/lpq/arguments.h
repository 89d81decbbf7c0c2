// How an operation reads its call: tensors in the order of its signature, parameters by name, each checked as it is
// read. A refusal names the tensor or the parameter. What an operation takes is a struct that derives from Arguments:
// its members read themselves, one after the other, and its constructor ends with done(), which refuses what was given
// and not read, so that nothing has run by then.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "lpq/checks.h"
#include "lpq/quant_type.h"

namespace lpq {

using Types = std::initializer_list<DType>;  // none: any
using Dims = std::vector<int64_t>;           // -1 takes any size

class Arguments {
 public:
  // Throws Failure("LPQ_NATIVE_PARAM") for more parameters than any operation has.
  Arguments(const Call& call, const char* op) : call_(call), op_(op) {
    if (call.params.size() > 64) throw Failure("LPQ_NATIVE_PARAM", std::string(op) + " has no more than 64 parameters");
  }

  // The next input, the next output. Throws Failure("LPQ_NATIVE_ARGUMENT").
  const Tensor& input(const char* name, Types types = {}) {
    if (inputs_ == call_.in.size()) refuse("the input ", name, " is missing");
    return typed(call_.in[inputs_++], name, types);
  }
  const Tensor& output(const char* name, Types types = {}) {
    if (outputs_ == call_.out.size()) refuse("the output ", name, " is missing");
    const Tensor& tensor = call_.out[outputs_++];
    if (!tensor.writable) refuse("the output ", name, " is a read-only view of a file");
    return typed(tensor, name, types);
  }
  const Tensor& input(const char* name, Types types, const Dims& shape) {
    return shaped(input(name, types), name, shape);
  }
  const Tensor& output(const char* name, Types types, const Dims& shape) {
    return shaped(output(name, types), name, shape);
  }
  const Tensor& input(const char* name, const Dims& shape) { return shaped(input(name), name, shape); }
  const Tensor& output(const char* name, const Dims& shape) { return shaped(output(name), name, shape); }
  // The next one where `given`, else null.
  const Tensor* input_if(bool given, const char* name, Types types, const Dims& shape) {
    return given ? &input(name, types, shape) : nullptr;
  }
  const Tensor* output_if(bool given, const char* name, Types types, const Dims& shape) {
    return given ? &output(name, types, shape) : nullptr;
  }
  // The next input where there is one more.
  const Tensor* last_input(const char* name, Types types, const Dims& shape) {
    return input_if(left() > 0, name, types, shape);
  }
  // An output that is also given as the next input.
  const Tensor& in_place(const char* name, Types types) { return input(name), output(name, types); }
  const Tensor& in_place(const char* name, Types types, const Dims& shape) {
    return shaped(in_place(name, types), name, shape);
  }
  // A matrix as wide as it is high.
  static const Tensor& square(const Tensor& matrix, const char* name) {
    require_shape(matrix, name, {-1, -1});
    return shaped(matrix, name, {matrix.dim(0), matrix.dim(0)});
  }
  // Inputs not read yet.
  size_t left() const { return call_.in.size() - inputs_; }
  size_t outputs_left() const { return call_.out.size() - outputs_; }

  // Throw Failure("LPQ_NATIVE_PARAM") where the parameter is missing without a fallback, or of another kind.
  bool has(const std::string& name) { return find(name) != nullptr; }
  double number(const std::string& name) { return value<double>(name, "number"); }
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
  // A whole number from `least` on. Throws Failure("LPQ_NATIVE_ARGUMENT") for a smaller one.
  int64_t at_least(int64_t least, const std::string& name) {
    const int64_t value = integer(name);
    require(value >= least, name + " is " + std::to_string(value));
    return value;
  }
  int64_t at_least(int64_t least, const std::string& name, int64_t fallback) {
    return has(name) ? at_least(least, name) : fallback;
  }
  bool flag(const std::string& name, bool fallback = false) { return number(name, fallback) != 0; }
  const std::string& text(const std::string& name) { return value<std::string>(name, "string"); }
  const std::vector<double>& list(const std::string& name) { return value<std::vector<double>>(name, "list"); }
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
  // What typeParams() of src/core/quant-type.ts says.
  QuantType quant_type() { return QuantType::from(*this); }
  // `width` columns of a matrix: from the one that parameter `key` names on, or all that there are where it is not
  // given.
  Columns some_columns(const std::string& key, const Tensor& matrix, const char* name, int64_t width) {
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
    for (size_t i = 0; i < call_.params.size(); ++i)
      if (!(read_ >> i & 1))
        throw Failure("LPQ_NATIVE_PARAM",
                      "no parameter of " + std::string(op_) + " is called '" + call_.params.name(i) + "'");
    count("input", inputs_, call_.in.size());
    count("output", outputs_, call_.out.size());
  }

 private:
  static const Tensor& typed(const Tensor& tensor, const char* name, Types types) {
    if (types.size() > 0) require_dtype(tensor, name, types);
    return tensor;
  }
  static const Tensor& shaped(const Tensor& tensor, const char* name, const Dims& shape) {
    require_shape(tensor, name, shape);
    return tensor;
  }
  const Params::Value* find(const std::string& name) {
    const int i = call_.params.place(name);
    if (i < 0) return nullptr;
    read_ |= uint64_t{1} << i;
    return &call_.params.value(static_cast<size_t>(i));
  }
  template <class T>
  const T& value(const std::string& name, const char* what) {
    const Params::Value* found = find(name);
    const T* value = found ? std::get_if<T>(found) : nullptr;
    if (!value) throw Failure("LPQ_NATIVE_PARAM", std::string("the ") + what + " '" + name + "' is missing");
    return *value;
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
  uint64_t read_ = 0;  // bit i: parameter i
};

}  // namespace lpq
