// What attention's launchers share: heads packed for tensor cores, tasks of 64 queries (attention.cpp).
#pragma once
#include "cuda/launch.h"
#include "ops/attention.h"

namespace lpq::cuda {

constexpr int kTaskQueries = 64;

// [T, count, width] of any activation dtype, some columns of a matrix -> [T, count, padded] of `dtype` times factor.
Scratch pack_heads(CudaExec& exec, const Tensor& from, const Columns& of, DType dtype, int64_t count, int width,
                   int padded, float factor);

// The list of lpq_attention_tasks, made on the device; starts that do not rise from 0 to `tokens` are a fault, and
// leave it empty.
class AttentionTasks {
 public:
  AttentionTasks(CudaExec& exec, const Tensor& starts, int64_t tokens);
  const void* list() const { return memory_.as<int32_t>(16); }
  const int32_t* count() const { return memory_.as<int32_t>(); }
  const int room;

 private:
  Scratch memory_;
};

}  // namespace lpq::cuda
