// Decoders of the consumer formats whose words are bitstreams: GPTQ (down the columns) and compressed-tensors (along
// the rows). Facts: shared spec "checkpoint-formats", sections 1 and 3.
#include <vector>

#include "cpu/verify/stream.h"

namespace lpq::verify {
namespace {

struct CodesCall {
  int bits;
  int64_t n, k;
  uint32_t flip;
  const Tensor &packed, &codes, &info;
};

CodesCall codes_call(Call& call) {
  const Tensor& codes = call.output(0);
  CodesCall c{static_cast<int>(call.params.integer("bits")),
              codes.dim(0),
              call.params.integer("k"),
              static_cast<uint32_t>(call.params.integer("flip", 0)),
              call.input(0),
              codes,
              call.output(1)};
  require(c.bits >= 1 && c.bits <= 8, "bits is 1 to 8");
  require(codes.dim(1) == ceil_div(c.k * c.bits, 8), "codes is U8 [N, ceil(K*bits/8)]");
  return c;
}

// qweight I32 [ceil(K*b/32), N] -> codes U8 [N, ceil(K*b/8)], info I64 [5].
void decode_gptq(Call& call, Exec& exec) {
  const CodesCall c = codes_call(call);
  const int64_t words = ceil_div(c.k * c.bits, 32);
  require(c.packed.rank() == 2 && c.packed.dim(0) == words && c.packed.dim(1) == c.n,
          "qweight is I32 [ceil(K*bits/32), N]");
  const uint32_t* in = reinterpret_cast<const uint32_t*>(c.packed.data<int32_t>());
  uint8_t* out = c.codes.data<uint8_t>();
  WrongReport report;
  exec.pool.parallel_for(c.n, 16, [&](int64_t begin, int64_t end, int) {
    // Sixteen columns are one cache line of every row of words: turn them into rows first.
    const int64_t columns = end - begin;
    std::vector<uint32_t> rows(static_cast<size_t>(columns * words));
    for (int64_t w = 0; w < words; ++w)
      for (int64_t c2 = 0; c2 < columns; ++c2) rows[c2 * words + w] = in[w * c.n + begin + c2];
    Wrong wrong;
    for (int64_t c2 = 0; c2 < columns; ++c2)
      restream(rows.data() + c2 * words, words, c.k, c.bits, c.flip, out + (begin + c2) * c.codes.dim(1), begin + c2,
               wrong);
    report.merge(wrong);
  });
  report.write(c.info);
}
LPQ_OP(decode_gptq, "verify_decode_gptq");

// Values a word where a format leaves its top bits unused; 0: the words are one stream.
int64_t values_a_word(const Call& call, int bits) {
  const int64_t per_word = call.params.integer("perWord", 0);
  require(per_word == 0 || per_word == 32 / bits, "perWord is 32 div bits");
  return per_word;
}

// weight_packed I32 [N, ceil(K*b/32)], or [N, ceil(K/perWord)] -> codes U8 [N, ceil(K*b/8)], info I64 [5].
void decode_ct(Call& call, Exec& exec) {
  const CodesCall c = codes_call(call);
  const int64_t per_word = values_a_word(call, c.bits), words = words_for(c.k, c.bits, per_word);
  require(c.packed.rank() == 2 && c.packed.dim(0) == c.n && c.packed.dim(1) == words,
          "weight_packed is I32 [N, words of K codes]");
  const uint32_t* in = reinterpret_cast<const uint32_t*>(c.packed.data<int32_t>());
  uint8_t* out = c.codes.data<uint8_t>();
  WrongReport report;
  exec.pool.parallel_for(c.n, 16, [&](int64_t begin, int64_t end, int) {
    std::vector<uint32_t> dense(static_cast<size_t>(per_word > 0 ? words : 0));
    Wrong wrong;
    for (int64_t n = begin; n < end; ++n) {
      const uint32_t* row = in + n * words;
      if (per_word > 0) {
        close_gaps(row, words, c.bits, per_word, dense.data(), n, wrong);
        row = dense.data();
      }
      const int64_t count = per_word > 0 ? ceil_div(words * per_word * c.bits, 32) : words;
      restream(row, count, c.k, c.bits, c.flip, out + n * c.codes.dim(1), n, wrong);
    }
    report.merge(wrong);
  });
  report.write(c.info);
}
LPQ_OP(decode_ct, "verify_decode_ct");

// Zero points, packed along N, one stream a group: down is false for qzeros I32 [G, ceil(N*b/32)], true for
// weight_zero_point I32 [ceil(N*b/32), G] (with perWord as above). zeros U8 or I16 [N, G] = ((stored + add) mod 2^b) -
// bias.
void decode_zeros(Call& call, Exec& exec) {
  const int bits = static_cast<int>(call.params.integer("bits"));
  const int64_t add = call.params.integer("add", 0), bias = call.params.integer("bias", 0);
  const bool down = call.params.integer("down") != 0;
  const Tensor &packed = call.input(0), &zeros = call.output(0);
  require(bits >= 1 && bits <= 8 && packed.rank() == 2, "bits is 1 to 8 and the zero points a matrix");
  const int64_t per_word = values_a_word(call, bits);
  const int64_t n = zeros.dim(0), groups = zeros.dim(1), words = words_for(n, bits, per_word);
  const int64_t dense_words = per_word > 0 ? ceil_div(words * per_word * bits, 32) : words;
  require(packed.dim(down ? 0 : 1) == words && packed.dim(down ? 1 : 0) == groups,
          "the zero points hold [G] streams of N values");
  const uint32_t* in = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  const bool bytes = zeros.dtype == DType::u8;
  WrongReport report;
  exec.pool.parallel_for(groups, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<uint32_t> line(static_cast<size_t>(words)), dense(static_cast<size_t>(per_word > 0 ? words : 0));
    std::vector<uint8_t> stream(static_cast<size_t>(ceil_div(n * bits, 8) + 1));
    Wrong wrong;
    for (int64_t g = begin; g < end; ++g) {
      for (int64_t w = 0; w < words; ++w) line[w] = down ? in[w * groups + g] : in[g * words + w];
      Wrong tail;
      if (per_word > 0) close_gaps(line.data(), words, bits, per_word, dense.data(), n, tail);
      restream(per_word > 0 ? dense.data() : line.data(), dense_words, n, bits, 0, stream.data(), n, tail);
      if (tail.count) wrong.see(n, g, tail.got, 0);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t value = ((stream_get(stream.data(), i, bits) + add) & ((1 << bits) - 1)) - bias;
        if (bytes) zeros.data<uint8_t>()[i * groups + g] = static_cast<uint8_t>(value);
        else zeros.data<int16_t>()[i * groups + g] = static_cast<int16_t>(value);
      }
    }
    report.merge(wrong);
  });
  report.write(call.output(1));
}
LPQ_OP(decode_zeros, "verify_decode_zeros");

}  // namespace
}  // namespace lpq::verify
