// Operations without a backend: on a stream and in memory that somebody else owns (native/library), or on nothing at
// all, to see what they would launch (gemm/chooser.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cuda/exec.h"

namespace lpq::cuda {

// Scratch of one call: a stack in memory that the caller gave. Blocks may be given back in any order; room comes back
// from the top.
class Arena {
 public:
  Arena(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  // 512-byte aligned where `base` is. Throws Failure("LPQ_WORKSPACE") when it does not fit.
  std::byte* take(size_t bytes);
  void give(std::byte* address) noexcept;
  // The most that was taken at once.
  size_t most() const { return most_; }

 private:
  struct Block {
    size_t begin, end;
    bool given;
  };
  std::byte* base_;
  size_t bytes_, used_ = 0, most_ = 0;
  std::vector<Block> blocks_;
};

struct Launch {
  std::string kernel;
  Dim3 grid, block;
  unsigned shared = 0;
  int cluster = 1;
  bool overlap = false;
};

// What an operation would do. `names`: the kernels that there are, where no device is; null: all that are asked for.
struct Rehearsal {
  const std::set<std::string>* names = nullptr;
  std::vector<Launch> launches;
  std::vector<std::string> reasons;
  bool tuned = false;  // with settings that were timed
};

// What the memory of a hosted call begins with: a word that kernels set when they meet bad data, and counters. Both are
// 0 before the first call; kernels leave counters at 0.
constexpr size_t kHostedFault = 512, kHostedCounters = size_t{256} << 10, kHostedHead = kHostedFault + kHostedCounters;

// A CudaExec of one call. Tensors carry `owner`, and its device's ordinal.
class Hosted {
 public:
  // Launches on `stream` of the current context; `memory` (kHostedHead bytes and scratch) is 512-byte aligned.
  // `settled`: weights, scales and zero points were written before the operation before this one on the stream began.
  Hosted(const DeviceFacts& facts, Kernels& kernels, CUstream stream, const void* owner, std::byte* memory,
         size_t bytes, bool settled);
  // Launches nothing; addresses are made up. `kernels`: of the device that is asked about; null: the device is only
  // described.
  Hosted(const DeviceFacts& facts, Kernels* kernels, const void* owner, Rehearsal& rehearsal);
  Hosted(const Hosted&) = delete;
  Hosted& operator=(const Hosted&) = delete;
  CudaExec& exec() { return exec_; }
  // Bytes of memory that the call took, or would take.
  size_t memory_taken() const { return kHostedHead + arena_.most(); }

 private:
  Arena arena_;
  CudaExec exec_;
};

// Made up, never touched: where the memory of a rehearsal lies. Multiples of 4096.
constexpr uintptr_t kNowhere = uintptr_t{1} << 40;

}  // namespace lpq::cuda
