#include "lpq/tensor.h"

#include <type_traits>

#include "cpu/memory.h"
#include "lpq/failure.h"

namespace lpq {
namespace {
struct Row {
  DType dtype;
  size_t bytes;
  std::string_view name;
};
constexpr Row kRows[] = {
    {DType::f64, 8, "f64"},         {DType::f32, 4, "f32"},         {DType::f16, 2, "f16"},
    {DType::bf16, 2, "bf16"},       {DType::f8_e4m3, 1, "f8_e4m3"}, {DType::f8_e5m2, 1, "f8_e5m2"},
    {DType::f8_e8m0, 1, "f8_e8m0"}, {DType::i64, 8, "i64"},         {DType::i32, 4, "i32"},
    {DType::i16, 2, "i16"},         {DType::i8, 1, "i8"},           {DType::u64, 8, "u64"},
    {DType::u32, 4, "u32"},         {DType::u16, 2, "u16"},         {DType::u8, 1, "u8"},
    {DType::boolean, 1, "bool"},
};

template <class T>
bool holds(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::is_same_v<T, double>;
    case DType::f32: return std::is_same_v<T, float>;
    case DType::f16:
    case DType::bf16:
    case DType::u16: return std::is_same_v<T, uint16_t>;
    case DType::i64: return std::is_same_v<T, int64_t>;
    case DType::i32: return std::is_same_v<T, int32_t>;
    case DType::i16: return std::is_same_v<T, int16_t>;
    case DType::i8: return std::is_same_v<T, int8_t>;
    case DType::u64: return std::is_same_v<T, uint64_t>;
    case DType::u32: return std::is_same_v<T, uint32_t>;
    default: return std::is_same_v<T, uint8_t>;
  }
}
}  // namespace

size_t dtype_bytes(DType dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }
std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }
DType dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  throw Failure("LPQ_NATIVE_DTYPE", "no dtype is called " + std::string(name));
}

Storage::~Storage() {
  if (release) release();
}

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

template <class T>
T* Tensor::data() const {
  if (!holds<T>(dtype))
    throw Failure("LPQ_NATIVE_DTYPE", "a tensor of " + std::string(dtype_name(dtype)) + " was read as another type");
  return reinterpret_cast<T*>(raw());
}
template double* Tensor::data<double>() const;
template float* Tensor::data<float>() const;
template uint64_t* Tensor::data<uint64_t>() const;
template uint32_t* Tensor::data<uint32_t>() const;
template uint16_t* Tensor::data<uint16_t>() const;
template uint8_t* Tensor::data<uint8_t>() const;
template int64_t* Tensor::data<int64_t>() const;
template int32_t* Tensor::data<int32_t>() const;
template int16_t* Tensor::data<int16_t>() const;
template int8_t* Tensor::data<int8_t>() const;

Tensor allocate(DType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  int64_t total = static_cast<int64_t>(dtype_bytes(dtype));
  for (int64_t d : tensor.shape)
    if (d < 0 || __builtin_mul_overflow(total, d, &total))
      throw Failure("LPQ_NATIVE_MEMORY", "a tensor of this shape has more bytes than can be counted");
  const size_t bytes = static_cast<size_t>(total);
  auto storage = std::make_shared<Storage>();
  const Block block = take_block(bytes);
  if (!block.data) throw Failure("LPQ_NATIVE_MEMORY", "no memory for " + std::to_string(bytes) + " bytes");
  storage->data = static_cast<std::byte*>(block.data);
  storage->bytes = bytes;
  storage->release = [block] { give_block(block); };
  tensor.storage = std::move(storage);
  return tensor;
}

}  // namespace lpq
