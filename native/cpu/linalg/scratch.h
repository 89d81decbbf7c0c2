// Aligned working memory that a thread keeps between calls.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

namespace lpq::linalg {

class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  // At least `bytes` bytes, 64-byte aligned, contents undefined. Earlier pointers from get() become invalid.
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
    if (bytes > bytes_) {
      std::free(data_);
      bytes_ = 0;
      data_ = std::aligned_alloc(4096, bytes);
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lpq::linalg
