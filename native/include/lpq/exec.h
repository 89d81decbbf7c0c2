// How native work runs: a thread pool, an operation table, and one in-order queue a runtime (the shape of a CUDA
// stream).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "lpq/failure.h"
#include "lpq/tensor.h"

namespace lpq {

// Named scalars, strings and lists that come with a call (lpq/arguments.h reads them).
class Params {
 public:
  using Value = std::variant<double, std::string, std::vector<double>>;
  Params() = default;
  Params(std::initializer_list<std::pair<const char*, Value>> values) {
    for (const auto& [name, value] : values) set(name, value);
  }
  void set(std::string name, Value value) {
    if (const int i = place(name); i >= 0) values_[static_cast<size_t>(i)].second = std::move(value);
    else values_.emplace_back(std::move(name), std::move(value));
  }
  size_t size() const { return values_.size(); }
  bool operator==(const Params&) const = default;
  const std::string& name(size_t i) const { return values_[i].first; }
  const Value& value(size_t i) const { return values_[i].second; }
  // Which one is called so; -1: none.
  int place(const std::string& name) const {
    for (size_t i = 0; i < values_.size(); ++i)
      if (values_[i].first == name) return static_cast<int>(i);
    return -1;
  }

 private:
  std::vector<std::pair<std::string, Value>> values_;
};

// Threads that share loops. Results must not depend on which worker runs a chunk, nor on the number of workers:
// chunk bounds depend on `count` and `grain` alone.
class ThreadPool {
 public:
  // Throws Failure("LPQ_NATIVE_MEMORY") when the system grants fewer.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Calls body(begin, end, worker) for [0, count) in chunks of `grain` (the last may be shorter); 0 <= worker < size().
  // Throws Failure("LPQ_ABORTED") between chunks once abort() was called, and rethrows the first exception of a body.
  // Not reentrant: a body must not call parallel_for.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);
  // body(i) for each.
  template <class Body>
  void for_each(int64_t count, int64_t grain, const Body& body) {
    parallel_for(count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }
  void abort() { aborted_ = true; }
  void clear_abort() { aborted_ = false; }
  bool aborted() const { return aborted_; }

 private:
  struct Loop;
  void work(int worker);
  void join();
  template <class Ready>
  void spin(const Ready& ready) const;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Loop* loop_ = nullptr;
  std::atomic<uint64_t> generation_{0};  // changes under mutex_
  bool stop_ = false;
  const bool spins_;  // every thread can have a processor
  std::atomic<bool> aborted_{false};
};

// What a running operation may use. `done`/`total` are what progress polling reads.
struct Exec {
  ThreadPool& pool;
  std::atomic<int64_t>& done;
  std::atomic<int64_t>& total;
};

struct Call {
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  Params params;
};

using OpFn = void (*)(Call&, Exec&);
std::map<std::string, OpFn>& op_table();
struct OpRegistrar {
  OpRegistrar(const char* name, OpFn fn) { op_table()[name] = fn; }
};
// One line per operation, next to its definition: LPQ_OP(linear, "linear").
#define LPQ_OP(function, name) static const ::lpq::OpRegistrar registrar_##function(name, function)

// Throws Failure("LPQ_NATIVE_ARGUMENT") with a sentence that has `what` when `ok` is false.
inline void require(bool ok, const std::string& what) {
  if (!ok) throw Failure("LPQ_NATIVE_ARGUMENT", what);
}

// Calls and seconds by operation.
using Profile = std::map<std::string, std::pair<int64_t, double>>;

// How something ended.
struct Outcome {
  bool ok = true;
  std::string code, detail, op;
};

// How Backend::time passes over a list of calls: so many times, or for so many seconds. `graph`: recorded once and
// replayed, where the device can, so that launches cost the host nothing; not for operations that copy from the host.
struct Timing {
  int passes = 9;
  double seconds = 0;
  bool graph = true;
};

// Calls in the order in which they were enqueued, to be run again as they are.
struct Recording {
  std::vector<std::pair<std::string, Call>> calls;
  // Storage that came into being meanwhile, kept so that no other has its address.
  std::set<std::shared_ptr<Storage>> made;

