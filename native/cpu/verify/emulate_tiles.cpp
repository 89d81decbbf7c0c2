// A kernel of any layout of tiles, lane by lane: each lane reads its words, cuts codes out with the masks of such
// kernels, turns them into fp16 registers, fetches its scales and zero points, and feeds the fragments of mma.m16n8k16
// (sm70: columns of mma.m8n8k4). Written from the PTX ISA, the papers and the formats' descriptions; shares the
// verifier's tables only in parameter_at. Accumulation as in emulate_marlin.cpp: fp32, k ascending, rounded to nearest
// at each step.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/verify/half.h"
#include "cpu/verify/stream.h"
#include "cpu/verify/tile_forms.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

constexpr int kM = 16;

// What a register of a lane holds: where its fragment says the value belongs, in the tile, and the code cut out for it.
struct Register {
  int n, k;
  uint32_t code;
};

uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// Two codes of one register pair: `low` from the lower half of a word, `high` from the upper.
struct Two {
  uint32_t low, high;
};
Two nibbles(uint32_t word, int shift) {  // (word >> shift) & 0x000f000f
  const uint32_t q = word >> shift & 0x000f000fu;
  return {q & 0xffff, q >> 16};
}
Two bytes_of(uint32_t word, int first) {  // prmt: bytes first and first + 2
  return {word >> (8 * first) & 255, word >> (8 * first + 16) & 255};
}

void operand_b(const uint8_t* tile, int bits, int subtiles, int lane, std::vector<Register>& out) {
  const int words = subtiles * bits / 4;
  const uint8_t* mine = tile + 4 * words * lane;
  for (int sub = 0; sub < subtiles; ++sub)
    for (int right = 0; right < 2; ++right) {
      const uint32_t word = word_at(mine + 4 * (bits == 4 ? sub : 2 * sub + right));
      const Two b01 = bits == 4 ? nibbles(word, 8 * right) : bytes_of(word, 0);
      const Two b23 = bits == 4 ? nibbles(word, 8 * right + 4) : bytes_of(word, 1);
      const uint32_t b[4] = {b01.low, b01.high, b23.low, b23.high};
      for (int i = 0; i < 4; ++i) {
        const Cell cell = fragment_b(lane, i);
        out.push_back({16 * sub + 8 * right + cell.col, cell.row, b[i]});
      }
    }
}

void operand_a(const uint8_t* tile, int bits, int lane, std::vector<Register>& out) {
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t word = word_at(tile + bits * lane + (bits == 8 ? 4 * (pair / 2) : 0));
    const Two a = bits == 4 ? nibbles(word, 4 * pair) : bytes_of(word, pair % 2);
    for (int half = 0; half < 2; ++half) {
      const Cell cell = fragment_a(lane, 2 * pair + half);
      out.push_back({cell.row, cell.col, half ? a.high : a.low});
    }
  }
}

// A lane's column of B, two steps of four k.
void sm70(const uint8_t* tile, int bits, int lane, std::vector<Register>& out) {
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t word = word_at(tile + bits * lane + (bits == 8 ? 4 * (pair / 2) : 0));
    const Two b = bits == 4 ? nibbles(word, 4 * pair) : bytes_of(word, pair % 2);
    out.push_back({lane, 2 * pair, b.low});
    out.push_back({lane, 2 * pair + 1, b.high});
  }
}

// The same bits of both halves of a word, at `bit`, `length` of them, moved to bit `to` of two codes.
void take(Two& codes, uint32_t word, int bit, int length, int to) {
  const uint32_t mask = (1u << length) - 1;
  codes.low |= (word >> bit & mask) << to;
  codes.high |= (word >> (16 + bit) & mask) << to;
}

