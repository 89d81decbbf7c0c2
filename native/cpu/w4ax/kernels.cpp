#include "cpu/w4ax/kernels.h"

#include "cpu/isa.h"

namespace lpq::w4ax {

const Kernels& active_kernels() {
#if defined(LPQ_X86)
  if (active_isa() == Isa::avx512) return kernels_avx512();
  if (active_isa() == Isa::avx2) return kernels_avx2();
#endif
  return kernels_generic();
}

}  // namespace lpq::w4ax
