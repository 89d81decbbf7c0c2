// An artifact that `lpq pack` wrote: lpq.json (formats/artifact/spec.md) and its safetensors files.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "library/lpq_kernels.h"
#include "library/safetensors.h"

namespace lpq::library {

struct Module {
  std::string name, layout_name, type;
  int layout = LPQ_LAYOUT_OTHER;
  int64_t n = 0, k = 0, n_padded = 0, k_padded = 0;
  int group = 0;
  double zero = 0;            // the constant, where there are none of groups
  bool stored_zeros = false;  // of groups
  bool experts = false;
  std::string why_other;                     // why no kernel takes it
  std::vector<const StoredTensor*> tensors;  // in order of their names
  const StoredTensor* bias = nullptr;
  // The tensor MODULE.suffix; null where there is none.
  const StoredTensor* own(const char* suffix) const;
};

// Bytes on a device from one tensor to the next.
constexpr size_t kPlace = 256;

}  // namespace lpq::library

struct lpq_artifact {
  std::vector<lpq::library::Mapping> files;
  std::map<std::string, lpq::library::StoredTensor, std::less<>> tensors;
  std::map<std::string, lpq::library::Module, std::less<>> modules;
  std::vector<const lpq::library::StoredTensor*> tensor_list;
  std::vector<const lpq::library::Module*> module_list;
};
