// Included by each variant after it has defined block_sums(x, w, k, sums): the integer sums over one block of 128
// channels of one token's codes and kRows weight rows, k apart.
void multiply(const Tile& tile, float* sums) {
  const int64_t blocks = tile.k / kBlock;
  for (int64_t t = 0; t < tile.tokens; ++t) {
    float total[kRows] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      int32_t part[kRows];
      block_sums(tile.x + t * tile.k + b * kBlock, tile.w + b * kBlock, tile.k, part);
      const float scale = tile.x_scale[t * blocks + b];
      for (int64_t r = 0; r < kRows; ++r)
        total[r] = std::fma(static_cast<float>(part[r]), scale * tile.w_scale[r * blocks + b], total[r]);
    }
    for (int64_t r = 0; r < kRows; ++r) sums[t * kRows + r] = total[r];
  }
}

const Kernels kKernels = {multiply};
