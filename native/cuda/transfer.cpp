#include "cuda/transfer.h"

#include <algorithm>
#include <cstring>

namespace lpq::cuda {

TransferLane::TransferLane(CUcontext context, size_t chunk_bytes, int chunks, int threads)
    : context_(context), chunk_bytes_(chunk_bytes), chunks_(static_cast<size_t>(chunks)), pool_(threads) {
  check(driver().context_set(context_), "selecting the device");
  check(driver().stream_create(&stream_, kNonBlocking), "making a stream");
  for (Chunk& chunk : chunks_) {
    void* data = nullptr;
    check(driver().host_alloc(&data, chunk_bytes_, kPortable), "allocating pinned memory");
    chunk.data = static_cast<std::byte*>(data);
    check(driver().event_create(&chunk.free, kDisableTiming), "making an event");
  }
  thread_ = std::thread([this] { work(); });
}

TransferLane::~TransferLane() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  driver().context_set(context_);
  for (Chunk& chunk : chunks_) {
    if (chunk.free) driver().event_destroy(chunk.free);
    if (chunk.data) driver().host_free(chunk.data);
  }
  if (stream_) driver().stream_destroy(stream_);
}

void TransferLane::upload(Tensor host, Tensor device, CUevent fence) {
  auto ticket = std::make_shared<Ticket>(context_);
  device.storage->arrival = ticket;
  submit({std::move(host), std::move(device), fence, std::move(ticket), nullptr});
}

void TransferLane::download(Tensor device, Tensor host, std::function<void(Outcome)> then) {
  submit({std::move(host), std::move(device), nullptr, nullptr, std::move(then)});
}

void TransferLane::submit(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ++pending_;
  }
  wake_.notify_one();
}

void TransferLane::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return pending_ == 0; });
}

void TransferLane::ended() {
  std::lock_guard lock(mutex_);
  if (--pending_ == 0) idle_.notify_all();
}

void TransferLane::work() {
  driver().context_set(context_);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (jobs_.empty() && !sent_.empty()) {
      lock.unlock();
      retire(true);
      lock.lock();
      continue;
    }
    wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    const Outcome outcome = outcome_of(job.then ? "download" : "upload", [&] { job.then ? receive(job) : send(job); });
    const auto ticket = std::move(job.ticket);
    const auto then = std::move(job.then);
    if (!outcome.ok) driver().stream_wait(stream_);  // nothing may use the memory that comes back now
    job = {};                                        // tensors go back before anybody is told
    if (then || !outcome.ok) ended();
    if (ticket) ticket->settle(outcome);
    if (then) then(outcome);
    retire(false);
    lock.lock();
  }
}

void TransferLane::copy(void* to, const void* from, size_t bytes) {
  constexpr int64_t kPiece = 1 << 20;
  const auto pieces = static_cast<int64_t>((bytes + kPiece - 1) / kPiece);
  pool_.parallel_for(pieces, 1, [&](int64_t begin, int64_t end, int) {
    const size_t first = static_cast<size_t>(begin) * kPiece, last = std::min(bytes, static_cast<size_t>(end) * kPiece);
    std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first, last - first);
  });
}

void TransferLane::send(Job& job) {
  if (job.fence) {
    const CUresult waited = driver().stream_wait_event(stream_, job.fence, 0);
    driver().event_destroy(job.fence);
    check(waited, "waiting for the device");
  }
  const size_t bytes = job.device.bytes();
  for (size_t at = 0; at < bytes; at += chunk_bytes_) {
    const size_t part = std::min(chunk_bytes_, bytes - at);
    Chunk& chunk = chunks_[next_];
    next_ = (next_ + 1) % chunks_.size();
    check(driver().event_wait(chunk.free), "waiting for an upload");
    copy(chunk.data, job.host.raw() + at, part);
    check(driver().copy_to_device(reinterpret_cast<CUdeviceptr>(job.device.raw() + at), chunk.data, part, stream_),
          "uploading");
    check(driver().event_record(chunk.free, stream_), "uploading");
  }
  check(driver().event_record(job.ticket->end(), stream_), "uploading");
  CUevent end = nullptr;
  check(driver().event_create(&end, kDisableTiming), "making an event");
  check(driver().event_record(end, stream_), "uploading");
  sent_.push_back({end, std::move(job.device)});
}

// One chunk is emptied while the next one arrives.
void TransferLane::receive(Job& job) {
  const size_t bytes = job.device.bytes();
  const size_t count = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
  auto part = [&](size_t i) { return std::min(chunk_bytes_, bytes - i * chunk_bytes_); };
  auto fetch = [&](size_t i) {
    Chunk& chunk = chunks_[i % chunks_.size()];
    check(driver().copy_to_host(chunk.data, reinterpret_cast<CUdeviceptr>(job.device.raw() + i * chunk_bytes_), part(i),
                                stream_),
          "downloading");
    check(driver().event_record(chunk.free, stream_), "downloading");
  };
  for (size_t i = 0; i < std::min(count, chunks_.size()); ++i) fetch(i);
  for (size_t i = 0; i < count; ++i) {
    Chunk& chunk = chunks_[i % chunks_.size()];
    check(driver().event_wait(chunk.free), "downloading");
    copy(job.host.raw() + i * chunk_bytes_, chunk.data, part(i));
    if (i + chunks_.size() < count) fetch(i + chunks_.size());
  }
}

// A block must not go to another user while a copy still writes to it.
void TransferLane::retire(bool all) {
  while (!sent_.empty()) {
    const CUresult state = all ? driver().event_wait(sent_.front().end) : driver().event_query(sent_.front().end);
    if (state == kNotReady) return;
    driver().event_destroy(sent_.front().end);
    sent_.pop_front();
    ended();
  }
}

}  // namespace lpq::cuda
