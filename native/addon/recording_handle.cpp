#include "addon/handles.h"

namespace lpq::addon {

Napi::Function RecordingHandle::define(Napi::Env env) {
  return DefineClass(env, "Recording",
                     {
                         InstanceMethod<&RecordingHandle::matches>("matches"),
                         InstanceMethod<&RecordingHandle::dispose>("dispose"),
                     });
}

RecordingHandle::RecordingHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<RecordingHandle>(info) {
  if (info.Length() < 1 || !info[0].IsExternal())
    throw to_js(info.Env(), "LPQ_NATIVE_ARGUMENT", "recordings come from a runtime, not from new");
  recording_ = *info[0].As<Napi::External<std::shared_ptr<Recording>>>().Data();
}

Napi::Value RecordingHandle::wrap(Napi::Env env, std::shared_ptr<Recording> recording) {
  auto external = Napi::External<std::shared_ptr<Recording>>::New(env, &recording);
  return env.GetInstanceData<Classes>()->recording.New({external});
}

const std::shared_ptr<Recording>& RecordingHandle::unwrap(const Napi::Value& value) {
  auto* classes = value.Env().GetInstanceData<Classes>();
  if (!value.IsObject() || !value.As<Napi::Object>().InstanceOf(classes->recording.Value()))
    throw Failure("LPQ_NATIVE_ARGUMENT", "a Recording was expected");
  const auto& recording = Napi::ObjectWrap<RecordingHandle>::Unwrap(value.As<Napi::Object>())->recording_;
  if (!recording) throw Failure("LPQ_NATIVE_DISPOSED", "this recording was disposed of");
  return recording;
}

Napi::Value RecordingHandle::matches(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return Napi::Boolean::New(info.Env(), unwrap(info.This())->matches(*unwrap(info[0])));
  });
}

Napi::Value RecordingHandle::dispose(const Napi::CallbackInfo& info) {
  recording_ = nullptr;
  return info.Env().Undefined();
}

}  // namespace lpq::addon
