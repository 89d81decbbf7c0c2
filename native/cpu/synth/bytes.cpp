// synth_bytes (bench/ops.ts): random codes and scales of published low-bit weights, for benchmarks.
#include "cpu/checks.h"
#include "cpu/synth/draws.h"
#include "ops/arguments.h"

namespace lpq {
namespace {

constexpr int64_t kEach = 8;  // bytes of a draw

// bytes u8 [C] = least + (a random byte modulo most - least + 1), of a longer run from byte `first` on, a multiple
// of 8. seed is an integer below 2^53. Any cut gives the same bytes.
void synth_bytes(Call& call, Exec& exec) {
  Arguments a(call, "synth_bytes");
  const Tensor& bytes = a.output("bytes", {DType::u8}, {-1});
  const uint64_t key = synth::mixed(static_cast<uint64_t>(a.integer("seed")));
  const int64_t least = a.integer("least", 0), most = a.integer("most", 255), first = a.integer("first", 0);
  a.done();
  require(least >= 0 && least <= most && most <= 255, "least and most are no bytes in their order");
  require(first >= 0 && first % kEach == 0, "first is " + std::to_string(first) + ", no multiple of 8");
  const int64_t count = bytes.elements(), range = most - least + 1;
  uint8_t* to = bytes.data<uint8_t>();
  exec.pool.parallel_for((count + kEach - 1) / kEach, rows_grain(kEach * 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t d = begin; d < end; ++d) {
      const uint64_t bits = synth::draw(key, static_cast<uint64_t>(first / kEach + d));
      for (int64_t i = 0; i < kEach && d * kEach + i < count; ++i)
        to[d * kEach + i] = static_cast<uint8_t>(least + static_cast<int64_t>(bits >> 8 * i & 255) % range);
    }
  });
}

}  // namespace
LPQ_OP(synth_bytes, "synth_bytes");
}  // namespace lpq
