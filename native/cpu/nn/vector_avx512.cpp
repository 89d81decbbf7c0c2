#include "cpu/nn/vector_common.h"

namespace lpq::nn {
const VectorKernels& avx512_vector() { return kTable; }
}  // namespace lpq::nn
