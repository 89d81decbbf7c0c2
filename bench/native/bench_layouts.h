// Sets of bench_kernels for the kernels of MARLIN's and TurboMind's layouts, included by it:
//   layouts: MARLIN u4 g128 and TurboMind u4 g128 over the table's shapes, with MARLIN's published figures and cuBLAS
//   f16, MARLIN at
//     M = 128 to 4096, and the other forms at one shape;
//   layouts-tune: every cut of the work.

struct LayoutBench {
  std::string op, type;
  int64_t n, k, group;
  std::vector<Tensor> weights;
  Tensor scales, zeros;
  Params params;
  size_t bytes = 0;
};

LayoutBench make_layout(Bench& b, const std::string& layout, const std::string& type, int64_t n, int64_t k,
                        int64_t group, bool zeros = false) {
  const int bits = type[1] - '0';
  const int64_t groups = group ? k / group : 1;
  const bool marlin = layout == "marlin";
  const Params typed = marlin ? params({{"bits", double(bits)}}) : type_params(type);
  LayoutBench p{"gemm_" + layout, type, n, k, group, {}, {}, {}, typed, 0};
  const std::vector<int64_t> shape =
      marlin ? std::vector<int64_t>{k / 16, n * bits / 2} : std::vector<int64_t>{n * k * bits / 32};
  const size_t one = static_cast<size_t>(n * k * bits / 8), wanted = 8 * b.exec.device().l2_bytes;
  for (size_t i = 0; i < std::max<size_t>(2, (wanted + one - 1) / one); ++i)
    p.weights.push_back(b.random_tensor(DType::i32, shape, i + 1));
  if (marlin) p.scales = b.random_tensor(DType::f16, {groups, n});
  else if (type[0] == 'u') p.scales = b.random_tensor(DType::f16, {groups, n, 2});
  else p.scales = b.random_tensor(bits == 4 ? DType::u8 : DType::f16, {groups, n});
  p.bytes = one + p.scales.bytes();
  if (zeros) {
    p.zeros = b.random_tensor(DType::i32, {groups, n * bits / 32});
    p.bytes += p.zeros.bytes();
  }
  p.params.set("groupSize", double(group));
  if (marlin) p.params.set("hasZeros", double(zeros));
  return p;
}

double time_layout(Bench& b, const LayoutBench& p, int64_t m, DType dtype,
                   std::initializer_list<std::pair<const char*, double>> options = {}) {
  const Tensor x = b.random_tensor(dtype, {m, p.k}, 99), y = b.exec.allocate(dtype, {m, p.n});
  const auto op = cuda::cuda_op_table().at(p.op);
  std::vector<Call> calls(p.weights.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].in = {x, p.weights[i], p.scales};
    if (p.zeros.storage) calls[i].in.push_back(p.zeros);
    calls[i].out = {y};
    calls[i].params = p.params;
    for (const auto& [name, value] : options) calls[i].params.set(name, value);
  }
  return b.time(static_cast<int>(std::max<size_t>(m > 64 ? 4 : 20, m > 64 ? 4 : calls.size())),
                [&](int i) { op(calls[static_cast<size_t>(i) % calls.size()], b.exec); });
}

