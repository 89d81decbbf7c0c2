// wgmma: c (+)= A B by a warpgroup, asynchronously. A 64 rows, in registers (16 rows a warp, as in mma.cuh) or behind a
// descriptor; B of 8 T tokens behind a descriptor; c (lane, [t][reg]) -> row 16 warp + lane / 4 + 8 (reg / 2), token 8
// t + 2 (lane % 4) + reg % 2.
#pragma once
#include <cstdint>

#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N of the newest groups are under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Rows of 128 bytes (64 halves, 128 codes), 128 bytes apart, sixteen-byte chunks xor-ed with the row's number modulo 8
// (the 128-byte swizzle, as TMA writes it); eights of rows `stride` bytes apart. `address` 1024-aligned; add 2 to the
// descriptor for the next 32 bytes of k.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, int stride = 1024) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}

// The same of an operand B whose rows are k: rows of 64 of n, eights of them 1024 bytes apart, 64s of n `block` bytes
// apart. Add 128 to the descriptor for the next 16 of k.
__device__ __forceinline__ uint64_t wgmma_descriptor_rows(uint32_t address, int block) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(block >> 4) << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

#define LPQ_PASS(...) __VA_ARGS__
#define LPQ_F(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define LPQ_I(t) "+r"(c[t][0]), "+r"(c[t][1]), "+r"(c[t][2]), "+r"(c[t][3])
#define LPQ_2(X, t) X(t), X(t + 1)
#define LPQ_4(X, t) LPQ_2(X, t), LPQ_2(X, t + 2)
#define LPQ_8(X, t) LPQ_4(X, t), LPQ_4(X, t + 4)
#define LPQ_16(X, t) LPQ_8(X, t), LPQ_8(X, t + 8)
#define LPQ_L4 "%0,%1,%2,%3"
#define LPQ_L8 LPQ_L4 ",%4,%5,%6,%7"
#define LPQ_L16 LPQ_L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LPQ_L32 LPQ_L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LPQ_L48 LPQ_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define LPQ_L64                                                                                                  \
  LPQ_L32                                                                                                        \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58" \
  ",%59,%60,%61,%62,%63"
#define LPQ_L80 LPQ_L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define LPQ_L96 LPQ_L80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define LPQ_L128                                                                                                 \
  LPQ_L96                                                                                                        \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%" \
  "118,%119,%120,%121,"                                                                                          \
  "%122,%123,%124,%125,%126,%127"
// n: tokens; shape: k and types; list, i0 ...: numbers of the operands; tail: what follows the predicate.
#define LPQ_REGISTERS(n, shape, list, i0, i1, i2, i3, ib, ip, outs, tail)                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ip                                                            \
               ", 0;\n"                                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" n shape " {" list "}, {%" i0 ",%" i1 ",%" i2 ",%" i3 "}, %" ib \
               ", p" tail ";\n}"                                                                                  \
               : outs                                                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define LPQ_SHARED(n, shape, list, ia, ib, ip, outs, tail)                                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ip                                                    \
               ", 0;\n"                                                                                   \
               "wgmma.mma_async.sync.aligned.m64n" n shape " {" list "}, %" ia ", %" ib ", p" tail ";\n}" \
               : outs                                                                                     \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))

