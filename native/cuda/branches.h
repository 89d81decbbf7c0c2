// Independent parts of one operation, each on a stream of its own, so that the launches of one fill the gaps of
// another.
#pragma once
#include <cstddef>

#include "cuda/exec.h"

namespace lpq::cuda {

class Branches {
 public:
  // Each begins behind all that the operation has launched. One branch, and those of an executor without a stream of
  // its own (rehearsals, the library), stay where they are. Throws Failure.
  Branches(CudaExec& exec, size_t count);
  // What is launched later waits for all branches. Scratch that they use must outlive them.
  ~Branches();
  Branches(const Branches&) = delete;
  Branches& operator=(const Branches&) = delete;

  // What `work` launches and multiplies is branch i's.
  template <class Work>
  void on(size_t i, const Work& work) {
    const Turn turn(*this, i);
    work();
  }

 private:
  // Exchanges the executor's stream and library for those of a branch, and back.
  class Turn {
   public:
    Turn(Branches& branches, size_t i) : branches_(branches), i_(i) { branches_.exchange(i_); }
    ~Turn() { branches_.exchange(i_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Branches& branches_;
    size_t i_;
  };
  void exchange(size_t i) noexcept;

  CudaExec& exec_;
  size_t count_;
};

}  // namespace lpq::cuda
