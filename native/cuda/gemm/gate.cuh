// Gated activations of sums in fp32, as products of experts store them (families/experts.h, ExpertGate). An eight of
// rows of the gate stands above the eight that it gates, so both sums of an output are registers of one lane:
//   (lane, reg) of FragmentC -> (row = lane / 4: gate, reg / 2 = 0; the same of up, reg / 2 = 1; token)
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/families/experts.h"

namespace lpq::cuda {

// The product of one item: its expert's weights, its rows, and what its sums become.
struct ExpertProduct : GemmPackedArgs {
  const ExpertGate& gate;
};

// The lesser and the greater number; NaN comes through.
__device__ __forceinline__ float least_of(float a, float b) { return a > b ? b : a; }
__device__ __forceinline__ float most_of(float a, float b) { return a < b ? b : a; }

__device__ __forceinline__ float gated(const ExpertGate& by, float gate, float up) {
  const float x = least_of(gate, by.limit), line = most_of(least_of(up, by.limit), -by.limit) + by.lift, u = x * x;
  float z = fmaf(by.odd[4], u, by.odd[3]);
  z = fmaf(z, u, by.odd[2]), z = fmaf(z, u, by.odd[1]), z = fmaf(z, u, by.odd[0]);
  const float value = rcp_approx(1.0f + ex2_approx(x * z)) * (by.kind == kGateShare ? 1.0f : x);
  return value * (by.kind == kGateSquare ? value : 1.0f) * line;
}

// store_vector() and store_tokens() of epilogue.cuh, where sums may be of gates.
template <int T, bool XB>
__device__ __forceinline__ void store_vector(const ExpertProduct& g, int strip, int tile, int v, int lane,
                                             float4 value) {
  if (g.gate.kind == 0) return store_vector<T, XB>(static_cast<const GemmPackedArgs&>(g), strip, tile, v, lane, value);
  const int at = (strip * g.warps_n + tile) * 4 + v / T * 2;  // eights
  const int row = at * 8 + (lane >> 2), n = at * 4 + (lane >> 2), m0 = v % T * 8 + (lane & 3) * 2;
  if (n >= g.gate.columns) return;
  const float gate = g.bias ? to_float(g.bias[row], XB) : 0.0f, up = g.bias ? to_float(g.bias[row + 8], XB) : 0.0f;
  uint16_t* const to = g.y + static_cast<long long>(m0) * g.gate.columns + n;
  if (m0 < g.m) to[0] = from_float<XB>(gated(g.gate, value.x + gate, value.z + up));
  if (m0 + 1 < g.m) to[g.gate.columns] = from_float<XB>(gated(g.gate, value.y + gate, value.w + up));
}

#if LPQ_HAS_TMA
template <bool BF, int P, int U, class Sums>
__device__ __forceinline__ void store_tokens(const ExpertProduct& g, bool vectors, int n0, int token0, int least,
                                             uint32_t staging, int lane, const Sums& sums) {
  static_assert(P == 2 && U <= 2);
  if (g.gate.kind == 0)
    return store_tokens<BF, P, U>(static_cast<const GemmPackedArgs&>(g), vectors, n0, token0, least, staging, lane,
                                  sums);
  float bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bias[i] = g.bias ? to_float(g.bias[n0 + 8 * i + (lane >> 2)], BF) : 0.0f;
  // Both parts are one: 16 outputs of 8 U tokens.
  store_transposed<1, 1>({g.y, min(g.m, token0 + 8 * U), g.gate.columns, vectors}, n0 / 2, token0, least, staging, lane,
                         [&](int, int i) -> uint32_t {
                           const int u = i >> 1, p = i & 1;
                           if (u >= U) return 0;
                           const auto at = [&](int token) {
                             return gated(g.gate, sums(u, p, token) + bias[2 * p],
                                          sums(u, p, token + 2) + bias[2 * p + 1]);
                           };
                           return cvt_x2<BF>(at(0), at(1));
                         });
}
#endif

}  // namespace lpq::cuda
