// NaN and infinity among the elements of a tensor, counted on Node's thread pool: memory is read at ten and more GB/s
// there, beside the hash and the disk, which take several times as long.
#include <algorithm>
#include <cstring>
#include <string>

#include "addon/handles.h"

namespace lpq::addon {
namespace {

// An element is not finite where all bits of `special` are set: infinity where none of `fraction` is, NaN otherwise.
// fraction 0: every such pattern is NaN.
struct Form {
  size_t bytes;
  uint64_t special, fraction;
};

// Throws Failure for a dtype without such values.
Form form_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return {8, 0x7ff0000000000000u, 0x000fffffffffffffu};
    case DType::f32: return {4, 0x7f800000u, 0x007fffffu};
    case DType::f16: return {2, 0x7c00u, 0x03ffu};
    case DType::bf16: return {2, 0x7f80u, 0x007fu};
    case DType::f8_e5m2: return {1, 0x7cu, 0x03u};
    case DType::f8_e4m3: return {1, 0x7fu, 0};
    case DType::f8_e8m0: return {1, 0xffu, 0};
    default: throw Failure("LPQ_NATIVE_DTYPE", std::string(dtype_name(dtype)) + " has neither NaN nor infinity");
  }
}

struct Found {
  int64_t nan = 0, infinite = 0, first = -1;
};

template <class Word>
Found scan(const std::byte* data, int64_t count, Word special, Word fraction) {
  constexpr int64_t kRun = 4096;
  Found found;
  Word words[kRun];  // the bytes of a typed array may lie anywhere
  for (int64_t at = 0; at < count; at += kRun) {
    const int64_t n = std::min(kRun, count - at);
    std::memcpy(words, data + static_cast<size_t>(at) * sizeof(Word), static_cast<size_t>(n) * sizeof(Word));
    Word any = 0;
    for (int64_t i = 0; i < n; ++i)
      any = static_cast<Word>(any | (static_cast<Word>(words[i] & special) == special ? 1 : 0));
    if (!any) continue;
    for (int64_t i = 0; i < n; ++i) {
      if (static_cast<Word>(words[i] & special) != special) continue;
      if (found.first < 0) found.first = at + i;
      ++(fraction != 0 && (words[i] & fraction) == 0 ? found.infinite : found.nan);
    }
  }
  return found;
}

Found scan(const std::byte* data, size_t bytes, const Form& form) {
  const auto count = static_cast<int64_t>(bytes / form.bytes);
  switch (form.bytes) {
    case 8: return scan<uint64_t>(data, count, form.special, form.fraction);
    case 4:
      return scan<uint32_t>(data, count, static_cast<uint32_t>(form.special), static_cast<uint32_t>(form.fraction));
    case 2:
      return scan<uint16_t>(data, count, static_cast<uint16_t>(form.special), static_cast<uint16_t>(form.fraction));
    default: return scan<uint8_t>(data, count, static_cast<uint8_t>(form.special), static_cast<uint8_t>(form.fraction));
  }
}

Napi::Object to_object(Napi::Env env, const Found& found) {
  return numbers(env,
                 {{"nan", double(found.nan)}, {"infinite", double(found.infinite)}, {"first", double(found.first)}});
}

class Scan : public Napi::AsyncWorker {
 public:
  Scan(Napi::Env env, const std::byte* data, size_t bytes, Form form, std::shared_ptr<Storage> keep)
      : Napi::AsyncWorker(env), deferred_(env), data_(data), bytes_(bytes), form_(form), keep_(std::move(keep)) {}
  Napi::Promise promise() const { return deferred_.Promise(); }
  void keep(Napi::Object array) { array_ = Napi::Persistent(array); }

 protected:
  void Execute() override { found_ = scan(data_, bytes_, form_); }
  void OnOK() override { deferred_.Resolve(to_object(Env(), found_)); }
  void OnError(const Napi::Error& error) override { deferred_.Reject(error.Value()); }

 private:
  Napi::Promise::Deferred deferred_;
  const std::byte* data_;
  size_t bytes_;
  Form form_;
  std::shared_ptr<Storage> keep_;  // of a tensor
  Napi::ObjectReference array_;
  Found found_;
};

// Below this a thread costs more than it saves.
constexpr size_t kInline = 1 << 16;

}  // namespace

// notFinite(tensor | Uint8Array, dtype): a promise of {nan, infinite, first}; `dtype` says what the bytes are.
Napi::Value not_finite_js(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const Form form = form_of(dtype_from_name(info[1].ToString().Utf8Value()));
    const std::byte* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<Storage> keep;
    const bool array = info[0].IsTypedArray();
    if (array) {
      auto view = info[0].As<Napi::Uint8Array>();
      data = reinterpret_cast<const std::byte*>(view.Data());
      bytes = view.ByteLength();
    } else {
      const Tensor& tensor = TensorHandle::unwrap(info[0]);
      if (tensor.device >= 0)
        throw Failure("LPQ_NATIVE_ARGUMENT",
                      "the tensor lies on " + device_name(tensor.device) + ": download it first");
      keep = tensor.storage;
      data = tensor.raw();
      bytes = tensor.bytes();
    }
    if (bytes <= kInline) {
      auto deferred = Napi::Promise::Deferred::New(env);
      deferred.Resolve(to_object(env, scan(data, bytes, form)));
      return deferred.Promise();
    }
    auto* worker = new Scan(env, data, bytes, form, std::move(keep));
    if (array) worker->keep(info[0].As<Napi::Object>());
    const auto promise = worker->promise();
    worker->Queue();
    return promise;
  });
}

}  // namespace lpq::addon
