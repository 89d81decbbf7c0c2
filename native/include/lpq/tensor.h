// A tensor: a dtype, a shape and a view of shared storage. Row-major, always contiguous.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lpq {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);
// Throws Failure("LPQ_NATIVE_DTYPE") for a name that is not a dtype.
DType dtype_from_name(std::string_view name);

// A copy on its way: of contents to a device, to pinned host memory, or from a device that still reads them.
struct Arrival {
  virtual ~Arrival() = default;
  // Makes what is launched on `stream` (a CUstream) from now on wait for the copy. Waits itself only until the copy has
  // been launched. False where the stream had been told before: nothing was put on it. Throws Failure when the copy
  // never was launched.
  virtual bool await(void* stream) = 0;
  // Waits for the copy. Throws Failure.
  virtual void await_host() = 0;
  // The copy has ended well.
  virtual bool landed() = 0;
};

// Owned or borrowed bytes; `release` runs once, when the last view goes.
struct Storage {
  std::byte* data = nullptr;
  size_t bytes = 0;
  std::function<void()> release;
  std::shared_ptr<Arrival> arrival;    // how the bytes come; never changed once tensors are handed out
  std::shared_ptr<Arrival> departure;  // the last copy that reads the bytes; the queue's thread alone touches it
  bool pinned = false;                 // host memory that devices copy from and to without help
  const void* owner = nullptr;         // the allocator of device memory
  ~Storage();
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
};

struct Tensor {
  std::shared_ptr<Storage> storage;
  size_t offset = 0;  // bytes into storage
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  bool writable = true;  // false for a view of a mapped file
  int device = -1;       // the CPU, or the ordinal of the CUDA device whose address space data() points into

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype); }
  int64_t dim(size_t axis) const { return shape.at(axis); }
  size_t rank() const { return shape.size(); }

  // The first element. Throws Failure("LPQ_NATIVE_DTYPE") unless T is the C++ type of dtype
  // (f16, bf16 as uint16_t; f8 and boolean as uint8_t).
  template <class T>
  T* data() const;
  std::byte* raw() const { return storage ? storage->data + offset : nullptr; }
};

// 64-byte aligned, uninitialised. Throws Failure("LPQ_NATIVE_MEMORY").
Tensor allocate(DType dtype, std::vector<int64_t> shape);

}  // namespace lpq
