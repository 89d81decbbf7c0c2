#include "cuda/pinned.h"

#include <algorithm>
#include <bit>

namespace lpq::cuda {
namespace {

constexpr size_t kLeast = size_t{64} << 10;

// Sizes step by an eighth of a power of two, so that batches of nearly the same number of tokens share blocks.
size_t capacity_of(size_t bytes) {
  const size_t unit = std::max(kLeast, std::bit_floor(bytes) / 8);
  return std::max(kLeast, (bytes + unit - 1) / unit * unit);
}

std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

PinnedPool::~PinnedPool() { close(); }

void PinnedPool::close() noexcept {
  std::lock_guard lock(mutex_);
  closed_ = true;
  reclaim_ = nullptr;
  free_unused();
}

void PinnedPool::free_unused() {
  driver().context_set(context_);
  for (const auto& [capacity, address] : free_) {
    driver().host_free(address);
    usage_.reserved -= capacity;
  }
  free_.clear();
}

std::byte* PinnedPool::find(size_t capacity, size_t most) {
  const auto found = free_.lower_bound(capacity);
  if (found == free_.end() || found->first > most) return nullptr;
  std::byte* address = found->second;
  used_[address] = {found->first, 0};
  free_.erase(found);
  return address;
}

std::byte* PinnedPool::take(size_t bytes, bool parked) {
  const size_t capacity = capacity_of(bytes);
  std::unique_lock lock(mutex_);
  std::byte* address = nullptr;
  for (int attempt = 0; !address; ++attempt) {
    address = find(capacity, capacity + capacity / 4);
    // New memory; then any block that is large enough; then new memory once nothing unused is held; then what copies
    // hold.
    for (int step = 0; !address && step < 2; ++step) {
      if (limit_ == 0 || usage_.reserved + capacity <= limit_) {
        void* fresh = nullptr;
        check(driver().context_set(context_), "selecting the device");
        if (driver().host_alloc(&fresh, capacity, kPortable) == kSuccess) {
          address = static_cast<std::byte*>(fresh);
          used_[address] = {capacity, 0};
          usage_.reserved += capacity;
          break;
        }
      }
      if (step > 0) break;
      address = find(capacity, SIZE_MAX);
      if (!address) free_unused();
    }
    if (address) break;
    if (attempt > 0 || !reclaim_)
      throw Failure("LPQ_HOST_MEMORY", "no room for " + mib(bytes) + " of pinned host memory: " + mib(usage_.parked) +
                                           " are parked, " + mib(usage_.reserved) + " held" +
                                           (limit_ ? ", the limit is " + mib(limit_) : ", the system grants no more"));
    const auto reclaim = reclaim_;
    lock.unlock();
    reclaim();
    lock.lock();
  }
  if (parked) {
    used_[address].parked = bytes;
    usage_.parked += bytes;
    usage_.peak_parked = std::max(usage_.peak_parked, usage_.parked);
  }
  return address;
}

void PinnedPool::give(std::byte* address) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = used_.find(address);
  if (found == used_.end()) return;
  usage_.parked -= found->second.parked;
  free_.emplace(found->second.capacity, address);
  used_.erase(found);
  if (closed_) free_unused();
}

PinnedPool::Usage PinnedPool::usage() const {
  std::lock_guard lock(mutex_);
  return usage_;
}

void PinnedPool::reset_peak() {
  std::lock_guard lock(mutex_);
  usage_.peak_parked = usage_.parked;
}

Tensor PinnedPool::allocate(DType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  auto storage = std::make_shared<Storage>();
  storage->bytes = tensor.bytes();
  storage->data = take(storage->bytes, true);
  storage->pinned = true;
  storage->release = [self = shared_from_this(), data = storage->data] { self->give(data); };
  tensor.storage = std::move(storage);
  return tensor;
}

}  // namespace lpq::cuda
