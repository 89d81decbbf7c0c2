// SHA-256 beside JavaScript: the digest of Node's own OpenSSL, on threads of our own. OpenSSL's symbols are found at
// run time, for Node exports them (or links libcrypto) on every build that has node:crypto; where they are missing, the
// class cannot be made and TypeScript hashes by node:crypto itself.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
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
    t.found = find(t.context_new, "EVP_MD_CTX_new") && find(t.context_free, "EVP_MD_CTX_free") &&
              find(t.sha256, "EVP_sha256") && find(t.init, "EVP_DigestInit_ex") && find(t.update, "EVP_DigestUpdate") &&
              find(t.final, "EVP_DigestFinal_ex");
    return t;
  }();
  return table;
}

// What a thread tells JavaScript's.
struct Told {
  napi_deferred deferred;
  napi_ref array;  // kept its bytes; may be null
  bool ok;
};

// Of one environment. Its threads must be out of OpenSSL and of Node before either is cleaned up: a cleanup hook waits
// for them, and because hooks run in the reverse of their order, it comes before the end of `notify`, which was made
// earlier.
struct Environment {
  napi_threadsafe_function notify = nullptr;
  int64_t pending = 0;  // updates not settled; JavaScript's thread alone
  std::atomic<bool> gone{false};
  std::mutex mutex;
  std::condition_variable idle;
  int active = 0;

  bool enter() {
    std::lock_guard lock(mutex);
    if (gone) return false;
    ++active;
    return true;
  }
  void leave() {
    {
      std::lock_guard lock(mutex);
      --active;
    }
    idle.notify_all();
  }
  void close() {
    std::unique_lock lock(mutex);
    gone = true;
    idle.wait(lock, [&] { return active == 0; });
  }
  // JavaScript's thread: the process stays while updates are pending.
  void count(napi_env env, int64_t change) {
    const bool was = pending > 0;
    pending += change;
    if (!was && pending > 0) napi_ref_threadsafe_function(env, notify);
    if (was && pending == 0) napi_unref_threadsafe_function(env, notify);
  }
};

}  // namespace

// One running digest and what waits to be fed to it.
class Digest : public std::enable_shared_from_this<Digest> {
 public:
  struct Job {
    std::shared_ptr<Storage> keep;  // of tensors; typed arrays are kept by `told`
    const std::byte* data = nullptr;
    size_t bytes = 0;
    Told* told = nullptr;
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
    const bool entered = environment_->enter();
    if (entered) job.told->ok = feed(job.data, job.bytes);
    job.keep.reset();
    // Told only once the digest is free: whoever hears of the last update may finish at once.
    bool more;
    {
      std::lock_guard lock(mutex_);
      more = running_ = !jobs_.empty();
    }
    if (entered) {  // else nobody listens any more
      napi_call_threadsafe_function(environment_->notify, job.told, napi_tsfn_nonblocking);
      environment_->leave();
    }
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

// Plain Node-API: where an environment is ending it fails quietly, while the wrapper's exceptions would end the
// process.
void settle(napi_env env, napi_deferred deferred, bool ok) {
  napi_value value = nullptr, code = nullptr, text = nullptr;
  if (ok) {
    if (napi_get_undefined(env, &value) == napi_ok) napi_resolve_deferred(env, deferred, value);
    return;
  }
  if (napi_create_string_utf8(env, "LPQ_NATIVE", NAPI_AUTO_LENGTH, &code) == napi_ok &&
      napi_create_string_utf8(env, "OpenSSL refused to hash", NAPI_AUTO_LENGTH, &text) == napi_ok &&
      napi_create_error(env, code, text, &value) == napi_ok)
    napi_reject_deferred(env, deferred, value);
}

void tell(napi_env env, napi_value, void* context, void* data) {
  auto* told = static_cast<Told*>(data);
  if (env) {  // null where the environment is ending
    static_cast<Environment*>(context)->count(env, -1);
    if (told->array) napi_delete_reference(env, told->array);
    settle(env, told->deferred, told->ok);
  }
  delete told;
}

}  // namespace

Napi::Function Sha256Handle::define(Napi::Env env) {
  auto* classes = env.GetInstanceData<Classes>();
  auto environment = std::make_shared<Environment>();
  classes->hashing = environment;
  napi_value name = Napi::String::New(env, "lpq.sha256");
  if (napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, environment.get(), tell,
                                      &environment->notify) == napi_ok)
    napi_unref_threadsafe_function(env, environment->notify);
  env.AddCleanupHook([environment] { environment->close(); });
  return DefineClass(env, "Sha256",
                     {
                         InstanceMethod<&Sha256Handle::update>("update"),
                         InstanceMethod<&Sha256Handle::digest>("digest"),
                     });
}

Sha256Handle::Sha256Handle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Sha256Handle>(info) {
  auto environment = std::static_pointer_cast<Environment>(info.Env().GetInstanceData<Classes>()->hashing);
  if (!openssl().found || !environment->notify)
    throw to_js(info.Env(), "LPQ_NATIVE_OP", "this Node.js shows no OpenSSL");
  digest_ = std::make_shared<Digest>(std::move(environment));
}

// update(tensor | Uint8Array): a promise that settles when the bytes have been hashed.
Napi::Value Sha256Handle::update(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto environment = std::static_pointer_cast<Environment>(env.GetInstanceData<Classes>()->hashing);
  napi_deferred deferred = nullptr;
  napi_value promise = nullptr;
  try {
    Digest::Job job;
    napi_ref array = nullptr;  // keeps its bytes
    if (info[0].IsTypedArray()) {
      auto bytes = info[0].As<Napi::Uint8Array>();
      job.data = reinterpret_cast<const std::byte*>(bytes.Data());
      job.bytes = bytes.ByteLength();
      if (job.bytes > kInline || !digest_->idle()) napi_create_reference(env, info[0], 1, &array);
    } else {
      const Tensor& tensor = TensorHandle::unwrap(info[0]);
      if (tensor.device >= 0)
        throw Failure("LPQ_NATIVE_ARGUMENT",
                      "the tensor lies on " + device_name(tensor.device) + ": download it first");
      job.keep = tensor.storage;
      job.data = tensor.raw();
      job.bytes = tensor.bytes();
    }
    if (napi_create_promise(env, &deferred, &promise) != napi_ok)
      throw Failure("LPQ_NATIVE", "no promise could be made");
    if (job.bytes <= kInline && digest_->idle()) {
      settle(env, deferred, digest_->feed_now(job.data, job.bytes));
      return Napi::Value(env, promise);
    }
    job.told = new Told{deferred, array, true};
    environment->count(env, 1);
    if (digest_->push(std::move(job))) HashPool::get().submit(digest_);
  } catch (const Failure& failure) {
    throw to_js(env, failure.code, failure.what());
  }
  return Napi::Value(env, promise);
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
