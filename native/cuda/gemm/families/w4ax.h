// Types of y of products of codes, as launchers tell their kernels.
#pragma once

namespace lpq::cuda {

constexpr int kW4axStoreF16 = 0, kW4axStoreBf16 = 1, kW4axStoreF32 = 2;

}  // namespace lpq::cuda
