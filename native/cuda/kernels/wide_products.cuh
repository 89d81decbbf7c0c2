// Hopper's products of 160, 192 and 256 tokens, which only the kernel of scaled weights has registers for (mma.cuh: up to 128).
#pragma once
#include <cstdint>

#include "cuda/kernels/mma.cuh"

namespace lpq::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// c (+)= A B as group_multiply (mma.cuh), of 8 T tokens: T = 1, 2, 4, 8, 16, 20, 24, 32.
template <bool BF, int T>
__device__ __forceinline__ void multiply_tokens(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define LPQ_C(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define LPQ_C4(t) LPQ_C(t), LPQ_C(t + 1), LPQ_C(t + 2), LPQ_C(t + 3)
#define LPQ_C16(t) LPQ_C4(t), LPQ_C4(t + 4), LPQ_C4(t + 8), LPQ_C4(t + 12)
#define LPQ_PASS(...) __VA_ARGS__
#define LPQ_WG(n, type, list, i0, i1, i2, i3, id, ip, outs)                                                                              \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ip ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" list "}, {%" i0 ",%" i1 ",%" i2 ",%" i3 "}, %" id ", p, 1, 1, 0;\n}" \
               : outs                                                                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define LPQ_EITHER(n, list, i0, i1, i2, i3, id, ip, ...)                                    \
  if constexpr (BF) LPQ_WG(n, "bf16", list, i0, i1, i2, i3, id, ip, LPQ_PASS(__VA_ARGS__)); \
  else LPQ_WG(n, "f16", list, i0, i1, i2, i3, id, ip, LPQ_PASS(__VA_ARGS__))
#define LPQ_R80                                                                                                                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,"   \
  "%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69," \
  "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define LPQ_R96 LPQ_R80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define LPQ_R128                                                                                                                              \
  LPQ_R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121," \
          "%122,%123,%124,%125,%126,%127"
  if constexpr (T == 32) {
    LPQ_EITHER("256", LPQ_R128, "128", "129", "130", "131", "132", "133", LPQ_C16(0), LPQ_C16(16));
  } else if constexpr (T == 24) {
    LPQ_EITHER("192", LPQ_R96, "96", "97", "98", "99", "100", "101", LPQ_C16(0), LPQ_C4(16), LPQ_C4(20));
  } else if constexpr (T == 20) {
    LPQ_EITHER("160", LPQ_R80, "80", "81", "82", "83", "84", "85", LPQ_C16(0), LPQ_C4(16));
  } else {
    group_multiply<BF, T>(c, a, b, add);
  }
#undef LPQ_C
#undef LPQ_C4
#undef LPQ_C16
#undef LPQ_PASS
#undef LPQ_WG
#undef LPQ_EITHER
#undef LPQ_R80
#undef LPQ_R96
#undef LPQ_R128
}

#endif

}  // namespace lpq::cuda
