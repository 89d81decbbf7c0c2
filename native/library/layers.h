// W4Ax, which is two operations, for tokens become codes in the workspace first.
#pragma once
#include <set>
#include <string>

#include "cuda/gemm/chooser.h"
#include "cuda/registry.h"
#include "library/lpq_kernels.h"

namespace lpq::library {

bool is_layer(int layout);

// One of them, on a device. In its calls the places of x and y, and of the codes between, are empty.
struct Layer {
  int64_t n = 0, k = 0, eights = 0;  // eights: blocks of 128 columns whose activations have 8 bits (W4Ax)
  DType x = DType::f16;
  int ordinal = 0;
  const void* owner = nullptr;
  cuda::CudaOpFn quantize = nullptr, multiply = nullptr;
  Call codes;    // quantize_comet: x, bits, clip, blocks, [permutation] -> x8, x4, scales
  Call product;  // gemm_comet: x8, x4, scales, blocks, weights, scales, [bias] -> y
};

// Tensors without an address lie nowhere (lpq_explain). Throws Failure("LPQ_NATIVE_ARGUMENT") for what no kernel takes.
Layer make_layer(const lpq_weight_desc& d, int ordinal, const void* owner);

// y [m, N] of x [m, K] on `exec`, whose workspace it may take.
void run_layer(const Layer& layer, int64_t m, const void* x, void* y, cuda::CudaExec& exec);

// What it launches; as choose_kernel. Throws Failure("LPQ_UNSUPPORTED") where the device has no kernel.
cuda::Choice choose_layer(const Layer& layer, int64_t m, const cuda::DeviceFacts& device, cuda::Kernels* kernels,
                          const std::set<std::string>* names = nullptr);

}  // namespace lpq::library