void tilus(const uint8_t* block, int bits, int lane, std::vector<Register>& out) {
  std::vector<uint32_t> words(static_cast<size_t>(4 * bits));
  for (int load = 0; load < bits; ++load)  // 16 bytes a lane, 512 a warp
    for (int i = 0; i < 4; ++i)
      words[static_cast<size_t>(4 * load + i)] = word_at(block + 512 * load + 16 * lane + 4 * i);
  const int fields = 16 / bits, room = 16 - fields * bits;
  for (int chunk = 0; chunk < 4; ++chunk) {
    const uint32_t* w = &words[static_cast<size_t>(chunk * bits)];
    Two pairs[16] = {};
    for (int i = 0; i < 16; ++i) {
      Two& p = pairs[i];
      if (i < fields * bits) {
        take(p, w[i / fields], i % fields * bits, bits, 0);
      } else if (bits == 3 || bits == 5) {
        for (int m = 0; m < bits; ++m) take(p, w[m], 15, 1, m);
      } else if (bits == 6) {
        take(p, w[i - 12], 12, room, 0);
        take(p, w[4 + (i - 12) / 2], 12 + 2 * (i % 2), 2, 4);
      } else {
        for (int m = 0; m < 3; ++m) take(p, w[3 * (i - 14) + m], 14, room, 2 * m);
        take(p, w[6], i, 1, 6);
      }
    }
    // a0..a3 of operand A, rows n: (r = 2nt, j = 2ks), (2nt + 1, 2ks), (2nt, 2ks + 1), (2nt + 1, 2ks + 1).
    for (int nt = 0; nt < 2; ++nt)
      for (int ks = 0; ks < 2; ++ks)
        for (int a = 0; a < 4; ++a) {
          const Two& p = pairs[4 * (2 * ks + a / 2) + 2 * nt + a % 2];
          for (int half = 0; half < 2; ++half) {
            const Cell cell = fragment_a(lane, 2 * a + half);
            out.push_back({16 * nt + cell.row, 32 * chunk + 16 * ks + cell.col, half ? p.high : p.low});
          }
        }
  }
}

