// Pinned host memory, which devices copy from and to directly. The system takes about 0.3 s to pin a GB, so blocks are
// kept for the next tensor of about their size until the runtime goes.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/driver.h"
#include "lpq/tensor.h"

namespace lpq::cuda {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  // `limit` in bytes; 0: whatever the system grants.
  PinnedPool(CUcontext context, size_t limit) : context_(context), limit_(limit) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Throws Failure("LPQ_HOST_MEMORY") with what was asked for, held and allowed.
  Tensor allocate(DType dtype, std::vector<int64_t> shape);
  // Memory of the backend itself, which usage() does not count as parked.
  std::byte* take(size_t bytes) { return take(bytes, false); }
  void give(std::byte* address) noexcept;
  // Frees what is not in use, and from now on what comes back.
  void close() noexcept;
  // Called, on the thread that allocates, when there is no room: waits for copies that hold blocks.
  void on_full(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }

  struct Usage {
    size_t parked = 0, reserved = 0, peak_parked = 0;
  };
  Usage usage() const;
  void reset_peak();

 private:
  struct Block {
    size_t capacity = 0, parked = 0;
  };
  std::byte* take(size_t bytes, bool parked);
  std::byte* find(size_t capacity, size_t most);
  void free_unused();
  CUcontext context_;
  size_t limit_;
  std::function<void()> reclaim_;
  mutable std::mutex mutex_;
  std::map<std::byte*, Block> used_;
  std::multimap<size_t, std::byte*> free_;
  bool closed_ = false;
  Usage usage_;
};

}  // namespace lpq::cuda
