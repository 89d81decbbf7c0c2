#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>
#if defined(LPQ_X86)
#include <cpuid.h>
#endif

namespace lpq {

#if defined(LPQ_X86)
// clang 14 does not know "f16c" by name. That AVX state is saved is what the avx2 beside it tells.
static bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
}

// Compilers do not all know "avx512bf16" by name.
static bool has_avx512_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 5)) != 0;
}
#endif

static Isa detect() {
  Isa best = Isa::generic;
#if defined(LPQ_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() && __builtin_cpu_supports("bmi2"))
    best = Isa::avx2;
  if (best == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    best = Isa::avx512;
#endif
  if (const char* wish = std::getenv("LPQ_ISA")) {
    Isa wanted = best;
    if (!std::strcmp(wish, "generic")) wanted = Isa::generic;
    if (!std::strcmp(wish, "avx2")) wanted = Isa::avx2;
    if (static_cast<int>(wanted) < static_cast<int>(best)) best = wanted;  // never above what the CPU has
  }
  return best;
}

Isa active_isa() {
  static const Isa isa = detect();
  return isa;
}

#if defined(LPQ_X86)
// What AVX-512 may have besides, unless LPQ_ISA asks for AVX-512 alone.
static bool besides_avx512(bool has) {
  const char* wish = std::getenv("LPQ_ISA");
  return active_isa() == Isa::avx512 && has && !(wish && !std::strcmp(wish, "avx512"));
}
#endif

bool vbmi_instructions() {
#if defined(LPQ_X86)
  static const bool has = besides_avx512(__builtin_cpu_supports("avx512vbmi"));
  return has;
#else
  return false;
#endif
}

bool bf16_instructions() {
#if defined(LPQ_X86)
  static const bool has = besides_avx512(has_avx512_bf16());
  return has;
#else
  return false;
#endif
}

std::string isa_name() {
  if (bf16_instructions()) return "avx512bf16";
  return active_isa() == Isa::avx512 ? "avx512" : active_isa() == Isa::avx2 ? "avx2" : "generic";
}

}  // namespace lpq