void bench_layouts(Bench& b, const std::string& set, double copy) {
  char line[512];
  if (set == "layouts") {
    double product[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    std::printf("%-14s %4s %9s %6s %9s %6s %9s %6s %9s\n", "K x N", "M", "marlin us", "copy", "published", "x",
                "cublas", "x", "turbomind");
    for (const Shape& s : kShapes) {
      const LayoutBench p = make_layout(b, "marlin", "u4", s.n, s.k, 128),
                        t = make_layout(b, "turbomind", "u4", s.n, s.k, 128);
      const Dense d = make_dense(b, s.n, s.k);
      const int64_t ms[] = {1, 16, 32, 64};
      for (int i = 0; i < 4; ++i) {
        const double mine = time_layout(b, p, ms[i], DType::f16), other = time_layout(b, t, ms[i], DType::f16),
                     dense = time_dense(b, d, ms[i]);
        const double bytes = static_cast<double>(p.bytes) + 2.0 * static_cast<double>(ms[i] * (s.n + s.k));
        product[0][i] *= s.marlin[i] / (mine * 1e6), product[1][i] *= dense / mine;
        std::printf("%5lldx%-8lld %4lld %9.2f %5.1f%% %9.1f %6.2f %9.2f %6.2f %9.2f\n", (long long)s.k, (long long)s.n,
                    (long long)ms[i], mine * 1e6, 100 * bytes / mine / copy, s.marlin[i], s.marlin[i] / (mine * 1e6),
                    dense * 1e6, dense / mine, other * 1e6);
        std::snprintf(line, sizeof(line),
                      "{\"set\": \"layouts\", \"k\": %lld, \"n\": %lld, \"m\": %lld, \"marlin_us\": %.3f, "
                      "\"turbomind_us\": %.3f, \"bytes\": %.0f, \"published_us\": %.1f, \"cublas_us\": %.3f}",
                      (long long)s.k, (long long)s.n, (long long)ms[i], mine * 1e6, other * 1e6, bytes, s.marlin[i],
                      dense * 1e6);
        b.row(line);
        std::fflush(stdout);
      }
    }
    for (int i = 0; i < 4; ++i)
      std::printf("M=%d: geometric mean %.2f of the published figures, %.2f of cuBLAS\n", i == 0 ? 1 : 8 << i,
                  std::pow(product[0][i], 1 / 6.0), std::pow(product[1][i], 1 / 6.0));
    {
      const double published[] = {54.8, 101, 366, 1564};
      const LayoutBench p = make_layout(b, "marlin", "u4", 8192, 8192, 128);
      const Dense d = make_dense(b, 8192, 8192);
      const int64_t ms[] = {128, 256, 1024, 4096};
      for (int i = 0; i < 4; ++i) {
        const double mine = time_layout(b, p, ms[i], DType::f16), dense = time_dense(b, d, ms[i]);
        std::printf("8192x8192 M=%lld marlin %.1f us, published %.1f, cublas %.1f\n", (long long)ms[i], mine * 1e6,
                    published[i], dense * 1e6);
        std::snprintf(line, sizeof(line),
                      "{\"set\": \"layouts\", \"k\": 8192, \"n\": 8192, \"m\": %lld, \"marlin_us\": %.3f, "
                      "\"published_us\": %.1f, \"cublas_us\": %.3f}",
                      (long long)ms[i], mine * 1e6, published[i], dense * 1e6);
        b.row(line);
      }
    }
    std::printf("8192x28672, M = 1, 16, 64 (us):\n");
    const struct {
      const char *layout, *type;
      int64_t group;
      bool zeros;
    } forms[] = {{"marlin", "u4", 128, false},       {"marlin", "u4", 128, true},
                 {"marlin", "u4", 32, false},        {"marlin", "u4", 0, false},
                 {"marlin", "u8", 128, false},       {"marlin", "u8", 128, true},
                 {"turbomind", "u4", 128, false},    {"turbomind", "u8", 128, false},
                 {"turbomind", "f4e2m1", 32, false}, {"turbomind", "f8e4m3", 128, false}};
    for (const auto& f : forms)
      for (DType dtype : {DType::f16, DType::bf16}) {
        const LayoutBench p = make_layout(b, f.layout, f.type, 28672, 8192, f.group, f.zeros);
        double us[3];
        const int64_t ms[] = {1, 16, 64};
        for (int i = 0; i < 3; ++i) us[i] = time_layout(b, p, ms[i], dtype) * 1e6;
        std::printf("  %-9s %-6s g%-3lld%s %-4s %8.2f %8.2f %8.2f  (%.1f %% of copy at M = 1)\n", f.layout, f.type,
                    (long long)f.group, f.zeros ? " zeros" : "      ", dtype == DType::f16 ? "f16" : "bf16", us[0],
                    us[1], us[2], 100 * double(p.bytes) / us[0] * 1e6 / copy);
        std::snprintf(
            line, sizeof(line),
            "{\"set\": \"layout forms\", \"layout\": \"%s\", \"type\": \"%s\", \"group\": %lld, \"zeros\": %s, \"x\": "
            "\"%s\", \"k\": 8192, \"n\": 28672, \"us\": [%.3f, %.3f, %.3f], \"m\": [1, 16, 64], \"bytes\": %.0f}",
            f.layout, f.type, (long long)f.group, f.zeros ? "true" : "false", dtype == DType::f16 ? "f16" : "bf16",
            us[0], us[1], us[2], double(p.bytes));
        b.row(line);
      }
  }
  if (set == "layouts-tune") {
    b.replays = 7;
    for (const Shape& s : kShapes) {
      const LayoutBench p = make_layout(b, "marlin", "u4", s.n, s.k, 128);
      const int64_t ms[] = {1, 16, 32, 64};
      for (int i = 0; i < 4; ++i) {
        const int most = ms[i] <= 16 ? 4 : 3;
        struct Row {
          double t;
          std::string what;
        };
        std::vector<Row> rows;
        for (int log_n = 0; log_n <= most; ++log_n)
          for (int less = 0; less < 2; ++less)
            for (int stages : {2, 3, 4}) {
              const int log_k = most - log_n - less;
              if (log_k < 0) continue;
              try {
                const double t = time_layout(
                    b, p, ms[i], DType::f16,
                    {{"warpsN", double(1 << log_n)}, {"warpsK", double(1 << log_k)}, {"stages", double(stages)}});
                std::snprintf(line, sizeof(line), "%dx%d s%d", 1 << log_n, 1 << log_k, stages);
                rows.push_back({t, line});
                std::snprintf(line, sizeof(line),
                              "{\"set\": \"layouts-tune\", \"k\": %lld, \"n\": %lld, \"m\": %lld, \"warps_n\": %d, "
                              "\"warps_k\": %d, \"stages\": %d, \"us\": %.3f}",
                              (long long)s.k, (long long)s.n, (long long)ms[i], 1 << log_n, 1 << log_k, stages,
                              t * 1e6);
                b.row(line);
              } catch (const Failure& failure) {
                if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
              }
            }
        std::sort(rows.begin(), rows.end(), [](const Row& l, const Row& r) { return l.t < r.t; });
        std::printf("%lldx%lld M=%lld default %.2f (published %.1f):", (long long)s.k, (long long)s.n, (long long)ms[i],
                    time_layout(b, p, ms[i], DType::f16) * 1e6, s.marlin[i]);
        for (size_t j = 0; j < std::min<size_t>(5, rows.size()); ++j)
          std::printf(" %.2f (%s)", rows[j].t * 1e6, rows[j].what.c_str());
        std::printf("\n");
        std::fflush(stdout);
      }
    }
    b.replays = 11;
  }
}
