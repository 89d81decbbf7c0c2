#include "library/status.h"

#ifndef LPQ_VERSION
#define LPQ_VERSION "unknown"
#endif

namespace lpq::library {
namespace {

thread_local std::string last_error;

struct Row {
  const char* code;
  lpq_status status;
};
constexpr Row kRows[] = {
    {"LPQ_NATIVE_ARGUMENT", LPQ_ERROR_ARGUMENT}, {"LPQ_NATIVE_PARAM", LPQ_ERROR_ARGUMENT},
    {"LPQ_NATIVE_DTYPE", LPQ_ERROR_ARGUMENT},    {"LPQ_NATIVE_NUMERICS", LPQ_ERROR_ARGUMENT},
    {"LPQ_UNSUPPORTED", LPQ_ERROR_UNSUPPORTED},  {"LPQ_NATIVE_OP", LPQ_ERROR_UNSUPPORTED},
    {"LPQ_CUDA_DRIVER", LPQ_ERROR_DRIVER},       {"LPQ_CUDA", LPQ_ERROR_DRIVER},
    {"LPQ_CUDA_LOST", LPQ_ERROR_DRIVER},         {"LPQ_CUDA_MEMORY", LPQ_ERROR_DRIVER},
    {"LPQ_CUDA_DEVICE", LPQ_ERROR_DEVICE},       {"LPQ_CUDA_KERNELS", LPQ_ERROR_KERNELS},
    {"LPQ_WORKSPACE", LPQ_ERROR_WORKSPACE},      {"LPQ_FILE", LPQ_ERROR_FILE},
    {"LPQ_ARTIFACT", LPQ_ERROR_ARTIFACT},        {"LPQ_JSON", LPQ_ERROR_ARTIFACT},
    {"LPQ_NOT_FOUND", LPQ_ERROR_NOT_FOUND},      {"LPQ_NATIVE_MEMORY", LPQ_ERROR_MEMORY},
};
constexpr const char* kNames[] = {"LPQ_OK",
                                  "LPQ_ERROR_ARGUMENT",
                                  "LPQ_ERROR_UNSUPPORTED",
                                  "LPQ_ERROR_DRIVER",
                                  "LPQ_ERROR_DEVICE",
                                  "LPQ_ERROR_KERNELS",
                                  "LPQ_ERROR_WORKSPACE",
                                  "LPQ_ERROR_FILE",
                                  "LPQ_ERROR_ARTIFACT",
                                  "LPQ_ERROR_NOT_FOUND",
                                  "LPQ_ERROR_MEMORY",
                                  "LPQ_ERROR_INTERNAL"};

}  // namespace

void set_error(std::string sentence) noexcept { last_error = std::move(sentence); }

lpq_status status_of(const std::string& code) noexcept {
  for (const Row& row : kRows)
    if (code == row.code) return row.status;
  return LPQ_ERROR_INTERNAL;
}

}  // namespace lpq::library

extern "C" {

int lpq_abi_version(void) { return LPQ_ABI_VERSION; }

const char* lpq_version(void) { return LPQ_VERSION; }

const char* lpq_last_error(void) { return lpq::library::last_error.c_str(); }

const char* lpq_status_name(int status) {
  return status >= 0 && status < static_cast<int>(std::size(lpq::library::kNames)) ? lpq::library::kNames[status]
                                                                                   : "unknown";
}

void lpq_init(void* object, size_t size) {
  if (!object || size < sizeof size) return;
  std::memset(object, 0, size);
  std::memcpy(object, &size, sizeof size);
}
}
