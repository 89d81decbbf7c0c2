#include "cpu/verify/tile_forms.h"

namespace lpq::verify {
namespace {

// Which value v of a lane field i of its word holds: nibbles 0 2 4 6 1 3 5 7, so that one mask takes a half2 and a
// shift by 4 the next; bytes 0 2 1 3, so that PRMT does.
int value_of_nibble(int i) { return 2 * (i % 4) + i / 4; }
int value_of_byte(int i) { return 2 * (i % 2) + i / 2; }

// Operand B: a lane's `subtiles` 16x16 tiles along n, each two fragments (columns 0..7 and 8..15) of four values.
TileForm operand_b(int bits, int subtiles) {
  TileForm form{bits, 16 * subtiles, 16, false, {}, {}, {}};
  const int words = subtiles * bits / 4;  // of a lane
  for (int lane = 0; lane < kLanes; ++lane)
    for (int word = 0; word < words; ++word)
      for (int i = 0; i < 32 / bits; ++i) {
        int sub = word, v = 0;  // v: 0..7, the left fragment's four values and then the right one's
        if (bits == 4) {
          v = value_of_nibble(i);
        } else {
          sub = word / 2;
          v = 4 * (word % 2) + value_of_byte(i);
        }
        const Cell cell = fragment_b(lane, v % 4);
        form.add(16 * sub + 8 * (v / 4) + cell.col, cell.row, 32 * (lane * words + word) + bits * i);
      }
  return form;
}

// Operand A with n as its rows: eight values a lane.
TileForm operand_a(int bits) {
  TileForm form{bits, 16, 16, false, {}, {}, {}};
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 8; ++i) {
      const int v = bits == 4 ? value_of_nibble(i) : 4 * (i / 4) + value_of_byte(i % 4);
      const Cell cell = fragment_a(lane, v);
      form.add(cell.row, cell.col, 8 * bits * lane + bits * i);
    }
  return form;
}

// mma.m8n8k4's consumers take eight k of one column at a time.
TileForm sm70(int bits) {
  TileForm form{bits, 32, 8, true, {}, {}, {}};
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 8; ++i)
      form.add(lane, bits == 4 ? value_of_nibble(i) : 4 * (i / 4) + value_of_byte(i % 4), 8 * bits * lane + bits * i);
  return form;
}

// Bit m of pair i in a chunk's half-words: word, and bit of the half.
struct HalfBit {
  int word, bit;
};
HalfBit pair_bit(int bits, int i, int m) {
  const int whole = 16 / bits;  // fields of a half-word
  if (i < whole * bits) return {i / whole, i % whole * bits + m};
  switch (bits) {
    case 3:
    case 5: return {m, 15};  // pair 15, one bit a word
    case 6: {
      const int y = i - 12;
      return m < 4 ? HalfBit{y, 12 + m} : HalfBit{4 + y / 2, 12 + 2 * (y % 2) + (m - 4)};
    }
    default: {  // 7
      const int y = i - 14;
      return m < 6 ? HalfBit{3 * y + m / 2, 14 + m % 2} : HalfBit{6, 14 + y};
    }
  }
}

TileForm tilus(int bits) {
  TileForm form{bits, 32, 128, true, {}, {}, {}};
  for (int lane = 0; lane < 32; ++lane)
    for (int chunk = 0; chunk < 4; ++chunk)
      for (int i = 0; i < 16; ++i)
        for (int half = 0; half < 2; ++half) {
          form.codes.push_back({lane / 4 + 8 * (i % 4), 32 * chunk + 8 * (i / 4) + 2 * (lane % 4) + half});
          bool together = true;
          for (int m = 0; m < bits; ++m) {
            const HalfBit place = pair_bit(bits, i, m);
            const int word = chunk * bits + place.word;  // of the lane's 4 * bits, in vectors of four
            const int byte = 512 * (word / 4) + 16 * lane + 4 * (word % 4);
            form.at.push_back(8 * byte + 16 * half + place.bit);
            together = together && (m == 0 || form.at.back() == form.at[form.at.size() - 2] + 1);
          }
          form.together.push_back(together);
        }
  return form;
}

