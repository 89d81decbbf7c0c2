// Copies between pageable host memory and a device through pinned buffers, on a thread and a stream of their own, so
// that reading a checkpoint and writing results overlap with computing.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "cuda/ticket.h"
#include "lpq/exec.h"
#include "lpq/tensor.h"

namespace lpq::cuda {

// A lane copies its jobs one after another, in one direction.
class TransferLane {
 public:
  // `chunks` pinned buffers of `chunk_bytes`; `threads` fill or empty them together.
  TransferLane(CUcontext context, size_t chunk_bytes, int chunks, int threads);
  // Finishes the jobs it has.
  ~TransferLane();
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  // Copies `host` to `device` once what is in `fence` has run; device.storage->arrival is set. Both tensors are kept
  // until the copy has ended.
  void upload(Tensor host, Tensor device, CUevent fence);
  // Copies `device`, whose contents must be there, to `host`, then calls `then` on the lane's thread.
  void download(Tensor device, Tensor host, std::function<void(Outcome)> then);
  CUstream stream() const { return stream_; }
  // Returns when the lane has no job and the device works on none; any thread but the lane's.
  void flush();

 private:
  struct Job {
    Tensor host, device;
    CUevent fence = nullptr;
    std::shared_ptr<Ticket> ticket;     // uploads
    std::function<void(Outcome)> then;  // downloads
  };
  struct Sent {  // an upload that the device still works on
    CUevent end;
    Tensor device;
  };
  void submit(Job job);
  void work();
  void send(Job& job);
  void receive(Job& job);
  void retire(bool all);
  void ended();
  void copy(void* to, const void* from, size_t bytes);

  CUcontext context_;
  size_t chunk_bytes_;
  CUstream stream_ = nullptr;
  struct Chunk {
    std::byte* data = nullptr;
    CUevent free = nullptr;  // the copy from or to this buffer has ended
  };
  std::vector<Chunk> chunks_;
  size_t next_ = 0;
  ThreadPool pool_;
  std::deque<Sent> sent_;  // the lane's thread alone
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<Job> jobs_;
  size_t pending_ = 0;  // jobs that still hold tensors
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lpq::cuda
