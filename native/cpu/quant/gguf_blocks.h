// Block types of GGUF: sizes and the writing of their fields. Facts: formats/gguf/spec.md.
#pragma once
#include <cstdint>
#include <string>

namespace lpq::gguf {

enum class Type { q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k };

struct TypeFacts {
  Type type;
  int64_t block;  // weights
  int64_t bytes;
};

// Throws Failure("LPQ_NATIVE_PARAM") for another name.
TypeFacts type_facts(const std::string& name);

// 32 unsigned codes -> one block. `min` is written by q4_1 and q5_1 alone. q8_0 takes codes of two's complement.
void put_block32(Type type, const uint8_t* q, uint16_t scale, uint16_t min, uint8_t* out);

// 256 unsigned codes and the quantized scales of their parts -> one super-block. sc: 16 (q2_k 4 bits, q3_k biased by 32
// to 6 bits, q6_k two's complement) or 8 (6 bits); mn: 16 (q2_k) or 8, else unused; dmin likewise.
void put_block256(Type type, const uint8_t* q, const uint8_t* sc, const uint8_t* mn, uint16_t d, uint16_t dmin,
                  uint8_t* out);

}  // namespace lpq::gguf
