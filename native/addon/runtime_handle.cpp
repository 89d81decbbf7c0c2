#include "addon/handles.h"

#include <system_error>

#include "cuda/telemetry.h"
#include "lpq/arguments.h"

namespace lpq::addon {

Napi::Function RuntimeHandle::define(Napi::Env env) {
  return DefineClass(env, "Runtime",
                     {
                         InstanceMethod<&RuntimeHandle::enqueue>("enqueue"),
                         InstanceMethod<&RuntimeHandle::record>("record"),
                         InstanceMethod<&RuntimeHandle::recorded>("recorded"),
                         InstanceMethod<&RuntimeHandle::replay>("replay"),
                         InstanceMethod<&RuntimeHandle::time>("time"),
                         InstanceMethod<&RuntimeHandle::telemetry>("telemetry"),
                         InstanceMethod<&RuntimeHandle::sync>("sync"),
                         InstanceMethod<&RuntimeHandle::mark>("mark"),
                         InstanceMethod<&RuntimeHandle::abort>("abort"),
                         InstanceMethod<&RuntimeHandle::progress>("progress"),
                         InstanceMethod<&RuntimeHandle::profile>("profile"),
                         InstanceMethod<&RuntimeHandle::allocate>("allocate"),
                         InstanceMethod<&RuntimeHandle::upload>("upload"),
                         InstanceMethod<&RuntimeHandle::download>("download"),
                         InstanceMethod<&RuntimeHandle::park>("park"),
                         InstanceMethod<&RuntimeHandle::restore>("restore"),
                         InstanceMethod<&RuntimeHandle::copy_from>("copyFrom"),
                         InstanceMethod<&RuntimeHandle::memory>("memory"),
                         InstanceMethod<&RuntimeHandle::lend>("lend"),
                         InstanceMethod<&RuntimeHandle::reset_peak>("resetPeak"),
                         InstanceAccessor<&RuntimeHandle::threads>("threads"),
                         InstanceAccessor<&RuntimeHandle::device>("device"),
                     });
}

// Runtime(threads, device = -1, vramLimit = 0, hostLimit = 0)
RuntimeHandle::RuntimeHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<RuntimeHandle>(info) {
  const int device = info.Length() > 1 && info[1].IsNumber() ? info[1].ToNumber().Int32Value() : -1;
  auto bytes = [&](size_t i) {
    return static_cast<size_t>(info.Length() > i && info[i].IsNumber() ? std::max(0.0, info[i].ToNumber().DoubleValue())
                                                                       : 0.0);
  };
  try {
    if (device < 0) {
      queue_ = std::make_unique<Queue>(std::max(1, info[0].ToNumber().Int32Value()));
    } else {
      auto backend = std::make_unique<cuda::CudaBackend>(device, bytes(2), bytes(3));
      cuda_ = backend.get();
      queue_ = std::make_unique<Queue>(std::move(backend));
    }
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

static Params params_from_js(const Napi::Value& value) {
  Params params;
  if (!value.IsObject()) return params;
  auto object = value.As<Napi::Object>();
  auto names = object.GetPropertyNames();
  for (uint32_t i = 0; i < names.Length(); ++i) {
    const std::string name = names.Get(i).ToString().Utf8Value();
    Napi::Value value = object.Get(name);
    if (value.IsUndefined()) continue;
    if (value.IsBoolean()) {
      params.set(name, value.ToBoolean().Value() ? 1.0 : 0.0);
    } else if (value.IsNumber()) {
      params.set(name, value.ToNumber().DoubleValue());
    } else if (value.IsString()) {
      params.set(name, value.ToString().Utf8Value());
    } else if (value.IsArray()) {
      auto list = value.As<Napi::Array>();
      std::vector<double> numbers(list.Length());
      for (uint32_t j = 0; j < list.Length(); ++j) numbers[j] = list.Get(j).ToNumber().DoubleValue();
      params.set(name, std::move(numbers));
    } else {
      throw Failure("LPQ_NATIVE_PARAM",
                    "'" + name + "' is neither a number, a string, a boolean nor a list of numbers");
    }
  }
  return params;
}

static Call call_from_js(const Napi::Value& inputs, const Napi::Value& outputs, const Napi::Value& params) {
  if (!inputs.IsArray() || !outputs.IsArray())
    throw Failure("LPQ_NATIVE_ARGUMENT", "inputs and outputs are arrays of tensors");
  return {tensors_from_js(inputs), tensors_from_js(outputs), params_from_js(params)};
}

Napi::Value RuntimeHandle::enqueue(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&] {
    std::string op = info[0].ToString().Utf8Value();
    Call call = call_from_js(info[1], info[2], info[3]);
    if (recording_) recording_->calls.emplace_back(op, call);
    queue_->enqueue(std::move(op), std::move(call));
    return env.Undefined();
  });
}

Napi::Value RuntimeHandle::record(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    require(!cuda_, "calls are recorded on the CPU only");
    recording_ = std::make_shared<Recording>();
    return info.Env().Undefined();
  });
}

