#include "cuda/exec.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/hosted.h"

namespace lpq::cuda {
namespace {

// The driver's CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id = 0, padding = 0;
  unsigned value[16] = {};
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  CUstream stream;
  LaunchAttribute* attributes;
  unsigned count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);
constexpr int kClusterDimension = 4, kProgrammaticSerialization = 6;

// Of drivers since CUDA 11.8, which Hopper needs anyhow; looked for when first asked for.
template <class F>
F late(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found) throw Failure("LPQ_CUDA_DRIVER", std::string("the driver has no ") + name);
  return reinterpret_cast<F>(found);
}

// nn/rows.cu; there is one where its kernels were compiled for 9.0 or later.
constexpr const char* kFollows = "lpq_follows";

constexpr size_t kBlasWorkspace = size_t{64} << 20;
constexpr size_t kFaults = 1024;
constexpr size_t kUnread = kFaults;  // behind them a word that nobody reads

int blas_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return kReal32;
    case DType::f64: return kReal64;
    case DType::f16: return kReal16;
    case DType::bf16: return kBrain16;
    default: throw Failure("LPQ_NATIVE_ARGUMENT", "no matrix product of " + std::string(dtype_name(dtype)));
  }
}

}  // namespace

void require_device(const CudaExec& exec, const Tensor& tensor, const char* name) {
  if (tensor.device == exec.device().ordinal) {
    if (!tensor.storage || tensor.storage->owner == exec.owner()) return;
    throw Failure("LPQ_NATIVE_ARGUMENT", std::string(name) + " belongs to another runtime of cuda:" +
                                             std::to_string(tensor.device) + ": copyFrom() makes a copy of it");
  }
  throw Failure("LPQ_NATIVE_ARGUMENT", std::string(name) + " lies on " +
                                           (tensor.device < 0 ? "the CPU" : "cuda:" + std::to_string(tensor.device)) +
                                           ", not on cuda:" + std::to_string(exec.device().ordinal));
}

Scratch::Scratch(Arena& arena, size_t bytes) : arena_(&arena), data_(arena.take(bytes)), bytes_(bytes) {}

void Scratch::give() noexcept {
  if (arena_) arena_->give(data_);
  else allocator_->give(data_);
}

void CudaExec::because(std::string reason) {
  if (rehearsal_) rehearsal_->reasons.push_back(std::move(reason));
}

bool CudaExec::has_kernel(const std::string& kernel) const {
  if (kernels_) return kernels_->has(kernel);
  return !rehearsal_->names || rehearsal_->names->count(kernel) != 0;
}

// Loads the kernel where there is a device, so that it is there when it is launched while a graph is recorded.
bool CudaExec::rehearse(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, int cluster, bool overlap) {
  if (!rehearsal_) return false;
  if (kernels_) {
    constexpr int kRegisters = 4;
    int registers = 0;
    check(driver().function_get(&registers, kRegisters, kernels_->find(kernel, shared)), "loading " + kernel);
  } else if (!has_kernel(kernel)) {
    throw Failure("LPQ_CUDA_KERNELS", "no kernel is called " + kernel);
  }
  rehearsal_->launches.push_back({kernel, grid, block, shared, cluster, overlap});
  return true;
}

bool CudaExec::follows() {
  if (!follows_) {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    follows_ = facts_.features.early_launch && has_kernel(kFollows) && library && dlsym(library, "cuLaunchKernelEx");
  }
  return *follows_;
}

void CudaExec::launch_raw(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, void** arguments,
                          bool cooperative) {
  forget_written();
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  launched_ = true;
  if (rehearse(kernel, grid, block, shared, 1, false)) return;
  const CUfunction function = kernels_->find(kernel, shared);
  const CUresult result = cooperative ? driver().launch_cooperative(function, grid.x, grid.y, grid.z, block.x, block.y,
                                                                    block.z, shared, stream_, arguments)
                                      : driver().launch(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                        shared, stream_, arguments, nullptr);
  if (result != kSuccess) check(result, "launching " + kernel);
}

void CudaExec::launch_raw(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, void** arguments,
                          int cluster, bool overlap) {
  forget_written();
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  launched_ = true;
  if (rehearse(kernel, grid, block, shared, cluster, overlap)) return;
  static const auto launch_with =
      late<CUresult (*)(const LaunchConfig*, CUfunction, void**, void**)>("cuLaunchKernelEx");
  LaunchAttribute attributes[2];
  LaunchConfig config{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, stream_, attributes, 0};
  if (cluster > 1) {
    LaunchAttribute& a = attributes[config.count++];
    a.id = kClusterDimension;
    a.value[0] = static_cast<unsigned>(cluster), a.value[1] = a.value[2] = 1;
  }
  if (overlap) {
    LaunchAttribute& a = attributes[config.count++];
    a.id = kProgrammaticSerialization;
    a.value[0] = 1;
  }
  check(launch_with(&config, kernels_->find(kernel, shared), arguments, nullptr), "launching " + kernel);
}

