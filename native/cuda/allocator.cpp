#include "cuda/allocator.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace lpq::cuda {
namespace {
constexpr size_t kUnit = 512;
constexpr size_t kPage = size_t{2} << 20;         // the driver hands out memory in pages of this size
constexpr size_t kSmall = size_t{1} << 20;        // blocks below share memory of their own
constexpr size_t kSmallRegion = size_t{8} << 20;  // which grows by this much
constexpr size_t kCoarse = size_t{64} << 10;      // large blocks are multiples of this

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }
}  // namespace

Allocator::Allocator(CUcontext context, int ordinal, size_t limit, CUstream stream, bool pages)
    : context_(context), ordinal_(ordinal), limit_(limit), stream_(stream) {
  size_t free = 0, total = 0;
  check(driver().context_set(context_), "selecting the device");
  check(driver().memory_info(&free, &total), "asking for free memory");
  if (limit_ == 0) limit_ = total;
  const char* kind = std::getenv("LPQ_CUDA_ALLOCATOR");
  exact_ = kind && std::string_view(kind) == "exact";
  if (pages && !exact_) pages_ = Pages::open(context_, ordinal_, total, limit_);
}

Allocator::~Allocator() {
  driver().context_set(context_);
  for (const auto& [address, bytes] : segments_) driver().memory_free(reinterpret_cast<CUdeviceptr>(address));
}

std::byte* Allocator::cut(Blocks::iterator block, size_t bytes) {
  const bool small = block->second.small;
  free_[small].erase({block->second.bytes, block->first});
  const size_t rest = block->second.bytes - bytes;
  if (rest >= (small ? kUnit : kCoarse)) {
    std::byte* tail = block->first + bytes;
    blocks_.emplace(tail, Block{rest, true, small, block->second.segment});
    free_[small].emplace(rest, tail);
    block->second.bytes = bytes;
  }
  block->second.free = false;
  used_ += block->second.bytes;
  peak_used_ = std::max(peak_used_, used_);
  return block->first;
}

// A free block, not yet among the free ones, becomes one with its free neighbours.
void Allocator::join(Blocks::iterator block) {
  auto adjacent = [](const Blocks::value_type& a, const Blocks::value_type& b) {
    return a.second.free && b.second.free && a.first + a.second.bytes == b.first && a.second.small == b.second.small &&
           a.second.segment == b.second.segment;
  };
  auto& free = free_[block->second.small];
  if (auto next = std::next(block); next != blocks_.end() && adjacent(*block, *next)) {
    free.erase({next->second.bytes, next->first});
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block != blocks_.begin())
    if (auto before = std::prev(block); adjacent(*before, *block)) {
      free.erase({before->second.bytes, before->first});
      before->second.bytes += block->second.bytes;
      blocks_.erase(block);
      block = before;
    }
  free.emplace(block->second.bytes, block->first);
}

void Allocator::insert(std::byte* address, Block block) { join(blocks_.emplace(address, block).first); }

std::byte* Allocator::take_exact(size_t bytes) {
  const size_t want = std::max<size_t>(bytes, 1);
  std::lock_guard lock(mutex_);
  CUdeviceptr address = 0;
  const bool allowed = reserved_ + want <= limit_;
  if (!allowed || driver().memory_alloc(&address, want) != kSuccess)
    throw Failure("LPQ_CUDA_MEMORY", "no room for " + mib(bytes) + " on cuda:" + std::to_string(ordinal_) + ": " +
                                         mib(used_) + " are in use, the limit is " + mib(limit_));
  // NaN as any floating-point type: a value that is read before it is written spoils the result.
  check(driver().memory_fill(address, 0xff, want), "filling device memory");
  check(driver().stream_wait(nullptr), "filling device memory");
  auto* begin = reinterpret_cast<std::byte*>(address);
  segments_.emplace(begin, want);
  used_ = reserved_ += want;
  peak_used_ = peak_reserved_ = std::max(peak_reserved_, reserved_);
  return begin;
}

bool Allocator::lend(size_t bytes) {
  check(driver().context_set(context_), "selecting the device");
  std::lock_guard lock(mutex_);
  if (bytes > limit_) return false;
  if (reserved_ > limit_ - bytes && !exact_) trim_locked();
  if (reserved_ > limit_ - bytes) return false;
  limit_ -= bytes;
  return true;
}

