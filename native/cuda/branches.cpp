#include "cuda/branches.h"

#include <utility>

namespace lpq::cuda {

Branches::Branches(CudaExec& exec, size_t count) : exec_(exec), count_(0) {
  if (count < 2 || exec.rehearsing() || exec.arena_ || !exec.stream_) return;
  std::vector<CudaExec::Branch>& all = exec.branches_;
  while (all.size() < count) {
    CudaExec::Branch& made = all.emplace_back();
    check(driver().stream_create(&made.stream, kNonBlocking), "making a stream");
    check(driver().event_create(&made.ended, kDisableTiming), "making an event");
  }
  // An event may be waited for before it is recorded again: the first branch's serves for the beginning, too.
  check(driver().event_record(all[0].ended, exec.stream()), "ordering an operation");
  for (size_t i = 0; i < count; ++i)
    check(driver().stream_wait_event(all[i].stream, all[0].ended, 0), "ordering an operation");
  count_ = count;
}

Branches::~Branches() {
  for (size_t i = 0; i < count_; ++i) {
    const CudaExec::Branch& branch = exec_.branches_[i];
    driver().event_record(branch.ended, branch.stream);
    driver().stream_wait_event(exec_.stream(), branch.ended, 0);
  }
}

void Branches::exchange(size_t i) noexcept {
  exec_.forget_written();
  if (count_ == 0) return;
  CudaExec::Branch& branch = exec_.branches_[i];
  std::swap(exec_.stream_, branch.stream);
  std::swap(exec_.blas_, branch.blas);
  std::swap(exec_.blas_workspace_, branch.blas_workspace);
}

}  // namespace lpq::cuda