  // Whether the other one has the same calls: the same tensors too, but for storage that each made for itself, in the
  // same places.
  bool matches(const Recording& other) const;
};

// What runs the operations of a queue, on the queue's thread: the CPU's thread pool, or a CUDA stream.
class Backend {
 public:
  virtual ~Backend() = default;
  // Runs one operation, or launches it. Throws Failure.
  virtual void run(const std::string& op, Call& call) = 0;
  // Waits for what was launched. Throws the first Failure found; nothing is left in flight either way.
  virtual void drain() {}
  // The queue's thread. Calls `then`, on any thread, once everything run so far has ended, without waiting here. Throws
  // Failure, and has then not called it.
  virtual void mark(std::function<void(Outcome)> then) { then({}); }
  // The queue's thread. Seconds of each pass over `calls` (name and call), after some that do not count. Throws
  // OpFailure.
  virtual std::vector<double> time(std::vector<std::pair<std::string, Call>>& calls, const Timing& how);
  // The queue's thread. Runs the calls, one after another. Throws OpFailure.
  void replay(Recording& recording);
  virtual void abort() { aborted_ = true; }
  virtual void clear_abort() { aborted_ = false; }
  bool aborted() const { return aborted_; }
  virtual int threads() const { return 1; }
  // The ordinal of Tensor::device; -1: the CPU.
  virtual int device() const { return -1; }
  int64_t progress_done() const { return done_; }
  int64_t progress_total() const { return total_; }
  // Of every operation that ended since the last call.
  Profile take_profile();

 protected:
  void add_profile(const std::string& op, double seconds);
  std::atomic<int64_t> done_{0}, total_{0};

 private:
  std::atomic<bool> aborted_{false};
  std::mutex profile_mutex_;
  Profile profile_;
};

std::unique_ptr<Backend> make_cpu_backend(int threads);

// An in-order queue on a thread of its own. After a failure the calls behind it are dropped until settled() is read.
class Queue {
 public:
  using Outcome = lpq::Outcome;
  explicit Queue(int threads);
  explicit Queue(std::unique_ptr<Backend> backend);
  ~Queue();
  void enqueue(std::string op, Call call);
  // As enqueue: `body` runs on the queue's thread in its turn, and is let go of without running behind a failure.
  void enqueue(std::string op, std::function<void()> body);
  // Runs `then` on the queue's thread once everything enqueued so far has ended.
  void on_settled(std::function<void(Outcome)> then);
  // Calls `then`, on any thread, once everything enqueued so far has ended; unlike on_settled, what is enqueued later
  // runs on meanwhile, and a failure that is told of here is still told of by the next on_settled.
  void mark(std::function<void(Outcome)> then);
  // Returns once everything enqueued so far has been run or launched, so that the queue holds no tensors. Not for the
  // queue's own thread.
  void wait_idle();
  void abort() { backend_->abort(); }
  Backend& backend() { return *backend_; }
  int threads() const { return backend_->threads(); }
  int64_t progress_done() const { return backend_->progress_done(); }
  int64_t progress_total() const { return backend_->progress_total(); }
  Profile take_profile() { return backend_->take_profile(); }

 private:
  struct Item {
    std::string op;
    Call call;
    std::function<void()> body;
    std::function<void(Outcome)> then;
    bool mark = false;
  };
  void push(Item item);
  void settle(Item& item);
  void run();
  std::unique_ptr<Backend> backend_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  bool busy_ = false;
  std::deque<Item> items_;
  bool stop_ = false;
  Outcome outcome_;
  std::thread thread_;
};

// Calls `body` and says how it went.
Outcome outcome_of(const std::string& op, const std::function<void()>& body);

}  // namespace lpq
