// Operands of the tensor core as types: which element of its matrix a lane holds in which register.
//   Type::row(lane, reg[, part]), Type::column(lane, reg[, part])  part: element of a register, from its lowest bit
// An object of the type is those registers. Each layout is held against the table that scripts/fragment-tables.mjs
// prints of src/layout, so a header that says something else does not compile.
#pragma once
#include <cstdint>

namespace lpq::cuda {

/** What a lane holds of an operand. Passes for an array of registers. */
template <class Register, int N>
struct Registers {
  static constexpr int kRegisters = N;
  using Array = Register[N];
  Register reg[N];

  __host__ __device__ constexpr Register& operator[](int i) { return reg[i]; }
  __host__ __device__ constexpr const Register& operator[](int i) const { return reg[i]; }
  __host__ __device__ constexpr operator Array&() { return reg; }
  __host__ __device__ constexpr operator const Array&() const { return reg; }
};

/** A of mma.m16n8kK, 16 rows by K = 256 / Bits columns; of mma.sp.m16n8k32 the 16 columns that are kept. */
template <int Bits>
struct FragmentA : Registers<uint32_t, 4> {
  static constexpr int kLanes = 32, kParts = 32 / Bits, kColumns = 8 * kParts;
  __host__ __device__ static constexpr int row(int lane, int reg, int = 0) { return (lane >> 2) + 8 * (reg & 1); }
  __host__ __device__ static constexpr int column(int lane, int reg, int part = 0) {
    return kParts * (lane & 3) + 4 * kParts * (reg >> 1) + part;
  }
};

/** B of mma.m16n8kK, K = 256 / Bits rows by 8 columns; with four registers, of mma.sp.m16n8k32. */
template <int Bits, int N = 2>
struct FragmentB : Registers<uint32_t, N> {
  static constexpr int kLanes = 32, kParts = 32 / Bits, kColumns = 8;
  __host__ __device__ static constexpr int row(int lane, int reg, int part = 0) {
    return kParts * (lane & 3) + 4 * kParts * reg + part;
  }
  __host__ __device__ static constexpr int column(int lane, int = 0, int = 0) { return lane >> 2; }
};

/** C and D of every mma.m16n8, 16x8. */
template <class Number>
struct FragmentC : Registers<Number, 4> {
  static constexpr int kLanes = 32, kParts = 1, kColumns = 8;
  __host__ __device__ static constexpr int row(int lane, int reg = 0, int = 0) { return (lane >> 2) + 8 * (reg >> 1); }
  __host__ __device__ static constexpr int column(int lane, int reg = 0, int = 0) { return 2 * (lane & 3) + (reg & 1); }
};

/**
 * Metadata of mma.sp.m16n8k32, a nibble for every four columns of a row: rows by quads of columns. Selector: lanes 0
 * and 1 of every four hold it, or 2 and 3.
 */
template <int Selector>
struct FragmentMetadata : Registers<uint32_t, 1> {
  static constexpr int kLanes = 32, kParts = 8, kColumns = 8;
  __host__ __device__ static constexpr bool holds(int lane) { return (lane & 3) >> 1 == Selector; }
  __host__ __device__ static constexpr int row(int lane, int, int part) { return (lane >> 2) + 8 * (part >> 2); }
  __host__ __device__ static constexpr int column(int lane, int, int part) { return 4 * (lane & 1) + (part & 3); }
};

/** A of wgmma.m64nNkK in registers: each warp of a warpgroup has 16 of the 64 rows. */
template <int Bits>
struct WarpgroupA : Registers<uint32_t, 4> {
  using Warp = FragmentA<Bits>;
  static constexpr int kLanes = 128, kParts = Warp::kParts, kColumns = Warp::kColumns;
  __host__ __device__ static constexpr int row(int thread, int reg, int = 0) {
    return 16 * (thread >> 5) + Warp::row(thread & 31, reg);
  }
  __host__ __device__ static constexpr int column(int thread, int reg, int part = 0) {
    return Warp::column(thread & 31, reg, part);
  }
};

/** D of wgmma.m64nNkK with N = 8 T: T tiles of mma's D a warp, [tile][register]. */
template <class Number, int T>
struct WarpgroupD : Registers<Number[4], T> {
  using Warp = FragmentC<Number>;
  static constexpr int kLanes = 128, kParts = 4, kColumns = 8 * T;
  __host__ __device__ static constexpr int row(int thread, int, int reg) {
    return 16 * (thread >> 5) + Warp::row(thread & 31, reg);
  }
  __host__ __device__ static constexpr int column(int thread, int tile, int reg) {
    return 8 * tile + Warp::column(thread & 31, reg);
  }
};

/** An 8x8 matrix of 16-bit elements as ldmatrix loads it and stmatrix stores it; one register. */
struct Matrix8x8 : Registers<uint32_t, 1> {
  static constexpr int kLanes = 32, kParts = 2, kColumns = 8;
  __host__ __device__ static constexpr int row(int lane, int = 0, int = 0) { return lane >> 2; }
  __host__ __device__ static constexpr int column(int lane, int = 0, int part = 0) { return 2 * (lane & 3) + part; }
  // Where the rows are is said by lanes, too: lane 8 i + r has the address of row r of matrix i.
  __host__ __device__ static constexpr int addressed(int lane) { return lane >> 3; }
  __host__ __device__ static constexpr int addressed_row(int lane) { return lane & 7; }
};

/** The same with .trans. */
struct Matrix8x8Trans : Registers<uint32_t, 1> {
  static constexpr int kLanes = 32, kParts = 2, kColumns = 8;
  __host__ __device__ static constexpr int row(int lane, int = 0, int part = 0) {
    return Matrix8x8::column(lane, 0, part);
  }
  __host__ __device__ static constexpr int column(int lane, int = 0, int = 0) { return Matrix8x8::row(lane); }
};

namespace fragment_tables {

#include "cuda/gemm/fragment_tables.inc"

// A cell: row * columns + column; -1 where the lane holds none.
template <class Layout>
constexpr int cell(int lane, int reg, int part) {
  return Layout::row(lane, reg, part) * Layout::kColumns + Layout::column(lane, reg, part);
}
template <class Layout, int Lanes, int N>
constexpr bool says(const short (&table)[Lanes][N]) {
  if (Layout::kLanes != Lanes || Layout::kRegisters * Layout::kParts != N) return false;
  for (int lane = 0; lane < Lanes; ++lane)
    for (int i = 0; i < N; ++i)
      if (cell<Layout>(lane, i / Layout::kParts, i % Layout::kParts) != table[lane][i]) return false;
  return true;
}
template <int Selector>
constexpr bool says_where_metadata_is(const short (&table)[32][8]) {
  using Layout = FragmentMetadata<Selector>;
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 8; ++i)
      if ((Layout::holds(lane) ? cell<Layout>(lane, 0, i) : -1) != table[lane][i]) return false;
  return true;
}

static_assert(says<FragmentA<16>>(mma_m16n8k16_a) && says<FragmentB<16>>(mma_m16n8k16_b));
static_assert(says<FragmentA<8>>(mma_m16n8k32_a) && says<FragmentB<8>>(mma_m16n8k32_b));
static_assert(says<FragmentA<4>>(mma_m16n8k64_a) && says<FragmentB<4>>(mma_m16n8k64_b));
static_assert(says<FragmentC<float>>(mma_m16n8_c) && says<FragmentC<int>>(mma_m16n8_c));
static_assert(says<FragmentA<16>>(mma_sp_m16n8k32_a) && says<FragmentB<16, 4>>(mma_sp_m16n8k32_b));
static_assert(says_where_metadata_is<0>(mma_sp_m16n8k32_e0) && says_where_metadata_is<1>(mma_sp_m16n8k32_e1));
static_assert(says<WarpgroupA<16>>(wgmma_m64k16_a) && says<WarpgroupA<8>>(wgmma_m64k32_a));
static_assert(says<WarpgroupD<float, 2>>(wgmma_m64n16_d) && says<WarpgroupD<int, 2>>(wgmma_m64n16_d));
static_assert(says<Matrix8x8>(ldmatrix) && says<Matrix8x8Trans>(ldmatrix_trans));

}  // namespace fragment_tables

}  // namespace lpq::cuda
