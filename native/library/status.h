// How failures become codes and sentences of the C interface.
#pragma once
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "library/lpq_kernels.h"
#include "lpq/failure.h"

namespace lpq::library {

void set_error(std::string sentence) noexcept;
lpq_status status_of(const std::string& code) noexcept;

// Runs `body`; whatever it throws is noted, and never crosses the boundary.
template <class F>
lpq_status guarded(F body) noexcept {
  try {
    body();
    return LPQ_OK;
  } catch (const Failure& failure) {
    set_error(failure.what());
    return status_of(failure.code);
  } catch (const std::bad_alloc&) {
    set_error("the host has no memory left");
    return LPQ_ERROR_MEMORY;
  } catch (const std::exception& error) {
    set_error(error.what());
    return LPQ_ERROR_INTERNAL;
  } catch (...) {
    set_error("an unknown failure");
    return LPQ_ERROR_INTERNAL;
  }
}

inline void argument(bool ok, const std::string& sentence) {
  if (!ok) throw Failure("LPQ_NATIVE_ARGUMENT", sentence);
}
// Of calls that launch: no string is made where all is well.
inline void argument(bool ok, const char* sentence) {
  if (!ok) throw Failure("LPQ_NATIVE_ARGUMENT", sentence);
}

// A struct of the caller's, whose header may be older than this library: what it lacks is zero.
template <class T>
T taken(const T* given, const char* name) {
  argument(given != nullptr, std::string(name) + " is NULL");
  argument(given->size >= sizeof(size_t) && given->size <= 4096,
           std::string(name) + ".size is not set: LPQ_INIT does that");
  T mine{};
  std::memcpy(&mine, given, std::min(given->size, sizeof(T)));
  return mine;
}

// And back: no more than there is room for, its size left as it was.
template <class T>
void hand_out(T mine, T* to, const char* name) {
  argument(to != nullptr, std::string(name) + " is NULL");
  argument(to->size >= sizeof(size_t) && to->size <= 4096, std::string(name) + ".size is not set: LPQ_INIT does that");
  mine.size = to->size;
  std::memcpy(to, &mine, std::min(to->size, sizeof(T)));
}

}  // namespace lpq::library
