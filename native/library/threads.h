// The threads of the C interface's calls on a processor.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "library/status.h"
#include "lpq/exec.h"

namespace lpq::library {

constexpr int kMostThreads = 1024;

// One call at a time has the threads, which live as long as the process. A forked child has none of its parent's, and
// makes its own; what the parent's were is left alone there.
class Threads {
 public:
  explicit Threads(int count) {
    argument(count >= 0 && count <= kMostThreads, "threads is not between 0 and 1024");
    if (count == 0) count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    State& state = here();
    lock_ = std::unique_lock(state.turn);
    std::unique_ptr<ThreadPool>& pool = state.pools[count];
    if (!pool) pool = std::make_unique<ThreadPool>(count);
    pool_ = pool.get();
  }
  ThreadPool& pool() { return *pool_; }

 private:
  struct State {
    std::mutex turn;
    std::map<int, std::unique_ptr<ThreadPool>> pools;
  };
  static State& here() {
    static std::mutex guard;
    static std::map<pid_t, State*> states;
    const std::lock_guard lock(guard);
    State*& state = states[::getpid()];
    if (!state) state = new State;
    return *state;
  }
  std::unique_lock<std::mutex> lock_;
  ThreadPool* pool_ = nullptr;
};

}  // namespace lpq::library
