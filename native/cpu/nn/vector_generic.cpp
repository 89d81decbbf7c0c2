#include "cpu/nn/vector_common.h"

namespace lpq::nn {
const VectorKernels& generic_vector() { return kTable; }
}  // namespace lpq::nn