// W4Ax: a lane's word is the two registers of operand B of mma.m16n8k32 (the PTX ISA: row 4 (lane % 4) + byte, and 16
// further; column lane / 4) as the low and the high nibble of each byte. Words of both eights of n and of two chunks of
// 32 k are one load.
TileForm comet() {
  TileForm form{4, 16, 128, true, {}, {}, {}};
  for (int load = 0; load < 2; ++load)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int word = 0; word < 4; ++word)
        for (int i = 0; i < 8; ++i) {
          const int chunk = 2 * load + word / 2, k = 32 * chunk + 16 * (i % 2) + 4 * (lane % 4) + i / 2;
          form.add(8 * (word % 2) + lane / 4, k, 8 * (512 * load + 16 * lane + 4 * word) + 4 * i);
        }
  return form;
}

}  // namespace

TileForm tile_form(const std::string& name, int bits) {
  if (name == "tilus") {
    require(bits >= 1 && bits <= 8, "tilus holds codes of 1 to 8 bits");
    return tilus(bits);
  }
  require(bits == 4 || bits == 8, "the form holds codes of 4 or 8 bits");
  if (name == "comet") {
    require(bits == 4, "comet holds codes of 4 bits");
    return comet();
  }
  if (name == "marlin") return operand_b(bits, 4);
  if (name == "turbomind_b") return operand_b(bits, 2);
  if (name == "turbomind_a") return operand_a(bits);
  if (name == "turbomind_sm70") return sm70(bits);
  require(name == "turbomind_b_experts", "a form of tiles that the verifier knows");
  TileForm form = operand_b(bits, 2);
  form.n_major = true;
  return form;
}

// First bit of the element of column n and group g, of `bits` bits.
int64_t parameter_at(const std::string& form, int64_t n, int64_t g, int64_t np, int64_t groups, int bits) {
  const int64_t in64 = n % 64;
  if (form == "marlin_scales") {
    // Lanes 4r .. 4r+3 own column r of every eight and read eight scales at once. A single row meets the accumulators:
    // lanes with lane % 4 = t read those of columns 2t and 2t + 1 of every eight, 32 columns at a time.
    const int64_t position =
        groups > 1 ? n - in64 + 8 * (n % 8) + in64 / 8 : n - n % 32 + 8 * (n % 8 / 2) + 2 * (n % 32 / 8) + n % 2;
    return (g * np + position) * bits;
  }
  if (form == "sparse_marlin_scales") {
    // Lanes 4g .. 4g+3 own features 8g .. 8g+7, a product j those of rows j and 4 + j: neighbours. A single row is in
    // place.
    return (g * np + (groups > 1 ? n - n % 8 + 2 * (n % 4) + n % 8 / 4 : n)) * bits;
  }
  if (form == "marlin_zeros") {
    // The zero points a lane reads are those of the columns whose scales it reads, in the order of its codes.
    static constexpr int nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7}, byte[4] = {0, 2, 1, 3};
    if (bits == 4) return (g * (np / 8) + n / 64 * 8 + n % 8) * 32 + 4 * nibble[in64 / 8];
    return (g * (np / 4) + n / 64 * 16 + n % 8 * 2 + in64 / 32) * 32 + 8 * byte[in64 / 8 % 4];
  }
  if (form == "turbomind") return (((g * (np / 16) + n / 16) * 8 + n % 8) * 2 + n % 16 / 8) * bits;
  if (form == "turbomind_sm70" || form == "comet") return (g * np + n) * bits;
  require(form == "tilus", "a form of scales that the verifier knows");
  return ((n / 32 * groups + g) * 32 + 4 * (n % 8) + n % 32 / 8) * bits;
}

}  // namespace lpq::verify
