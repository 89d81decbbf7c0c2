#include "cuda/registry.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace lpq::cuda {
namespace {

constexpr unsigned kDefaultShared = 48 << 10;  // more must be asked for

template <class T>
T take(const std::vector<char>& bytes, size_t& at, const std::string& path) {
  if (at + sizeof(T) > bytes.size()) throw Failure("LPQ_CUDA_KERNELS", path + " is cut short");
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  at += sizeof(T);
  return value;
}

}  // namespace

std::map<std::string, CudaOpFn>& cuda_op_table() {
  static std::map<std::string, CudaOpFn> table;
  return table;
}

std::string kernels_path() {
  if (const char* given = std::getenv("LPQ_CUDA_FATBIN"); given && *given) return given;
  Dl_info info{};
  std::string directory = ".";
  if (::dladdr(reinterpret_cast<void*>(&cuda_op_table), &info) && info.dli_fname) {
    const std::string file = info.dli_fname;
    if (const size_t slash = file.rfind('/'); slash != std::string::npos) directory = file.substr(0, slash);
  }
  return directory + "/lpq_kernels.fatbin";
}

std::vector<KernelImage> read_kernels(const std::string& path, std::vector<char>& image) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Failure("LPQ_CUDA_KERNELS", "the kernels were not built: " + path + " does not exist");
  image.assign(std::istreambuf_iterator<char>(file), {});
  if (image.size() < 12 || std::memcmp(image.data(), "LPQFAT2", 8) != 0)
    throw Failure("LPQ_CUDA_KERNELS", path + " does not hold lpq's kernels");
  size_t at = 8;
  auto text = [&] {
    const auto length = take<uint32_t>(image, at, path);
    if (length > image.size() - at) throw Failure("LPQ_CUDA_KERNELS", path + " is cut short");
    std::string value(image.data() + at, length);
    at += length;
    return value;
  };
  const auto count = take<uint32_t>(image, at, path);
  std::vector<KernelImage> images;
  for (uint32_t i = 0; i < count; ++i) {
    KernelImage& row = images.emplace_back();
    row.file = text();
    const auto kernels = take<uint32_t>(image, at, path);
    for (uint32_t j = 0; j < kernels; ++j) row.kernels.push_back(text());
    row.offset = take<uint64_t>(image, at, path);
    const auto bytes = take<uint64_t>(image, at, path);
    if (row.offset > image.size() || bytes > image.size() - row.offset)
      throw Failure("LPQ_CUDA_KERNELS", path + " is cut short");
  }
  return images;
}

std::set<std::string> kernel_names(const std::string& path) {
  std::vector<char> image;
  std::set<std::string> names;
  for (KernelImage& row : read_kernels(path, image)) names.insert(row.kernels.begin(), row.kernels.end());
  return names;
}

Kernels::Kernels(CUcontext context, const std::string& path) {
  check(driver().context_set(context), "selecting the device");
  for (const KernelImage& row : read_kernels(path, image_)) {
    CUmodule module = nullptr;
    const CUresult result = driver().module_load(&module, image_.data() + row.offset);
    // Some files are compiled for Hopper alone.
    if (result == kNoBinary) {
      elsewhere_.insert(row.kernels.begin(), row.kernels.end());
      continue;
    }
    if (result != kSuccess) {
      const char* reason = nullptr;
      driver().error_string(result, &reason);
      throw Failure("LPQ_CUDA_KERNELS",
                    "the kernels of " + row.file + " cannot be loaded: " + (reason ? reason : std::to_string(result)));
    }
    modules_.push_back(module);
    for (const std::string& kernel : row.kernels) functions_[kernel].module = module;
  }
  if (modules_.empty()) throw Failure("LPQ_CUDA_KERNELS", path + " has no code for this device");
}

std::string Kernels::load(const std::string& cubin, const std::string& kernel) {
  const std::string name = cubin + ':' + kernel;
  std::lock_guard lock(mutex_);
  if (functions_.count(name)) return name;
  CUmodule& module = loaded_[cubin];
  if (!module) {
    std::ifstream file(cubin, std::ios::binary);
    if (!file) throw Failure("LPQ_CUDA_KERNELS", "the cubin " + cubin + " cannot be read");
    const std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
    const CUresult result = driver().module_load(&module, image.data());
    if (result != kSuccess) {
      loaded_.erase(cubin);
      const char* reason = nullptr;
      driver().error_string(result, &reason);
      throw Failure("LPQ_CUDA_KERNELS",
                    "the cubin " + cubin + " cannot be loaded: " + (reason ? reason : std::to_string(result)));
    }
    modules_.push_back(module);
  }
  Entry entry{module};
  if (driver().module_function(&entry.function, module, kernel.c_str()) != kSuccess)
    throw Failure("LPQ_CUDA_KERNELS", "no kernel of the cubin " + cubin + " is called " + kernel);
  functions_[name] = entry;
  return name;
}

void Kernels::unload() noexcept {
  std::lock_guard lock(mutex_);
  functions_.clear();
  loaded_.clear();
  for (const CUmodule module : modules_) driver().module_unload(module);
  modules_.clear();
}

bool Kernels::has(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto found = functions_.find(name);
  if (found == functions_.end()) return false;
  Entry& entry = found->second;
  if (entry.function || driver().module_function(&entry.function, entry.module, name.c_str()) == kSuccess) return true;
  functions_.erase(found);
  return false;
}

CUfunction Kernels::find(const std::string& name) { return find(name, 0); }

CUfunction Kernels::find(const std::string& name, unsigned shared) {
  std::lock_guard lock(mutex_);
  const auto found = functions_.find(name);
  const auto for_others = [&] {
    return Failure("LPQ_CUDA_KERNELS", "the kernel " + name + " has no code for this device");
  };
  if (found == functions_.end() && elsewhere_.count(name)) throw for_others();
  if (found == functions_.end())
    throw Failure("LPQ_CUDA_KERNELS", "no kernel is called " + name + ": lpq_kernels.fatbin is older than the addon");
  Entry& entry = found->second;
  if (!entry.function) {
    const CUresult result = driver().module_function(&entry.function, entry.module, name.c_str());
    // The file names it, and was compiled for other devices only.
    if (result == kNotFound) throw for_others();
    check(result, "looking for the kernel " + name);
  }
  if (shared > kDefaultShared && shared > entry.shared) {
    check(driver().function_set(entry.function, kMaxDynamicShared, static_cast<int>(shared)),
          "raising the shared memory of " + name);
    entry.shared = shared;
  }
  return entry.function;
}

}  // namespace lpq::cuda
