// Codes into blocks of GGUF.
#include "cpu/quant/gguf_blocks.h"

#include <cstring>
#include <vector>

#include "cpu/checks.h"
#include "cpu/quant/bitstream.h"
#include "lpq/exec.h"
#include "lpq/half.h"
#include "ops/arguments.h"

namespace lpq::gguf {
namespace {

void put16(uint8_t* out, uint16_t value) {
  out[0] = static_cast<uint8_t>(value);
  out[1] = static_cast<uint8_t>(value >> 8);
}

// Sixteen bytes: element e < 16 is a low nibble, e >= 16 the high nibble of byte e - 16.
void put_nibbles(const uint8_t* q, uint8_t* out) {
  for (int e = 0; e < 16; ++e) out[e] = static_cast<uint8_t>((q[e] & 15) | (q[e + 16] & 15) << 4);
}

void put_fifth_bits(const uint8_t* q, uint8_t* out) {
  uint32_t bits = 0;
  for (int e = 0; e < 32; ++e) bits |= static_cast<uint32_t>((q[e] >> 4) & 1) << e;
  for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(bits >> (8 * i));
}

// Four 2-bit planes a byte: element 128 h + 32 j + l is bits 2j of byte 32 h + l.
void put_pairs(const uint8_t* q, uint8_t* out) {
  for (int h = 0; h < 2; ++h)
    for (int l = 0; l < 32; ++l) {
      unsigned byte = 0;
      for (int j = 0; j < 4; ++j) byte |= static_cast<unsigned>(q[128 * h + 32 * j + l] & 3) << (2 * j);
      out[32 * h + l] = static_cast<uint8_t>(byte);
    }
}

// Eight 6-bit scales and eight 6-bit minima in twelve bytes.
void put_sixes(const uint8_t* sc, const uint8_t* mn, uint8_t* out) {
  for (int s = 0; s < 4; ++s) {
    out[s] = static_cast<uint8_t>((sc[s] & 63) | (sc[s + 4] >> 4) << 6);
    out[s + 4] = static_cast<uint8_t>((mn[s] & 63) | (mn[s + 4] >> 4) << 6);
    out[s + 8] = static_cast<uint8_t>((sc[s + 4] & 15) | (mn[s + 4] & 15) << 4);
  }
}

// Low nibbles of runs of 64: element 64 c + l is the low, 64 c + 32 + l the high nibble of byte 32 c + l.
void put_runs(const uint8_t* q, uint8_t* out) {
  for (int c = 0; c < 4; ++c)
    for (int l = 0; l < 32; ++l)
      out[32 * c + l] = static_cast<uint8_t>((q[64 * c + l] & 15) | (q[64 * c + 32 + l] & 15) << 4);
}

// Codes stream U8 [N, ceil(K*bits/8)], scales F16 [N, K/group], order I32 [N], zeros U8 [N, K/group] (q4_1, q5_1) ->
// blocks U8 [N, K/32*bytes]; row r of the blocks is row order[r] of the codes. Stored codes are ((code ^ flip) + add)
// mod 256; the minimum of a block is -(zero * scale), rounded once to f16.
void encode_blocks(Call& call, Exec& exec) {
  Arguments a(call, "gguf_encode_blocks");
  const TypeFacts facts = type_facts(a.text("type"));
  const bool minima = facts.type == Type::q4_1 || facts.type == Type::q5_1;
  const int64_t k = a.integer("k"), group = a.integer("group"), row_bytes = k / 32 * facts.bytes;
  const int bits = static_cast<int>(a.integer("bits"));
  const auto flip = static_cast<uint8_t>(a.integer("flip", 0)), add = static_cast<uint8_t>(a.integer("add", 0));
  require(facts.block == 32, "codes go into blocks of 32 only");
  require(bits >= 1 && bits <= 8 && k % 32 == 0, "codes have 1 to 8 bits, K is a multiple of 32");
  require(group > 0 && group % 32 == 0 && k % group == 0, "groups are multiples of 32 that divide K");
  const Tensor& codes = a.input("codes", {DType::u8}, {-1, stream_bytes(k, bits)});
  const int64_t n = codes.dim(0), groups = k / group;
  const Tensor &scales = a.input("scales", {DType::f16}, {n, groups}), &order = a.input("order", {DType::i32}, {n}),
               *zeros = a.input_if(minima, "zeros", {DType::u8}, {n, groups}),
               &blocks = a.output("blocks", {DType::u8}, {n, row_bytes});
  a.done();
  const auto* from = codes.data<uint8_t>();
  const auto* scale = scales.data<uint16_t>();
  const uint8_t* zero = zeros ? zeros->data<uint8_t>() : nullptr;
  const auto* rows = order.data<int32_t>();
  for (int64_t r = 0; r < n; ++r) require(rows[r] >= 0 && rows[r] < n, "order stays inside N");
  auto* to = blocks.data<uint8_t>();
  exec.total = n;
  exec.pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
    std::vector<uint8_t> line(static_cast<size_t>(k));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = rows[r];
      unpack_row(from + row * codes.dim(1), k, bits, line.data());
      for (auto& code : line) code = static_cast<uint8_t>((code ^ flip) + add);
      for (int64_t b = 0; b < k / 32; ++b) {
        const int64_t g = row * groups + b * 32 / group;
        const bool down = zero && zero[g] != 0;
        const uint16_t min = down ? f32_to_f16(-(static_cast<float>(zero[g]) * f16_to_f32(scale[g]))) : uint16_t{0};
        put_block32(facts.type, line.data() + b * 32, scale[g], min, to + r * row_bytes + b * facts.bytes);
      }
    }
    exec.done += end - begin;
  });
}
LPQ_OP(encode_blocks, "gguf_encode_blocks");

