#include <cmath>
#include <cstring>
#include <type_traits>

#include "cpu/gptq/kernels.h"

namespace lpq::gptq {
namespace {
#include "cpu/gptq/kernels_body.h"
}  // namespace
const Kernels& kernels_generic();
const Kernels& kernels_generic() { return kTable; }
}  // namespace lpq::gptq
