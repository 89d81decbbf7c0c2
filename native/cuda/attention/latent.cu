// The kernels of latent attention's packed cache: by rows of a block, whatever the bits, and of packing by bits.
#include "cuda/attention/latent.cuh"
#include "cuda/attention/latent_pack.cuh"

#define LPQ_LATENT(name, Shape)                                                   \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kLatentThreads)         \
      lpq_latent_decode_##name(const __grid_constant__ lpq::cuda::LatentArgs a) { \
    lpq::cuda::latent_decode<lpq::cuda::Shape>(a);                                \
  }                                                                               \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kLatentThreads)         \
      lpq_latent_join_##name(const __grid_constant__ lpq::cuda::LatentArgs a) {   \
    lpq::cuda::latent_join<lpq::cuda::Shape>(a);                                  \
  }
LPQ_LATENT(few, LatentFew)
LPQ_LATENT(many, LatentMany)
LPQ_LATENT(small, LatentSmall)

#define LPQ_LATENT_PACK(bits)                                                       \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kLatentThreads)           \
      lpq_latent_pack_##bits(const __grid_constant__ lpq::cuda::LatentPackArgs a) { \
    lpq::cuda::latent_pack<bits>(a);                                                \
  }
LPQ_LATENT_PACK(2)
LPQ_LATENT_PACK(4)
LPQ_LATENT_PACK(8)
LPQ_LATENT_PACK(16)
