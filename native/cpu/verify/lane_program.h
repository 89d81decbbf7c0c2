// A program of one warp: how 32 lanes read a tile of packed weights, make registers of fp16 pairs from it, and feed the
// fragments of a tensor core. share/verify/*.lanes are such programs; docs/internals/verifier.md describes them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lpq/exec.h"

namespace lpq::verify {

enum class Function : uint32_t {
  // Loads: (tensor, element).
  word,
  half,
  byte,
  scale,
  // Of whole numbers, and of pairs of fp16.
  min,
  number,
  pair,
  numbers2,
  sub2,
  mul2,
  fma2,
  // Statements.
  mma_a,
  mma_b,
  mma_sp,
  mma_884,
  scale_a,
  scale_b
};
constexpr Function kLastLoad = Function::scale, kFirstStatement = Function::mma_a;

struct Expression {
  enum Kind { constant, variable, element, operation, call } kind = constant;
  uint32_t value = 0;  // the number, the slot (of an array's first element), the operator, the function
  int line = 0;
  std::vector<Expression> inside{};  // index, operands, arguments
};

enum class Operator : uint32_t { bit_or, bit_xor, bit_and, equal, less, left, right, add, sub, mul, div, mod };

struct Statement {
  enum Kind { assignment, loop, choice, call } kind = call;
  Expression target{};  // what is assigned, or counts
  Expression value{};   // what it gets, how often the loop runs, the condition, the call
  std::vector<Statement> body{}, otherwise{};
};

constexpr uint32_t kArray = 32;  // elements of every array

class LaneProgram {
 public:
  // `tensors`: names of what may be read, with spaces between them. Throws LPQ_NATIVE_ARGUMENT with the line.
  LaneProgram(const std::string& text, const std::string& tensors);

  std::vector<Statement> header{}, tile{}, finish{};  // at the beginning, for each tile along k, after the last one
  uint32_t slots = 0;
  // The slot of a variable that is given a value from outside.
  uint32_t given(const std::string& name);

 private:
  friend class LaneParser;
  struct Name {
    std::string text;
    bool array;
    uint32_t slot;
  };
  const Name& named(const std::string& text, bool array, int line);
  std::vector<Name> names_{};
  std::vector<std::string> tensors_{};
};

[[noreturn]] void refuse_line(int line, const std::string& what);

}  // namespace lpq::verify
