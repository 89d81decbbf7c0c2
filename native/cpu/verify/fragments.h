// Which element of a 16-bit mma.m16n8k16 operand each lane's register holds. Written from the PTX ISA, "Matrix
// Fragments for mma.m16n8k16 with floating point type": groupID = lane / 4, threadID_in_group = lane % 4. The
// verifier's own
// tables: nothing of the packer's layouts is included here.
#pragma once

namespace lpq::verify {

struct Cell {
  int row, col;
};

constexpr int kLanes = 32;

// A is 16 x 16 (row m, col k); a lane holds a0..a7.
constexpr Cell fragment_a(int lane, int i) {
  return {lane / 4 + ((i / 2) % 2 == 1 ? 8 : 0), 2 * (lane % 4) + i % 2 + (i >= 4 ? 8 : 0)};
}

// B is 16 x 8 (row k, col n); a lane holds b0..b3.
constexpr Cell fragment_b(int lane, int i) { return {2 * (lane % 4) + i % 2 + (i >= 2 ? 8 : 0), lane / 4}; }

// C and D are 16 x 8 (row m, col n); a lane holds c0..c3.
constexpr Cell fragment_c(int lane, int i) { return {lane / 4 + (i >= 2 ? 8 : 0), 2 * (lane % 4) + i % 2}; }

}  // namespace lpq::verify
