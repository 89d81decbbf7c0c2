#include "cuda/backend.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/gemm/tuning.h"

namespace lpq::cuda {
namespace {

// Operations launched ahead of the device: enough to hide launches, few enough that an abort takes effect soon.
constexpr size_t kAhead = 64;
// Small uploads (orders, routing tables) do not queue behind weights.
constexpr size_t kSmall = size_t{1} << 20;

}  // namespace

std::vector<DeviceFacts> cuda_devices() {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  std::vector<DeviceFacts> devices;
  for (int i = 0; i < count; ++i) devices.push_back(device_facts(i));
  return devices;
}

CudaBackend::CudaBackend(int ordinal, size_t vram_limit, size_t host_limit, const std::string& kernels) {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  if (ordinal < 0 || ordinal >= count)
    throw Failure("LPQ_CUDA_DEVICE", "there is no cuda:" + std::to_string(ordinal) + "; the driver shows " +
                                         std::to_string(count) + " device(s)");
  exec_.facts_ = device_facts(ordinal);
  if (!exec_.facts_.features.portable)
    throw Failure("LPQ_CUDA_DEVICE", "cuda:" + std::to_string(ordinal) + " (" + exec_.facts_.name +
                                         ") has compute capability " + compute_capability(exec_.facts_.arch) +
                                         "; lpq needs 8.0 or newer");
  CUdevice device = 0;
  check(driver().device_get(&device, ordinal), "opening the device");
  check(driver().primary_retain(&exec_.context_, device), "opening cuda:" + std::to_string(ordinal));
  check(driver().context_set(exec_.context_), "selecting the device");
  kernels_ = new Kernels(exec_.context_, kernels);
  exec_.kernels_ = kernels_;
  exec_.tune(&tuning_of(exec_.facts_));
  check(driver().stream_create(&exec_.stream_, kNonBlocking), "making a stream");
  exec_.allocator_ = std::make_shared<Allocator>(exec_.context_, ordinal, vram_limit, exec_.stream_);
  exec_.pinned_ = std::make_shared<PinnedPool>(exec_.context_, host_limit);
  exec_.done = &done_;
  exec_.total = &total_;
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  up_ = std::make_unique<TransferLane>(exec_.context_, size_t{16} << 20, 4, std::clamp(cores / 4, 1, 4));
  up_small_ = std::make_unique<TransferLane>(exec_.context_, kSmall, 4, 1);
  down_ = std::make_unique<TransferLane>(exec_.context_, size_t{8} << 20, 4, std::clamp(cores / 4, 1, 4));
  park_ = std::make_unique<CopyLane>(exec_.context_, "park");
  restore_ = std::make_unique<CopyLane>(exec_.context_, "restore");
  peer_ = std::make_unique<CopyLane>(exec_.context_, "copy");
  marks_ = std::make_unique<Marks>(exec_.context_);
  exec_.allocator_->on_full([this] { wait_for_copies(); });
  exec_.pinned_->on_full([this] { wait_for_copies(); });
}

CudaBackend::~CudaBackend() {
  driver().context_set(exec_.context_);
  driver().stream_wait(exec_.stream_);
  marks_.reset();
  exec_.allocator_->on_full(nullptr);
  exec_.pinned_->on_full(nullptr);
  park_.reset();
  restore_.reset();
  peer_.reset();
  up_.reset();
  up_small_.reset();
  down_.reset();
  exec_.solver_.reset();
  exec_.blas_.reset();
  for (CudaExec::Branch& branch : exec_.branches_) {
    branch.blas.reset();
    if (branch.ended) driver().event_destroy(branch.ended);
    if (branch.stream) driver().stream_destroy(branch.stream);
  }
  exec_.branches_.clear();
  for (Running& running : running_) {
    driver().event_destroy(running.begin);
    driver().event_destroy(running.end);
  }
  for (CUevent event : events_) driver().event_destroy(event);
  for (CudaExec::Bank& bank : exec_.banks_) {
    if (bank.copied) driver().event_destroy(bank.copied);
    if (bank.host) exec_.pinned_->give(reinterpret_cast<std::byte*>(bank.host));
  }
  exec_.pinned_->close();
  if (exec_.stream_) driver().stream_destroy(exec_.stream_);
  delete kernels_;  // modules stay with the primary context
}

CUevent CudaBackend::take_event() {
  CUevent event = nullptr;
  if (events_.empty()) {
    check(driver().event_create(&event, kEventDefault), "making an event");
  } else {
    event = events_.back();
    events_.pop_back();
  }
  return event;
}

void CudaBackend::retire() {
  Running running = std::move(running_.front());
  running_.pop_front();
  const CUresult waited = driver().event_wait(running.end);
  float milliseconds = 0;
  if (waited == kSuccess && driver().event_elapsed(&milliseconds, running.begin, running.end) == kSuccess)
    add_profile(running.op, milliseconds * 1e-3);
  events_.push_back(running.begin);
  events_.push_back(running.end);
  if (waited != kSuccess) {
    try {
      check(waited, "running " + running.op);
    } catch (const Failure& failure) {
      throw OpFailure(failure.code, failure.what(), running.op);
    }
  }
}

void CudaBackend::run(const std::string& op, Call& call) {
  check(driver().context_set(exec_.context_), "selecting the device");
  auto found = cuda_op_table().find(op);
  if (found == cuda_op_table().end())
    throw Failure("LPQ_NATIVE_OP", op_table().count(op) ? "the operation " + op + " runs on the CPU only"
                                                        : "no operation is called " + op);
  for (const auto* list : {&call.in, &call.out})
    for (const Tensor& tensor : *list) {
      require_device(exec_, tensor, "a tensor");
      if (!tensor.storage) continue;
      if (tensor.storage->arrival && tensor.storage->arrival->await(exec_.stream_)) exec_.forget_written();
      // Copies only read: what writes waits for them.
      if (tensor.storage->departure && list == &call.out && tensor.storage->departure->await(exec_.stream_))
        exec_.forget_written();
    }
  while (running_.size() >= kAhead) retire();
  exec_.op_ = op;
  Running running{op, take_event(), take_event()};
  check(driver().event_record(running.begin, exec_.stream_), "timing an operation");
  running_.push_back(running);  // also when the operation fails half-way: what it launched is waited for
  try {
    found->second(call, exec_);
  } catch (...) {
    driver().event_record(running.end, exec_.stream_);
    throw;
  }
  check(driver().event_record(running.end, exec_.stream_), "timing an operation");
}

void CudaBackend::drain() {
  check(driver().context_set(exec_.context_), "selecting the device");
  Outcome first;
  auto step = [&](auto body) {
    Outcome outcome = outcome_of("", body);
    if (first.ok) first = std::move(outcome);
  };
  while (!running_.empty()) step([&] { retire(); });
  for (CopyLane* lane : {park_.get(), restore_.get(), peer_.get()})
    step([&] {
      lane->flush();
      check(driver().stream_wait(lane->stream()), "waiting for copies");
    });
  step([&] { exec_.check_faults(); });
  if (!first.ok) throw OpFailure(first.code, first.detail, first.op);
}

void CudaBackend::mark(std::function<void(Outcome)> then) {
  check(driver().context_set(exec_.context_), "selecting the device");
  while (!running_.empty() && driver().event_query(running_.front().end) != kNotReady) retire();
  auto faults = exec_.watch_faults();
  std::vector<std::pair<CopyLane*, uint64_t>> lanes;
  for (CopyLane* lane : {park_.get(), restore_.get(), peer_.get()}) lanes.emplace_back(lane, lane->issued());
  auto verdict = [lanes = std::move(lanes), faults = std::move(faults)] {
    for (const auto& [lane, number] : lanes) lane->wait(number);
    faults();
  };
  marks_->set(exec_.stream_, std::move(verdict), std::move(then));
}

void CudaBackend::wait_for_copies() {
  for (CopyLane* lane : {park_.get(), restore_.get(), peer_.get()}) lane->flush();
  up_small_->flush();
  up_->flush();
}

// A new block's last user may still be running; what was launched up to now includes it.
CUevent CudaBackend::fence() {
  check(driver().context_set(exec_.context_), "selecting the device");
  CUevent event = nullptr;
  check(driver().event_create(&event, kDisableTiming), "making an event");
  if (const CUresult recorded = driver().event_record(event, exec_.stream_); recorded != kSuccess) {
    driver().event_destroy(event);
    check(recorded, "ordering a copy");
  }
  return event;
}

Tensor CudaBackend::upload(const Tensor& host) {
  if (host.device >= 0) throw Failure("LPQ_NATIVE_ARGUMENT", "only a tensor in the CPU's memory can be uploaded");
  Tensor device = exec_.allocate(host.dtype, host.shape);
  if (device.bytes() == 0) return device;
  (device.bytes() <= kSmall ? up_small_ : up_)->upload(host, device, fence());
  return device;
}

// Waits in the queue for its turn.
struct CudaBackend::Pending {
  CUcontext context = nullptr;
  Tensor from, to;
  std::shared_ptr<Ticket> ticket;
  CUevent fence = nullptr;  // `to` may be written once it has passed
  ~Pending() {
    driver().context_set(context);
    if (fence) driver().event_destroy(fence);
    ticket->settle(
        {false, "LPQ_NATIVE_ARGUMENT", "the tensor has no contents: the copy was dropped behind a failure", ""});
  }
};

std::shared_ptr<CudaBackend::Pending> CudaBackend::pending(Tensor from, Tensor to) {
  auto copy = std::make_shared<Pending>();
  copy->context = exec_.context_;
  copy->ticket = std::make_shared<Ticket>(exec_.context_);
  if (to.device >= 0) copy->fence = fence();
  to.storage->arrival = copy->ticket;
  copy->from = std::move(from);
  copy->to = std::move(to);
  return copy;
}

CudaBackend::Copy CudaBackend::park(const Tensor& device) {
  require_device(exec_, device, "the tensor to park");
  Tensor host = exec_.pinned_->allocate(device.dtype, device.shape);
  auto launch = [this, copy = pending(device, host)] {
    check(driver().context_set(exec_.context_), "selecting the device");
    if (copy->from.storage->arrival) copy->from.storage->arrival->await(park_->stream());
    park_->follow(exec_.stream_);
    copy->from.storage->departure = copy->ticket;
    park_->issue(std::move(copy->from), std::move(copy->to), copy->ticket);
  };
  return {host, std::move(launch)};
}

CudaBackend::Copy CudaBackend::restore(const Tensor& parked) {
  require(parked.device < 0 && parked.storage && parked.storage->pinned, "the tensor to restore was not parked");
  Tensor device = exec_.allocate(parked.dtype, parked.shape);
  auto launch = [this, copy = pending(parked, device)] {
    check(driver().context_set(exec_.context_), "selecting the device");
    if (copy->from.storage->arrival) copy->from.storage->arrival->await(restore_->stream());
    check(driver().stream_wait_event(restore_->stream(), copy->fence, 0), "ordering a copy");
    restore_->issue(std::move(copy->from), std::move(copy->to), copy->ticket);
  };
  return {device, std::move(launch)};
}

CudaBackend::Copy CudaBackend::copy_from(const Tensor& source) {
  require(source.device >= 0 && source.storage, "the tensor to copy lies on no device");
  Tensor device = exec_.allocate(source.dtype, source.shape);
  if (source.storage->owner == exec_.allocator_.get()) {
    auto launch = [this, source, device] {
      check(driver().context_set(exec_.context_), "selecting the device");
      if (source.storage->arrival) source.storage->arrival->await(exec_.stream_);
      exec_.copy(device.raw(), source.raw(), device.bytes());
    };
    return {device, std::move(launch)};
  }
  auto launch = [this, copy = pending(source, device)] {
    auto& other =
        *const_cast<Allocator*>(static_cast<const Allocator*>(copy->from.storage->owner));  // lives with the storage
    meet(copy->from.device, other);
    check(driver().context_set(exec_.context_), "selecting the device");
    if (copy->from.storage->arrival) copy->from.storage->arrival->await(peer_->stream());
    check(driver().stream_wait_event(peer_->stream(), copy->fence, 0), "ordering a copy");
    peer_->issue(std::move(copy->from), std::move(copy->to), copy->ticket, other.context());
  };
  return {device, std::move(launch)};
}

// Copies go directly where the devices reach each other's memory; elsewhere the driver takes them through the host's.
void CudaBackend::meet(int ordinal, Allocator& other) {
  check(driver().context_set(exec_.context_), "selecting the device");
  if (other.context() == exec_.context_ || !peers_.insert(ordinal).second) return;
  CUdevice here = 0, there = 0;
  int can = 0;
  check(driver().device_get(&here, exec_.facts_.ordinal), "opening the device");
  check(driver().device_get(&there, ordinal), "opening the device");
  check(driver().can_access_peer(&can, here, there), "asking about the devices");
  if (!can) return;
  const CUresult enabled = driver().enable_peer(other.context(), 0);
  if (enabled != kPeerAlreadyEnabled) check(enabled, "reaching the memory of cuda:" + std::to_string(ordinal));
  other.reach(exec_.facts_.ordinal);
}

void CudaBackend::download(const Tensor& device, Tensor host, std::function<void(Outcome)> then) {
  const Outcome ready = outcome_of("download", [&] {
    require_device(exec_, device, "the tensor to download");
    if (device.storage && device.storage->arrival) device.storage->arrival->await(down_->stream());
  });
  if (!ready.ok) return then(ready);
  down_->download(device, std::move(host), std::move(then));
}

}  // namespace lpq::cuda
