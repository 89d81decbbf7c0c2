// Memory as a device gives it: 16-byte aligned, with a guard behind.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

template <class T>
struct Memory {
  std::vector<uint64_t> words;
  explicit Memory(const std::vector<T>& values) : words((values.size() * sizeof(T) + 31) / 16 * 2) {
    if (reinterpret_cast<uintptr_t>(words.data()) % 16) std::abort();
    std::memcpy(words.data(), values.data(), values.size() * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(words.data()); }
};
