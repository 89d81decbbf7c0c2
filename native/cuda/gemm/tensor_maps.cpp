#include "cuda/gemm/tensor_maps.h"

#include <dlfcn.h>

#include "cuda/driver.h"

namespace lpq::cuda {
namespace {

using EncodeTiled = CUresult (*)(TensorMap*, int type, unsigned rank, void* address, const uint64_t* dims,
                                 const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                                 int interleave, int swizzle, int l2_promotion, int fill);
// Of drivers since CUDA 12; null where it is missing.
EncodeTiled encode_tiled() {
  static const EncodeTiled found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? reinterpret_cast<EncodeTiled>(dlsym(library, "cuTensorMapEncodeTiled")) : nullptr;
  }();
  return found;
}

thread_local int to_nobody = 0;

}  // namespace

NoTensorMaps::NoTensorMaps() { ++to_nobody; }
NoTensorMaps::~NoTensorMaps() { --to_nobody; }

bool can_describe_tensors() { return to_nobody > 0 || encode_tiled() != nullptr; }

TensorMap describe_boxes(const void* address, int type, const uint64_t (&dims)[3], const uint64_t (&strides)[2],
                         const uint32_t (&box)[3], bool swizzle) {
  constexpr int kSwizzle128 = 3, kPromote128 = 2;
  TensorMap map{};
  if (to_nobody > 0) return map;
  const uint32_t ones[3] = {1, 1, 1};
  check(encode_tiled()(&map, type, 3, const_cast<void*>(address), dims, strides, box, ones, 0,
                       swizzle ? kSwizzle128 : 0, kPromote128, 0),
        "describing a tensor to TMA");
  return map;
}

}  // namespace lpq::cuda
