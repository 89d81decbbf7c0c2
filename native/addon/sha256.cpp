// SHA-256 beside JavaScript: the digest of Node's own OpenSSL, on threads of our own. OpenSSL's symbols are found at run
// time, for Node exports them (or links libcrypto) on every build that has node:crypto; where they are missing, the class
// cannot be made and TypeScript hashes by node:crypto itself.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "addon/handles.h"

namespace lpq::addon {
namespace {

// The part of OpenSSL's EVP interface that has been the same from 1.1 on.
struct OpenSsl {
  void* (*context_new)() = nullptr;
  void (*context_free)(void*) = nullptr;
  const void* (*sha256)() = nullptr;
  int (*init)(void*, const void*, void*) = nullptr;
  int (*update)(void*, const void*, size_t) = nullptr;
  int (*final)(void*, unsigned char*, unsigned*) = nullptr;
  bool found = false;
};

template <class F>
bool find(F& function, const char* name) {
  function = reinterpret_cast<F>(::dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

const OpenSsl& openssl() {
  static const OpenSsl table = [] {
    OpenSsl t;
    t.found = find(t.context_new, "EVP_MD_CTX_new") && find(t.context_free, "EVP_MD_CTX_free") && find(t.sha256, "EVP_sha256") &&
              find(t.init, "EVP_DigestInit_ex") && find(t.update, "EVP_DigestUpdate") && find(t.final, "EVP_DigestFinal_ex");
    return t;
  }();
  return table;
}

// Threads must be out of OpenSSL before it is cleaned up at the process's end.
struct Environment {
  std::atomic<bool> gone{false};
  std::mutex mutex;
  std::condition_variable idle;
  int active = 0;
};

}  // namespace

// One running digest and what waits to be fed to it.
class Digest : public std::enable_shared_from_this<Digest> {
 public:
  struct Job {
    std::shared_ptr<Storage> keep;  // of tensors; typed arrays are kept by `done`
    const std::byte* data = nullptr;
    size_t bytes = 0;
    std::function<void(bool)> done;
  };

  explicit Digest(std::shared_ptr<Environment> environment) : environment_(std::move(environment)) {
    context_ = openssl().context_new();
    ok_ = context_ && openssl().init(context_, openssl().sha256(), nullptr) == 1;
  }
  ~Digest() {
    if (context_ && !environment_->gone) openssl().context_free(context_);
  }

  // JavaScript's thread. True where nothing waits and the digest may be touched there.
  bool idle() {
    std::lock_guard lock(mutex_);
    return jobs_.empty() && !running_;
  }
  bool feed_now(const std::byte* data, size_t bytes) { return feed(data, bytes); }
  std::optional<std::string> finish() {
    unsigned char out[64];
    unsigned length = 0;
    if (!ok_ || openssl().final(context_, out, &length) != 1 || length != 32) return std::nullopt;
    ok_ = false;  // spent
    static constexpr char kHex[] = "0123456789abcdef";
    std::string text;
    for (unsigned i = 0; i < length; ++i) text += {kHex[out[i] >> 4], kHex[out[i] & 15]};
    return text;
  }
  // True where it must be given to a thread.
  bool push(Job job) {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    return !std::exchange(running_, true);
  }

  // A thread of the pool. Runs the first job; false when none waits behind it.
  bool step() {
    Job job;
    {
      std::lock_guard lock(mutex_);
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    bool fed = false;
    {
      std::unique_lock lock(environment_->mutex);
      ++environment_->active;
    }
    fed = feed(job.data, job.bytes);
    job.keep.reset();
    // Told only once the next one may touch the digest: whoever hears of the last may finish() at once.
    bool more;
    {
      std::lock_guard lock(mutex_);
      more = running_ = !jobs_.empty();
    }
    job.done(fed);
    {
      std::unique_lock lock(environment_->mutex);
      --environment_->active;
    }
    environment_->idle.notify_all();
    return more;
  }

 private:
  bool feed(const std::byte* data, size_t bytes) {
    constexpr size_t kSlice = 1 << 20;  // between which the end of the environment is noticed
    for (size_t at = 0; ok_ && at < bytes; at += kSlice) {
      if (environment_->gone) return ok_ = false;
      ok_ = openssl().update(context_, data + at, std::min(kSlice, bytes - at)) == 1;
    }
    return ok_;
  }

  std::shared_ptr<Environment> environment_;
  void* context_ = nullptr;
  bool ok_ = false;
  std::mutex mutex_;
  std::deque<Job> jobs_;
  bool running_ = false;  // a thread has it, or it waits for one
};

namespace {

// Threads that come as they are needed and stay. Never destroyed: they sleep until the process ends.
class HashPool {
 public:
  static HashPool& get() {
    static auto* pool = new HashPool;
    return *pool;
  }
  // Throws Failure where not even one thread can be had.
  void submit(std::shared_ptr<Digest> digest) {
    {
      std::lock_guard lock(mutex_);
      if (waiting_ <= ready_.size() && count_ < limit_) grow();
      ready_.push_back(std::move(digest));
    }
    wake_.notify_one();
  }
  size_t limit() const { return limit_; }

 private:
  HashPool() : limit_(std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 2, 8)) {}
  void grow() {
    try {
      std::thread([this] { work(); }).detach();
      ++count_;
    } catch (const std::system_error& error) {
      if (count_ == 0) throw Failure("LPQ_NATIVE_MEMORY", error.what());
    }
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++waiting_;
      wake_.wait(lock, [&] { return !ready_.empty(); });
      --waiting_;
      auto digest = std::move(ready_.front());
      ready_.pop_front();
      lock.unlock();
      const bool more = digest->step();
      lock.lock();
      if (more) ready_.push_back(std::move(digest));  // this thread takes it or another, in turn
      digest.reset();
    }
  }
  const size_t limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Digest>> ready_;
  size_t count_ = 0, waiting_ = 0;
};

// Below this a thread costs more than it saves: some 40 us of hashing.
constexpr size_t kInline = 1 << 16;

}  // namespace

Napi::Function Sha256Handle::define(Napi::Env env) {
  auto* classes = env.GetInstanceData<Classes>();
  auto environment = std::make_shared<Environment>();
  classes->hashing = environment;
  env.AddCleanupHook([environment] {
    environment->gone = true;
    std::unique_lock lock(environment->mutex);
    environment->idle.wait(lock, [&] { return environment->active == 0; });
  });
  return DefineClass(env, "Sha256",
                     {
                         InstanceMethod<&Sha256Handle::update>("update"),
                         InstanceMethod<&Sha256Handle::digest>("digest"),
                     });
}

Sha256Handle::Sha256Handle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Sha256Handle>(info) {
  if (!openssl().found) throw to_js(info.Env(), "LPQ_NATIVE_OP", "this Node.js shows no OpenSSL");
  auto environment = std::static_pointer_cast<Environment>(info.Env().GetInstanceData<Classes>()->hashing);
  digest_ = std::make_shared<Digest>(std::move(environment));
}

// update(tensor | Uint8Array): a promise that settles when the bytes have been hashed.
Napi::Value Sha256Handle::update(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto deferred = std::make_shared<Napi::Promise::Deferred>(Napi::Promise::Deferred::New(env));
  try {
    Digest::Job job;
    std::shared_ptr<Napi::ObjectReference> array;
    if (info[0].IsTypedArray()) {
      auto bytes = info[0].As<Napi::Uint8Array>();
      job.data = reinterpret_cast<const std::byte*>(bytes.Data());
      job.bytes = bytes.ByteLength();
      array = std::make_shared<Napi::ObjectReference>(Napi::Persistent(info[0].As<Napi::Object>()));
    } else {
      const Tensor& tensor = TensorHandle::unwrap(info[0]);
      if (tensor.device >= 0)
        throw Failure("LPQ_NATIVE_ARGUMENT", "the tensor lies on " + device_name(tensor.device) + ": download it first");
      job.keep = tensor.storage;
      job.data = tensor.raw();
      job.bytes = tensor.bytes();
    }
    if (job.bytes <= kInline && digest_->idle()) {
      if (!digest_->feed_now(job.data, job.bytes)) throw Failure("LPQ_NATIVE", "OpenSSL refused to hash");
      deferred->Resolve(env.Undefined());
      return deferred->Promise();
    }
    auto notify = Napi::ThreadSafeFunction::New(env, Napi::Function::New(env, [](const Napi::CallbackInfo&) {}), "lpq.sha256", 0, 1);
    job.done = [notify, deferred, array](bool ok) {
      const auto status = notify.BlockingCall([deferred, array, ok](Napi::Env js, Napi::Function) {
        if (array) array->Reset();  // here: a reference goes on JavaScript's thread
        if (ok)
          deferred->Resolve(js.Undefined());
        else
          deferred->Reject(to_js(js, "LPQ_NATIVE", "OpenSSL refused to hash").Value());
      });
      if (status == napi_ok)
        notify.Release();
      else if (array)
        array->SuppressDestruct();  // the environment is gone, and its references with it
    };
    if (digest_->push(std::move(job))) HashPool::get().submit(digest_);
  } catch (const Failure& failure) {
    throw to_js(env, failure.code, failure.what());
  }
  return deferred->Promise();
}

// digest(): the hex digits, once every update has settled.
Napi::Value Sha256Handle::digest(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (!digest_->idle()) throw to_js(env, "LPQ_NATIVE_ARGUMENT", "an update of this hash has not settled");
  const auto text = digest_->finish();
  if (!text) throw to_js(env, "LPQ_NATIVE", "this hash failed or was finished before");
  return Napi::String::New(env, *text);
}

}  // namespace lpq::addon
