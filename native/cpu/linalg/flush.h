// Arithmetic without numbers below the least normal one.
#pragma once
#include <cstdint>
#if defined(LPQ_X86)
#include <immintrin.h>
#endif

namespace lpq::linalg {
namespace {

// While it lives, operands and results of this thread that lie below the least normal number are 0.
class FlushToZero {
 public:
#if defined(LPQ_X86)
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t{1} << 24)));
  }
  ~FlushToZero() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  uint64_t before_;
#endif
 public:
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
};

}  // namespace
}  // namespace lpq::linalg