void CudaExec::launch_loaded(const std::string& cubin, const std::string& kernel, Dim3 grid, Dim3 block,
                             unsigned shared, void** arguments) {
  require(kernels_ != nullptr, "programs are launched on a device only");
  launch_raw(kernels_->load(cubin, kernel), grid, block, shared, arguments, false);
}

int CudaExec::resident_clusters(const std::string& kernel, int threads, unsigned shared, int cluster) {
  if (!kernels_)
    return facts_.multiprocessors / cluster;  // of a described device: as if its clusters fitted without a gap
  static std::mutex lock;
  static std::map<std::tuple<int, std::string, int, unsigned, int>, int> known;
  const std::lock_guard<std::mutex> hold(lock);
  const auto [at, missing] = known.try_emplace({facts_.ordinal, kernel, threads, shared, cluster}, 0);
  if (!missing) return at->second;
  static const auto ask = late<CUresult (*)(int*, CUfunction, const LaunchConfig*)>("cuOccupancyMaxActiveClusters");
  LaunchAttribute attribute;
  attribute.id = kClusterDimension;
  attribute.value[0] = static_cast<unsigned>(cluster), attribute.value[1] = attribute.value[2] = 1;
  const LaunchConfig config{
      {static_cast<unsigned>(cluster), 1, 1}, {static_cast<unsigned>(threads), 1, 1}, shared, stream_, &attribute, 1};
  check(ask(&at->second, kernels_->find(kernel, shared), &config), "asking for the clusters of " + kernel);
  return at->second;
}

int CudaExec::occupancy(const std::string& kernel, int threads, unsigned shared) {
  if (!kernels_) return 1;
  int blocks = 0;
  check(driver().occupancy(&blocks, kernels_->find(kernel, shared), threads, shared),
        "asking for the occupancy of " + kernel);
  return blocks;
}

void CudaExec::fill_zero(void* data, size_t bytes) {
  forget_written();
  if (bytes && !rehearsal_)
    check(driver().fill_bytes(reinterpret_cast<CUdeviceptr>(data), 0, bytes, stream_), "clearing memory");
}

void CudaExec::copy(void* to, const void* from, size_t bytes) {
  forget_written();
  if (bytes && !rehearsal_)
    check(
        driver().copy_on_device(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream_),
        "copying on the device");
}

void CudaExec::read_back(void* host, const void* device, size_t bytes) {
  forget_written();
  if (bytes)
    check(driver().copy_to_host(host, reinterpret_cast<CUdeviceptr>(device), bytes, stream_),
          "reading from the device");
  check(driver().stream_wait(stream_), "waiting for the device");
}

// From pageable memory the driver copies to its own buffer before it returns.
void CudaExec::write_small(void* device, const void* host, size_t bytes) {
  forget_written();
  if (bytes)
    check(driver().copy_to_device(reinterpret_cast<CUdeviceptr>(device), host, bytes, stream_),
          "writing to the device");
}

void CudaExec::gemm(const Gemm& p) {
  forget_written();
  if (p.m == 0 || p.n == 0) return;
  Cublas& cublas = blas();
  cublas.may_split(!p.rows_alone);
  const int lda = static_cast<int>(p.lda ? p.lda : p.transpose_a ? p.m : p.k);
  const int ldb = static_cast<int>(p.ldb ? p.ldb : p.transpose_b ? p.k : p.n);
  const int ldc = static_cast<int>(p.ldc ? p.ldc : p.n);
  const bool wide = p.ab == DType::f64;
  const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const void* scale_product = wide ? static_cast<const void*>(&p.alpha) : &alpha;
  const void* scale_sum = wide ? static_cast<const void*>(&p.beta) : &beta;
  const int compute = wide ? kCompute64 : p.tf32 && p.ab == DType::f32 ? kComputeTf32 : kCompute32;
  // Column-major libraries see the transposes: C' = op(B)' op(A)'.
  check_library(cublas.gemm(cublas.handle, p.transpose_b ? kTransposed : kPlain, p.transpose_a ? kTransposed : kPlain,
                            static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k), scale_product, p.b,
                            blas_type(p.ab), ldb, p.a, blas_type(p.ab), lda, scale_sum, p.c, blas_type(p.out), ldc,
                            compute, kDefaultAlgorithm),
                "cuBLAS", "multiplying matrices");
}

Cublas& CudaExec::blas() {
  forget_written();
  if (!blas_) {
    check(driver().context_set(context_), "selecting the device");
    blas_workspace_ = std::make_unique<Scratch>(*allocator_, kBlasWorkspace);
    blas_ = std::make_unique<Cublas>(stream_, blas_workspace_->as<void>(), kBlasWorkspace);
  }
  return *blas_;
}

