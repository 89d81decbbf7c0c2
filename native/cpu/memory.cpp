#include "cpu/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <list>
#include <map>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace lpq {
namespace {

constexpr size_t kLeastCached = size_t{64} << 10;  // malloc is quick below
constexpr size_t kLarge = size_t{4} << 20, kLargePage = size_t{2} << 20;

// Bytes of memory that this process may use: the host's, or its control group's.
size_t memory_there_is() {
  size_t bytes = size_t{4} << 30;
#if defined(__linux__)
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) bytes = static_cast<size_t>(pages) * static_cast<size_t>(page);
  size_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) bytes = std::min(bytes, limit);
#endif
  return bytes;
}

// What is kept at most: a GB holds what a block's pass over a few thousand tokens lets go of.
size_t most_cached() {
  static const size_t bytes = std::min(size_t{1} << 30, memory_there_is() / 16);
  return bytes;
}

class Cache {
 public:
  // The smallest kept block of bytes .. 1.25 * bytes.
  Block take(size_t bytes) {
    std::lock_guard lock(mutex_);
    auto found = by_size_.lower_bound(bytes);
    if (found == by_size_.end() || found->first > bytes + bytes / 4) return {};
    const Block block = *found->second;
    cached_ -= block.bytes;
    by_age_.erase(found->second);
    by_size_.erase(found);
    return block;
  }

  // Keeps the block; the oldest ones go when there are too many.
  void give(Block block) {
    std::list<Block> surplus;
    {
      std::lock_guard lock(mutex_);
      by_age_.push_back(block);
      by_size_.emplace(block.bytes, std::prev(by_age_.end()));
      cached_ += block.bytes;
      shrink(most_cached(), surplus);
    }
    for (const Block& old : surplus) std::free(old.data);
  }

  void clear() {
    std::list<Block> surplus;
    {
      std::lock_guard lock(mutex_);
      shrink(0, surplus);
    }
    for (const Block& old : surplus) std::free(old.data);
  }

 private:
  void shrink(size_t limit, std::list<Block>& surplus) {
    while (cached_ > limit) {
      const auto oldest = by_age_.begin();
      for (auto [entry, end] = by_size_.equal_range(oldest->bytes); entry != end; ++entry)
        if (entry->second == oldest) {
          by_size_.erase(entry);
          break;
        }
      cached_ -= oldest->bytes;
      surplus.splice(surplus.end(), by_age_, oldest);
    }
  }

  std::mutex mutex_;
  std::list<Block> by_age_;
  std::multimap<size_t, std::list<Block>::iterator> by_size_;
  size_t cached_ = 0;
};

Cache& cache() {
  static Cache* const instance = new Cache;  // never destroyed: tensors may outlive static objects
  return *instance;
}

void* fresh(size_t bytes) {
  void* data = std::aligned_alloc(bytes >= kLarge ? kLargePage : 64, bytes);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (data && bytes >= kLarge) ::madvise(data, bytes, MADV_HUGEPAGE);  // only a hint
#endif
  return data;
}

}  // namespace

Block take_block(size_t bytes) {
  const size_t unit = bytes >= kLarge ? kLargePage : bytes >= kLeastCached ? 4096 : 64;
  if (bytes > SIZE_MAX - unit) return {};
  const size_t capacity = bytes == 0 ? unit : (bytes + unit - 1) / unit * unit;
  if (capacity >= kLeastCached)
    if (const Block block = cache().take(capacity); block.data) return block;
  void* data = fresh(capacity);
  if (!data) {
    cache().clear();
    data = fresh(capacity);
  }
  return {data, data ? capacity : 0};
}

void give_block(Block block) {
  if (block.bytes < kLeastCached || block.bytes > most_cached()) std::free(block.data);
  else cache().give(block);
}

}  // namespace lpq
