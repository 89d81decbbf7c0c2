// A kernel of any layout of tiles, lane by lane: each lane reads its words, cuts codes out with the masks of such
// kernels, turns them into fp16 registers, fetches its scales and zero points, and feeds the fragments of mma.m16n8k16
// (sm70: columns of mma.m8n8k4). Written from the PTX ISA, the papers and the formats' descriptions; shares the
// verifier's tables only in parameter_at. Accumulation as in emulate_marlin.cpp: fp32, k ascending, rounded to nearest
// at each step.
#include <cmath>
#include <vector>

#include "cpu/verify/emulation.h"
#include "cpu/verify/half.h"
#include "cpu/verify/stream.h"
#include "cpu/verify/tile_forms.h"

namespace lpq::verify {
namespace {

constexpr int kM = 16;

// What a register of a lane holds: where its fragment says the value belongs, in the tile, and the code cut out for it.
struct Register {
  int n, k;
  uint32_t code;
};

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

// What the kernel has: packed tensors, how they are laid out, and its arithmetic; and what was quantized: scales F16
// [N, G] and zeros F16 [N, G] in canonical order, of codes as they are stored, and codes U8 [N, K stream].
struct TileKernel : Arguments {
  CodeType type = CodeType::read(*this);
  int bits = type.bits, zero_bits = static_cast<int>(integer("zeroBits", 0));
  const std::string &form_name = text("form"), &scale_form = text("scaleForm");
  TileForm form = tile_form(form_name, bits);  // for the order and size of tiles only
  int64_t np = integer("np"), kp = integer("kp"), gp = integer("gp"), group = integer("group"), k = integer("k");
  const Tensor& packed = input("packed");
  const Tensor& scales = input("scales", {DType::f16}, {-1, -1});
  const Tensor& zeros = input("zeros", {DType::f16}, scales.shape);
  const Tensor& codes = input("codes", {DType::u8}, {scales.dim(0), -1});
  const Tensor& packed_scales = input("packed scales");
  const Tensor* packed_zeros = flag("hasZeros") ? &input("packed zeros") : nullptr;
  const Tensor* order = input_if(flag("hasOrder"), "order", {DType::i32}, {k});
  uint32_t flip = static_cast<uint32_t>(integer("flip", 0));
  bool fused = flag("fused");
  int scale_width = fused ? 4 : static_cast<int>(dtype_bytes(packed_scales.dtype));  // bytes
  uint16_t constant = half_from_float(real("zero", 0));  // the zero point of all, where there are no packed ones
  std::vector<uint16_t> cast{};                          // numbers of codes
  Strips strips{*this};

  explicit TileKernel(const Call& call) : Arguments(call, "verify_emulate_tiles") {
    done();
    require(np % form.tile_n == 0 && kp % form.tile_k == 0, "the padded shape is whole tiles");
    require(static_cast<int64_t>(packed.bytes()) * 8 == np * kp * bits, "the packed tensor holds the padded shape");
    for (uint32_t c = 0; c < 1u << bits; ++c) cast.push_back(half_from_float(static_cast<float>(type.value(c))));
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
    const auto* from = reinterpret_cast<const uint8_t*>(packed_scales.raw());
    uint32_t raw = 0;
    std::memcpy(&raw, from + parameter_at(scale_form, n, g, np, gp, 8 * scale_width) / 8,
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
    const auto* zero = reinterpret_cast<const uint8_t*>(packed_zeros->raw());
    if (zero_bits == 16) std::memcpy(&z, zero + bit / 8, 2);
    else z = half_from_float(static_cast<float>(zero[bit / 8] >> (bit % 8) & ((1 << zero_bits) - 1)));
  }

  // The code, scale and zero point of a weight, as they are stored.
  struct Parts {
    int64_t column;
    uint32_t code;
    uint16_t scale, zero;
  };
  Parts canonical(int64_t n, int64_t of_k) const {
    const int64_t column = order ? order->data<int32_t>()[of_k] : of_k, at = n * scales.dim(1) + of_k / group;
    const uint32_t code = stream_get(codes.data<uint8_t>() + n * codes.dim(1), column, bits) ^ flip;
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
  void compare(int64_t first, int64_t k, WorstOutput& worst) const {
    const double u = 0x1p-11, h = 0x1p-25, e = 0x1p-24, kd = static_cast<double>(k);
    const double gamma = kd * e / (1 - kd * e), own = (kd + 4) * 0x1p-53;
    for (size_t o = 0; o < sum.size(); ++o) {
      if (!std::isfinite(exact[o])) continue;  // a code that is no number: the registers were compared
      const double before = loose[o] + gamma * (size[o] + loose[o]);
      const double bound = before + u * (std::fabs(exact[o]) + before) + h + own * size[o];
      worst.see(static_cast<int64_t>(o % kM), first + static_cast<int64_t>(o / kM), half_value(half_from_float(sum[o])),
                exact[o], bound);
    }
  }
};

void emulate_strip(const TileKernel& kernel, const std::vector<float>& a, int64_t strip, Outputs& outputs,
                   Wrong& wrong) {
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
      if (n >= kernel.codes.dim(0) || k >= kernel.k) continue;
      const auto [column, code, stored_scale, stored_zero] = kernel.canonical(n, k);
      const uint16_t zero =
          kernel.fused ? half_from_float(-(half_value(stored_zero) * half_value(stored_scale))) : stored_zero;
      const uint16_t want = kernel.weight(code, stored_scale, zero);
      if (got != want) wrong.see(n, column, got, want);
      const double scale = half_value(stored_scale), shift = half_value(stored_zero), q = kernel.type.value(code);
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

// Inputs: packed; scales, zeros and codes in canonical form; packed scales (F16, BF16, U8 = e8m0, or halves {s, -z s});
// then, as told, packed zeros and order I32 [K]. Outputs as those of verify_emulate_marlin. zero: of all, where there
// are no packed zeros.
void emulate_tiles(Call& call, Exec& exec) {
  const TileKernel kernel(call);
  const TileForm& form = kernel.form;
  std::vector<float> a = activations(kernel.strips.seed, kM * kernel.kp);  // [K][kM], 0 beyond K, as kernels feed
  std::fill(a.begin() + kM * std::min(kernel.k, kernel.kp), a.end(), 0.0f);
  kernel.strips.run(exec, kernel.np / form.tile_n, [&](int64_t strip, Wrong& wrong, WorstOutput& worst) {
    Outputs outputs(static_cast<size_t>(form.tile_n * kM));
    emulate_strip(kernel, a, strip, outputs, wrong);
    outputs.compare(strip * form.tile_n, kernel.kp, worst);
  });
}
LPQ_OP(emulate_tiles, "verify_emulate_tiles");

}  // namespace
}  // namespace lpq::verify
