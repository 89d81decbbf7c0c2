#include <cstdint>

// 16-bit rows of k elements -> rows of `pitch`, 0 beyond k.
extern "C" __global__ void lpq_pad_rows(const uint16_t* from, uint16_t* to, long long rows, int k, int pitch) {
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < rows * pitch;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int column = static_cast<int>(i % pitch);
    to[i] = column < k ? from[i / pitch * k + column] : 0;
  }
}
