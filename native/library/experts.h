// The experts of a projection among an artifact's modules.
#pragma once
#include <string>
#include <vector>

#include "library/artifact.h"
#include "ops/gemm_packed.h"

namespace lpq::library {

struct ExpertModules {
  int64_t experts, parts;
  bool gated;                          // blocks of both parts stand by turns
  std::vector<const Module*> modules;  // [experts, parts]

  const Module& at(int64_t expert, int64_t part) const { return *modules[static_cast<size_t>(expert * parts + part)]; }
  const Module& first() const { return *modules[0]; }
  // Rows of W from one part to the next, and of all parts.
  int64_t rows_a_part() const { return ops::up_to(first().n, ops::GemmPacked::kBlockN); }
  int64_t rows() const { return gated ? parts * rows_a_part() : (parts - 1) * rows_a_part() + first().n; }
};

// Throws Failure("LPQ_NATIVE_ARGUMENT"), ("LPQ_NOT_FOUND"), and ("LPQ_UNSUPPORTED") where modules are of several sizes.
ExpertModules expert_modules(const lpq_artifact* artifact, const lpq_experts_desc* desc);

// What two modules do not have in common, for Failure("LPQ_UNSUPPORTED").
[[noreturn]] void differ(const Module& a, const Module& b, const std::string& what);

}  // namespace lpq::library
