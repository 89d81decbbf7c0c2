// What the users of a copy wait for: first, on the host, until the copy was launched; then its event.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "cuda/driver.h"
#include "lpq/exec.h"
#include "lpq/tensor.h"

namespace lpq::cuda {

class Ticket final : public Arrival {
 public:
  explicit Ticket(CUcontext context) : context_(context) {
    check(driver().context_set(context_), "selecting the device");
    check(driver().event_create(&end_, kDisableTiming | kBlockingSync), "making an event");
  }
  ~Ticket() override {
    driver().context_set(context_);
    driver().event_destroy(end_);
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // Whoever launches the copy records this event behind it, then settles; only the first settling counts.
  CUevent end() const { return end_; }
  void settle(Outcome how) {
    {
      std::lock_guard lock(mutex_);
      if (launched_) return;
      outcome_ = std::move(how);
      launched_ = true;
    }
    wake_.notify_all();
  }

  bool await(void* stream) override {
    launched();
    if (waits_.load() == stream) return false;
    check(driver().stream_wait_event(static_cast<CUstream>(stream), end_, 0), "waiting for a copy");
    waits_ = stream;
    return true;
  }
  void await_host() override {
    launched();
    check(driver().context_set(context_), "selecting the device");
    check(driver().event_wait(end_), "waiting for a copy");
  }
  bool landed() override {
    {
      std::lock_guard lock(mutex_);
      if (!launched_ || !outcome_.ok) return false;
    }
    return driver().context_set(context_) == kSuccess && driver().event_query(end_) == kSuccess;
  }

 private:
  void launched() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return launched_; });
    if (!outcome_.ok) throw Failure(outcome_.code, outcome_.detail);
  }
  CUcontext context_;
  CUevent end_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool launched_ = false;
  Outcome outcome_;
  std::atomic<void*> waits_{nullptr};  // the last stream that was made to wait, so that it is told once only
};

}  // namespace lpq::cuda
