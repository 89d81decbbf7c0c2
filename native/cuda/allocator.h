// Device memory: granules mapped where they are needed (cuda/pages.h) or, where the driver cannot, cuMemAlloc'ed
// segments; cut into blocks, freed blocks kept and joined with free neighbours, and a hard limit on the sum taken from
// the driver. A
// block is reused at once: whoever takes it must launch on the stream that its last user launched on, or wait for that
// stream first (CudaBackend::fence does). LPQ_CUDA_ALLOCATOR=exact allocates every block by itself and to the byte,
// slowly, filled
// with NaN: compute-sanitizer then sees an access beyond a tensor, and a read of what was never written shows in the
// result.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "cuda/driver.h"
#include "cuda/pages.h"
#include "lpq/tensor.h"

namespace lpq::cuda {

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  // `limit` in bytes; 0: whatever the device has. `stream`: that users launch on. Without `pages`: segments.
  Allocator(CUcontext context, int ordinal, size_t limit, CUstream stream, bool pages = true);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // 512-byte aligned, uninitialised. Throws Failure("LPQ_CUDA_MEMORY") with what was asked for, held and allowed.
  Tensor allocate(DType dtype, std::vector<int64_t> shape);
  std::byte* take(size_t bytes);
  void give(std::byte* address) noexcept;
  // Returns to the driver what no block is taken from.
  void trim();
  // Leaves `bytes` of the limit to others for good; false where more than what would remain is in use.
  bool lend(size_t bytes);
  // Another device may use the memory from now on.
  void reach(int ordinal);
  // Called, on the thread that allocates, when there is no room: waits for copies that hold blocks.
  void on_full(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }

  CUcontext context() const { return context_; }
  int ordinal() const { return ordinal_; }
  size_t limit() const {
    std::lock_guard lock(mutex_);
    return limit_;
  }
  struct Usage {
    size_t used, reserved, peak_used, peak_reserved;
  };
  Usage usage() const;
  void reset_peak();

 private:
  struct Block {
    size_t bytes = 0;
    bool free = true, small = false;
    std::byte* segment = nullptr;  // null: of pages
  };
  using Blocks = std::map<std::byte*, Block>;
  std::byte* take_exact(size_t bytes);
  std::byte* cut(Blocks::iterator block, size_t bytes);
  void join(Blocks::iterator block);
  void insert(std::byte* address, Block block);
  bool grow(size_t bytes, bool small);
  bool grow_pages(size_t count, bool small);
  bool grow_segment(size_t bytes, bool small);
  void unmap(Blocks::iterator block, size_t most, std::vector<CUmemHandle>& handles);
  size_t whole(const Blocks::value_type& block) const;
  size_t most_at_once() const;
  void trim_locked();
  CUcontext context_;
  int ordinal_;
  size_t limit_;
  CUstream stream_;
  std::function<void()> reclaim_;
  bool exact_ = false;
  mutable std::mutex mutex_;
  std::unique_ptr<Pages> pages_;
  Blocks blocks_;  // every block, by address
  // Free blocks, smallest first; small ones keep to their own memory, so that they do not break up large blocks.
  std::set<std::pair<size_t, std::byte*>> free_[2];
  std::map<std::byte*, size_t> segments_;
  size_t used_ = 0, reserved_ = 0, peak_used_ = 0, peak_reserved_ = 0;
};

}  // namespace lpq::cuda