std::byte* Allocator::take(size_t bytes) {
  if (exact_) {
    check(driver().context_set(context_), "selecting the device");
    return take_exact(bytes);
  }
  const bool small = bytes < kSmall;
  const size_t want = round_up(std::max<size_t>(bytes, 1), small ? kUnit : kCoarse);
  std::unique_lock lock(mutex_);
  for (int attempt = 0;; ++attempt) {
    for (int step = 0; step < 2; ++step) {
      const auto found = free_[small].lower_bound({want, nullptr});
      if (found != free_[small].end()) return cut(blocks_.find(found->second), want);
      if (!grow(want, small)) break;
    }
    if (attempt > 0 || !reclaim_)
      throw Failure("LPQ_CUDA_MEMORY", "no room for " + mib(bytes) + " on cuda:" + std::to_string(ordinal_) + ": " +
                                           mib(used_) + " are in use, " + mib(reserved_) + " reserved, the limit is " +
                                           mib(limit_) + ", the most that is free at once is " + mib(most_at_once()));
    const auto reclaim = reclaim_;
    lock.unlock();
    reclaim();
    lock.lock();
  }
}

// Makes a free block of at least `bytes`, if there is memory for it.
bool Allocator::grow(size_t bytes, bool small) {
  check(driver().context_set(context_), "selecting the device");
  const size_t unit = pages_ ? pages_->granule() : kPage;
  auto by = [&](size_t size) { return pages_ ? grow_pages(size / unit, small) : grow_segment(size, small); };
  return (small && by(round_up(kSmallRegion, unit))) || by(round_up(bytes, unit));
}

// Whole granules of a block.
size_t Allocator::whole(const Blocks::value_type& block) const {
  const size_t granule = pages_->granule();
  const auto begin = reinterpret_cast<size_t>(block.first), end = begin + block.second.bytes;
  const size_t first = round_up(begin, granule), last = end / granule * granule;
  return last > first ? (last - first) / granule : 0;
}

// Takes the granules at the end of a free block away from it, at most `most`.
void Allocator::unmap(Blocks::iterator block, size_t most, std::vector<CUmemHandle>& handles) {
  const size_t granule = pages_->granule(), count = std::min(most, whole(*block));
  if (count == 0) return;
  std::byte* const begin = block->first;
  const Block old = block->second;
  const size_t end = reinterpret_cast<size_t>(begin) + old.bytes;
  std::byte* const last = reinterpret_cast<std::byte*>(end / granule * granule);
  std::byte* const first = last - count * granule;
  pages_->unmap(first, count, handles);
  free_[old.small].erase({old.bytes, begin});
  blocks_.erase(block);
  auto keep = [&](std::byte* from, std::byte* to) {
    if (from == to) return;
    blocks_.emplace(from, Block{static_cast<size_t>(to - from), true, old.small, nullptr});
    free_[old.small].emplace(static_cast<size_t>(to - from), from);
  };
  keep(begin, first);
  keep(last, begin + old.bytes);
}

// New granules while the limit allows them; what is missing moves from free blocks, the largest first.
bool Allocator::grow_pages(size_t count, bool small) {
  const size_t granule = pages_->granule();
  std::vector<CUmemHandle> handles;
  if (reserved_ < limit_) pages_->create(std::min(count, (limit_ - reserved_) / granule), handles);
  const size_t fresh = handles.size();
  if (fresh < count) {
    std::vector<std::pair<size_t, std::byte*>> donors;
    size_t available = 0;
    for (const auto& entry : blocks_)
      if (const size_t granules = entry.second.free ? whole(entry) : 0; granules > 0) {
        donors.emplace_back(granules, entry.first);
        available += granules;
      }
    if (fresh + available < count) {
      pages_->release(handles);
      return false;
    }
    std::sort(donors.rbegin(), donors.rend());
    check(driver().stream_wait(stream_), "waiting for the users of memory");  // unmapping does not wait for them
    for (const auto& [granules, address] : donors)
      if (handles.size() < count) unmap(blocks_.find(address), count - handles.size(), handles);
  }
  std::byte* address = pages_->map(handles);
  reserved_ += fresh * granule;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  if (!address) {  // no addresses, or no memory for the tables of the mapping
    reserved_ -= handles.size() * granule;
    pages_->release(handles);
    return false;
  }
  insert(address, {count * granule, true, small, nullptr});
  return true;
}

