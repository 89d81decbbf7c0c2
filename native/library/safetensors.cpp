#include "library/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "library/lpq_kernels.h"
#include "lpq/failure.h"
#include "lpq/json.h"

namespace lpq::library {
namespace {

constexpr uint64_t kLongestHeader = 100'000'000;

struct Row {
  const char* name;
  int64_t bits;
  int dtype;
};
// Dtypes of the format; sub-byte ones must fill whole bytes.
constexpr Row kRows[] = {
    {"BOOL", 8, LPQ_BOOL},       {"U8", 8, LPQ_U8},           {"I8", 8, LPQ_I8},        {"F8_E5M2", 8, LPQ_F8_E5M2},
    {"F8_E4M3", 8, LPQ_F8_E4M3}, {"F8_E8M0", 8, LPQ_F8_E8M0}, {"I16", 16, LPQ_I16},     {"U16", 16, LPQ_U16},
    {"F16", 16, LPQ_F16},        {"BF16", 16, LPQ_BF16},      {"I32", 32, LPQ_I32},     {"U32", 32, LPQ_U32},
    {"F32", 32, LPQ_F32},        {"F64", 64, LPQ_F64},        {"I64", 64, LPQ_I64},     {"U64", 64, LPQ_U64},
    {"F4", 4, LPQ_NONE},         {"F6_E2M3", 6, LPQ_NONE},    {"F6_E3M2", 6, LPQ_NONE}, {"C64", 64, LPQ_NONE}};

[[noreturn]] void fail(const Mapping& file, const std::string& what) {
  throw Failure("LPQ_ARTIFACT", file.path() + " " + what);
}

std::vector<int64_t> naturals(const Mapping& file, const std::string& tensor, const Json& entry, const char* key) {
  const Json* list = entry.find(key);
  if (!list || !list->is(Json::Kind::list)) fail(file, "tensor '" + tensor + "': its " + key + " is no list");
  std::vector<int64_t> values;
  for (const Json& item : list->items()) {
    const auto value = item.natural();
    if (!value)
      fail(file, "tensor '" + tensor + "': its " + key + " holds something that is no integer from 0 to 2^53 - 1");
    values.push_back(*value);
  }
  return values;
}

}  // namespace

Mapping::Mapping(const std::string& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw Failure("LPQ_FILE", path + " cannot be opened: " + std::strerror(errno));
  struct stat facts{};
  if (::fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    ::close(descriptor);
    throw Failure("LPQ_FILE", path + " is no file");
  }
  size_ = static_cast<size_t>(facts.st_size);
  if (size_ > 0) {
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      const int reason = errno;
      ::close(descriptor);
      throw Failure("LPQ_FILE", path + " cannot be mapped: " + std::strerror(reason));
    }
  }
  ::close(descriptor);
}

Mapping::Mapping(Mapping&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping::~Mapping() {
  if (data_) ::munmap(data_, size_);
}

std::vector<StoredTensor> read_safetensors(const Mapping& file) {
  const std::string_view bytes = file.bytes();
  if (bytes.size() < 8) fail(file, "is shorter than the 8 bytes that hold the header's length");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[static_cast<size_t>(i)]);
  if (length > kLongestHeader)
    fail(file, "announces a header of " + std::to_string(length) + " bytes, above the limit");
  if (length > bytes.size() - 8) fail(file, "ends inside its header");
  const std::string_view head = bytes.substr(8, static_cast<size_t>(length));
  if (head.empty() || head[0] != '{') fail(file, "has a header that does not begin with '{'");
  Json root;
  try {
    root = Json::parse(head);
  } catch (const Failure& failure) {
    fail(file, std::string("has a header that is not valid JSON: ") + failure.what());
  }
  const size_t start = 8 + static_cast<size_t>(length), room = bytes.size() - start;
  struct Span {
    int64_t begin, end;
    size_t tensor;
  };
  std::vector<StoredTensor> tensors;
  std::vector<Span> spans;
  for (size_t i = 0; i < root.names().size(); ++i) {
    const std::string& name = root.names()[i];
    const Json& entry = root.items()[i];
    if (name == "__metadata__") continue;
    if (!entry.is(Json::Kind::object)) fail(file, "tensor '" + name + "': its entry is no object");
    // Names are handed out as C strings.
    if (name.find('\0') != std::string::npos) fail(file, "has a tensor whose name holds a zero byte");
    StoredTensor tensor;
    tensor.name = name;
    const Json* dtype = entry.find("dtype");
    const Row* known = nullptr;
    for (const Row& each : kRows)
      if (dtype && dtype->is(Json::Kind::string) && dtype->text() == each.name) known = &each;
    if (!known) fail(file, "tensor '" + name + "': its dtype is unknown");
    tensor.dtype = known->dtype;
    tensor.shape = naturals(file, name, entry, "shape");
    if (tensor.shape.size() > LPQ_MAX_RANK)
      fail(file, "tensor '" + name + "' has more than " + std::to_string(LPQ_MAX_RANK) + " dimensions");
    int64_t bits = known->bits;
    for (const int64_t dim : tensor.shape)
      if (__builtin_mul_overflow(bits, dim, &bits)) fail(file, "tensor '" + name + "': its shape is beyond 2^63 bits");
    if (bits % 8 != 0) fail(file, "tensor '" + name + "' does not fill whole bytes");
    const std::vector<int64_t> offsets = naturals(file, name, entry, "data_offsets");
    if (offsets.size() != 2) fail(file, "tensor '" + name + "': its data_offsets are not [begin, end]");
    if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != bits / 8)
      fail(file, "tensor '" + name + "': its data_offsets do not match its dtype and shape");
    if (static_cast<uint64_t>(offsets[1]) > room) fail(file, "tensor '" + name + "' ends beyond the file");
    tensor.bytes = static_cast<size_t>(bits / 8);
    tensor.data = reinterpret_cast<const std::byte*>(bytes.data()) + start + static_cast<size_t>(offsets[0]);
    spans.push_back({offsets[0], offsets[1], tensors.size()});
    tensors.push_back(std::move(tensor));
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  int64_t cursor = 0;
  for (const Span& span : spans) {
    if (span.begin != cursor)
      fail(file, (span.begin > cursor ? "has a hole before tensor '" : "has tensors that overlap at '") +
                     tensors[span.tensor].name + "'");
    cursor = span.end;
  }
  if (static_cast<uint64_t>(cursor) != room)
    fail(file, "has " + std::to_string(room - static_cast<size_t>(cursor)) + " bytes that belong to no tensor");
  return tensors;
}

}  // namespace lpq::library
