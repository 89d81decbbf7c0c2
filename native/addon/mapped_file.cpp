#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "addon/handles.h"
#include "addon/mappings.h"

namespace lpq::addon {

Napi::Function MappedFile::define(Napi::Env env) {
  return DefineClass(env, "MappedFile",
                     {
                         InstanceAccessor<&MappedFile::size>("size"),
                         InstanceMethod<&MappedFile::read>("read"),
                         InstanceMethod<&MappedFile::tensor>("tensor"),
                         InstanceMethod<&MappedFile::advise>("advise"),
                         InstanceMethod<&MappedFile::close>("close"),
                     });
}

MappedFile::MappedFile(const Napi::CallbackInfo& info) : Napi::ObjectWrap<MappedFile>(info) {
  Napi::Env env = info.Env();
  const std::string path = info[0].ToString().Utf8Value();
  // A named pipe is refused, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw to_js(env, "LPQ_NATIVE_FILE", std::strerror(errno));
  struct stat facts{};
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    ::close(fd);
    throw to_js(env, "LPQ_NATIVE_FILE", "not a regular file");
  }
  storage_ = std::make_shared<Storage>();
  storage_->bytes = static_cast<size_t>(facts.st_size);
  if (storage_->bytes > 0) {
    void* address = ::mmap(nullptr, storage_->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      const int reason = errno;
      ::close(fd);
      throw to_js(env, "LPQ_NATIVE_FILE", std::strerror(reason));
    }
    storage_->data = static_cast<std::byte*>(address);
    const size_t bytes = storage_->bytes;
    Mapping* noted = note_mapping(address, bytes, fd, path);
    storage_->release = [address, bytes, noted] {
      forget_mapping(noted);
      ::munmap(address, bytes);
    };
  } else {
    ::close(fd);
  }
}

Napi::Value MappedFile::size(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), storage_ ? static_cast<double>(storage_->bytes) : 0);
}

// read(offset, length): a copy.
Napi::Value MappedFile::read(const Napi::CallbackInfo& info) {
  const double offset = info[0].ToNumber().DoubleValue();
  const double length = info[1].ToNumber().DoubleValue();
  if (!storage_ || !(offset >= 0) || !(length >= 0) || offset + length > static_cast<double>(storage_->bytes))
    throw to_js(info.Env(), "LPQ_NATIVE_FILE", "the byte range lies outside the file");
  auto copy = Napi::Uint8Array::New(info.Env(), static_cast<size_t>(length));
  if (length > 0) std::memcpy(copy.Data(), storage_->data + static_cast<size_t>(offset), static_cast<size_t>(length));
  return copy;
}

// tensor(dtype, shape, offset): a read-only view.
Napi::Value MappedFile::tensor(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    Tensor result;
    result.dtype = dtype_from_name(info[0].ToString().Utf8Value());
    result.shape = shape_from_js(info[1]);
    const double offset = info[2].ToNumber().DoubleValue();
    double bytes = static_cast<double>(dtype_bytes(result.dtype));
    for (int64_t d : result.shape) bytes *= static_cast<double>(d);
    if (!storage_ || !(offset >= 0) || offset + bytes > static_cast<double>(storage_->bytes))
      throw Failure("LPQ_NATIVE_FILE", "the tensor lies outside the file");
    result.offset = static_cast<size_t>(offset);
    result.storage = storage_;
    result.writable = false;
    return TensorHandle::wrap(env, std::move(result));
  });
}

// advise('willneed' | 'dontneed', offset, length): a hint about pages.
Napi::Value MappedFile::advise(const Napi::CallbackInfo& info) {
  if (!storage_ || storage_->bytes == 0) return info.Env().Undefined();
  const int advice = info[0].ToString().Utf8Value() == "willneed" ? MADV_WILLNEED : MADV_DONTNEED;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const double offset = info[1].ToNumber().DoubleValue(), length = info[2].ToNumber().DoubleValue();
  if (!(offset >= 0) || !(length >= 0)) return info.Env().Undefined();
  const size_t begin = static_cast<size_t>(offset) / page * page;
  const size_t end = std::min(storage_->bytes, static_cast<size_t>(offset + length));
  if (begin < end) ::madvise(storage_->data + begin, end - begin, advice);
  return info.Env().Undefined();
}

Napi::Value MappedFile::close(const Napi::CallbackInfo& info) {
  storage_.reset();  // the mapping goes with the last tensor
  return info.Env().Undefined();
}

// undefined, or {path, reason}.
Napi::Value lost_file_js(const Napi::CallbackInfo& info) {
  const LostFile lost = lost_file();
  if (lost.path.empty()) return info.Env().Undefined();
  auto result = Napi::Object::New(info.Env());
  result.Set("path", lost.path);
  result.Set("reason", lost.reason);
  return result;
}

}  // namespace lpq::addon
