// Which instruction set the CPU kernels use. All of them give the same bytes; LPQ_ISA=generic|avx2|avx512|avx512bf16
// forces one, never above what the CPU has.
#pragma once
#include <string>

namespace lpq {

enum class Isa { generic, avx2, avx512 };
Isa active_isa();
// Whether pairs of bf16 are multiplied by one instruction, too.
bool bf16_instructions();
// Whether bytes are permuted, too. LPQ_ISA=avx512 goes without either.
bool vbmi_instructions();
std::string isa_name();

}  // namespace lpq
