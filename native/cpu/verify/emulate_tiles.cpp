// A kernel of any layout of tiles, lane by lane: each lane reads its words, cuts codes out with the masks of such
// kernels, turns them into fp16 registers, fetches its scales and zero points, and feeds the fragments of mma.m16n8k16
// (sm70: columns of mma.m8n8k4). Written from the PTX ISA, the papers and the formats' descriptions; shares the
// verifier's tables only in parameter_at. Accumulation as in emulate_marlin.cpp: fp32, k ascending, rounded to nearest
// at each step.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/verify/half.h"
#include "cpu/verify/outputs.h"
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

// What the kernel has: packed tensors, how they are laid out, and its arithmetic.
struct TileKernel {
  const Params& params;
  const Tensor &packed, &packed_scales;
  const Tensor* packed_zeros;
  const std::string &form_name, &scale_form;
  int bits, zero_bits;
  TileForm form;  // for the order and size of tiles only
  int64_t np, kp, gp, group;
  bool fused;
  int scale_width;             // bytes
  uint16_t constant;           // the zero point of all, where there are no packed ones
  std::vector<uint16_t> cast;  // numbers of codes

  TileKernel(const Params& p, const Tensor& packed, const Tensor& packed_scales, const Tensor* packed_zeros)
      : params(p),
        packed(packed),
        packed_scales(packed_scales),
        packed_zeros(packed_zeros),
        form_name(p.text("form")),
        scale_form(p.text("scaleForm")),
        bits(static_cast<int>(p.integer("bits"))),
        zero_bits(static_cast<int>(p.integer("zeroBits", 0))),
        form(tile_form(form_name, bits)),
        np(p.integer("np")),
        kp(p.integer("kp")),
        gp(p.integer("gp")),
        group(p.integer("group")),
        fused(p.integer("fused", 0) != 0),
        scale_width(fused ? 4 : static_cast<int>(dtype_bytes(packed_scales.dtype))),
        constant(half_from_float(static_cast<float>(p.number("zero", 0)))),
        cast(size_t{1} << bits) {
    require(np % form.tile_n == 0 && kp % form.tile_k == 0, "the padded shape is whole tiles");
    require(static_cast<int64_t>(packed.bytes()) * 8 == np * kp * bits, "the packed tensor holds the padded shape");
    for (uint32_t c = 0; c < cast.size(); ++c) cast[c] = half_from_float(static_cast<float>(number_of(c, p, bits)));
  }

  // What the registers of all lanes hold of a tile.
  void read(int64_t strip, int64_t kt, std::vector<Register>& held) const {
    const int64_t index = form.tile_index(strip, kt, np / form.tile_n, kp / form.tile_k);
    const uint8_t* tile = reinterpret_cast<const uint8_t*>(packed.raw()) + index * form.tile_bits() / 8;
    held.clear();
    for (int lane = 0; lane < kLanes; ++lane) {
      if (form_name == "tilus") tilus(tile, bits, lane, held);
      else if (form_name == "turbomind_a") operand_a(tile, bits, lane, held);
      else if (form_name == "turbomind_sm70") sm70(tile, bits, lane, held);
      else operand_b(tile, bits, form.tile_n / 16, lane, held);
    }
  }
  // A weight from a code as stored, with the kernel's roundings.
  uint16_t weight(uint32_t code, uint16_t s, uint16_t z_or_t) const {
    return fused ? half_fma(cast[code], s, z_or_t) : half_mul(half_sub(cast[code], z_or_t), s);
  }
  // The lane's own look-up of column n and group g.
  void parameters(int64_t n, int64_t g, uint16_t& s, uint16_t& z) const {
    const auto* scales = reinterpret_cast<const uint8_t*>(packed_scales.raw());
    uint32_t raw = 0;
    std::memcpy(&raw, scales + parameter_at(scale_form, n, g, np, gp, 8 * scale_width) / 8,
                static_cast<size_t>(scale_width));
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
  }
};

// What was quantized, in canonical form.
struct Canonical {
  const Tensor &scales, &zeros, &codes;
  const Tensor* order;
  int64_t k;
  uint32_t flip;

  // The code, scale and zero point of a weight, as they are stored.
  struct Parts {
    int64_t column;
    uint32_t code;
    uint16_t scale, zero;
  };
  Parts at(int64_t n, int64_t of_k, const TileKernel& kernel) const {
    const int64_t column = order ? order->data<int32_t>()[of_k] : of_k, at = n * scales.dim(1) + of_k / kernel.group;
    const uint32_t code = stream_get(codes.data<uint8_t>() + n * codes.dim(1), column, kernel.bits) ^ flip;
    return {column, code, scales.data<uint16_t>()[at], zeros.data<uint16_t>()[at]};
  }
};

// Outputs of a strip, [tile_n][kM]: as the kernel adds them up, in double precision, and how far roundings of weights
// may take them.
struct Outputs {
  std::vector<float> sum;
  std::vector<double> exact, size, loose;
  explicit Outputs(size_t count) : sum(count), exact(count), size(count), loose(count) {}

  // A weight's products with all tokens x, and `off`, how far roundings may take it from its value.
  void add(int n, const float* x, double value, double off) {
    for (int m = 0; m < kM; ++m) {
      const size_t o = static_cast<size_t>(n * kM + m);
      exact[o] += x[m] * value, size[o] += std::fabs(x[m] * value), loose[o] += std::fabs(x[m]) * off;
    }
  }
  WorstOutput worst(int64_t first, int64_t k) const {
    const double u = 0x1p-11, h = 0x1p-25, e = 0x1p-24, kd = static_cast<double>(k);
    const double gamma = kd * e / (1 - kd * e), own = (kd + 4) * 0x1p-53;
    WorstOutput worst;
    for (size_t o = 0; o < sum.size(); ++o) {
      if (!std::isfinite(exact[o])) continue;  // a code that is no number: the registers were compared
      const double before = loose[o] + gamma * (size[o] + loose[o]);
      const double bound = before + u * (std::fabs(exact[o]) + before) + h + own * size[o];
      worst.see(static_cast<int64_t>(o % kM), first + static_cast<int64_t>(o / kM), half_value(half_from_float(sum[o])),
                exact[o], bound);
    }
    return worst;
  }
};

