// y = a + b * scale, f32.
extern "C" __global__ void lpq_add_f32(const float* a, const float* b, float* y, float scale, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    y[i] = __fmaf_rn(b[i], scale, a[i]);
}
