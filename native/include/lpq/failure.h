// What native code throws: a code and facts. TypeScript writes the sentence the user reads.
#pragma once
#include <stdexcept>
#include <string>

namespace lpq {

struct Failure : std::runtime_error {
  std::string code;  // LPQ_...
  Failure(std::string code_, const std::string& detail) : std::runtime_error(detail), code(std::move(code_)) {}
};

}  // namespace lpq
