#include <cstdint>

// 16-bit rows of k elements -> rows of `pitch`: element c is element order[c] of its row, 0 for c >= k. An order that
// names a column that is not there sets the fault.
extern "C" __global__ void lpq_gather_columns(const uint16_t* from, const int* order, uint16_t* to, long long rows,
                                              int k, int pitch, uint32_t* fault) {
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < rows * pitch;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int column = static_cast<int>(i % pitch);
    uint16_t value = 0;
    if (column < k) {
      const int source = order[column];
      if (source >= 0 && source < k) value = from[i / pitch * k + source];
      else *fault = 1;
    }
    to[i] = value;
  }
}
