// native/cuda/ptx/cp_async.cuh, simulated: bytes are read at once and land when their thread waits for them.
#pragma once
#include "asynchronous.h"

namespace lpq::cuda {

inline void cp_async(uint32_t to, const void* from, int bytes, uint32_t size) {
  simt::Copy copy{to, {}, size};
  if (bytes > 0) {
    simt::check_readable(from, size);
    std::memcpy(copy.bytes.data(), from, static_cast<size_t>(bytes));
  }
  std::memset(simt::shared_memory(to, size), 0xff, size);
  simt::asynchronous.copies[simt::own_thread()].open.push_back(copy);
}
inline void cp_async_16(uint32_t to, const void* from, int bytes) { cp_async(to, from, bytes, 16); }
inline void cp_async_4(uint32_t to, const void* from, int bytes) { cp_async(to, from, bytes, 4); }
inline void cp_async_16(uint32_t to, const void* from) { cp_async_16(to, from, 16); }
inline void cp_async_16_line(uint32_t to, const void* from) { cp_async_16(to, from, 16); }
inline void cp_async_16_hint(uint32_t to, const void* from, unsigned long long) { cp_async_16(to, from, 16); }
inline void cp_async_commit() {
  simt::Copies& own = simt::asynchronous.copies[simt::own_thread()];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}
inline void cp_async_wait(int n) {
  simt::Copies& own = simt::asynchronous.copies[simt::own_thread()];
  for (; own.groups.size() > static_cast<size_t>(n); own.groups.pop_front())
    for (const simt::Copy& copy : own.groups.front())
      std::memcpy(simt::shared_memory(copy.to, copy.size), copy.bytes.data(), copy.size);
}
template <int N>
void cp_async_wait() {
  cp_async_wait(N);
}

}  // namespace lpq::cuda
