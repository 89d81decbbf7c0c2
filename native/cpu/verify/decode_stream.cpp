// Decoders of the consumer formats whose words are bitstreams: GPTQ (down the columns) and compressed-tensors (along
// the rows). Facts: shared spec "checkpoint-formats", sections 1 and 3.
#include <vector>

#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

// Values a word where a format leaves its top bits unused; 0: the words are one stream.
int64_t values_a_word(Arguments& a, int bits) {
  const int64_t per_word = a.integer("perWord", 0);
  require(per_word == 0 || per_word == 32 / bits, "perWord is 32 div bits");
  return per_word;
}
int read_bits(Arguments& a) {
  const int64_t bits = a.integer("bits");
  require(bits >= 1 && bits <= 8, "bits is 1 to 8");
  return static_cast<int>(bits);
}

// Codes from words: down the columns (qweight I32 [ceil(K*b/32), N]), or along the rows (weight_packed I32 [N,
// ceil(K*b/32)], or [N, ceil(K/perWord)]) -> codes U8 [N, ceil(K*b/8)], info I64 [5].
void decode_codes(Call& call, Exec& exec, const char* op, bool down) {
  Arguments a(call, op);
  const int bits = read_bits(a);
  const int64_t k = a.integer("k"), per_word = down ? 0 : values_a_word(a, bits), words = words_for(k, bits, per_word);
  const auto flip = static_cast<uint32_t>(a.integer("flip", 0));
  const Tensor& packed = a.input("packed", {DType::i32}, {down ? words : -1, down ? -1 : words});
  const int64_t n = packed.dim(down);
  const Tensor& codes = a.output("codes", {DType::u8}, {n, ceil_div(k * bits, 8)});
  const Tensor& info = report_output(a, "info");
  a.done();
  const auto* in = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  WrongReport report;
  exec.pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
    // Sixteen columns are one cache line of every row of words: turn them into rows first.
    const int64_t count = end - begin;
    std::vector<uint32_t> turned(static_cast<size_t>(down ? count * words : 0)),
        dense(static_cast<size_t>(per_word > 0 ? words : 0));
    for (int64_t w = 0; down && w < words; ++w)
      for (int64_t i = 0; i < count; ++i) turned[i * words + w] = in[w * n + begin + i];
    Wrong wrong;
    for (int64_t row = begin; row < end; ++row)
      unpack_words(down ? turned.data() + (row - begin) * words : in + row * words, words, k, bits, per_word, flip,
                   dense, codes.data<uint8_t>() + row * codes.dim(1), row, wrong);
    report.merge(wrong);
  });
  report.write(info);
}
void decode_gptq(Call& call, Exec& exec) { decode_codes(call, exec, "verify_decode_gptq", true); }
LPQ_OP(decode_gptq, "verify_decode_gptq");
void decode_ct(Call& call, Exec& exec) { decode_codes(call, exec, "verify_decode_ct", false); }
LPQ_OP(decode_ct, "verify_decode_ct");

// Zero points, packed along N, one stream a group: down is false for qzeros I32 [G, ceil(N*b/32)], true for
// weight_zero_point I32 [ceil(N*b/32), G] (with perWord as above). zeros U8 or I16 [N, G] = ((stored + add) mod 2^b) -
// bias.
void decode_zeros(Call& call, Exec& exec) {
  Arguments a(call, "verify_decode_zeros");
  const int bits = read_bits(a);
  const bool down = a.flag("down");
  const int64_t add = a.integer("add", 0), bias = a.integer("bias", 0), per_word = values_a_word(a, bits);
  const Tensor& zeros = a.output("zeros", {DType::u8, DType::i16}, {-1, -1});
  const int64_t n = zeros.dim(0), groups = zeros.dim(1), words = words_for(n, bits, per_word);
  const Tensor& packed = a.input("packed", {DType::i32}, {down ? words : groups, down ? groups : words});
  const Tensor& info = report_output(a, "info");
  a.done();
  const auto* in = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  report_rows(exec, groups, 1, info, [&](int64_t g, Wrong& wrong) {
    std::vector<uint32_t> line(static_cast<size_t>(words)), dense(static_cast<size_t>(per_word > 0 ? words : 0));
    std::vector<uint8_t> stream(static_cast<size_t>(ceil_div(n * bits, 8) + 1));
    for (int64_t w = 0; w < words; ++w) line[w] = down ? in[w * groups + g] : in[g * words + w];
    Wrong tail;
    unpack_words(line.data(), words, n, bits, per_word, 0, dense, stream.data(), n, tail);
    if (tail.count) wrong.see(n, g, tail.got, 0);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t value = ((stream_get(stream.data(), i, bits) + add) & ((1 << bits) - 1)) - bias;
      if (zeros.dtype == DType::u8) zeros.data<uint8_t>()[i * groups + g] = static_cast<uint8_t>(value);
      else zeros.data<int16_t>()[i * groups + g] = static_cast<int16_t>(value);
    }
  });
}
LPQ_OP(decode_zeros, "verify_decode_zeros");

}  // namespace
}  // namespace lpq::verify