bool Allocator::grow_segment(size_t bytes, bool small) {
  CUdeviceptr address = 0;
  CUresult result = kOutOfMemory;
  for (int step = 0; step < 2 && result != kSuccess; ++step) {
    if (step > 0) trim_locked();
    if (reserved_ + bytes > limit_) continue;
    result = driver().memory_alloc(&address, bytes);
    if (result != kOutOfMemory) check(result, "allocating device memory");
  }
  if (result != kSuccess) return false;
  auto* begin = reinterpret_cast<std::byte*>(address);
  segments_.emplace(begin, bytes);
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  insert(begin, {bytes, true, small, begin});
  return true;
}

size_t Allocator::most_at_once() const {
  size_t most = 0, granules = 0;
  for (const auto& entry : blocks_)
    if (entry.second.free) {
      most = std::max(most, entry.second.bytes);
      if (pages_) granules += whole(entry);
    }
  return pages_ ? std::max(most, granules * pages_->granule() + (limit_ > reserved_ ? limit_ - reserved_ : 0)) : most;
}

void Allocator::give(std::byte* address) noexcept {
  std::lock_guard lock(mutex_);
  if (const auto segment = exact_ ? segments_.find(address) : segments_.end(); segment != segments_.end()) {
    driver().context_set(context_);
    driver().memory_free(reinterpret_cast<CUdeviceptr>(address));  // waits for the device
    used_ = reserved_ -= segment->second;
    segments_.erase(segment);
    return;
  }
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.free) return;
  used_ -= block->second.bytes;
  block->second.free = true;
  join(block);
}

void Allocator::trim() {
  std::lock_guard lock(mutex_);
  if (!exact_) trim_locked();
}

void Allocator::trim_locked() {
  driver().context_set(context_);
  if (pages_) {
    check(driver().stream_wait(stream_), "waiting for the users of memory");
    std::vector<std::byte*> donors;
    for (const auto& entry : blocks_)
      if (entry.second.free && whole(entry) > 0) donors.push_back(entry.first);
    std::vector<CUmemHandle> handles;
    for (std::byte* donor : donors) unmap(blocks_.find(donor), SIZE_MAX, handles);
    reserved_ -= handles.size() * pages_->granule();
    return pages_->release(handles);
  }
  // cuMemFree waits for the device, so nothing that still runs loses its memory.
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    auto block = blocks_.find(segment->first);
    if (block->second.free && block->second.bytes == segment->second) {
      check(driver().memory_free(reinterpret_cast<CUdeviceptr>(segment->first)), "freeing device memory");
      free_[block->second.small].erase({block->second.bytes, block->first});
      blocks_.erase(block);
      reserved_ -= segment->second;
      segment = segments_.erase(segment);
    } else {
      ++segment;
    }
  }
}

void Allocator::reach(int ordinal) {
  std::lock_guard lock(mutex_);
  if (pages_) pages_->reach(ordinal);
}

Allocator::Usage Allocator::usage() const {
  std::lock_guard lock(mutex_);
  return {used_, reserved_, peak_used_, peak_reserved_};
}

void Allocator::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_used_ = used_;
  peak_reserved_ = reserved_;
}

Tensor Allocator::allocate(DType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.device = ordinal_;
  int64_t total = static_cast<int64_t>(dtype_bytes(dtype));
  for (int64_t d : tensor.shape)
    if (d < 0 || __builtin_mul_overflow(total, d, &total))
      throw Failure("LPQ_CUDA_MEMORY", "a tensor of this shape has more bytes than can be counted");
  auto storage = std::make_shared<Storage>();
  storage->data = take(static_cast<size_t>(total));
  storage->bytes = static_cast<size_t>(total);
  storage->owner = this;
  storage->release = [self = shared_from_this(), data = storage->data] { self->give(data); };
  tensor.storage = std::move(storage);
  return tensor;
}

}  // namespace lpq::cuda
