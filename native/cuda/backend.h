// The CUDA backend of a queue: one device, one compute stream, and lanes that copy to and from the host.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cuda/exec.h"
#include "cuda/transfer.h"
#include "lpq/exec.h"

namespace lpq::cuda {

class CudaBackend : public Backend {
 public:
  // vram_limit in bytes, 0: all there is. `kernels`: the fatbin's path. Throws Failure: LPQ_CUDA_DRIVER,
  // LPQ_CUDA_DEVICE (no such ordinal, or older than compute capability 8.0), LPQ_CUDA_KERNELS.
  CudaBackend(int ordinal, size_t vram_limit, const std::string& kernels = kernels_path());
  ~CudaBackend() override;

  void run(const std::string& op, Call& call) override;
  void drain() override;
  int device() const override { return exec_.device().ordinal; }
  const DeviceFacts& facts() const { return exec_.device(); }
  CudaExec& exec() { return exec_; }
  Allocator& allocator() { return *exec_.allocator_; }

  // Any thread. Device memory, uninitialised.
  Tensor allocate(DType dtype, std::vector<int64_t> shape) { return exec_.allocate(dtype, std::move(shape)); }
  // Any thread. A copy of a host tensor, whose contents must be there; operations enqueued from now on wait for it.
  Tensor upload(const Tensor& host);
  // The queue's thread, after drain(): copies into `host` and calls `then` on another thread.
  void download(const Tensor& device, Tensor host, std::function<void(Queue::Outcome)> then);

 private:
  struct Running {
    std::string op;
    CUevent begin, end;
  };
  CUevent take_event();
  void retire();  // waits for the oldest operation and notes its time
  CudaExec exec_;
  Kernels* kernels_;
  std::deque<Running> running_;
  std::vector<CUevent> events_;
  std::unique_ptr<TransferLane> up_, up_small_, down_;
};

// Every device the driver shows. Throws Failure("LPQ_CUDA_DRIVER").
std::vector<DeviceFacts> cuda_devices();

}  // namespace lpq::cuda
