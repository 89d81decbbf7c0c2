#include "cuda/pages.h"

#include <algorithm>
#include <bit>
#include <string>

namespace lpq::cuda {

// Addresses cost next to nothing; eight times the memory leaves holes enough between blocks of any size.
std::unique_ptr<Pages> Pages::open(CUcontext context, int ordinal, size_t memory, size_t limit) {
  const Driver& api = driver();
  check(api.context_set(context), "selecting the device");
  CUdevice device = 0;
  int able = 0;
  check(api.device_get(&device, ordinal), "opening the device");
  if (api.device_attribute(&able, kVirtualMemory, device) != kSuccess || !able) return nullptr;
  std::unique_ptr<Pages> pages(new Pages(context, ordinal));
  if (api.memory_granule(&pages->granule_, &pages->kind_, 0) != kSuccess || pages->granule_ == 0) return nullptr;
  // Mapping costs the driver about 40 us a granule, of any size; what is lost is at most one at each end of a block.
  const size_t wish = std::bit_floor(std::clamp(limit / 4096, size_t{2} << 20, size_t{8} << 20));
  pages->granule_ = (wish + pages->granule_ - 1) / pages->granule_ * pages->granule_;
  for (size_t times = 8; times >= 2; times /= 2) {
    const size_t span = memory * times / pages->granule_;
    if (api.address_reserve(&pages->base_, span * pages->granule_, pages->granule_, 0, 0) != kSuccess) continue;
    pages->span_ = span;
    pages->vacant_[0] = span;
    pages->access_.push_back({pages->kind_.location});
    return pages;
  }
  return nullptr;
}

Pages::~Pages() {
  if (span_ == 0) return;
  driver().context_set(context_);
  for (const auto& [index, handle] : mapped_) {
    driver().memory_unmap(base_ + index * granule_, granule_);
    driver().memory_release(handle);
  }
  driver().address_free(base_, span_ * granule_);
}

void Pages::create(size_t count, std::vector<CUmemHandle>& handles) {
  check(driver().context_set(context_), "selecting the device");
  handles.reserve(handles.size() + count);
  for (size_t i = 0; i < count; ++i) {
    CUmemHandle handle = 0;
    const CUresult result = driver().memory_create(&handle, granule_, &kind_, 0);
    if (result == kOutOfMemory) return;
    if (result != kSuccess) {
      release(handles);
      check(result, "allocating device memory");
    }
    handles.push_back(handle);
  }
}

std::byte* Pages::map(const std::vector<CUmemHandle>& handles) {
  check(driver().context_set(context_), "selecting the device");
  const size_t count = handles.size();
  const auto hole =
      std::find_if(vacant_.begin(), vacant_.end(), [&](const auto& entry) { return entry.second >= count; });
  if (hole == vacant_.end()) return nullptr;
  const size_t first = hole->first, rest = hole->second - count;
  vacant_.erase(hole);
  if (rest > 0) vacant_[first + count] = rest;
  CUresult result = kSuccess;
  size_t done = 0;
  for (; done < count && result == kSuccess; ++done)
    result = driver().memory_map(base_ + (first + done) * granule_, granule_, 0, handles[done], 0);
  if (result == kSuccess)
    result = driver().memory_access(base_ + first * granule_, count * granule_, access_.data(), access_.size());
  else --done;
  if (result != kSuccess) {
    for (size_t i = 0; i < done; ++i) driver().memory_unmap(base_ + (first + i) * granule_, granule_);
    give_addresses(first, count);
    if (result == kOutOfMemory) return nullptr;
    check(result, "mapping device memory");
  }
  for (size_t i = 0; i < count; ++i) mapped_[first + i] = handles[i];
  return reinterpret_cast<std::byte*>(base_ + first * granule_);
}

void Pages::unmap(std::byte* address, size_t count, std::vector<CUmemHandle>& handles) {
  check(driver().context_set(context_), "selecting the device");
  const auto begin = reinterpret_cast<CUdeviceptr>(address);
  check(driver().memory_unmap(begin, count * granule_), "unmapping device memory");
  const size_t first = (begin - base_) / granule_;
  auto entry = mapped_.find(first);
  for (size_t i = 0; i < count; ++i) {
    handles.push_back(entry->second);
    entry = mapped_.erase(entry);
  }
  give_addresses(first, count);
}

void Pages::give_addresses(size_t first, size_t count) {
  auto next = vacant_.lower_bound(first);
  if (next != vacant_.end() && next->first == first + count) {
    count += next->second;
    next = vacant_.erase(next);
  }
  if (next != vacant_.begin())
    if (auto before = std::prev(next); before->first + before->second == first) {
      before->second += count;
      return;
    }
  vacant_[first] = count;
}

void Pages::release(std::vector<CUmemHandle>& handles) {
  driver().context_set(context_);
  for (const CUmemHandle handle : handles) driver().memory_release(handle);
  handles.clear();
}

void Pages::reach(int ordinal) {
  if (std::any_of(access_.begin(), access_.end(),
                  [&](const MemoryAccess& access) { return access.location.id == ordinal; }))
    return;
  check(driver().context_set(context_), "selecting the device");
  const MemoryAccess other{{1, ordinal}};
  for (auto run = mapped_.begin(); run != mapped_.end();) {
    size_t count = 0;
    const size_t first = run->first;
    for (; run != mapped_.end() && run->first == first + count; ++run) ++count;
    check(driver().memory_access(base_ + first * granule_, count * granule_, &other, 1),
          "letting cuda:" + std::to_string(ordinal) + " use memory");
  }
  access_.push_back(other);
}

}  // namespace lpq::cuda
