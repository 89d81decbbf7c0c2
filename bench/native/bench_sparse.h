// Sets of bench_kernels for Sparse-MARLIN's kernel, included by it:
//   sparse: u4 g128 over the table's shapes beside the dense kernels' choice for u4 g128 and cuBLAS f16; 8 bits, whole
//   rows and bf16 at one
//     shape (sparse-few: 8192x57344 alone); sparse-tune: every cut of the work; sparse-profile.

struct SparseBench {
  int64_t n, k;
  std::vector<Tensor> weights, metadata;
  Tensor scales;
  Params params;
  size_t bytes = 0;
};

SparseBench make_sparse_bench(Bench& b, int bits, int64_t n, int64_t k, bool channel = false) {
  SparseBench p{n, k, {}, {}, {}, params({{"bits", double(bits)}, {"groupSize", channel ? 0.0 : 128.0}}), 0};
  // Metadata must be in order: of random fours.
  static const unsigned kPlaces[6] = {4, 8, 12, 9, 13, 14};
  Tensor host = allocate(DType::i16, {1 << 19});
  for (int64_t i = 0; i < host.elements(); ++i) {
    unsigned word = 0;
    for (int q = 0; q < 4; ++q) word |= kPlaces[lpq::test::random()() % 6] << 4 * q;
    reinterpret_cast<uint16_t*>(host.raw())[i] = static_cast<uint16_t>(word);
  }
  const Tensor pattern = b.device.backend().upload(host);
  b.settle();
  const size_t one = static_cast<size_t>(n * k * bits / 16 + n * k / 8), wanted = 8 * b.exec.device().l2_bytes;
  for (size_t i = 0; i < std::max<size_t>(2, (wanted + one - 1) / one); ++i) {
    p.weights.push_back(b.random_tensor(DType::i32, {k / 32, n * bits / 2}, i + 1));
    Tensor meta = b.device.backend().allocate(DType::i16, {k / 32, 2 * n});
    for (size_t at = 0; at < meta.bytes(); at += pattern.bytes())
      b.exec.copy(meta.raw() + at, pattern.raw(), std::min(pattern.bytes(), meta.bytes() - at));
    p.metadata.push_back(meta);
  }
  p.scales = b.random_tensor(DType::f16, {channel ? 1 : k / 128, n});
  p.bytes = one + p.scales.bytes();
  b.settle();
  return p;
}

double time_sparse(Bench& b, const SparseBench& p, int64_t m, DType dtype = DType::f16,
                   std::initializer_list<std::pair<const char*, double>> options = {}) {
  const Tensor x = b.random_tensor(dtype, {m, p.k}, 99), y = b.exec.allocate(dtype, {m, p.n});
  const auto op = cuda::cuda_op_table().at("gemm_sparse_marlin");
  std::vector<Call> calls(p.weights.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].in = {x, p.weights[i], p.metadata[i], p.scales};
    calls[i].out = {y};
    calls[i].params = p.params;
    for (const auto& [name, value] : options) calls[i].params.set(name, value);
  }
  return b.time(static_cast<int>(std::max<size_t>(m > 64 ? 4 : 20, m > 64 ? 4 : calls.size())),
                [&](int i) { op(calls[static_cast<size_t>(i) % calls.size()], b.exec); });
}

