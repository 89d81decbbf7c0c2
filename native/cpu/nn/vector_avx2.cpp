#include "cpu/nn/vector_common.h"

namespace lpq::nn {
const VectorKernels& avx2_vector() { return kTable; }
}  // namespace lpq::nn
