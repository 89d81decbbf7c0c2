#include "cuda/allocator.h"

#include <algorithm>

namespace lpq::cuda {
namespace {
constexpr size_t kUnit = 512;
constexpr size_t kPage = size_t{2} << 20;       // the driver hands out memory in pages of this size
constexpr size_t kSegment = size_t{32} << 20;   // small blocks share segments of this size
constexpr size_t kLeastRest = size_t{64} << 10; // what is left of a larger block is worth keeping apart from here on

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }
}  // namespace

Allocator::Allocator(CUcontext context, int ordinal, size_t limit) : context_(context), ordinal_(ordinal), limit_(limit) {
  if (limit_ == 0) {
    size_t free = 0, total = 0;
    check(driver().context_set(context_), "selecting the device");
    check(driver().memory_info(&free, &total), "asking for free memory");
    limit_ = total;
  }
}

Allocator::~Allocator() {
  driver().context_set(context_);
  for (const auto& [address, bytes] : segments_) driver().memory_free(reinterpret_cast<CUdeviceptr>(address));
}

std::byte* Allocator::cut(Blocks::iterator block, size_t bytes) {
  free_.erase({block->second.bytes, block->first});
  const size_t rest = block->second.bytes - bytes;
  if (rest >= (bytes >= kPage ? kLeastRest : kUnit)) {
    std::byte* tail = block->first + bytes;
    blocks_.emplace(tail, Block{rest, true, block->second.segment});
    free_.emplace(rest, tail);
    block->second.bytes = bytes;
  }
  block->second.free = false;
  used_ += block->second.bytes;
  peak_used_ = std::max(peak_used_, used_);
  return block->first;
}

std::byte* Allocator::take(size_t bytes) {
  const size_t want = round_up(std::max<size_t>(bytes, 1), bytes >= kPage ? size_t{64} << 10 : kUnit);
  std::lock_guard lock(mutex_);
  auto fitting = [&] { return free_.lower_bound({want, nullptr}); };
  if (auto found = fitting(); found != free_.end()) return cut(blocks_.find(found->second), want);
  check(driver().context_set(context_), "selecting the device");
  const size_t segment = want >= kSegment / 2 ? round_up(want, kPage) : kSegment;
  CUdeviceptr address = 0;
  CUresult result = kOutOfMemory;
  size_t got = 0;
  // First a whole segment; then after giving back free ones; then just what is needed.
  for (const size_t size : {segment, segment, round_up(want, kPage)}) {
    if (reserved_ + size <= limit_) {
      result = driver().memory_alloc(&address, size);
      if (result == kSuccess) {
        got = size;
        break;
      }
      if (result != kOutOfMemory) check(result, "allocating device memory");
    }
    trim_locked();
  }
  if (got == 0)
    throw Failure("LPQ_CUDA_MEMORY", "no room for " + mib(bytes) + " on cuda:" + std::to_string(ordinal_) + ": " + mib(used_) +
                                         " are in use, " + mib(reserved_) + " reserved, the limit is " + mib(limit_));
  auto* begin = reinterpret_cast<std::byte*>(address);
  segments_.emplace(begin, got);
  reserved_ += got;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  auto block = blocks_.emplace(begin, Block{got, true, begin}).first;
  free_.emplace(got, begin);
  return cut(block, want);
}

void Allocator::give(std::byte* address) noexcept {
  std::lock_guard lock(mutex_);
  auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  used_ -= block->second.bytes;
  block->second.free = true;
  if (auto next = std::next(block); next != blocks_.end() && next->second.free && next->second.segment == block->second.segment) {
    free_.erase({next->second.bytes, next->first});
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block != blocks_.begin()) {
    auto before = std::prev(block);
    if (before->second.free && before->second.segment == block->second.segment) {
      free_.erase({before->second.bytes, before->first});
      before->second.bytes += block->second.bytes;
      blocks_.erase(block);
      block = before;
    }
  }
  free_.emplace(block->second.bytes, block->first);
}

void Allocator::trim() {
  std::lock_guard lock(mutex_);
  trim_locked();
}

// cuMemFree waits for the device, so nothing that still runs loses its memory.
void Allocator::trim_locked() {
  driver().context_set(context_);
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    auto block = blocks_.find(segment->first);
    if (block->second.free && block->second.bytes == segment->second) {
      check(driver().memory_free(reinterpret_cast<CUdeviceptr>(segment->first)), "freeing device memory");
      free_.erase({block->second.bytes, block->first});
      blocks_.erase(block);
      reserved_ -= segment->second;
      segment = segments_.erase(segment);
    } else {
      ++segment;
    }
  }
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