const Cusolver& CudaExec::solver() {
  forget_written();
  if (!solver_) {
    blas();  // loads what cuSOLVER is linked with
    solver_ = std::make_unique<Cusolver>(stream_);
  }
  return *solver_;
}

uint32_t* CudaExec::fault(std::string code, std::string detail) {
  if (arena_) return reinterpret_cast<uint32_t*>(head_);
  // What is recorded has run before, when its faults were told: a graph must not hold a bank's way back to the host,
  // nor wait for it.
  if (recording_ && banks_[bank_].words) return banks_[bank_].words->as<uint32_t>() + kUnread;
  if (banks_[bank_].asked.size() == kFaults) {
    send_back(banks_[bank_]);
    bank_ ^= 1;
    settle(banks_[bank_]);
  }
  Bank& bank = banks_[bank_];
  if (!bank.words) {
    bank.words.emplace(*allocator_, (kFaults + 1) * sizeof(uint32_t));
    bank.host = reinterpret_cast<uint32_t*>(pinned_->take(kFaults * sizeof(uint32_t)));
    check(driver().event_create(&bank.copied, kDisableTiming), "making an event");
    fill_zero(bank.words->as<void>(), kFaults * sizeof(uint32_t));
  }
  bank.asked.push_back({std::move(code), std::move(detail), op_});
  return bank.words->as<uint32_t>() + (bank.asked.size() - 1);
}

uint32_t* CudaExec::hosted_counters(size_t count) {
  const size_t bytes = count * sizeof(uint32_t);
  if (bytes <= kHostedCounters) return reinterpret_cast<uint32_t*>(head_ + kHostedFault);
  // More than stand ready: of this call's own, kept until it ends.
  if (!counters_ || counters_->bytes() < bytes) {
    counters_.reset();
    counters_.emplace(*arena_, bytes);
    fill_zero(counters_->as<void>(), bytes);
  }
  return counters_->as<uint32_t>();
}

uint32_t* CudaExec::counters(size_t count) {
  if (arena_) return hosted_counters(count);
  const size_t bytes = count * sizeof(uint32_t);
  if (!counters_ || counters_->bytes() < bytes) {
    counters_.reset();
    counters_.emplace(*allocator_, std::max<size_t>(bytes, 64 << 10));
    fill_zero(counters_->as<void>(), counters_->bytes());
  }
  return counters_->as<uint32_t>();
}

void CudaExec::judge(const std::vector<Fault>& asked, const uint32_t* words) {
  for (size_t i = 0; i < asked.size(); ++i)
    if (words[i] != 0) throw OpFailure(asked[i].code, asked[i].detail, asked[i].op);
}

void CudaExec::send_back(Bank& bank) {
  const size_t bytes = bank.asked.size() * sizeof(uint32_t);
  if (bytes == 0) return;
  check(driver().copy_to_host(bank.host, reinterpret_cast<CUdeviceptr>(bank.words->as<void>()), bytes, stream_),
        "reading from the device");
  fill_zero(bank.words->as<void>(), bytes);
  check(driver().event_record(bank.copied, stream_), "reading from the device");
  bank.returning = true;
}

void CudaExec::settle(Bank& bank) {
  if (!bank.returning) return;
  bank.returning = false;
  const std::vector<Fault> asked = std::exchange(bank.asked, {});
  check(driver().event_wait(bank.copied), "waiting for the device");
  judge(asked, bank.host);
}

void CudaExec::check_faults() {
  Outcome first = outcome_of("", [&] { settle(banks_[bank_ ^ 1]); });
  Outcome second = outcome_of("", [&] {
    send_back(banks_[bank_]);
    settle(banks_[bank_]);
  });
  if (first.ok) first = std::move(second);
  if (!first.ok) throw OpFailure(first.code, first.detail, first.op);
}

std::function<void()> CudaExec::watch_faults() {
  settle(banks_[bank_ ^ 1]);  // sent back a thousand words ago
  Bank& bank = banks_[bank_];
  if (bank.asked.empty()) return [] {};
  forget_written();
  const size_t bytes = bank.asked.size() * sizeof(uint32_t);
  std::shared_ptr<std::byte> words(pinned_->take(bytes), [pool = pinned_](std::byte* address) { pool->give(address); });
  check(driver().copy_to_host(words.get(), reinterpret_cast<CUdeviceptr>(bank.words->as<void>()), bytes, stream_),
        "reading from the device");
  return [asked = bank.asked, words] { judge(asked, reinterpret_cast<const uint32_t*>(words.get())); };
}

}  // namespace lpq::cuda
