#include "addon/handles.h"

#include <system_error>

namespace lpq::addon {

Napi::Function RuntimeHandle::define(Napi::Env env) {
  return DefineClass(env, "Runtime",
                     {
                         InstanceMethod<&RuntimeHandle::enqueue>("enqueue"),
                         InstanceMethod<&RuntimeHandle::sync>("sync"),
                         InstanceMethod<&RuntimeHandle::abort>("abort"),
                         InstanceMethod<&RuntimeHandle::progress>("progress"),
                         InstanceMethod<&RuntimeHandle::profile>("profile"),
                         InstanceAccessor<&RuntimeHandle::threads>("threads"),
                     });
}

RuntimeHandle::RuntimeHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<RuntimeHandle>(info) {
  try {
    queue_ = std::make_unique<Queue>(std::max(1, info[0].ToNumber().Int32Value()));
  } catch (const Failure& failure) {
    throw to_js(info.Env(), failure.code, failure.what());
  } catch (const std::system_error& error) {
    throw to_js(info.Env(), "LPQ_NATIVE_MEMORY", error.what());
  }
}

static std::vector<Tensor> tensors_from_js(const Napi::Value& value) {
  auto list = value.As<Napi::Array>();
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < list.Length(); ++i) tensors.push_back(TensorHandle::unwrap(list.Get(i)));
  return tensors;
}

Napi::Value RuntimeHandle::enqueue(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  try {
    Call call;
    std::string op = info[0].ToString().Utf8Value();
    if (!info[1].IsArray() || !info[2].IsArray()) throw Failure("LPQ_NATIVE_ARGUMENT", "inputs and outputs are arrays of tensors");
    call.in = tensors_from_js(info[1]);
    call.out = tensors_from_js(info[2]);
    if (info.Length() > 3 && info[3].IsObject()) {
      auto object = info[3].As<Napi::Object>();
      auto names = object.GetPropertyNames();
      for (uint32_t i = 0; i < names.Length(); ++i) {
        const std::string name = names.Get(i).ToString().Utf8Value();
        Napi::Value value = object.Get(name);
        if (value.IsUndefined()) continue;
        if (value.IsBoolean()) {
          call.params.set(name, value.ToBoolean().Value() ? 1.0 : 0.0);
        } else if (value.IsNumber()) {
          call.params.set(name, value.ToNumber().DoubleValue());
        } else if (value.IsString()) {
          call.params.set(name, value.ToString().Utf8Value());
        } else if (value.IsArray()) {
          auto list = value.As<Napi::Array>();
          std::vector<double> numbers(list.Length());
          for (uint32_t j = 0; j < list.Length(); ++j) numbers[j] = list.Get(j).ToNumber().DoubleValue();
          call.params.set(name, std::move(numbers));
        } else {
          throw Failure("LPQ_NATIVE_PARAM", "'" + name + "' is neither a number, a string, a boolean nor a list of numbers");
        }
      }
    }
    queue_->enqueue(std::move(op), std::move(call));
  } catch (const Failure& failure) {
    throw to_js(env, failure.code, failure.what());
  }
  return env.Undefined();
}

Napi::Value RuntimeHandle::sync(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto deferred = std::make_shared<Napi::Promise::Deferred>(Napi::Promise::Deferred::New(env));
  auto notify = Napi::ThreadSafeFunction::New(env, Napi::Function::New(env, [](const Napi::CallbackInfo&) {}), "lpq.sync", 0, 1);
  // The runtime stays alive until the promise settles, also when JavaScript holds the promise only. The reference is
  // created and let go of on JavaScript's thread.
  auto self = std::make_shared<Napi::ObjectReference>(Napi::Persistent(info.This().As<Napi::Object>()));
  queue_->on_settled([notify, deferred, self](Queue::Outcome outcome) mutable {
    notify.BlockingCall([deferred, outcome, self](Napi::Env js, Napi::Function) {
      self->Reset();
      if (outcome.ok)
        deferred->Resolve(js.Undefined());
      else
        deferred->Reject(to_js(js, outcome.code, outcome.detail, outcome.op).Value());
    });
    notify.Release();
  });
  return deferred->Promise();
}

Napi::Value RuntimeHandle::abort(const Napi::CallbackInfo& info) {
  queue_->abort();
  return info.Env().Undefined();
}

Napi::Value RuntimeHandle::progress(const Napi::CallbackInfo& info) {
  auto result = Napi::Object::New(info.Env());
  result.Set("done", static_cast<double>(queue_->progress_done()));
  result.Set("total", static_cast<double>(queue_->progress_total()));
  return result;
}

Napi::Value RuntimeHandle::profile(const Napi::CallbackInfo& info) {
  auto result = Napi::Object::New(info.Env());
  for (const auto& [op, entry] : queue_->take_profile()) {
    auto row = Napi::Object::New(info.Env());
    row.Set("calls", static_cast<double>(entry.first));
    row.Set("seconds", entry.second);
    result.Set(op, row);
  }
  return result;
}

Napi::Value RuntimeHandle::threads(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), queue_->threads()); }

}  // namespace lpq::addon
