#include "cuda/lane.h"

#include <algorithm>

namespace lpq::cuda {
namespace {
// A large copy goes in pieces: the device's copy engines alternate between lanes after each, so that small ones get
// through.
constexpr size_t kPiece = size_t{32} << 20;
}  // namespace

CopyLane::CopyLane(CUcontext context, std::string name) : context_(context), name_(std::move(name)) {
  check(driver().context_set(context_), "selecting the device");
  check(driver().stream_create(&stream_, kNonBlocking), "making a stream");
  check(driver().event_create(&fence_, kDisableTiming), "making an event");
  thread_ = std::thread([this] { work(); });
}

CopyLane::~CopyLane() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  driver().context_set(context_);
  if (fence_) driver().event_destroy(fence_);
  if (stream_) driver().stream_destroy(stream_);
}

// A wait takes the event's latest recording, so one event serves all.
void CopyLane::follow(CUstream other) {
  check(driver().event_record(fence_, other), "ordering a copy");
  check(driver().stream_wait_event(stream_, fence_, 0), "ordering a copy");
}

void CopyLane::issue(Tensor from, Tensor to, std::shared_ptr<Ticket> ticket, CUcontext from_context) {
  const size_t bytes = to.bytes();
  const Outcome how = outcome_of(name_, [&] {
    for (size_t at = 0; at < bytes; at += kPiece) {
      const size_t part = std::min(kPiece, bytes - at);
      const auto source = reinterpret_cast<CUdeviceptr>(from.raw() + at),
                 target = reinterpret_cast<CUdeviceptr>(to.raw() + at);
      check(from.device < 0            ? driver().copy_to_device(target, from.raw() + at, part, stream_)
            : to.device < 0            ? driver().copy_to_host(to.raw() + at, source, part, stream_)
            : from_context == context_ ? driver().copy_on_device(target, source, part, stream_)
                                       : driver().copy_peer(target, context_, source, from_context, part, stream_),
            name_);
    }
    check(driver().event_record(ticket->end(), stream_), name_);
  });
  if (!how.ok) driver().stream_wait(stream_);  // nothing may hold the memory that comes back now
  ticket->settle(how);
  {
    std::lock_guard lock(mutex_);
    sent_.push_back({std::move(from), std::move(to), std::move(ticket)});
    ++issued_;
  }
  wake_.notify_one();
  if (!how.ok) throw Failure(how.code, how.detail);
}

uint64_t CopyLane::issued() const {
  std::lock_guard lock(mutex_);
  return issued_;
}

void CopyLane::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return finished_ >= number; });
}

void CopyLane::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !sent_.empty(); });
    if (sent_.empty()) return;
    Sent sent = std::move(sent_.front());
    sent_.pop_front();
    lock.unlock();
    driver().context_set(context_);           // the last tensors may have been another device's
    driver().event_wait(sent.ticket->end());  // a failure here is a lost device: whoever waits for the queue is told
    sent = {};
    lock.lock();
    ++finished_;
    ended_.notify_all();
  }
}

}  // namespace lpq::cuda
