// Copies that need no help of the host: between a device and pinned memory, or between devices. Each lane is a stream
// of its own, so that lanes overlap with each other and with computing.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/driver.h"
#include "cuda/ticket.h"
#include "lpq/tensor.h"

namespace lpq::cuda {

// Only the queue's thread issues; a thread of the lane waits for copies and then lets go of their tensors.
class CopyLane {
 public:
  CopyLane(CUcontext context, std::string name);
  // Waits for the copies in flight.
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  CUstream stream() const { return stream_; }
  // What is issued from now on waits for what has been launched on `other`.
  void follow(CUstream other);
  // Launches the copy of all bytes and settles `ticket`. Both tensors are kept until it has ended. `from_context`: of a
  // source on another device. Throws Failure.
  void issue(Tensor from, Tensor to, std::shared_ptr<Ticket> ticket, CUcontext from_context = nullptr);
  uint64_t issued() const;
  // Returns when the copies numbered up to `number` have ended and hold no tensors; any thread but the lane's.
  void wait(uint64_t number);
  void flush() { wait(issued()); }

 private:
  struct Sent {
    Tensor from, to;
    std::shared_ptr<Ticket> ticket;
  };
  void work();
  CUcontext context_;
  std::string name_;
  CUstream stream_ = nullptr;
  CUevent fence_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<Sent> sent_;
  uint64_t issued_ = 0, finished_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lpq::cuda
