// Tells when the device has come to a place of the compute stream, without stopping who launches.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "cuda/driver.h"
#include "lpq/exec.h"

namespace lpq::cuda {

class Marks {
 public:
  explicit Marks(CUcontext context) : context_(context), thread_([this] { work(); }) {}
  // Tells of the marks it has.
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // Once what was launched on `stream` has ended, calls `verdict` (which may throw Failure), then `then` with what came
  // of it, on the thread of this object. Marks are told in order. Throws Failure, and has then called nothing.
  void set(CUstream stream, std::function<void()> verdict, std::function<void(Outcome)> then);

 private:
  struct Mark {
    CUevent event = nullptr;
    std::function<void()> verdict;
    std::function<void(Outcome)> then;
  };
  void work();
  CUcontext context_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Mark> marks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lpq::cuda
