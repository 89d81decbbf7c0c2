// Runs a program of lanes (lane_program.h) on 32 lanes, tile by tile, and multiplies what it feeds to the fragments of
// a tensor core by the tokens. Sums run in fp32, k ascending, rounded to nearest at each step; products of two fp16
// numbers are exact there.
#pragma once
#include <array>
#include <functional>
#include <vector>

#include "cpu/verify/fragments.h"
#include "cpu/verify/lane_program.h"

namespace lpq::verify {

// A register in all lanes; `same`: all hold what lane 0 does, and only that is there. `written`: the program, or who
// runs it, gave it a value.
struct Lanes {
  std::array<uint32_t, kLanes> lane{};
  bool same = true, written = true;
  uint32_t at(int i) const { return lane[static_cast<size_t>(same ? 0 : i)]; }
};

// What all warps of a module read.
struct LaneData {
  std::vector<const Tensor*> tensors{};
  std::vector<uint16_t> numbers{};  // fp16 of every code
  int64_t tile_n = 0, tile_k = 0;
  int tokens = 0;
  const float* activations = nullptr;  // [kp][tokens]
};

class Warp {
 public:
  // see(n, k, fp16): a weight in a register of a fragment, at its place in the tile.
  using See = std::function<void(int64_t, int64_t, uint16_t)>;
  Warp(const LaneData& data, std::vector<Lanes> slots, See see)
      : slots(std::move(slots)),
        sums(static_cast<size_t>(data.tile_n * data.tokens)),
        data_(data),
        see_(std::move(see)) {}

  // Throws LPQ_NATIVE_ARGUMENT where the program reads beyond a tensor or feeds what is outside of the tile.
  void run(const std::vector<Statement>& statements, int64_t step);
  std::vector<Lanes> slots;        // of variables
  std::vector<float> sums;         // [tile_n][tokens]
  std::vector<uint16_t> scales{};  // what the kernel scales them by, if the program gave any; NaN for the others

 private:
  void execute(const Statement& statement);
  Lanes value(const Expression& e) const;
  Lanes load(const Expression& e) const;
  uint32_t uniform(const Expression& e) const;
  uint32_t place(const Expression& e) const;
  void call(const Expression& e);
  uint32_t feature(const Expression& e, const Lanes& n, int i) const;
  void scale(const Expression& e, bool a);
  void multiply(const Expression& e, Function is);

  const LaneData& data_;
  See see_;
  int64_t step_ = 0;
};

}  // namespace lpq::verify
