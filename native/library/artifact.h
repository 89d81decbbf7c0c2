// An artifact that `lpq pack` wrote: lpq.json (formats/artifact/spec.md) and its safetensors files.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "library/lpq_kernels.h"
#include "library/safetensors.h"
#include "lpq/exec.h"

namespace lpq::library {

struct Module {
  std::string name, layout_name, type;
  int layout = LPQ_LAYOUT_OTHER;      // that a kernel takes
  int cpu_layout = LPQ_LAYOUT_OTHER;  // that the CPU's product takes
  int64_t n = 0, k = 0, n_padded = 0, k_padded = 0;
  int group = 0;
  double zero = 0;            // the constant, where there are none of groups
  bool stored_zeros = false;  // of groups
  bool experts = false;
  std::string why_other;                     // why no kernel takes it
  std::vector<const StoredTensor*> tensors;  // in order of their names
  const StoredTensor* bias = nullptr;
  // Of what ranks of tensor parallelism share: their parts in order, side by side along outputs, or along inputs.
  std::vector<Module> ranks;
  bool along_inputs = false;
  // The tensor MODULE.suffix; null where there is none.
  const StoredTensor* own(const char* suffix) const;
};

// The tensors of a module by what they are; null where there is none.
struct Parts {
  const StoredTensor *weights = nullptr, *metadata = nullptr, *scales = nullptr, *zeros = nullptr,
                     *permutation = nullptr;
};
Parts parts_of(const Module& m);

// The weight that a module is, its tensors where `at` says (null of null); without what comet has besides.
lpq_weight_desc describe(const Module& m, int activations, const Parts& parts,
                         const std::function<const void*(const StoredTensor*)>& at);

// Throws Failure("LPQ_ARTIFACT") unless the files hold as many bytes as product_call's tensors have.
void require_shapes(const Parts& parts, const Call& call);

// A module's bias in the type that its kernel adds: f32 for comet, else `activations`. Throws Failure("LPQ_ARTIFACT").
std::vector<std::byte> module_bias(const Module& m, int activations);

// Bytes on a device from one tensor to the next, of one that has so many.
constexpr size_t kPlace = 256;
constexpr size_t placed(size_t bytes) { return (bytes + kPlace - 1) / kPlace * kPlace; }

}  // namespace lpq::library

struct lpq_artifact {
  std::vector<lpq::library::Mapping> files;
  std::map<std::string, lpq::library::StoredTensor, std::less<>> tensors;
  std::map<std::string, lpq::library::Module, std::less<>> modules;
  std::vector<const lpq::library::StoredTensor*> tensor_list;
  std::vector<const lpq::library::Module*> module_list;
};

namespace lpq::library {

// Throws Failure("LPQ_NOT_FOUND").
const Module& module_called(const lpq_artifact* artifact, const char* name);

}  // namespace lpq::library