void bench_sparse(Bench& b, const std::string& set, double copy) {
  char line[512];
  const bool few = set == "sparse-few";  // 8192x57344 alone
  if (set == "sparse" || few) {
    const int64_t ms[] = {1, 8, 16, 32, 64, 128};
    std::printf("%-14s %4s %9s %6s %9s %6s %9s %6s\n", "K x N", "M", "sparse us", "copy", "dense us", "x", "cublas",
                "x");
    for (const Shape& s : kShapes) {
      if (few && s.n != 57344) continue;
      const SparseBench p = make_sparse_bench(b, 4, s.n, s.k);
      const Packed q = make(b, "u4", DType::f16, s.n, s.k, 128, 0);
      const Dense d = make_dense(b, s.n, s.k);
      for (int64_t m : ms) {
        const double mine = time_sparse(b, p, m), packed = time_packed(b, q, m), dense = time_dense(b, d, m);
        const double bytes = static_cast<double>(p.bytes) + 2.0 * static_cast<double>(m * (s.n + s.k));
        std::printf("%5lldx%-8lld %4lld %9.2f %5.1f%% %9.2f %6.2f %9.2f %6.2f\n", (long long)s.k, (long long)s.n,
                    (long long)m, mine * 1e6, 100 * bytes / mine / copy, packed * 1e6, packed / mine, dense * 1e6,
                    dense / mine);
        std::snprintf(line, sizeof(line),
                      "{\"set\": \"sparse\", \"type\": \"u4\", \"group\": 128, \"k\": %lld, \"n\": %lld, \"m\": %lld, "
                      "\"us\": %.3f, \"bytes\": %.0f, \"dense_us\": %.3f, \"cublas_us\": %.3f}",
                      (long long)s.k, (long long)s.n, (long long)m, mine * 1e6, bytes, packed * 1e6, dense * 1e6);
        b.row(line);
        std::fflush(stdout);
      }
    }
    for (int bits : {4, 8}) {
      if (few) break;
      for (const bool channel : {false, true})
        for (DType dtype : {DType::f16, DType::bf16}) {
          const SparseBench p = make_sparse_bench(b, bits, 57344, 8192, channel);
          double us[3];
          const int64_t at[] = {1, 16, 64};
          for (int i = 0; i < 3; ++i) us[i] = time_sparse(b, p, at[i], dtype) * 1e6;
          std::printf("8192x57344 u%d %s %s: %.2f %.2f %.2f us (M = 1, 16, 64)\n", bits, channel ? "channel" : "g128",
                      dtype == DType::f16 ? "f16" : "bf16", us[0], us[1], us[2]);
          std::snprintf(line, sizeof(line),
                        "{\"set\": \"sparse forms\", \"type\": \"u%d\", \"group\": %d, \"x\": \"%s\", \"k\": 8192, "
                        "\"n\": 57344, \"m\": [1, 16, 64], \"us\": [%.3f, %.3f, %.3f], \"bytes\": %.0f}",
                        bits, channel ? 0 : 128, dtype == DType::f16 ? "f16" : "bf16", us[0], us[1], us[2],
                        double(p.bytes));
          b.row(line);
        }
    }
  }
  if (set == "sparse-tune") {
    b.replays = 7;
    for (const Shape& s : kShapes) {
      const SparseBench p = make_sparse_bench(b, 4, s.n, s.k);
      for (int64_t m : {1, 16, 32, 64}) {
        const int most = m <= 16 ? 4 : 3;
        std::vector<std::pair<double, std::string>> rows;
        for (int log_n = 0; log_n <= most; ++log_n)
          for (int log_k = 0; log_n + log_k <= most; ++log_k)
            for (int stages : {2, 3, 4, 5, 6, 8}) {
              if (log_n + log_k < most - 1) continue;
              try {
                const double t = time_sparse(
                    b, p, m, DType::f16,
                    {{"warpsN", double(1 << log_n)}, {"warpsK", double(1 << log_k)}, {"stages", double(stages)}});
                std::snprintf(line, sizeof(line), "%dx%d s%d", 1 << log_n, 1 << log_k, stages);
                rows.push_back({t, line});
                std::snprintf(line, sizeof(line),
                              "{\"set\": \"sparse-tune\", \"k\": %lld, \"n\": %lld, \"m\": %lld, \"warps_n\": %d, "
                              "\"warps_k\": %d, \"stages\": %d, \"us\": %.3f}",
                              (long long)s.k, (long long)s.n, (long long)m, 1 << log_n, 1 << log_k, stages, t * 1e6);
                b.row(line);
              } catch (const Failure& failure) {
                if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
              }
            }
        std::sort(rows.begin(), rows.end());
        std::printf("%lldx%lld M=%lld copy %.2f chosen %.2f:", (long long)s.k, (long long)s.n, (long long)m,
                    double(p.bytes) / copy * 1e6, time_sparse(b, p, m) * 1e6);
        for (size_t j = 0; j < std::min<size_t>(5, rows.size()); ++j)
          std::printf(" %.2f (%s)", rows[j].first * 1e6, rows[j].second.c_str());
        std::printf("\n");
        std::fflush(stdout);
      }
    }
    b.replays = 11;
  }
  if (set == "sparse-profile") {  // a few plain launches, for a profiler
    const SparseBench p = make_sparse_bench(b, 4, 57344, 8192);
    for (int64_t m : {8, 16, 32, 64}) {
      Call call;
      call.in = {b.random_tensor(DType::f16, {m, p.k}, 99), p.weights[0], p.metadata[0], p.scales};
      call.out = {b.exec.allocate(DType::f16, {m, p.n})};
      call.params = p.params;
      cuda::cuda_op_table().at("gemm_sparse_marlin")(call, b.exec);
      b.settle();
    }
  }
}
