// Packed tiles and their scales and zero points back into canonical order.
#include <cmath>
#include <cstring>

#include "cpu/verify/half.h"
#include "cpu/verify/tile_forms.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

// packed (bytes of [np, kp] codes), order I32 [K] (optional) -> codes U8 [N, ceil(K*bits/8)], info I64 [5]. Column j of
// the tiles is column order[j] of codes. Each code is exclusive-or flip; stored codes outside [N, K] must be `pad`.
void decode_tiles(Call& call, Exec& exec) {
  Arguments a(call, "verify_decode_tiles");
  const Tensor& packed = a.input("packed");
  const int bits = static_cast<int>(a.integer("bits"));
  const TileForm form = tile_form(a.text("form"), bits);
  const int64_t np = a.integer("np"), kp = a.integer("kp"), k_true = a.integer("k");
  const Tensor* order = a.last_input("order", {DType::i32}, {k_true});
  const Tensor& codes = a.output("codes", {DType::u8}, {-1, ceil_div(k_true * bits, 8)});
  const Tensor& info = report_output(a, "info");
  const uint32_t flip = static_cast<uint32_t>(a.integer("flip", 0)), pad = static_cast<uint32_t>(a.integer("pad", 0));
  a.done();
  const int64_t n_true = codes.dim(0);
  require(np % form.tile_n == 0 && kp % form.tile_k == 0, "the padded shape is whole tiles");
  require(static_cast<int64_t>(packed.bytes()) * 8 == np * kp * bits, "the packed tensor holds the padded shape");
  require(n_true <= np && k_true <= kp, "the padded shape holds [N, K]");
  const int32_t* columns = order ? checked_order(*order) : nullptr;
  const auto* in = reinterpret_cast<const uint8_t*>(packed.raw());
  uint8_t* out = codes.data<uint8_t>();
  const int64_t n_tiles = np / form.tile_n, k_tiles = kp / form.tile_k, row_bytes = codes.dim(1);
  exec.total = n_tiles;
  WrongReport report;
  exec.pool.parallel_for(n_tiles, 1, [&](int64_t begin, int64_t end, int) {
    Wrong wrong;
    std::vector<uint8_t> strip(static_cast<size_t>(form.tile_n * kp)), line(static_cast<size_t>(k_true));
    for (int64_t nt = begin; nt < end; ++nt) {
      for (int64_t kt = 0; kt < k_tiles; ++kt) {
        const uint8_t* tile = in + form.tile_index(nt, kt, n_tiles, k_tiles) * form.tile_bits() / 8;
        for (size_t i = 0; i < form.codes.size(); ++i)
          strip[static_cast<size_t>(form.codes[i].n * kp + kt * form.tile_k + form.codes[i].k)] =
              static_cast<uint8_t>(form.get(tile, i));
      }
      for (int r = 0; r < form.tile_n; ++r) {
        const int64_t n = nt * form.tile_n + r;
        const uint8_t* row = &strip[static_cast<size_t>(r * kp)];
        for (int64_t k = n < n_true ? k_true : 0; k < kp; ++k)
          if (row[k] != pad) wrong.see(n, k, row[k], pad);
        if (n >= n_true) continue;
        for (int64_t j = 0; j < k_true; ++j)
          line[static_cast<size_t>(columns ? columns[j] : j)] = static_cast<uint8_t>(row[j] ^ flip);
        uint8_t* to = out + n * row_bytes;
        uint32_t pending = 0;
        int held = 0;
        for (const uint8_t code : line) {
          pending |= static_cast<uint32_t>(code) << held;
          held += bits;
          while (held >= 8) *to++ = static_cast<uint8_t>(pending), pending >>= 8, held -= 8;
        }
        if (held > 0) *to = static_cast<uint8_t>(pending);
      }
      ++exec.done;
    }
    report.merge(wrong);
  });
  report.write(info);
}
LPQ_OP(decode_tiles, "verify_decode_tiles");

