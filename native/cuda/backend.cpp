#include "cuda/backend.h"

#include <algorithm>

namespace lpq::cuda {
namespace {

// Operations launched ahead of the device: enough to hide launches, few enough that an abort takes effect soon.
constexpr size_t kAhead = 64;
// Small uploads (orders, routing tables) do not queue behind weights.
constexpr size_t kSmall = size_t{1} << 20;

int attribute(int which, CUdevice device) {
  int value = 0;
  check(driver().device_attribute(&value, which, device), "asking about the device");
  return value;
}

DeviceFacts facts_of(int ordinal) {
  CUdevice device = 0;
  check(driver().device_get(&device, ordinal), "opening cuda:" + std::to_string(ordinal));
  DeviceFacts facts;
  facts.ordinal = ordinal;
  facts.arch = 10 * attribute(kComputeMajor, device) + attribute(kComputeMinor, device);
  facts.multiprocessors = attribute(kMultiprocessors, device);
  facts.shared_per_block = attribute(kMaxSharedPerBlockOptin, device);
  facts.l2_bytes = static_cast<size_t>(attribute(kL2Bytes, device));
  check(driver().device_memory(&facts.memory_bytes, device), "asking about the device");
  char name[256] = {};
  check(driver().device_name(name, sizeof(name), device), "asking about the device");
  facts.name = name;
  return facts;
}

}  // namespace

std::vector<DeviceFacts> cuda_devices() {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  std::vector<DeviceFacts> devices;
  for (int i = 0; i < count; ++i) devices.push_back(facts_of(i));
  return devices;
}

CudaBackend::CudaBackend(int ordinal, size_t vram_limit, const std::string& kernels) {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  if (ordinal < 0 || ordinal >= count)
    throw Failure("LPQ_CUDA_DEVICE", "there is no cuda:" + std::to_string(ordinal) + "; the driver shows " + std::to_string(count) + " device(s)");
  exec_.facts_ = facts_of(ordinal);
  if (exec_.facts_.arch < 80)
    throw Failure("LPQ_CUDA_DEVICE", "cuda:" + std::to_string(ordinal) + " (" + exec_.facts_.name + ") has compute capability " +
                                         std::to_string(exec_.facts_.arch / 10) + "." + std::to_string(exec_.facts_.arch % 10) + "; lpq needs 8.0 or newer");
  CUdevice device = 0;
  check(driver().device_get(&device, ordinal), "opening the device");
  check(driver().primary_retain(&exec_.context_, device), "opening cuda:" + std::to_string(ordinal));
  check(driver().context_set(exec_.context_), "selecting the device");
  kernels_ = new Kernels(exec_.context_, kernels);
  exec_.kernels_ = kernels_;
  check(driver().stream_create(&exec_.stream_, kNonBlocking), "making a stream");
  exec_.allocator_ = std::make_shared<Allocator>(exec_.context_, ordinal, vram_limit);
  exec_.done = &done_;
  exec_.total = &total_;
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  up_ = std::make_unique<TransferLane>(exec_.context_, size_t{16} << 20, 4, std::clamp(cores / 4, 1, 4));
  up_small_ = std::make_unique<TransferLane>(exec_.context_, kSmall, 4, 1);
  down_ = std::make_unique<TransferLane>(exec_.context_, size_t{8} << 20, 4, std::clamp(cores / 4, 1, 4));
  up_->consumer = up_small_->consumer = down_->consumer = exec_.stream_;
}

CudaBackend::~CudaBackend() {
  driver().context_set(exec_.context_);
  driver().stream_wait(exec_.stream_);
  up_.reset();
  up_small_.reset();
  down_.reset();
  exec_.solver_.reset();
  exec_.blas_.reset();
  for (Running& running : running_) {
    driver().event_destroy(running.begin);
    driver().event_destroy(running.end);
  }
  for (CUevent event : events_) driver().event_destroy(event);
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
    throw Failure("LPQ_NATIVE_OP", op_table().count(op) ? "the operation " + op + " runs on the CPU only" : "no operation is called " + op);
  for (const auto* list : {&call.in, &call.out})
    for (const Tensor& tensor : *list) {
      require_device(exec_, tensor, "a tensor");
      if (tensor.storage && tensor.storage->arrival) {
        tensor.storage->arrival->await();
        tensor.storage->arrival.reset();
      }
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
  Queue::Outcome first;
  while (!running_.empty()) {
    Queue::Outcome outcome = outcome_of("", [&] { retire(); });
    if (first.ok) first = std::move(outcome);
  }
  Queue::Outcome faults = outcome_of("", [&] { exec_.check_faults(); });
  if (first.ok) first = std::move(faults);
  if (!first.ok) throw OpFailure(first.code, first.detail, first.op);
}

Tensor CudaBackend::upload(const Tensor& host) {
  if (host.device >= 0) throw Failure("LPQ_NATIVE_ARGUMENT", "only a tensor in the CPU's memory can be uploaded");
  Tensor device = exec_.allocate(host.dtype, host.shape);
  if (device.bytes() == 0) return device;
  check(driver().context_set(exec_.context_), "selecting the device");
  // The block's last user may still be running; what was launched up to now includes it.
  CUevent fence = nullptr;
  check(driver().event_create(&fence, kDisableTiming), "making an event");
  check(driver().event_record(fence, exec_.stream_), "ordering an upload");
  (device.bytes() <= kSmall ? up_small_ : up_)->upload(host, device, fence);
  return device;
}

void CudaBackend::download(const Tensor& device, Tensor host, std::function<void(Queue::Outcome)> then) {
  const Queue::Outcome ready = outcome_of("download", [&] {
    require_device(exec_, device, "the tensor to download");
    if (device.storage && device.storage->arrival) {
      device.storage->arrival->await();
      device.storage->arrival.reset();
      check(driver().stream_wait(exec_.stream_), "waiting for an upload");
    }
  });
  if (!ready.ok) return then(ready);
  down_->download(device, std::move(host), std::move(then));
}

}  // namespace lpq::cuda
