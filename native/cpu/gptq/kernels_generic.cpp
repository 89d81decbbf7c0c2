#include <cmath>
#include <cstring>

#include "cpu/gptq/kernels.h"

namespace lpq::gptq {
namespace {
#include "cpu/gptq/kernels_body.h"
}  // namespace
extern const Kernels& kernels_generic();
const Kernels& kernels_generic() { return kTable; }
}  // namespace lpq::gptq
