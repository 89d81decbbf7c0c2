// Which instruction set the CPU kernels use. All of them give the same bytes; LPQ_ISA=generic|avx2|avx512 forces one.
#pragma once
#include <string>

namespace lpq {

enum class Isa { generic, avx2, avx512 };
Isa active_isa();
std::string isa_name(Isa isa);

}  // namespace lpq
