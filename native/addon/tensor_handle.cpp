#include <cstring>

#include "addon/handles.h"

namespace lpq::addon {

Napi::Function TensorHandle::define(Napi::Env env) {
  return DefineClass(env, "Tensor",
                     {
                         InstanceAccessor<&TensorHandle::dtype>("dtype"),
                         InstanceAccessor<&TensorHandle::shape>("shape"),
                         InstanceAccessor<&TensorHandle::byte_length>("byteLength"),
                         InstanceAccessor<&TensorHandle::device>("device"),
                         InstanceAccessor<&TensorHandle::parked>("parked"),
                         InstanceMethod<&TensorHandle::bytes>("bytes"),
                         InstanceMethod<&TensorHandle::view>("view"),
                         InstanceMethod<&TensorHandle::dispose>("dispose"),
                     });
}

TensorHandle::TensorHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<TensorHandle>(info) {
  if (info.Length() < 1 || !info[0].IsExternal())
    throw to_js(info.Env(), "LPQ_NATIVE_ARGUMENT",
                "tensors come from allocate() and MappedFile.tensor(), not from new");
  tensor_ = *info[0].As<Napi::External<Tensor>>().Data();
}

Napi::Value TensorHandle::wrap(Napi::Env env, Tensor tensor) {
  auto external = Napi::External<Tensor>::New(env, &tensor);
  return env.GetInstanceData<Classes>()->tensor.New({external});
}

const Tensor& TensorHandle::unwrap(const Napi::Value& value) {
  auto* classes = value.Env().GetInstanceData<Classes>();
  if (!value.IsObject() || !value.As<Napi::Object>().InstanceOf(classes->tensor.Value()))
    throw Failure("LPQ_NATIVE_ARGUMENT", "a Tensor was expected");
  auto* handle = Napi::ObjectWrap<TensorHandle>::Unwrap(value.As<Napi::Object>());
  if (handle->disposed_) throw Failure("LPQ_NATIVE_DISPOSED", "this tensor was disposed of");
  return handle->tensor_;
}

Napi::Value TensorHandle::dtype(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), std::string(dtype_name(tensor_.dtype)));
}

Napi::Value TensorHandle::shape(const Napi::CallbackInfo& info) {
  auto list = Napi::Array::New(info.Env(), tensor_.shape.size());
  for (uint32_t i = 0; i < tensor_.shape.size(); ++i)
    list.Set(i, Napi::Number::New(info.Env(), static_cast<double>(tensor_.shape[i])));
  return list;
}

Napi::Value TensorHandle::byte_length(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(tensor_.bytes()));
}

Napi::Value TensorHandle::device(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), device_name(tensor_.device));
}

Napi::Value TensorHandle::parked(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), tensor_.storage && tensor_.storage->pinned);
}

Napi::Value TensorHandle::bytes(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (disposed_) throw to_js(env, "LPQ_NATIVE_DISPOSED", "this tensor was disposed of");
  if (tensor_.device >= 0)
    throw to_js(env, "LPQ_NATIVE_ARGUMENT",
                "the tensor lies on " + device_name(tensor_.device) + ": download it first");
  if (tensor_.storage->arrival && !tensor_.storage->arrival->landed())
    throw to_js(env, "LPQ_NATIVE_ARGUMENT",
                "the tensor is still on its way to the host, or never left: wait for mark() or sync() first");
  const double begin = info.Length() > 0 && info[0].IsNumber() ? info[0].ToNumber().DoubleValue() : 0;
  const double length = info.Length() > 1 && info[1].IsNumber() ? info[1].ToNumber().DoubleValue()
                                                                : static_cast<double>(tensor_.bytes()) - begin;
  if (begin < 0 || length < 0 || begin + length > static_cast<double>(tensor_.bytes()))
    throw to_js(env, "LPQ_NATIVE_ARGUMENT", "the byte range lies outside the tensor");
  if (length > 2147483647.0)
    throw to_js(env, "LPQ_NATIVE_ARGUMENT", "at most 2 GiB can be seen at once: pass an offset and a length");
  if (length == 0) return Napi::Uint8Array::New(env, 0);
  // V8 allows one ArrayBuffer per address at a time; a fresh shared_ptr keeps the storage alive as long as the view.
  auto* keep = new std::shared_ptr<Storage>(tensor_.storage);
  auto buffer = Napi::ArrayBuffer::New(
      env, tensor_.raw() + static_cast<size_t>(begin), static_cast<size_t>(length),
      [](Napi::Env, void*, std::shared_ptr<Storage>* kept) { delete kept; }, keep);
  return Napi::Uint8Array::New(env, static_cast<size_t>(length), buffer, 0);
}

// view(shape, firstElement = 0): the same storage under another shape.
Napi::Value TensorHandle::view(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    if (disposed_) throw Failure("LPQ_NATIVE_DISPOSED", "this tensor was disposed of");
    Tensor result = tensor_;
    result.shape = shape_from_js(info[0]);
    const double first = info.Length() > 1 && info[1].IsNumber() ? info[1].ToNumber().DoubleValue() : 0;
    if (first < 0 || first + static_cast<double>(result.elements()) > static_cast<double>(tensor_.elements()))
      throw Failure("LPQ_NATIVE_ARGUMENT", "the view lies outside the tensor");
    result.offset += static_cast<size_t>(first) * dtype_bytes(result.dtype);
    return wrap(env, std::move(result));
  });
}

Napi::Value TensorHandle::dispose(const Napi::CallbackInfo& info) {
  tensor_.storage.reset();
  disposed_ = true;
  return info.Env().Undefined();
}

}  // namespace lpq::addon