Napi::Value RuntimeHandle::recorded(const Napi::CallbackInfo& info) {
  const std::shared_ptr<Recording> recording = std::move(recording_);
  recording_ = nullptr;
  return recording ? RecordingHandle::wrap(info.Env(), recording) : info.Env().Undefined();
}

Napi::Value RuntimeHandle::replay(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    recording_ = nullptr;
    queue_->enqueue("replay", [backend = &queue_->backend(), recording = RecordingHandle::unwrap(info[0])] {
      backend->replay(*recording);
    });
    return info.Env().Undefined();
  });
}

namespace {

// A promise that any thread may settle once. The runtime stays alive until then, also when JavaScript holds the promise
// only; the reference is created and let go of on JavaScript's thread.
class Settler {
 public:
  using Value = std::function<Napi::Value(Napi::Env)>;
  Settler(const Napi::CallbackInfo& info, Value value)
      : deferred_(std::make_shared<Napi::Promise::Deferred>(Napi::Promise::Deferred::New(info.Env()))),
        notify_(Napi::ThreadSafeFunction::New(
            info.Env(), Napi::Function::New(info.Env(), [](const Napi::CallbackInfo&) {}), "lpq.sync", 0, 1)),
        self_(std::make_shared<Napi::ObjectReference>(Napi::Persistent(info.This().As<Napi::Object>()))),
        value_(std::move(value)) {}
  Napi::Value promise() const { return deferred_->Promise(); }
  void operator()(Outcome outcome) const {
    Napi::ThreadSafeFunction notify = notify_;
    notify.BlockingCall([deferred = deferred_, self = self_, value = value_, outcome](Napi::Env js, Napi::Function) {
      self->Reset();
      if (outcome.ok) deferred->Resolve(value(js));
      else deferred->Reject(to_js(js, outcome.code, outcome.detail, outcome.op).Value());
    });
    notify.Release();
  }

 private:
  std::shared_ptr<Napi::Promise::Deferred> deferred_;
  Napi::ThreadSafeFunction notify_;
  std::shared_ptr<Napi::ObjectReference> self_;
  Value value_;
};

}  // namespace

Napi::Value RuntimeHandle::sync(const Napi::CallbackInfo& info) {
  recording_ = nullptr;
  Settler settle(info, [](Napi::Env js) { return js.Undefined(); });
  queue_->on_settled(settle);
  return settle.promise();
}

