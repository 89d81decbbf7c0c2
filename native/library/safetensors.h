// Safetensors files, mapped: the library's own reader, with every rule of formats/safetensors/spec.md that keeps an
// access inside the file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lpq::library {

struct StoredTensor {
  std::string name;
  int dtype;  // an lpq_dtype; LPQ_NONE: one that this library has no name for
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A file mapped read-only for as long as this lives. Throws Failure("LPQ_FILE").
class Mapping {
 public:
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The tensors of a file. Throws Failure("LPQ_ARTIFACT") naming the file, the tensor and the rule.
std::vector<StoredTensor> read_safetensors(const Mapping& file);

}  // namespace lpq::library
