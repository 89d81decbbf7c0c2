// Room for a matrix that is written before it is read: never set to 0, so that the threads that write it touch it
// first.
#pragma once
#include <cstdint>
#include <memory>

namespace lpq::gptq {

using Floats = std::unique_ptr<float[]>;
inline Floats floats(int64_t count) { return std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count)); }

}  // namespace lpq::gptq
