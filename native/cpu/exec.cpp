#include "lpq/exec.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

namespace lpq {

std::map<std::string, OpFn>& op_table() {
  static std::map<std::string, OpFn> table;
  return table;
}

struct ThreadPool::Loop {
  int64_t count, grain;
  const std::function<void(int64_t, int64_t, int)>& body;
  std::atomic<int64_t> next{0};
  std::atomic<int> running{0};  // changes under mutex_
  std::exception_ptr error = nullptr;
  std::atomic<bool> failed{false};

  void drain(ThreadPool& pool, int worker) {
    while (!failed) {
      if (pool.aborted_) throw Failure("LPQ_ABORTED", "stopped on request");
      const int64_t begin = next.fetch_add(grain);
      if (begin >= count) return;
      body(begin, std::min(begin + grain, count), worker);
    }
  }
};

ThreadPool::ThreadPool(int threads) : spins_(threads <= static_cast<int>(std::thread::hardware_concurrency())) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    join();  // no destructor runs after a constructor that threw, and a joinable thread ends the process
    throw Failure("LPQ_NATIVE_MEMORY", "the system does not grant " + std::to_string(threads) + " threads");
  }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// Loops of a model's layers follow each other within some tens of microseconds, and a thread that sleeps takes as long
// to wake as a small product does. So threads look for a while before they sleep.
template <class Ready>
void ThreadPool::spin(const Ready& ready) const {
  if (!spins_) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
  while (!ready() && std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 16 && !ready(); ++i) {
#if defined(LPQ_X86)
      __builtin_ia32_pause();
#endif
    }
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!stop_ && generation_ == seen) {
      lock.unlock();
      spin([&] { return generation_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      if (!loop_) seen = generation_;  // it ended before this thread looked
    }
    wake_.wait(lock, [&] { return stop_ || (loop_ && generation_ != seen); });
    if (stop_) return;
    seen = generation_;
    Loop* loop = loop_;
    ++loop->running;
    lock.unlock();
    std::exception_ptr error;
    try {
      loop->drain(*this, worker);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !loop->error) {
      loop->error = error;
      loop->failed = true;
    }
    if (--loop->running == 0) done_.notify_all();
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  Loop loop{count, std::max<int64_t>(grain, 1), body};
  const bool shared = !workers_.empty() && count > loop.grain;
  if (shared) {
    {
      std::lock_guard lock(mutex_);
      loop_ = &loop;
      ++generation_;
    }
    wake_.notify_all();
  }
  std::exception_ptr error;
  try {
    loop.drain(*this, 0);
  } catch (...) {
    error = std::current_exception();
    loop.failed = true;
  }
  if (shared) {
    {
      std::lock_guard lock(mutex_);
      loop_ = nullptr;  // workers that have not woken yet find nothing
    }
    spin([&] { return loop.running == 0; });
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return loop.running == 0; });
    if (!error) error = loop.error;
  }
  if (error) std::rethrow_exception(error);
}

Profile Backend::take_profile() {
  std::lock_guard lock(profile_mutex_);
  return std::exchange(profile_, {});
}

void Backend::add_profile(const std::string& op, double seconds) {
  std::lock_guard lock(profile_mutex_);
  auto& entry = profile_[op];
  ++entry.first;
  entry.second += seconds;
}

namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads) : pool_(threads) {}

  void run(const std::string& op, Call& call) override {
    const auto start = std::chrono::steady_clock::now();
    auto found = op_table().find(op);
    if (found == op_table().end()) throw Failure("LPQ_NATIVE_OP", "no operation is called " + op);
    for (const auto* list : {&call.in, &call.out})
      for (const Tensor& tensor : *list) {
        require(tensor.device < 0,
                "a tensor lies on cuda:" + std::to_string(tensor.device) + ", and the CPU was to compute with it");
        if (tensor.storage && tensor.storage->arrival) tensor.storage->arrival->await_host();
      }
    done_ = 0;
    total_ = 0;
    Exec exec{pool_, done_, total_};
    try {
      found->second(call, exec);
    } catch (...) {
      finish(op, start);
      throw;
    }
    finish(op, start);
  }

  void abort() override {
    Backend::abort();
    pool_.abort();
  }
  void clear_abort() override {
    Backend::clear_abort();
    pool_.clear_abort();
  }
  int threads() const override { return pool_.size(); }

 private:
  void finish(const std::string& op, std::chrono::steady_clock::time_point start) {
    add_profile(op, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) { return std::make_unique<CpuBackend>(threads); }

Outcome outcome_of(const std::string& op, const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const OpFailure& failure) {
    return {false, failure.code, failure.what(), failure.op};
  } catch (const Failure& failure) {
    return {false, failure.code, failure.what(), op};
  } catch (const std::bad_alloc&) {
    return {false, "LPQ_NATIVE_MEMORY", "out of memory", op};
  } catch (const std::exception& error) {
    return {false, "LPQ_NATIVE", error.what(), op};
  }
}

Queue::Queue(int threads) : Queue(make_cpu_backend(threads)) {}
Queue::Queue(std::unique_ptr<Backend> backend) : backend_(std::move(backend)), thread_([this] { run(); }) {}

Queue::~Queue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  backend_->abort();
  wake_.notify_all();
  thread_.join();
}

void Queue::push(Item item) {
  {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  wake_.notify_one();
}

void Queue::enqueue(std::string op, Call call) { push({std::move(op), std::move(call), nullptr, nullptr}); }
void Queue::enqueue(std::string op, std::function<void()> body) { push({std::move(op), {}, std::move(body), nullptr}); }
void Queue::on_settled(std::function<void(Outcome)> then) { push({"", {}, nullptr, std::move(then)}); }
void Queue::mark(std::function<void(Outcome)> then) { push({"", {}, nullptr, std::move(then), true}); }

void Queue::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return stop_ || (items_.empty() && !busy_); });
}

void Queue::settle(Item& item) {
  const Outcome stopped{false, "LPQ_ABORTED", "stopped on request", ""};
  if (item.mark) {
    if (outcome_.ok && !backend_->aborted()) {
      outcome_ = outcome_of("", [&] { backend_->mark(item.then); });
      if (outcome_.ok) return;  // the backend calls `then`
    }
    return item.then(outcome_.ok ? stopped : outcome_);
  }
  Outcome drained = outcome_of("", [&] { backend_->drain(); });
  Outcome outcome = std::exchange(outcome_, {});
  if (outcome.ok) outcome = std::move(drained);
  if (backend_->aborted()) {
    if (outcome.ok) outcome = stopped;
    backend_->clear_abort();
  }
  item.then(std::move(outcome));
}

void Queue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    busy_ = false;
    if (items_.empty()) idle_.notify_all();
    wake_.wait(lock, [&] { return stop_ || !items_.empty(); });
    if (stop_) {  // whoever still waits is told, not left waiting
      for (Item& item : items_)
        if (item.then) item.then({false, "LPQ_ABORTED", "the runtime was let go of", ""});
      return;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    busy_ = true;
    lock.unlock();
    if (item.then) {
      settle(item);
    } else if (outcome_.ok && !backend_->aborted()) {
      outcome_ = outcome_of(item.op, [&] { item.body ? item.body() : backend_->run(item.op, item.call); });
    }
    item = {};  // tensors go back before anybody is told
    lock.lock();
  }
}

}  // namespace lpq
