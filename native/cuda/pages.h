// Device memory in granules of 2 to 8 MB that are mapped freely into one large range of addresses: free memory can then
// serve any request, wherever it lies. Not safe from several threads: the allocator's lock holds.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "cuda/driver.h"

namespace lpq::cuda {

class Pages {
 public:
  // null where the device or the driver cannot do it. `memory`: bytes of the device; `limit`: that may be taken.
  static std::unique_ptr<Pages> open(CUcontext context, int ordinal, size_t memory, size_t limit);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  size_t granule() const { return granule_; }
  // Up to `count` new granules, appended to `handles`; fewer where the device has no more.
  void create(size_t count, std::vector<CUmemHandle>& handles);
  // The granules side by side at addresses of their own; null (and nothing mapped) when none are left.
  std::byte* map(const std::vector<CUmemHandle>& handles);
  // Takes granules out of their addresses, appended to `handles`. Nothing may use them any more.
  void unmap(std::byte* address, size_t count, std::vector<CUmemHandle>& handles);
  void release(std::vector<CUmemHandle>& handles);
  // Another device may use the memory from now on.
  void reach(int ordinal);

 private:
  Pages(CUcontext context, int ordinal) : context_(context) { kind_.location.id = ordinal; }
  void give_addresses(size_t first, size_t count);
  CUcontext context_;
  MemoryProperties kind_;
  size_t granule_ = 0;
  CUdeviceptr base_ = 0;
  size_t span_ = 0;                  // granules
  std::map<size_t, size_t> vacant_;  // first granule -> how many, of addresses
  std::map<size_t, CUmemHandle> mapped_;
  std::vector<MemoryAccess> access_;
};

}  // namespace lpq::cuda
