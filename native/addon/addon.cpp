#include "addon/choice.h"
#include "addon/handles.h"
#include "cpu/isa.h"

namespace lpq::addon {

Napi::Error to_js(Napi::Env env, const std::string& code, const std::string& detail, const std::string& op) {
  Napi::Error error = Napi::Error::New(env, detail);
  error.Set("code", Napi::String::New(env, code));
  if (!op.empty()) error.Set("op", Napi::String::New(env, op));
  return error;
}

std::string device_name(int device) { return device < 0 ? "cpu" : "cuda:" + std::to_string(device); }

std::vector<int64_t> shape_from_js(const Napi::Value& value) {
  if (!value.IsArray()) throw Failure("LPQ_NATIVE_ARGUMENT", "a shape is an array of integers");
  auto list = value.As<Napi::Array>();
  std::vector<int64_t> shape(list.Length());
  for (uint32_t i = 0; i < list.Length(); ++i) {
    const double d = list.Get(i).ToNumber().DoubleValue();
    if (!(d >= 0) || d != static_cast<double>(static_cast<int64_t>(d)) || d > 9e15)
      throw Failure("LPQ_NATIVE_ARGUMENT", "a dimension is a non-negative integer");
    shape[i] = static_cast<int64_t>(d);
  }
  return shape;
}

static Napi::Value allocate_js(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return TensorHandle::wrap(info.Env(),
                              allocate(dtype_from_name(info[0].ToString().Utf8Value()), shape_from_js(info[1])));
  });
}

static Napi::Value operations_js(const Napi::CallbackInfo& info) {
  auto names = Napi::Array::New(info.Env());
  uint32_t i = 0;
  for (const auto& [name, fn] : op_table()) names.Set(i++, Napi::String::New(info.Env(), name));
  return names;
}

static Napi::Value isa_js(const Napi::CallbackInfo& info) { return Napi::String::New(info.Env(), isa_name()); }

static Napi::Value cuda_devices_js(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const auto devices = cuda::cuda_devices();
    auto list = Napi::Array::New(env, devices.size());
    for (uint32_t i = 0; i < devices.size(); ++i) {
      auto row = Napi::Object::New(env);
      row.Set("name", devices[i].name);
      row.Set("arch", devices[i].arch);
      row.Set("memory", static_cast<double>(devices[i].memory_bytes));
      row.Set("l2", static_cast<double>(devices[i].l2_bytes));
      row.Set("multiprocessors", devices[i].multiprocessors);
      list.Set(i, row);
    }
    return list;
  });
}

static Napi::Value cuda_operations_js(const Napi::CallbackInfo& info) {
  auto names = Napi::Array::New(info.Env());
  uint32_t i = 0;
  for (const auto& [name, fn] : cuda::cuda_op_table()) names.Set(i++, Napi::String::New(info.Env(), name));
  return names;
}

static Napi::Object init(Napi::Env env, Napi::Object exports) {
  auto* classes = new Classes;
  env.SetInstanceData(classes);
  Napi::Function tensor = TensorHandle::define(env);
  classes->tensor = Napi::Persistent(tensor);
  classes->recording = Napi::Persistent(RecordingHandle::define(env));
  exports.Set("Tensor", tensor);
  exports.Set("MappedFile", MappedFile::define(env));
  exports.Set("Runtime", RuntimeHandle::define(env));
  exports.Set("Sha256", Sha256Handle::define(env));
  exports.Set("allocate", Napi::Function::New(env, allocate_js));
  exports.Set("operations", Napi::Function::New(env, operations_js));
  exports.Set("cudaDevices", Napi::Function::New(env, cuda_devices_js));
  exports.Set("cudaOperations", Napi::Function::New(env, cuda_operations_js));
  exports.Set("explainKernel", Napi::Function::New(env, explain_kernel_js));
  exports.Set("kernelTuning", Napi::Function::New(env, kernel_tuning_js));
  exports.Set("tryLock", Napi::Function::New(env, try_lock_js));
  exports.Set("notFinite", Napi::Function::New(env, not_finite_js));
  exports.Set("decodeMxfp4", Napi::Function::New(env, decode_mxfp4_js));
  exports.Set("decodeFp8", Napi::Function::New(env, decode_fp8_js));
  exports.Set("decodeInt4", Napi::Function::New(env, decode_int4_js));
  exports.Set("permuteMatrix", Napi::Function::New(env, permute_matrix_js));
  exports.Set("raiseMatrix", Napi::Function::New(env, raise_matrix_js));
  exports.Set("lostFile", Napi::Function::New(env, lost_file_js));
  exports.Set("isa", Napi::Function::New(env, isa_js));
  return exports;
}

NODE_API_MODULE(lpq, init)

}  // namespace lpq::addon