// time([{op, inputs, outputs, params}], {passes, seconds, graph})
Napi::Value RuntimeHandle::time(const Napi::CallbackInfo& info) {
  recording_ = nullptr;
  auto calls = std::make_shared<std::vector<std::pair<std::string, Call>>>();
  auto seconds = std::make_shared<std::vector<double>>();
  Timing how;
  try {
    require(info[0].IsArray(), "calls to time are a list");
    auto list = info[0].As<Napi::Array>();
    for (uint32_t i = 0; i < list.Length(); ++i) {
      auto each = Napi::Value(list.Get(i)).As<Napi::Object>();
      calls->emplace_back(each.Get("op").ToString().Utf8Value(),
                          call_from_js(each.Get("inputs"), each.Get("outputs"), each.Get("params")));
    }
    require(!calls->empty(), "there are no calls to time");
    const Call given{{}, {}, params_from_js(info[1])};
    Arguments options(given, "time");
    how.passes = static_cast<int>(options.integer("passes", how.passes));
    how.seconds = options.number("seconds", 0);
    how.graph = options.flag("graph", true);
    options.done();
    require(how.passes >= 1 && how.seconds >= 0, "passes are 1 or more, seconds are not negative");
  } catch (const Failure& failure) {
    throw to_js(info.Env(), failure.code, failure.what());
  }
  Settler settle(info, [seconds](Napi::Env js) {
    auto result = Napi::Array::New(js, seconds->size());
    for (uint32_t i = 0; i < seconds->size(); ++i) result.Set(i, (*seconds)[i]);
    return result;
  });
  queue_->enqueue("time",
                  [backend = &queue_->backend(), calls, seconds, how] { *seconds = backend->time(*calls, how); });
  queue_->on_settled(settle);
  return settle.promise();
}

Napi::Value RuntimeHandle::telemetry(const Napi::CallbackInfo& info) {
  const auto seen = cuda_ ? cuda::telemetry(cuda_->facts().ordinal) : std::nullopt;
  if (!seen) return info.Env().Undefined();
  auto result = Napi::Object::New(info.Env());
  const auto set = [&](const char* name, const std::optional<double>& value) {
    if (value) result.Set(name, *value);
  };
  set("smClock", seen->sm_clock);
  set("memoryClock", seen->memory_clock);
  set("power", seen->power);
  set("powerLimit", seen->power_limit);
  set("temperature", seen->temperature);
  set("limits", seen->limits);
  return result;
}

Napi::Value RuntimeHandle::mark(const Napi::CallbackInfo& info) {
  recording_ = nullptr;
  Settler settle(info, [](Napi::Env js) { return js.Undefined(); });
  queue_->mark(settle);
  return settle.promise();
}

Napi::Value RuntimeHandle::device(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), device_name(queue_->backend().device()));
}

Napi::Value RuntimeHandle::allocate(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const DType dtype = dtype_from_name(info[0].ToString().Utf8Value());
    auto shape = shape_from_js(info[1]);
    if (cuda_)
      return TensorHandle::wrap(info.Env(), cuda::with_room(*queue_, [&] { return cuda_->allocate(dtype, shape); }));
    Tensor made = lpq::allocate(dtype, shape);
    if (recording_) recording_->made.insert(made.storage);
    return TensorHandle::wrap(info.Env(), std::move(made));
  });
}

Napi::Value RuntimeHandle::upload(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const Tensor& host = TensorHandle::unwrap(info[0]);
    if (cuda_ && host.storage && host.storage->pinned) return restore(info);
    return TensorHandle::wrap(info.Env(), cuda_ ? cuda::with_room(*queue_, [&] { return cuda_->upload(host); }) : host);
  });
}

// What lies where it is asked for is a view, as everything is on the CPU.
Napi::Value RuntimeHandle::park(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const Tensor& source = TensorHandle::unwrap(info[0]);
    if (source.device < 0) return TensorHandle::wrap(info.Env(), source);
    require(cuda_ != nullptr, "the tensor to park lies on " + device_name(source.device) + ", not on the CPU");
    return copied(info.Env(), "park", cuda::with_room(*queue_, [&] { return cuda_->park(source); }));
  });
}

Napi::Value RuntimeHandle::restore(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const Tensor& source = TensorHandle::unwrap(info[0]);
    require(source.device < 0 || source.device == queue_->backend().device(),
            "the tensor to restore lies on " + device_name(source.device) + ": copyFrom() copies between devices");
    if (source.device >= 0 || !cuda_) return TensorHandle::wrap(info.Env(), source);
    if (!source.storage->pinned) return upload(info);
    return copied(info.Env(), "restore", cuda::with_room(*queue_, [&] { return cuda_->restore(source); }));
  });
}