// packed -> elements [N, G] of u8, 16 or 32 bits, info I64 [5]. Elements of columns >= N or groups >= G must be 0.
void decode_parameters(Call& call, Exec&) {
  Arguments a(call, "verify_decode_parameters");
  const Tensor &packed = a.input("packed"), &out = a.output("elements", {-1, -1}), &info = report_output(a, "info");
  const int bits = static_cast<int>(a.integer("bits")), width = static_cast<int>(dtype_bytes(out.dtype));
  const int64_t np = a.integer("np"), gp = a.integer("gp"), n_true = out.dim(0), g_true = out.dim(1);
  const std::string& form = a.text("form");
  a.done();
  require((bits == 4 && width == 1) || bits == 8 * width, "elements of 4, 8, 16 or 32 bits");
  require(static_cast<int64_t>(packed.bytes()) * 8 == np * gp * bits, "the packed tensor is [G, N]");
  require(n_true <= np && g_true <= gp, "the padded shape holds [N, G]");
  const auto* in = reinterpret_cast<const uint8_t*>(packed.raw());
  auto* to = reinterpret_cast<uint8_t*>(out.raw());
  const int64_t total = np * gp * bits;
  Wrong wrong;
  for (int64_t n = 0; n < np; ++n)
    for (int64_t g = 0; g < gp; ++g) {
      const int64_t at = parameter_at(form, n, g, np, gp, bits);
      // An order of whole tiles leads out of a matrix that is none.
      require(at >= 0 && at + bits <= total, "the padded shape is of whole tiles");
      uint32_t value = 0;
      if (bits == 4) value = in[at / 8] >> (at % 8) & 15;
      else std::memcpy(&value, in + at / 8, static_cast<size_t>(width));
      if (n < n_true && g < g_true) std::memcpy(to + (n * g_true + g) * width, &value, static_cast<size_t>(width));
      else if (value != 0) wrong.see(n, g, value, 0);
    }
  WrongReport report;
  report.merge(wrong);
  report.write(info);
}
LPQ_OP(decode_parameters, "verify_decode_parameters");

// pairs I32 [N, G] of halves {s, t} -> scales F16 [N, G], zeros I16 [N, G], info I64 [5]: t must be the rounded -z s of
// one z in 0 .. 2^bits - 1; where s is 0, of z = `constant` (-1: there is none, so such a pair is wrong).
void split_pairs(Call& call, Exec&) {
  Arguments a(call, "verify_split_pairs");
  const Tensor& pairs = a.input("pairs", {DType::i32}, {-1, -1});
  const Tensor& scales = a.output("scales", {DType::f16}, pairs.shape);
  const Tensor& zeros = a.output("zeros", {DType::i16}, pairs.shape);
  const Tensor& info = report_output(a, "info");
  const int64_t groups = pairs.dim(1), constant = a.integer("constant"), bits = a.integer("bits");
  a.done();
  require(bits >= 1 && bits <= 8, "bits is 1 to 8");
  const int limit = 1 << bits;
  Wrong wrong;
  for (int64_t i = 0; i < pairs.elements(); ++i) {
    const auto pair = static_cast<uint32_t>(pairs.data<int32_t>()[i]);
    const auto s = static_cast<uint16_t>(pair), t = static_cast<uint16_t>(pair >> 16);
    const double scale = half_value(s), shift = half_value(t);
    int64_t z = constant;
    if (scale != 0 && std::isfinite(scale) && std::isfinite(shift)) z = std::llround(-shift / scale);
    // Half an integer times a half has at most 19 bits: exact in float, so this rounds once.
    const bool inside = z >= 0 && z < limit;
    const uint16_t want = inside ? half_from_float(-(static_cast<float>(z) * static_cast<float>(scale))) : 0;
    if (!inside || want != t) wrong.see(i / groups, i % groups, t, want);
    scales.data<uint16_t>()[i] = s;
    zeros.data<int16_t>()[i] = static_cast<int16_t>(inside ? z : -1);
  }
  WrongReport report;
  report.merge(wrong);
  report.write(info);
}
LPQ_OP(split_pairs, "verify_split_pairs");

}  // namespace
}  // namespace lpq::verify
