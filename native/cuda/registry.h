// What is registered by name: the operations of the CUDA backend, and the kernels of the fatbin.
#pragma once
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "lpq/exec.h"

namespace lpq::cuda {

class CudaExec;

// Operations have the names, the tensors and the meaning that native/ops states; they launch and return.
using CudaOpFn = void (*)(Call&, CudaExec&);
std::map<std::string, CudaOpFn>& cuda_op_table();
struct CudaOpRegistrar {
  CudaOpRegistrar(const char* name, CudaOpFn fn) { cuda_op_table()[name] = fn; }
};
// One line per operation, next to its definition: LPQ_CUDA_OP(linear, "linear").
#define LPQ_CUDA_OP(function, name) static const ::lpq::cuda::CudaOpRegistrar cuda_registrar_##function(name, function)

// The file of kernels (scripts/build-cuda.mjs) is "LPQFAT2\0", u32 count, then for each fatbin its name, u32 kernels,
// their names, u64 offset, u64 bytes; names as u32 length and bytes; little-endian, images 64-byte aligned.
struct KernelImage {
  std::string file;
  std::vector<std::string> kernels;
  uint64_t offset = 0;  // into the file's bytes
};
// The file's bytes and what it holds. Throws Failure("LPQ_CUDA_KERNELS") when it is missing or malformed.
std::vector<KernelImage> read_kernels(const std::string& path, std::vector<char>& image);
// The names of all of them, without a device. Throws as read_kernels does.
std::set<std::string> kernel_names(const std::string& path);

// The kernels for one context.
class Kernels {
 public:
  // `context` must be current. Throws Failure("LPQ_CUDA_KERNELS") when the file is missing, malformed, or has no code
  // that this device can run.
  Kernels(CUcontext context, const std::string& path);
  // Throws Failure("LPQ_CUDA_KERNELS") when no kernel has this name.
  CUfunction find(const std::string& name);
  // Whether this device has it: the file names the kernels of all its architectures.
  bool has(const std::string& name);
  // As find, with the right to `shared` bytes of dynamic shared memory.
  CUfunction find(const std::string& name, unsigned shared);
  // The name by which find() knows a kernel of the cubin at this path; the file is read once. Throws
  // Failure("LPQ_CUDA_KERNELS") when there is no such file, no code for this device or no such kernel in it.
  std::string load(const std::string& cubin, const std::string& kernel);
  // Gives the modules back; nothing may use them any more, on the device either. The context must be current.
  void unload() noexcept;

 private:
  struct Entry {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    unsigned shared = 0;
  };
  std::mutex mutex_;
  std::vector<char> image_;
  std::vector<CUmodule> modules_;
  std::map<std::string, Entry> functions_;
  std::map<std::string, CUmodule> loaded_;  // by the paths of their cubins
  std::set<std::string> elsewhere_;         // of files without code for this device
};

// lpq_kernels.fatbin: LPQ_CUDA_FATBIN, else next to the addon or program that this code is part of.
std::string kernels_path();

}  // namespace lpq::cuda