Napi::Value RuntimeHandle::copy_from(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const Tensor& source = TensorHandle::unwrap(info[0]);
    if (source.device < 0) return upload(info);
    require(cuda_ != nullptr,
            "the tensor to copy lies on " + device_name(source.device) + ": its own runtime can download it");
    return copied(info.Env(), "copy", cuda::with_room(*queue_, [&] { return cuda_->copy_from(source); }));
  });
}

Napi::Value RuntimeHandle::copied(Napi::Env env, const char* what, cuda::CudaBackend::Copy copy) {
  queue_->enqueue(what, std::move(copy.launch));
  return TensorHandle::wrap(env, std::move(copy.result));
}

Napi::Value RuntimeHandle::download(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  recording_ = nullptr;
  Tensor source, host;
  try {
    source = TensorHandle::unwrap(info[0]);
    host = source.device < 0 ? source : lpq::allocate(source.dtype, source.shape);
  } catch (const Failure& failure) {
    throw to_js(env, failure.code, failure.what());
  }
  Settler settle(info, [host](Napi::Env js) { return TensorHandle::wrap(js, host); });
  queue_->on_settled([settle, cuda = cuda_, source, host](Outcome outcome) {
    if (!outcome.ok) return settle(std::move(outcome));
    if (source.device >= 0 && cuda) return cuda->download(source, host, settle);
    settle(outcome_of("download", [&] {
      require(source.device < 0, "the tensor to download lies on " + device_name(source.device) + ", not on the CPU");
      if (source.storage && source.storage->arrival) source.storage->arrival->await_host();
    }));
  });
  return settle.promise();
}

Napi::Value RuntimeHandle::memory(const Napi::CallbackInfo& info) {
  if (!cuda_) return info.Env().Undefined();
  const auto usage = cuda_->allocator().usage();
  const auto pinned = cuda_->pinned().usage();
  return numbers(info.Env(), {{"used", double(usage.used)},
                              {"reserved", double(usage.reserved)},
                              {"peakUsed", double(usage.peak_used)},
                              {"peakReserved", double(usage.peak_reserved)},
                              {"limit", double(cuda_->allocator().limit())},
                              {"parked", double(pinned.parked)},
                              {"peakParked", double(pinned.peak_parked)},
                              {"pinned", double(pinned.reserved)}});
}

Napi::Value RuntimeHandle::lend(const Napi::CallbackInfo& info) {
  const double bytes = info.Length() > 0 && info[0].IsNumber() ? info[0].ToNumber().DoubleValue() : -1;
  try {
    require(bytes >= 0, "lend() takes a number of bytes");
    return Napi::Boolean::New(info.Env(), cuda_ && cuda_->allocator().lend(static_cast<size_t>(bytes)));
  } catch (const Failure& failure) {
    throw to_js(info.Env(), failure.code, failure.what());
  }
}

Napi::Value RuntimeHandle::reset_peak(const Napi::CallbackInfo& info) {
  if (cuda_) {
    cuda_->allocator().reset_peak();
    cuda_->pinned().reset_peak();
  }
  return info.Env().Undefined();
}

Napi::Value RuntimeHandle::abort(const Napi::CallbackInfo& info) {
  queue_->abort();
  return info.Env().Undefined();
}

Napi::Value RuntimeHandle::progress(const Napi::CallbackInfo& info) {
  return numbers(info.Env(), {{"done", double(queue_->progress_done())}, {"total", double(queue_->progress_total())}});
}

Napi::Value RuntimeHandle::profile(const Napi::CallbackInfo& info) {
  auto result = Napi::Object::New(info.Env());
  for (const auto& [op, entry] : queue_->take_profile())
    result.Set(op, numbers(info.Env(), {{"calls", double(entry.first)}, {"seconds", entry.second}}));
  return result;
}

Napi::Value RuntimeHandle::threads(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), queue_->threads());
}

}  // namespace lpq::addon
