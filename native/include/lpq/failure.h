// What native code throws: a code and facts. TypeScript writes the sentence the user reads.
#pragma once
#include <stdexcept>
#include <string>

namespace lpq {

struct Failure : std::runtime_error {
  std::string code;  // LPQ_...
  Failure(std::string code_, const std::string& detail) : std::runtime_error(detail), code(std::move(code_)) {}
};

// A failure found after the operation that caused it had returned.
struct OpFailure : Failure {
  std::string op;
  OpFailure(std::string code_, const std::string& detail, std::string op_)
      : Failure(std::move(code_), detail), op(std::move(op_)) {}
};

}  // namespace lpq
