// interleave_gates.
#pragma once
#include "lpq/interleave_chunk.h"
#include "ops/gemm_packed.h"

namespace lpq::ops {

// What gemm_experts multiplies with `gate`, of weights whose blocks of the gate stand above as many of up. y of the
// dtype and the shape of x, and x only where B is 1 (blocks of gate and up by turns); what x holds says `of`:
//   words: weights u8 [E, 2B, K/128, 512 bits] of the packed format
//   sides: scales or zero points [E, 2B, G, 32] of 1 or 2 bytes, in its order
//   rows: a bias of 2 bytes [E, 64 B], in natural order
struct InterleaveGates : Arguments {
  enum Of { kWords, kSides, kRows };
  int of = one_of("of", {"words", "sides", "rows"});
  int64_t bits = of == kWords ? at_least(1, "bits") : 0;
  const Tensor& x = input("x",
                          of == kWords   ? Types{u8}
                          : of == kSides ? Types{u8, f16, bf16}
                                         : Types{f16, bf16},
                          of == kWords   ? Dims{-1, -1, -1, 512 * bits}
                          : of == kSides ? Dims{-1, -1, -1, 32}
                                         : Dims{-1, -1});
  const Tensor& y = output("y", {x.dtype}, x.shape);
  int64_t experts = x.dim(0), half = x.dim(1) / (of == kRows ? 64 : 2);  // packed blocks of a gate
  int64_t across = of == kRows ? 1 : x.dim(2);

  explicit InterleaveGates(const Call& call) : Arguments(call, "interleave_gates") {
    require(bits <= 8, "bits is " + std::to_string(bits) + ", not 1 to 8");
    require(half * (of == kRows ? 64 : 2) == x.dim(1), "x has " + std::to_string(x.dim(1)) +
                                                           (of == kRows ? " rows" : " packed blocks") +
                                                           ", not as many of up as of the gate");
    require(x.elements() == 0 || half == 1 || y.raw() != x.raw(), "y must not be x, unless blocks stand by turns");
    done();
  }
};

}  // namespace lpq::ops