// 16 of k in f16 or bf16: T = 1, 2, 4, 8, 12, 16, 20, 24 or 32.
template <bool BF, int T>
__device__ __forceinline__ void wgmma_k16(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define LPQ_EITHER(n, list, i0, i1, i2, i3, ib, ip, ...)                                                     \
  if constexpr (BF)                                                                                          \
    LPQ_REGISTERS(n, "k16.f32.bf16.bf16", list, i0, i1, i2, i3, ib, ip, LPQ_PASS(__VA_ARGS__), ", 1, 1, 0"); \
  else LPQ_REGISTERS(n, "k16.f32.f16.f16", list, i0, i1, i2, i3, ib, ip, LPQ_PASS(__VA_ARGS__), ", 1, 1, 0")
  if constexpr (T == 1) {
    LPQ_EITHER("8", LPQ_L4, "4", "5", "6", "7", "8", "9", LPQ_F(0));
  } else if constexpr (T == 2) {
    LPQ_EITHER("16", LPQ_L8, "8", "9", "10", "11", "12", "13", LPQ_2(LPQ_F, 0));
  } else if constexpr (T == 4) {
    LPQ_EITHER("32", LPQ_L16, "16", "17", "18", "19", "20", "21", LPQ_4(LPQ_F, 0));
  } else if constexpr (T == 8) {
    LPQ_EITHER("64", LPQ_L32, "32", "33", "34", "35", "36", "37", LPQ_8(LPQ_F, 0));
  } else if constexpr (T == 12) {
    LPQ_EITHER("96", LPQ_L48, "48", "49", "50", "51", "52", "53", LPQ_8(LPQ_F, 0), LPQ_4(LPQ_F, 8));
  } else if constexpr (T == 16) {
    LPQ_EITHER("128", LPQ_L64, "64", "65", "66", "67", "68", "69", LPQ_16(LPQ_F, 0));
  } else if constexpr (T == 20) {
    LPQ_EITHER("160", LPQ_L80, "80", "81", "82", "83", "84", "85", LPQ_16(LPQ_F, 0), LPQ_4(LPQ_F, 16));
  } else if constexpr (T == 24) {
    LPQ_EITHER("192", LPQ_L96, "96", "97", "98", "99", "100", "101", LPQ_16(LPQ_F, 0), LPQ_8(LPQ_F, 16));
  } else {
    static_assert(T == 32);
    LPQ_EITHER("256", LPQ_L128, "128", "129", "130", "131", "132", "133", LPQ_16(LPQ_F, 0), LPQ_16(LPQ_F, 16));
  }
#undef LPQ_EITHER
}

// 16 of k in f16 or bf16, both operands in shared memory, rows of n: T = 4, 8 or 16.
template <bool BF, int T>
__device__ __forceinline__ void wgmma_k16(float (&c)[T][4], uint64_t a, uint64_t b, bool add) {
#define LPQ_EITHER(n, list, ia, ib, ip, ...)                                                                     \
  if constexpr (BF) LPQ_SHARED(n, "k16.f32.bf16.bf16", list, ia, ib, ip, LPQ_PASS(__VA_ARGS__), ", 1, 1, 0, 0"); \
  else LPQ_SHARED(n, "k16.f32.f16.f16", list, ia, ib, ip, LPQ_PASS(__VA_ARGS__), ", 1, 1, 0, 0")
  if constexpr (T == 4) {
    LPQ_EITHER("32", LPQ_L16, "16", "17", "18", LPQ_4(LPQ_F, 0));
  } else if constexpr (T == 8) {
    LPQ_EITHER("64", LPQ_L32, "32", "33", "34", LPQ_8(LPQ_F, 0));
  } else {
    static_assert(T == 16);
    LPQ_EITHER("128", LPQ_L64, "64", "65", "66", LPQ_16(LPQ_F, 0));
  }
#undef LPQ_EITHER
}
// 16 of k in f16 or bf16, A in registers, B by wgmma_descriptor_rows(): T = 8, 16 or 32.
template <bool BF, int T>
__device__ __forceinline__ void wgmma_k16_rows(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define LPQ_EITHER(n, list, i0, i1, i2, i3, ib, ip, ...)                                                     \
  if constexpr (BF)                                                                                          \
    LPQ_REGISTERS(n, "k16.f32.bf16.bf16", list, i0, i1, i2, i3, ib, ip, LPQ_PASS(__VA_ARGS__), ", 1, 1, 1"); \
  else LPQ_REGISTERS(n, "k16.f32.f16.f16", list, i0, i1, i2, i3, ib, ip, LPQ_PASS(__VA_ARGS__), ", 1, 1, 1")
  if constexpr (T == 8) {
    LPQ_EITHER("64", LPQ_L32, "32", "33", "34", "35", "36", "37", LPQ_8(LPQ_F, 0));
  } else if constexpr (T == 16) {
    LPQ_EITHER("128", LPQ_L64, "64", "65", "66", "67", "68", "69", LPQ_16(LPQ_F, 0));
  } else {
    static_assert(T == 32);
    LPQ_EITHER("256", LPQ_L128, "128", "129", "130", "131", "132", "133", LPQ_16(LPQ_F, 0), LPQ_16(LPQ_F, 16));
  }
#undef LPQ_EITHER
}