double number_of(uint32_t code, const Params& p, int bits) {
  if (p.text("kind") == "int") {
    const bool negative = p.integer("signed") && (code >> (bits - 1));
    return negative ? static_cast<double>(code) - (1 << bits) : code;
  }
  const int e_bits = static_cast<int>(p.integer("exponent")), m_bits = static_cast<int>(p.integer("mantissa"));
  const int bias = static_cast<int>(p.integer("bias")), e = static_cast<int>(code >> m_bits & ((1u << e_bits) - 1));
  const int m = static_cast<int>(code & ((1u << m_bits) - 1)), top = (1 << e_bits) - 1;
  const std::string& special = p.text("special");
  if ((special == "ieee" && e == top) || (special == "fn" && e == top && m == (1 << m_bits) - 1))
    return std::numeric_limits<double>::quiet_NaN();
  const double size = e == 0 ? std::ldexp(m, 1 - bias - m_bits) : std::ldexp((1 << m_bits) + m, e - bias - m_bits);
  return code >> (bits - 1) ? -size : size;
}

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Inputs: packed; scales F16 [N, G] and zeros F16 [N, G] in canonical order, of codes as they are stored; codes U8 [N,
// K stream], canonical; packed scales (F16, BF16, U8 = e8m0, or halves {s, -z s}); then, as told, packed zeros and
// order I32 [K]. Outputs as those of verify_emulate_marlin. zero: of all, where there are no packed zeros.
void emulate_tiles(Call& call, Exec& exec) {
  const Params& p = call.params;
  const Tensor &packed = call.input(0), &scales = call.input(1), &zeros = call.input(2), &codes = call.input(3);
  const Tensor& packed_scales = call.input(4);
  size_t next = 5;
  const Tensor* packed_zeros = p.integer("hasZeros", 0) ? &call.input(next++) : nullptr;
  const Tensor* order = p.integer("hasOrder", 0) ? &call.input(next++) : nullptr;
  const std::string& form_name = p.text("form");
  const std::string& scale_form = p.text("scaleForm");
  const int bits = static_cast<int>(p.integer("bits"));
  const int64_t np = p.integer("np"), kp = p.integer("kp"), gp = p.integer("gp"), group = p.integer("group");
  const int64_t n_true = codes.dim(0), k_true = p.integer("k"), groups = scales.dim(1);
  const uint32_t flip = static_cast<uint32_t>(p.integer("flip", 0));
  const bool fused = p.integer("fused", 0) != 0;
  const uint16_t constant = half_from_float(static_cast<float>(p.number("zero", 0)));
  const int zero_bits = static_cast<int>(p.integer("zeroBits", 0));
  const TileForm form = tile_form(form_name, bits);  // for the order and size of tiles only
  require(np % form.tile_n == 0 && kp % form.tile_k == 0, "the padded shape is whole tiles");
  require(static_cast<int64_t>(packed.bytes()) * 8 == np * kp * bits, "the packed tensor holds the padded shape");
  require(scales.dim(0) == n_true && zeros.shape == scales.shape, "scales and zeros are [N, G]");
  const auto* in = reinterpret_cast<const uint8_t*>(packed.raw());
  const auto* in_scales = reinterpret_cast<const uint8_t*>(packed_scales.raw());
  const int scale_width = fused ? 4 : static_cast<int>(dtype_bytes(packed_scales.dtype));
  const uint16_t *true_scales = scales.data<uint16_t>(), *true_zeros = zeros.data<uint16_t>();
  std::vector<uint16_t> cast(size_t{1} << bits);
  for (uint32_t c = 0; c < cast.size(); ++c) cast[c] = half_from_float(static_cast<float>(number_of(c, p, bits)));

  // A weight from a code as stored, with the kernel's roundings.
  const auto weight = [&](uint32_t code, uint16_t s, uint16_t z_or_t) {
    return fused ? half_fma(cast[code], s, z_or_t) : half_mul(half_sub(cast[code], z_or_t), s);
  };
  // The lane's own look-up of column n and group g.
  const auto parameters = [&](int64_t n, int64_t g, uint16_t& s, uint16_t& z) {
    const uint8_t* at = in_scales + parameter_at(scale_form, n, g, np, gp, 8 * scale_width) / 8;
    uint32_t raw = 0;
    std::memcpy(&raw, at, static_cast<size_t>(scale_width));
    z = constant;
    if (fused) {
      s = static_cast<uint16_t>(raw), z = static_cast<uint16_t>(raw >> 16);
      return;
    }
    if (scale_width == 1)  // ue8m0 -> bf16 -> half
      s = half_from_float(std::ldexp(1.0f, static_cast<int>(raw) - 127));
    else
      s = packed_scales.dtype == DType::bf16 ? half_from_float(bfloat_value(static_cast<uint16_t>(raw)))
                                             : static_cast<uint16_t>(raw);
    if (!packed_zeros) return;
    const std::string zero_form = scale_form == "marlin_scales" ? "marlin_zeros" : scale_form;
    const int64_t bit = parameter_at(zero_form, n, g, np, gp, zero_bits);
    const auto* from = reinterpret_cast<const uint8_t*>(packed_zeros->raw());
    if (zero_bits == 16) std::memcpy(&z, from + bit / 8, 2);
    else z = half_from_float(static_cast<float>(from[bit / 8] >> (bit % 8) & ((1 << zero_bits) - 1)));
  };

  const std::vector<double>& strips = p.list("strips");
  const auto seed = static_cast<uint64_t>(p.integer("seed"));
  std::vector<float> a(
      static_cast<size_t>(kM * kp));  // m/1024 with |m| <= 1024: exact in fp16; 0 beyond K, as kernels feed
  for (int64_t k = 0; k < kp; ++k)
    for (int m = 0; m < kM; ++m)
      a[static_cast<size_t>(k * kM + m)] =
          k < k_true
              ? (static_cast<float>(mix(seed ^ mix(static_cast<uint64_t>(k * kM + m))) % 2049) - 1024.0f) / 1024.0f
              : 0;
  const int64_t n_tiles = np / form.tile_n, k_tiles = kp / form.tile_k;
  exec.total = static_cast<int64_t>(strips.size());
  WrongReport registers;
  std::mutex mutex;
  int64_t bad = 0, bad_m = -1, bad_n = -1;
  double bad_got = 0, bad_expected = 0, bad_bound = 0, top = 0;
  exec.pool.parallel_for(static_cast<int64_t>(strips.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      const auto strip = static_cast<int64_t>(strips[static_cast<size_t>(index)]);
      require(strip >= 0 && strip < n_tiles, "a strip inside N");
      const size_t outputs = static_cast<size_t>(form.tile_n * kM);
      std::vector<float> sum(outputs);
      std::vector<double> exact(outputs), size(outputs), loose(outputs);
      std::vector<float> w(static_cast<size_t>(form.tile_n * form.tile_k));
      std::vector<Register> held;
      Wrong wrong;
      for (int64_t kt = 0; kt < k_tiles; ++kt) {
        const uint8_t* tile = in + form.tile_index(strip, kt, n_tiles, k_tiles) * form.tile_bits() / 8;
        held.clear();
        for (int lane = 0; lane < kLanes; ++lane) {
          if (form_name == "tilus") tilus(tile, bits, lane, held);
          else if (form_name == "turbomind_a") operand_a(tile, bits, lane, held);
          else if (form_name == "turbomind_sm70") sm70(tile, bits, lane, held);
          else operand_b(tile, bits, form.tile_n / 16, lane, held);
        }
        for (const Register& r : held) {
          const int64_t n = strip * form.tile_n + r.n, k = kt * form.tile_k + r.k;
          uint16_t s, z;
          parameters(n, std::min(k / group, gp - 1), s, z);
          const uint16_t got = weight(r.code, s, z);
          w[static_cast<size_t>(r.n * form.tile_k + r.k)] = half_value(got);
          if (n >= n_true || k >= k_true) continue;
          const int64_t column = order ? order->data<int32_t>()[k] : k, at = n * groups + k / group;
          const uint32_t code = stream_get(codes.data<uint8_t>() + n * codes.dim(1), column, bits) ^ flip;
          const uint16_t zero =
              fused ? half_from_float(-(half_value(true_zeros[at]) * half_value(true_scales[at]))) : true_zeros[at];
          const uint16_t want = weight(code, true_scales[at], zero);
          if (got != want) wrong.see(n, column, got, want);
          // The reference, and how far roundings may take this weight from it.
          const double scale = half_value(true_scales[at]), shift = half_value(true_zeros[at]),
                       q = number_of(code, p, bits);
          const double value = (q - shift) * scale, u = 0x1p-11, h = 0x1p-25;
          const double off = fused ? u * (std::fabs(value) + (2 + u) * std::fabs(shift * scale)) + 3 * h
                                   : (2 * u + u * u) * std::fabs(value) + h * (2 + std::fabs(scale));
          for (int m = 0; m < kM; ++m) {
            const double x = a[static_cast<size_t>(k * kM + m)];
            const size_t o = static_cast<size_t>(r.n * kM + m);
            exact[o] += x * value, size[o] += std::fabs(x * value), loose[o] += std::fabs(x) * off;
          }
        }
        // mma: every column's products in order of k, in fp32. Products of two halves are exact there.
        for (int n = 0; n < form.tile_n; ++n)
          for (int k = 0; k < form.tile_k; ++k)
            for (int m = 0; m < kM; ++m)
              sum[static_cast<size_t>(n * kM + m)] +=
                  a[static_cast<size_t>((kt * form.tile_k + k) * kM + m)] * w[static_cast<size_t>(n * form.tile_k + k)];
      }
      const double u = 0x1p-11, h = 0x1p-25, e = 0x1p-24, kd = static_cast<double>(kp);
      const double gamma = kd * e / (1 - kd * e), own = (kd + 4) * 0x1p-53;
      std::lock_guard lock(mutex);
      for (int n = 0; n < form.tile_n; ++n)
        for (int m = 0; m < kM; ++m) {
          const size_t o = static_cast<size_t>(n * kM + m);
          const double got = half_value(half_from_float(sum[o])), expected = exact[o];
          const double before = loose[o] + gamma * (size[o] + loose[o]);
          const double bound = before + u * (std::fabs(expected) + before) + h + own * size[o];
          if (std::isinf(got) && std::fabs(expected) + bound >= 65504 && std::signbit(got) == std::signbit(expected))
            continue;
          if (!std::isfinite(expected)) continue;  // a code that is no number: the registers were compared
          const double error = std::fabs(got - expected);
          top = std::max(top, error / bound);
          if (error <= bound) continue;
          const int64_t column = strip * form.tile_n + n;
          if (bad++ == 0 || column < bad_n || (column == bad_n && m < bad_m))
            bad_m = m, bad_n = column, bad_got = got, bad_expected = expected, bad_bound = bound;
        }
      registers.merge(wrong);
      ++exec.done;
    }
  });
  registers.write(call.output(0));
  double* out = call.output(1).data<double>();
  out[0] = static_cast<double>(bad), out[1] = static_cast<double>(bad_m), out[2] = static_cast<double>(bad_n);
  out[3] = bad_got, out[4] = bad_expected, out[5] = bad_bound, out[6] = top;
}
LPQ_OP(emulate_tiles, "verify_emulate_tiles");

}  // namespace
}  // namespace lpq::verify
