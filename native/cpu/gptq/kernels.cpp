#include "cpu/gptq/kernels.h"

#include "cpu/isa.h"

namespace lpq::gptq {

const Kernels& kernels_generic();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

const Kernels& kernels() {
#if defined(LPQ_X86)
  switch (active_isa()) {
    case Isa::avx512: return kernels_avx512();
    case Isa::avx2: return kernels_avx2();
    default: break;
  }
#endif
  return kernels_generic();
}

}  // namespace lpq::gptq