// 32 of k in bytes: sums of int (s8, exact as long as they fit 32 bits) or float (e4m3); T = 2, 4, 8, 12, 16, 20, 24 or
// 32.
#define LPQ_BYTES(FORM, of_a, X, shape, tail)                                                                    \
  if constexpr (T == 2) FORM("16", shape, LPQ_L8, of_a##8, LPQ_PASS(LPQ_2(X, 0)), tail);                         \
  else if constexpr (T == 4) FORM("32", shape, LPQ_L16, of_a##16, LPQ_PASS(LPQ_4(X, 0)), tail);                  \
  else if constexpr (T == 8) FORM("64", shape, LPQ_L32, of_a##32, LPQ_PASS(LPQ_8(X, 0)), tail);                  \
  else if constexpr (T == 12) FORM("96", shape, LPQ_L48, of_a##48, LPQ_PASS(LPQ_8(X, 0), LPQ_4(X, 8)), tail);    \
  else if constexpr (T == 16) FORM("128", shape, LPQ_L64, of_a##64, LPQ_PASS(LPQ_16(X, 0)), tail);               \
  else if constexpr (T == 20) FORM("160", shape, LPQ_L80, of_a##80, LPQ_PASS(LPQ_16(X, 0), LPQ_4(X, 16)), tail); \
  else if constexpr (T == 24) FORM("192", shape, LPQ_L96, of_a##96, LPQ_PASS(LPQ_16(X, 0), LPQ_8(X, 16)), tail); \
  else FORM("256", shape, LPQ_L128, of_a##128, LPQ_PASS(LPQ_16(X, 0), LPQ_16(X, 16)), tail)
#define LPQ_RS(n, shape, list, operands, outs, tail) LPQ_RS_(n, shape, list, operands, LPQ_PASS(outs), tail)
#define LPQ_RS_(n, shape, list, i0, i1, i2, i3, ib, ip, outs, tail) \
  LPQ_REGISTERS(n, shape, list, i0, i1, i2, i3, ib, ip, LPQ_PASS(outs), tail)
#define LPQ_SS(n, shape, list, operands, outs, tail) LPQ_SS_(n, shape, list, operands, LPQ_PASS(outs), tail)
#define LPQ_SS_(n, shape, list, ia, ib, ip, outs, tail) LPQ_SHARED(n, shape, list, ia, ib, ip, LPQ_PASS(outs), tail)
#define LPQ_A8 "8", "9", "10", "11", "12", "13"
#define LPQ_A16 "16", "17", "18", "19", "20", "21"
#define LPQ_A32 "32", "33", "34", "35", "36", "37"
#define LPQ_A48 "48", "49", "50", "51", "52", "53"
#define LPQ_A64 "64", "65", "66", "67", "68", "69"
#define LPQ_A80 "80", "81", "82", "83", "84", "85"
#define LPQ_A96 "96", "97", "98", "99", "100", "101"
#define LPQ_A128 "128", "129", "130", "131", "132", "133"
#define LPQ_D8 "8", "9", "10"
#define LPQ_D16 "16", "17", "18"
#define LPQ_D32 "32", "33", "34"
#define LPQ_D48 "48", "49", "50"
#define LPQ_D64 "64", "65", "66"
#define LPQ_D80 "80", "81", "82"
#define LPQ_D96 "96", "97", "98"
#define LPQ_D128 "128", "129", "130"
template <int T>
__device__ __forceinline__ void wgmma_k32(int (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  LPQ_BYTES(LPQ_RS, LPQ_A, LPQ_I, "k32.s32.s8.s8", "");
}
template <int T>
__device__ __forceinline__ void wgmma_k32(float (&c)[T][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  LPQ_BYTES(LPQ_RS, LPQ_A, LPQ_F, "k32.f32.e4m3.e4m3", ", 1, 1");
}

#undef LPQ_PASS
#undef LPQ_F
#undef LPQ_I
#undef LPQ_2
#undef LPQ_4
#undef LPQ_8
#undef LPQ_16
#undef LPQ_L4
#undef LPQ_L8
#undef LPQ_L16
#undef LPQ_L32
#undef LPQ_L48
#undef LPQ_L64
#undef LPQ_L80
#undef LPQ_L96
#undef LPQ_L128
#undef LPQ_REGISTERS
#undef LPQ_SHARED
#undef LPQ_BYTES
#undef LPQ_RS
#undef LPQ_RS_
#undef LPQ_SS
#undef LPQ_SS_
#undef LPQ_A8
#undef LPQ_A16
#undef LPQ_A32
#undef LPQ_A48
#undef LPQ_A64
#undef LPQ_A80
#undef LPQ_A96
#undef LPQ_A128
#undef LPQ_D8
#undef LPQ_D16
#undef LPQ_D32
#undef LPQ_D48
#undef LPQ_D64
#undef LPQ_D80
#undef LPQ_D96
#undef LPQ_D128
#endif

}  // namespace lpq::cuda
