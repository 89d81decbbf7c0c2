// Sets of bench_kernels for the kernel of many tokens of devices without wgmma (large.cuh), included by it:
//   large: what dequantization costs: types at M = N = K = 16384 beside an fp16 mma.sync product of the same tiles
//   (dense.cu, with both of
//     its arrangements of warps) and cuBLAS (large-few: u4 and u8 alone; large-profile); u4 over the table's shapes, M
//     = 32 to 4096, beside the kernel that is chosen and cuBLAS.

double time_same_tiles(Bench& b, int64_t m, int64_t n, int64_t k, int across, size_t launches) {
  const Tensor x = b.random_tensor(DType::f16, {m, k}, 99), w = b.random_tensor(DType::f16, {n, k}, 3),
               y = b.exec.allocate(DType::f16, {m, n});
  cuda::GemmPackedArgs g{};
  g.weights = reinterpret_cast<const unsigned char*>(w.raw());
  g.x = x.data<uint16_t>(), g.y = y.data<uint16_t>();
  g.m = static_cast<int>(m), g.n = static_cast<int>(n), g.k = static_cast<int>(k);
  g.n_blocks = static_cast<int>(n / 32), g.k_blocks = static_cast<int>(k / 128);
  g.strips = static_cast<int>(n / 256), g.steps = g.k_blocks;
  const cuda::LargeArgs a{static_cast<int>(m / 128), static_cast<int>(std::min<int64_t>(8, m / 128)), 0, 1};
  const int64_t blocks = std::min<int64_t>(b.exec.device().multiprocessors, int64_t{g.strips} * a.token_tiles);
  const unsigned shared = static_cast<unsigned>(cuda::dense_shared());
  const std::string name = across == 8 ? "lpq_dense_f16_8x1" : "lpq_dense_f16_4x2";
  return b.time(static_cast<int>(launches), [&](int) { b.exec.launch(name, {blocks}, {256}, shared, g, a); });
}

void bench_large(Bench& b, const std::string& set) {
  char line[512];
  if (set == "large-profile") {  // plain launches, for a profiler
    for (const char* name : {"u4", "u8"}) {
      const Packed p = make(b, name, DType::f16, 8192, 8192, 128, 0);
      Call call;
      call.in = {b.random_tensor(DType::f16, {8192, 8192}, 99), p.weights[0], p.scales};
      call.out = {b.exec.allocate(DType::f16, {8192, 8192})};
      call.params = p.params;
      call.params.set("kernel", std::string("large"));
      cuda::cuda_op_table().at("gemm_packed")(call, b.exec);
      b.settle();
    }
    time_same_tiles(b, 8192, 8192, 8192, 4, 1);
    return;
  }
  const bool few = set == "large-few";  // of 16384^3 alone
  b.replays = few ? 5 : 7;
  const int64_t s = 16384;
  double same = 1e9;
  for (int across : {8, 4}) {
    const double t = time_same_tiles(b, s, s, s, across, 2);
    same = std::min(same, t);
    std::printf("16384^3 fp16 mma.sync, warps %dx%d: %.1f us, %.0f TFLOP/s\n", across, 8 / across, t * 1e6,
                2.0 * double(s * s * s) / t / 1e12);
    std::snprintf(line, sizeof(line),
                  "{\"set\": \"large\", \"type\": \"f16\", \"warps\": \"%dx%d\", \"m\": 16384, \"n\": 16384, \"k\": "
                  "16384, \"us\": %.1f}",
                  across, 8 / across, t * 1e6);
    b.row(line);
  }
  const double dense = time_dense(b, make_dense(b, s, s), s, 2);
  std::printf("16384^3 cuBLAS: %.1f us\n", dense * 1e6);
  std::snprintf(
      line, sizeof(line),
      "{\"set\": \"large\", \"type\": \"cublas f16\", \"m\": 16384, \"n\": 16384, \"k\": 16384, \"us\": %.1f}",
      dense * 1e6);
  b.row(line);
  for (const char* name : {"u1", "u2", "u3", "u4", "u8", "f4e2m1", "f8e4m3"})
    for (DType dtype : {DType::f16, DType::bf16}) {
      if (few && std::string(name) != "u4" && std::string(name) != "u8") continue;
      const Packed p = make(b, name, dtype, s, s, 128, 0);
      double t = 0;
      try {
        t = time_packed(b, p, s, params({{"kernel", std::string("large")}}), 2);
      } catch (const Failure& failure) {
        std::printf("%s: %s\n", name, failure.what());
        continue;
      }
      std::printf("16384^3 %-7s %-4s %.1f us, %.0f TFLOP/s, %+.2f %% over fp16 of the same tiles\n", name,
                  dtype == DType::f16 ? "f16" : "bf16", t * 1e6, 2.0 * double(s * s * s) / t / 1e12,
                  100 * (t / same - 1));
      std::snprintf(line, sizeof(line),
                    "{\"set\": \"large\", \"type\": \"%s\", \"x\": \"%s\", \"group\": 128, \"m\": 16384, \"n\": 16384, "
                    "\"k\": 16384, \"us\": %.1f, \"over_dense\": %.4f}",
                    name, dtype == DType::f16 ? "f16" : "bf16", t * 1e6, t / same - 1);
      b.row(line);
      std::fflush(stdout);
    }
  if (!few) {
    std::printf("%-14s %5s %9s %9s %9s\n", "K x N, u4 f16", "M", "large us", "chosen", "cublas");
    for (const Shape& shape : kShapes) {
      const Packed p = make(b, "u4", DType::f16, shape.n, shape.k, 128, 0);
      const Dense d = make_dense(b, shape.n, shape.k);
      for (int64_t m : {32, 64, 128, 256, 1024, 4096}) {
        const size_t launches = m <= 128 ? 12 : m <= 1024 ? 4 : 2;
        const double t = time_packed(b, p, m, params({{"kernel", std::string("large")}}), launches),
                     chosen = time_packed(b, p, m, {}, launches), cublas = time_dense(b, d, m, launches);
        std::printf("%5lldx%-8lld %5lld %9.1f %9.1f %9.1f\n", (long long)shape.k, (long long)shape.n, (long long)m,
                    t * 1e6, chosen * 1e6, cublas * 1e6);
        std::snprintf(line, sizeof(line),
                      "{\"set\": \"large\", \"type\": \"u4\", \"x\": \"f16\", \"group\": 128, \"m\": %lld, \"n\": "
                      "%lld, \"k\": %lld, \"us\": %.2f, \"chosen_us\": %.2f, \"cublas_us\": %.2f}",
                      (long long)m, (long long)shape.n, (long long)shape.k, t * 1e6, chosen * 1e6, cublas * 1e6);
        b.row(line);
      }
      std::fflush(stdout);
    }
  }
  b.replays = 11;
}
