// fuse_scale_zero: {s, -z s} of every group, the operand of one fma(q, s, -z s) (TurboMind's scales).
#include <mutex>

#include "lpq/half.h"
#include "ops/arguments.h"

namespace lpq::layout {
namespace {

void fuse_scale_zero(Call& call, Exec& exec) {
  Arguments a(call, "fuse_scale_zero");
  const Tensor& scales = a.input("scales", {DType::f16}, {-1, -1});
  const Tensor &zeros = a.input("zeros", {DType::u8}, scales.shape),
               &pairs = a.output("pairs", {DType::i32}, scales.shape), &info = a.output("info", {DType::i64}, {4});
  const bool constant = a.flag("constant");
  a.done();
  const int64_t total = scales.elements(), groups = scales.dim(1);
  const uint16_t* s = scales.data<uint16_t>();
  const uint8_t* z = zeros.data<uint8_t>();
  int32_t* out = pairs.data<int32_t>();
  std::mutex mutex;
  int64_t lost = 0, first = total, why = 0;
  exec.pool.parallel_for(total, 1 << 15, [&](int64_t begin, int64_t end, int) {
    int64_t mine = 0, at = total, reason = 0;
    for (int64_t i = begin; i < end; ++i) {
      // 8 and 11 bits: the product is exact in f32.
      const uint16_t t = f32_to_f16(-(static_cast<float>(z[i]) * f16_to_f32(s[i])));
      out[i] = static_cast<int32_t>(static_cast<uint32_t>(s[i]) | static_cast<uint32_t>(t) << 16);
      const bool infinite = (t & 0x7c00) == 0x7c00, nothing = !constant && (s[i] & 0x7fff) == 0;
      if (!infinite && !nothing) continue;
      if (mine++ == 0) at = i, reason = infinite ? 1 : 0;
    }
    if (mine == 0) return;
    std::lock_guard lock(mutex);
    lost += mine;
    if (at < first) first = at, why = reason;
  });
  int64_t* result = info.data<int64_t>();
  result[0] = lost, result[1] = lost ? first / groups : 0, result[2] = lost ? first % groups : 0, result[3] = why;
}
LPQ_OP(fuse_scale_zero, "fuse_scale_zero");

}  // namespace
}  // namespace lpq::layout
