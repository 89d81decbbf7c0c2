#include <cmath>
#include <cstring>

#include "cpu/gptq/kernels.h"

namespace lpq::gptq {
namespace {
#include "cpu/gptq/kernels_body.h"
}  // namespace
extern const Kernels& kernels_avx512();
const Kernels& kernels_avx512() { return kTable; }
}  // namespace lpq::gptq