// [K][kM], m/1024 with |m| <= 1024: exact in fp16; 0 beyond K, as kernels feed.
std::vector<float> activations(uint64_t seed, int64_t kp, int64_t k_true) {
  std::vector<float> a(static_cast<size_t>(kM * kp));
  for (size_t i = 0; i < static_cast<size_t>(kM * std::min(k_true, kp)); ++i)
    a[i] = (static_cast<float>(mix(seed ^ mix(i)) % 2049) - 1024.0f) / 1024.0f;
  return a;
}

void emulate_strip(const TileKernel& kernel, const Canonical& canonical, const std::vector<float>& a, int64_t strip,
                   Outputs& outputs, Wrong& wrong) {
  const TileForm& form = kernel.form;
  std::vector<float> w(static_cast<size_t>(form.tile_n * form.tile_k));
  std::vector<Register> held;
  for (int64_t kt = 0; kt < kernel.kp / form.tile_k; ++kt) {
    const float* x = &a[static_cast<size_t>(kt * form.tile_k * kM)];
    kernel.read(strip, kt, held);
    for (const Register& r : held) {
      const int64_t n = strip * form.tile_n + r.n, k = kt * form.tile_k + r.k;
      uint16_t s, z;
      kernel.parameters(n, std::min(k / kernel.group, kernel.gp - 1), s, z);
      const uint16_t got = kernel.weight(r.code, s, z);
      w[static_cast<size_t>(r.n * form.tile_k + r.k)] = half_value(got);
      if (n >= canonical.codes.dim(0) || k >= canonical.k) continue;
      const auto [column, code, stored_scale, stored_zero] = canonical.at(n, k, kernel);
      const uint16_t zero =
          kernel.fused ? half_from_float(-(half_value(stored_zero) * half_value(stored_scale))) : stored_zero;
      const uint16_t want = kernel.weight(code, stored_scale, zero);
      if (got != want) wrong.see(n, column, got, want);
      const double scale = half_value(stored_scale), shift = half_value(stored_zero),
                   q = number_of(code, kernel.params, kernel.bits);
      const double value = (q - shift) * scale, u = 0x1p-11, h = 0x1p-25;
      const double off = kernel.fused ? u * (std::fabs(value) + (2 + u) * std::fabs(shift * scale)) + 3 * h
                                      : (2 * u + u * u) * std::fabs(value) + h * (2 + std::fabs(scale));
      outputs.add(r.n, x + r.k * kM, value, off);
    }
    // mma: every column's products in order of k, in fp32. Products of two halves are exact there.
    for (int n = 0; n < form.tile_n; ++n)
      for (int k = 0; k < form.tile_k; ++k)
        for (int m = 0; m < kM; ++m)
          outputs.sum[static_cast<size_t>(n * kM + m)] += x[k * kM + m] * w[static_cast<size_t>(n * form.tile_k + k)];
  }
}

// Inputs: packed; scales F16 [N, G] and zeros F16 [N, G] in canonical order, of codes as they are stored; codes U8 [N,
// K stream], canonical; packed scales (F16, BF16, U8 = e8m0, or halves {s, -z s}); then, as told, packed zeros and
// order I32 [K]. Outputs as those of verify_emulate_marlin. zero: of all, where there are no packed zeros.
void emulate_tiles(Call& call, Exec& exec) {
  const Params& p = call.params;
  size_t next = 5;
  const Tensor* packed_zeros = p.integer("hasZeros", 0) ? &call.input(next++) : nullptr;
  const Tensor* order = p.integer("hasOrder", 0) ? &call.input(next++) : nullptr;
  const TileKernel kernel(p, call.input(0), call.input(4), packed_zeros);
  const Canonical canonical{call.input(1), call.input(2),  call.input(3),
                            order,         p.integer("k"), static_cast<uint32_t>(p.integer("flip", 0))};
  require(canonical.scales.dim(0) == canonical.codes.dim(0) && canonical.zeros.shape == canonical.scales.shape,
          "scales and zeros are [N, G]");
  const std::vector<double>& strips = p.list("strips");
  const std::vector<float> a = activations(static_cast<uint64_t>(p.integer("seed")), kernel.kp, canonical.k);
  exec.total = static_cast<int64_t>(strips.size());
  WrongReport registers;
  OutputReport report;
  exec.pool.parallel_for(static_cast<int64_t>(strips.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      const auto strip = static_cast<int64_t>(strips[static_cast<size_t>(index)]);
      require(strip >= 0 && strip < kernel.np / kernel.form.tile_n, "a strip inside N");
      Outputs outputs(static_cast<size_t>(kernel.form.tile_n * kM));
      Wrong wrong;
      emulate_strip(kernel, canonical, a, strip, outputs, wrong);
      registers.merge(wrong);
      report.merge(outputs.worst(strip * kernel.form.tile_n, kernel.kp));
      ++exec.done;
    }
  });
  registers.write(call.output(0));
  report.write(call.output(1));
}
LPQ_OP(emulate_tiles, "verify_emulate_tiles");

}  // namespace
}  // namespace lpq::verify
