#include "cuda/marks.h"

namespace lpq::cuda {

Marks::~Marks() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Marks::set(CUstream stream, std::function<void()> verdict, std::function<void(Outcome)> then) {
  CUevent event = nullptr;
  check(driver().event_create(&event, kDisableTiming | kBlockingSync), "making an event");
  if (const CUresult recorded = driver().event_record(event, stream); recorded != kSuccess) {
    driver().event_destroy(event);
    check(recorded, "marking a place of the queue");
  }
  {
    std::lock_guard lock(mutex_);
    marks_.push_back({event, std::move(verdict), std::move(then)});
  }
  wake_.notify_one();
}

void Marks::work() {
  driver().context_set(context_);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !marks_.empty(); });
    if (marks_.empty()) return;
    Mark mark = std::move(marks_.front());
    marks_.pop_front();
    lock.unlock();
    const Outcome outcome = outcome_of("", [&] {
      check(driver().event_wait(mark.event), "running what was enqueued");
      mark.verdict();
    });
    driver().event_destroy(mark.event);
    mark.verdict = nullptr;
    mark.then(outcome);
    mark = {};
    lock.lock();
  }
}

}  // namespace lpq::cuda
