// Sets of bench_kernels for the kernel of many tokens of devices without wgmma (large.cuh), included by it:
//   large: what dequantization costs: types at M = N = K = 16384 beside cuBLAS in fp16 (large-few: u4 and u8 alone;
//   large-profile: plain launches); u4 over the table's shapes, M = 32 to 4096, beside the kernel that is chosen and
//   cuBLAS.

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
    return;
  }
  const bool few = set == "large-few";  // of 16384^3 alone
  b.replays = few ? 5 : 7;
  const int64_t s = 16384;
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
      std::printf("16384^3 %-7s %-4s %.1f us, %.0f TFLOP/s, %+.2f %% over fp16 of cuBLAS\n", name,
                  dtype == DType::f16 ? "f16" : "bf16", t * 1e6, 2.0 * double(s * s * s) / t / 1e12,
                  100 * (t / dense - 1));
      std::snprintf(line, sizeof(line),
                    "{\"set\": \"large\", \"type\": \"%s\", \"x\": \"%s\", \"group\": 128, \"m\": 16384, \"n\": 16384, "
                    "\"k\": 16384, \"us\": %.1f, \"over_cublas\": %.4f}",
                    name, dtype == DType::f16 ? "f16" : "bf16", t * 1e6, t / dense - 1);
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
