#include "cuda/libraries.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <sstream>

namespace lpq::cuda {
namespace {

std::vector<std::string> expand(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (size_t i = found.gl_pathc; i-- > 0;) paths.emplace_back(found.gl_pathv[i]);  // later versions first
  ::globfree(&found);
  return paths;
}

// Folders to look in, most wanted first; an empty string stands for the system's loader.
std::vector<std::string> places() {
  std::vector<std::string> folders;
  if (const char* given = std::getenv("LPQ_CUDA_LIBS")) {
    std::istringstream list(given);
    for (std::string folder; std::getline(list, folder, ':');)
      if (!folder.empty()) folders.push_back(folder);
  }
  folders.emplace_back();
  auto add = [&](const std::string& pattern) {
    for (std::string& path : expand(pattern)) folders.push_back(std::move(path));
  };
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(name); home && *home) add(std::string(home) + "/lib64");
  add("/usr/local/cuda/lib64");
  add("/usr/local/cuda-*/lib64");
  std::vector<std::string> environments;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* home = std::getenv(name); home && *home) environments.emplace_back(home);
  if (const char* home = std::getenv("HOME"); home && *home)
    for (const char* tail : {"/.local", "/.venv", "/venv", "/miniconda3", "/miniforge3"})
      environments.push_back(std::string(home) + tail);
  for (const char* fixed : {"/usr", "/usr/local", "/opt/conda", "/opt/venv", "/opt/*/.venv", "/opt/*/venv"})
    environments.emplace_back(fixed);
  for (const std::string& environment : environments)
    for (const char* packages : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages"})
      for (const char* wheel : {"/nvidia/cu*/lib", "/nvidia/cublas/lib", "/nvidia/cusolver/lib"})
        add(environment + packages + wheel);
  return folders;
}

}  // namespace

void* open_library(const std::vector<std::string>& names) {
  std::string looked, reason;
  for (const std::string& folder : places()) {
    for (const std::string& name : names) {
      // Global: cuSOLVER finds cuBLAS among what is loaded already when the wheels keep them in folders of their own.
      if (void* library = ::dlopen((folder.empty() ? name : folder + "/" + name).c_str(), RTLD_NOW | RTLD_GLOBAL))
        return library;
      const char* text = ::dlerror();
      // A library that is there but cannot be loaded says more than one that is not.
      if (text && std::string(text).find("No such file") == std::string::npos) reason = text;
    }
    looked += (looked.empty() ? "" : ", ") + (folder.empty() ? std::string("the system's loader") : folder);
  }
  std::string wanted;
  for (const std::string& name : names) wanted += (wanted.empty() ? "" : " or ") + name;
  throw Failure("LPQ_CUDA_LIBRARY",
                wanted + " was not found; looked in " + looked + (reason.empty() ? "" : "; " + reason));
}

void check_library(int status, const char* library, const char* what) {
  if (status == 0) return;
  // In both libraries 2 says that memory did not suffice (CUBLAS_STATUS_ALLOC_FAILED is 3).
  const bool memory = std::string(library) == "cuBLAS" ? status == 3 : status == 2;
  throw Failure(memory ? "LPQ_CUDA_MEMORY" : "LPQ_CUDA_LIBRARY",
                std::string(library) + " failed with status " + std::to_string(status) + " while " + what);
}

#define LPQ_LOAD(member, name, parameters)                      \
  *reinterpret_cast<void**>(&member) = ::dlsym(library, #name); \
  if (!member) throw Failure("LPQ_CUDA_LIBRARY", "the library found lacks " #name ": it is older than CUDA 12");

Cublas::Cublas(CUstream stream, void* workspace, size_t workspace_bytes)
    : workspace_(workspace), workspace_bytes_(workspace_bytes) {
  void* library = open_library({"libcublas.so.13", "libcublas.so.12"});
  LPQ_CUBLAS_FUNCTIONS(LPQ_LOAD)
  check_library(create(&handle), "cuBLAS", "starting");
  check_library(set_stream(handle, stream), "cuBLAS", "taking the stream");
  check_library(set_workspace(handle, workspace, workspace_bytes), "cuBLAS", "taking its workspace");
  // 16: partial sums of 16-bit products stay in fp32 also where the result is 16-bit.
  check_library(set_math_mode(handle, 16), "cuBLAS", "setting the precision of partial sums");
}

void Cublas::may_split(bool split) {
  if (split == splits_) return;
  check_library(set_workspace(handle, workspace_, split ? workspace_bytes_ : 0), "cuBLAS", "taking its workspace");
  splits_ = split;
}

Cublas::~Cublas() {
  if (handle) destroy(handle);
}

Cusolver::Cusolver(CUstream stream) {
  void* library = open_library({"libcusolver.so.12", "libcusolver.so.11"});
  LPQ_CUSOLVER_FUNCTIONS(LPQ_LOAD)
  check_library(create(&handle), "cuSOLVER", "starting");
  check_library(set_stream(handle, stream), "cuSOLVER", "taking the stream");
  check_library(create_params(&params), "cuSOLVER", "starting");
}

Cusolver::~Cusolver() {
  if (params) destroy_params(params);
  if (handle) destroy(handle);
}

}  // namespace lpq::cuda
