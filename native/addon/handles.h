// The classes JavaScript sees: Tensor, MappedFile, Runtime, Sha256. Every method is documented in native/binding.ts.
#pragma once
#include <napi.h>

#include <memory>

#include "cuda/backend.h"
#include "lpq/exec.h"
#include "lpq/tensor.h"

namespace lpq::addon {

class TensorHandle : public Napi::ObjectWrap<TensorHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  static Napi::Value wrap(Napi::Env env, Tensor tensor);
  static const Tensor& unwrap(const Napi::Value& value);
  explicit TensorHandle(const Napi::CallbackInfo& info);

 private:
  Napi::Value dtype(const Napi::CallbackInfo& info);
  Napi::Value shape(const Napi::CallbackInfo& info);
  Napi::Value byte_length(const Napi::CallbackInfo& info);
  Napi::Value device(const Napi::CallbackInfo& info);
  Napi::Value parked(const Napi::CallbackInfo& info);
  Napi::Value bytes(const Napi::CallbackInfo& info);
  Napi::Value view(const Napi::CallbackInfo& info);
  Napi::Value dispose(const Napi::CallbackInfo& info);
  Tensor tensor_;
  bool disposed_ = false;
};

class MappedFile : public Napi::ObjectWrap<MappedFile> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit MappedFile(const Napi::CallbackInfo& info);

 private:
  Napi::Value size(const Napi::CallbackInfo& info);
  Napi::Value read(const Napi::CallbackInfo& info);
  Napi::Value tensor(const Napi::CallbackInfo& info);
  Napi::Value advise(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);
  std::shared_ptr<Storage> storage_;
};

// What a runtime recorded. Every method is documented in native/runtime.ts.
class RecordingHandle : public Napi::ObjectWrap<RecordingHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  static Napi::Value wrap(Napi::Env env, std::shared_ptr<Recording> recording);
  static const std::shared_ptr<Recording>& unwrap(const Napi::Value& value);
  explicit RecordingHandle(const Napi::CallbackInfo& info);

 private:
  Napi::Value matches(const Napi::CallbackInfo& info);
  Napi::Value dispose(const Napi::CallbackInfo& info);
  std::shared_ptr<Recording> recording_;  // null once disposed of
};

class RuntimeHandle : public Napi::ObjectWrap<RuntimeHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit RuntimeHandle(const Napi::CallbackInfo& info);

 private:
  Napi::Value enqueue(const Napi::CallbackInfo& info);
  Napi::Value record(const Napi::CallbackInfo& info);
  Napi::Value recorded(const Napi::CallbackInfo& info);
  Napi::Value replay(const Napi::CallbackInfo& info);
  Napi::Value time(const Napi::CallbackInfo& info);
  Napi::Value telemetry(const Napi::CallbackInfo& info);
  Napi::Value sync(const Napi::CallbackInfo& info);
  Napi::Value mark(const Napi::CallbackInfo& info);
  Napi::Value abort(const Napi::CallbackInfo& info);
  Napi::Value progress(const Napi::CallbackInfo& info);
  Napi::Value profile(const Napi::CallbackInfo& info);
  Napi::Value threads(const Napi::CallbackInfo& info);
  Napi::Value device(const Napi::CallbackInfo& info);
  Napi::Value allocate(const Napi::CallbackInfo& info);
  Napi::Value upload(const Napi::CallbackInfo& info);
  Napi::Value download(const Napi::CallbackInfo& info);
  Napi::Value park(const Napi::CallbackInfo& info);
  Napi::Value restore(const Napi::CallbackInfo& info);
  Napi::Value copy_from(const Napi::CallbackInfo& info);
  Napi::Value copied(Napi::Env env, const char* what, cuda::CudaBackend::Copy copy);
  Napi::Value memory(const Napi::CallbackInfo& info);
  Napi::Value lend(const Napi::CallbackInfo& info);
  Napi::Value reset_peak(const Napi::CallbackInfo& info);
  // The queue's backend when it is a CUDA one.
  cuda::CudaBackend* cuda_ = nullptr;
  std::unique_ptr<Queue> queue_;
  std::shared_ptr<Recording> recording_;  // being made; null otherwise, and once something cannot be recorded
};

class Digest;

class Sha256Handle : public Napi::ObjectWrap<Sha256Handle> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit Sha256Handle(const Napi::CallbackInfo& info);

 private:
  Napi::Value update(const Napi::CallbackInfo& info);
  Napi::Value digest(const Napi::CallbackInfo& info);
  std::shared_ptr<Digest> digest_;
};

// 'cpu' or 'cuda:N'.
std::string device_name(int device);
Napi::Error to_js(Napi::Env env, const std::string& code, const std::string& detail, const std::string& op = "");
// What body gives; its Failure as an error of JavaScript's.
template <class Body>
auto guarded(Napi::Env env, const Body& body) {
  try {
    return body();
  } catch (const Failure& failure) {
    throw to_js(env, failure.code, failure.what());
  }
}
// An object of numbers.
inline Napi::Object numbers(Napi::Env env, std::initializer_list<std::pair<const char*, double>> rows) {
  auto object = Napi::Object::New(env);
  for (const auto& [name, value] : rows) object.Set(name, value);
  return object;
}
std::vector<int64_t> shape_from_js(const Napi::Value& value);
Napi::Value try_lock_js(const Napi::CallbackInfo& info);
Napi::Value not_finite_js(const Napi::CallbackInfo& info);
Napi::Value decode_mxfp4_js(const Napi::CallbackInfo& info);
Napi::Value decode_fp8_js(const Napi::CallbackInfo& info);
Napi::Value decode_int4_js(const Napi::CallbackInfo& info);
Napi::Value permute_matrix_js(const Napi::CallbackInfo& info);
Napi::Value raise_matrix_js(const Napi::CallbackInfo& info);
Napi::Value lost_file_js(const Napi::CallbackInfo& info);

struct Classes {
  Napi::FunctionReference tensor, recording;
  std::shared_ptr<void> hashing;  // sha256.cpp's state of this environment
};

}  // namespace lpq::addon
