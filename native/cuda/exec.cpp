#include "cuda/exec.h"

#include <algorithm>

namespace lpq::cuda {
namespace {

constexpr size_t kBlasWorkspace = size_t{64} << 20;
constexpr size_t kFaults = 1024;

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
  if (tensor.device == exec.device().ordinal) return;
  throw Failure("LPQ_NATIVE_ARGUMENT", std::string(name) + " lies on " + (tensor.device < 0 ? "the CPU" : "cuda:" + std::to_string(tensor.device)) +
                                           ", not on cuda:" + std::to_string(exec.device().ordinal));
}

void CudaExec::launch_raw(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, void** arguments, bool cooperative) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const CUfunction function = kernels_->find(kernel, shared);
  const CUresult result = cooperative ? driver().launch_cooperative(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream_, arguments)
                                      : driver().launch(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream_, arguments, nullptr);
  if (result != kSuccess) check(result, "launching " + kernel);
}

int CudaExec::occupancy(const std::string& kernel, int threads, unsigned shared) {
  int blocks = 0;
  check(driver().occupancy(&blocks, kernels_->find(kernel, shared), threads, shared), "asking for the occupancy of " + kernel);
  return blocks;
}

void CudaExec::fill_zero(void* data, size_t bytes) {
  if (bytes) check(driver().fill_bytes(reinterpret_cast<CUdeviceptr>(data), 0, bytes, stream_), "clearing memory");
}

void CudaExec::copy(void* to, const void* from, size_t bytes) {
  if (bytes) check(driver().copy_on_device(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream_), "copying on the device");
}

void CudaExec::read_back(void* host, const void* device, size_t bytes) {
  if (bytes) check(driver().copy_to_host(host, reinterpret_cast<CUdeviceptr>(device), bytes, stream_), "reading from the device");
  check(driver().stream_wait(stream_), "waiting for the device");
}

// From pageable memory the driver copies to its own buffer before it returns.
void CudaExec::write_small(void* device, const void* host, size_t bytes) {
  if (bytes) check(driver().copy_to_device(reinterpret_cast<CUdeviceptr>(device), host, bytes, stream_), "writing to the device");
}

void CudaExec::gemm(const Gemm& p) {
  if (p.m == 0 || p.n == 0) return;
  const Cublas& cublas = blas();
  const int lda = static_cast<int>(p.lda ? p.lda : p.transpose_a ? p.m : p.k);
  const int ldb = static_cast<int>(p.ldb ? p.ldb : p.transpose_b ? p.k : p.n);
  const int ldc = static_cast<int>(p.ldc ? p.ldc : p.n);
  const bool wide = p.ab == DType::f64;
  const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const void* scale_product = wide ? static_cast<const void*>(&p.alpha) : &alpha;
  const void* scale_sum = wide ? static_cast<const void*>(&p.beta) : &beta;
  const int compute = wide ? kCompute64 : p.tf32 && p.ab == DType::f32 ? kComputeTf32 : kCompute32;
  // Column-major libraries see the transposes: C' = op(B)' op(A)'.
  check_library(cublas.gemm(cublas.handle, p.transpose_b ? kTransposed : kPlain, p.transpose_a ? kTransposed : kPlain, static_cast<int>(p.n),
                            static_cast<int>(p.m), static_cast<int>(p.k), scale_product, p.b, blas_type(p.ab), ldb, p.a, blas_type(p.ab), lda,
                            scale_sum, p.c, blas_type(p.out), ldc, compute, kDefaultAlgorithm),
                "cuBLAS", "multiplying matrices");
}

const Cublas& CudaExec::blas() {
  if (!blas_) {
    check(driver().context_set(context_), "selecting the device");
    blas_workspace_.emplace(*allocator_, kBlasWorkspace);
    blas_ = std::make_unique<Cublas>(stream_, blas_workspace_->as<void>(), kBlasWorkspace);
  }
  return *blas_;
}

const Cusolver& CudaExec::solver() {
  if (!solver_) {
    blas();  // loads what cuSOLVER is linked with
    solver_ = std::make_unique<Cusolver>(stream_);
  }
  return *solver_;
}

uint32_t* CudaExec::fault(std::string code, std::string detail) {
  if (faults_.size() == kFaults) check_faults();
  if (!fault_words_) {
    fault_words_.emplace(*allocator_, kFaults * sizeof(uint32_t));
    fill_zero(fault_words_->as<void>(), kFaults * sizeof(uint32_t));
  }
  faults_.push_back({std::move(code), std::move(detail), op_});
  return fault_words_->as<uint32_t>() + (faults_.size() - 1);
}

uint32_t* CudaExec::counters(size_t count) {
  const size_t bytes = count * sizeof(uint32_t);
  if (!counters_ || counters_->bytes() < bytes) {
    counters_.reset();
    counters_.emplace(*allocator_, std::max<size_t>(bytes, 64 << 10));
    fill_zero(counters_->as<void>(), counters_->bytes());
  }
  return counters_->as<uint32_t>();
}

void CudaExec::check_faults() {
  if (faults_.empty()) return;
  std::vector<uint32_t> words(faults_.size());
  read_back(words.data(), fault_words_->as<void>(), words.size() * sizeof(uint32_t));
  fill_zero(fault_words_->as<void>(), words.size() * sizeof(uint32_t));
  const std::vector<Fault> asked = std::exchange(faults_, {});
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] != 0) throw OpFailure(asked[i].code, asked[i].detail, asked[i].op);
}

}  // namespace lpq::cuda
