// The CUDA backend of a queue: one device, one compute stream, and lanes that copy to and from the host.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/exec.h"
#include "cuda/lane.h"
#include "cuda/marks.h"
#include "cuda/pinned.h"
#include "cuda/transfer.h"
#include "lpq/exec.h"

namespace lpq::cuda {

class CudaBackend : public Backend {
 public:
  // vram_limit and host_limit (pinned memory of parked tensors) in bytes, 0: all there is. `kernels`: the fatbin's
  // path. Throws Failure: LPQ_CUDA_DRIVER, LPQ_CUDA_DEVICE (no such ordinal, or older than compute capability 8.0),
  // LPQ_CUDA_KERNELS.
  CudaBackend(int ordinal, size_t vram_limit, size_t host_limit = 0, const std::string& kernels = kernels_path());
  ~CudaBackend() override;

  void run(const std::string& op, Call& call) override;
  void drain() override;
  void mark(std::function<void(Outcome)> then) override;
  std::vector<double> time(std::vector<std::pair<std::string, Call>>& calls, const Timing& how) override;
  int device() const override { return exec_.device().ordinal; }
  const DeviceFacts& facts() const { return exec_.device(); }
  CudaExec& exec() { return exec_; }
  Allocator& allocator() { return *exec_.allocator_; }
  PinnedPool& pinned() { return *exec_.pinned_; }

  // Any thread. Device memory, uninitialised.
  Tensor allocate(DType dtype, std::vector<int64_t> shape) { return exec_.allocate(dtype, std::move(shape)); }
  // Any thread. A copy of a host tensor, whose contents must be there; operations enqueued from now on wait for it.
  Tensor upload(const Tensor& host);
  // A copy in two halves: any thread asks for it and has `result` at once; the queue's thread, in its turn, must call
  // `launch` (Queue::enqueue). Where it is dropped instead, whoever uses `result` fails.
  struct Copy {
    Tensor result;
    std::function<void()> launch;
  };
  // To pinned host memory, what the tensor holds in its turn. Throws Failure("LPQ_HOST_MEMORY").
  Copy park(const Tensor& device);
  // Back from there, to device memory of its own.
  Copy restore(const Tensor& parked);
  // Of a tensor of this device or, its contents being there, of another backend's, also of the same device.
  Copy copy_from(const Tensor& source);
  // Returns when copies launched so far have ended; any thread but theirs.
  void wait_for_copies();
  // The queue's thread, after drain(): copies into `host` and calls `then` on another thread.
  void download(const Tensor& device, Tensor host, std::function<void(Outcome)> then);

 private:
  struct Running {
    std::string op;
    CUevent begin, end;
  };
  struct Pending;
  CUevent take_event();
  CUevent fence();
  std::shared_ptr<Pending> pending(Tensor from, Tensor to);
  void meet(int ordinal, Allocator& other);
  void retire();  // waits for the oldest operation and notes its time
  CudaExec exec_;
  Kernels* kernels_;
  std::deque<Running> running_;
  std::vector<CUevent> events_;
  std::unique_ptr<TransferLane> up_, up_small_, down_;
  std::unique_ptr<CopyLane> park_, restore_, peer_;
  std::unique_ptr<Marks> marks_;
  std::set<int> peers_;  // devices met; the queue's thread alone
};

// Memory is taken when a call is enqueued and comes back when it has been launched: where there is none, what waits in
// the queue may hold it. Not for the queue's own thread.
template <class F>
auto with_room(Queue& queue, F take) {
  try {
    return take();
  } catch (const Failure& failure) {
    if (failure.code != "LPQ_CUDA_MEMORY" && failure.code != "LPQ_HOST_MEMORY") throw;
  }
  queue.wait_idle();
  return take();
}

// Every device the driver shows. Throws Failure("LPQ_CUDA_DRIVER").
std::vector<DeviceFacts> cuda_devices();

}  // namespace lpq::cuda