// x [N, ...], order I32 [N] -> y, of any dtype and as many bytes: row r of y is row order[r] of x.
void take_rows(Call& call, Exec& exec) {
  Arguments a(call, "gguf_take_rows");
  const Tensor &x = a.input("x"), &order = a.input("order"), &y = a.output("y");
  require(x.rank() > 0 && y.bytes() == x.bytes(), "y has as many bytes as x");
  const int64_t n = x.dim(0);
  require_tensor(order, "order", DType::i32, {n});
  a.done();
  const size_t row_bytes = n == 0 ? 0 : x.bytes() / static_cast<size_t>(n);
  const auto* rows = order.data<int32_t>();
  for (int64_t r = 0; r < n; ++r) require(rows[r] >= 0 && rows[r] < n, "order stays inside N");
  exec.pool.for_each(n, 64, [&](int64_t r) {
    std::memcpy(y.raw() + static_cast<size_t>(r) * row_bytes, x.raw() + static_cast<size_t>(rows[r]) * row_bytes,
                row_bytes);
  });
}
LPQ_OP(take_rows, "gguf_take_rows");

}  // namespace

TypeFacts type_facts(const std::string& name) {
  if (name == "q4_0") return {Type::q4_0, 32, 18};
  if (name == "q4_1") return {Type::q4_1, 32, 20};
  if (name == "q5_0") return {Type::q5_0, 32, 22};
  if (name == "q5_1") return {Type::q5_1, 32, 24};
  if (name == "q8_0") return {Type::q8_0, 32, 34};
  if (name == "q2_k") return {Type::q2_k, 256, 84};
  if (name == "q3_k") return {Type::q3_k, 256, 110};
  if (name == "q4_k") return {Type::q4_k, 256, 144};
  if (name == "q5_k") return {Type::q5_k, 256, 176};
  if (name == "q6_k") return {Type::q6_k, 256, 210};
  throw Failure("LPQ_NATIVE_PARAM", "'" + name + "' is no block type of GGUF");
}

void put_block32(Type type, const uint8_t* q, uint16_t scale, uint16_t min, uint8_t* out) {
  put16(out, scale);
  out += 2;
  if (type == Type::q8_0) {
    std::memcpy(out, q, 32);
    return;
  }
  if (type == Type::q4_1 || type == Type::q5_1) {
    put16(out, min);
    out += 2;
  }
  if (type == Type::q5_0 || type == Type::q5_1) {
    put_fifth_bits(q, out);
    out += 4;
  }
  put_nibbles(q, out);
}

void put_block256(Type type, const uint8_t* q, const uint8_t* sc, const uint8_t* mn, uint16_t d, uint16_t dmin,
                  uint8_t* out) {
  switch (type) {
    case Type::q2_k:
      for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((sc[i] & 15) | (mn[i] & 15) << 4);
      put_pairs(q, out + 16);
      put16(out + 80, d);
      put16(out + 82, dmin);
      return;
    case Type::q3_k: {
      std::memset(out, 0, 32);
      for (int e = 0; e < 256; ++e)  // byte e % 32, bit e / 32
        out[e % 32] = static_cast<uint8_t>(out[e % 32] | ((q[e] >> 2) & 1) << (e / 32));
      put_pairs(q, out + 32);
      uint8_t* to = out + 96;
      std::memset(to, 0, 12);
      for (int i = 0; i < 16; ++i) {
        to[i % 8] = static_cast<uint8_t>(to[i % 8] | (sc[i] & 15) << (i < 8 ? 0 : 4));
        to[8 + i % 4] = static_cast<uint8_t>(to[8 + i % 4] | (sc[i] >> 4) << (2 * (i / 4)));
      }
      put16(out + 108, d);
      return;
    }
    case Type::q4_k:
    case Type::q5_k: {
      put16(out, d);
      put16(out + 2, dmin);
      put_sixes(sc, mn, out + 4);
      uint8_t* low = out + 16;
      if (type == Type::q5_k) {
        std::memset(low, 0, 32);
        for (int e = 0; e < 256; ++e) low[e % 32] = static_cast<uint8_t>(low[e % 32] | ((q[e] >> 4) & 1) << (e / 32));
        low += 32;
      }
      put_runs(q, low);
      return;
    }
    default:  // q6_k
      for (int h = 0; h < 2; ++h)
        for (int l = 0; l < 32; ++l) {
          const uint8_t* e = q + 128 * h + l;
          out[64 * h + l] = static_cast<uint8_t>((e[0] & 15) | (e[64] & 15) << 4);
          out[64 * h + 32 + l] = static_cast<uint8_t>((e[32] & 15) | (e[96] & 15) << 4);
          out[128 + 32 * h + l] =
              static_cast<uint8_t>(e[0] >> 4 | (e[32] >> 4) << 2 | (e[64] >> 4) << 4 | (e[96] >> 4) << 6);
        }
      std::memcpy(out + 192, sc, 16);
      put16(out + 208, d);
  }
}

}  // namespace lpq::gguf
