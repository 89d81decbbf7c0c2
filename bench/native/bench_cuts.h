// The set "cuts" of bench_kernels, included by it: every form of the kernel of scaled weights with every number of
// blocks that share an item, beside the choice and cuBLAS, all in turn: what choose_scaled is fitted to and judged by.
// LPQ_BENCH_M, LPQ_BENCH_TYPE, LPQ_BENCH_X, LPQ_BENCH_GROUP, LPQ_BENCH_SHAPES (KxN): lists with commas, or one.

void bench_cuts(Bench& b) {
  char line[512];
  b.replays = 7;
  const int multiprocessors = b.exec.device().multiprocessors;
  const std::string x = listed("LPQ_BENCH_X", "f16")[0];
  const int64_t group = std::stoll(listed("LPQ_BENCH_GROUP", "128")[0]);
  for (const std::string& of : listed("LPQ_BENCH_SHAPES", "4096x4096")) {
    const Shape s = shape_of(of);
    const Dense d = make_dense(b, s.n, s.k);
    for (const std::string& type : listed("LPQ_BENCH_TYPE", "u4")) {
      const Packed p = make(b, type, x == "f16" ? DType::f16 : DType::bf16, s.n, s.k, group, 0);
      for (const std::string& token : listed("LPQ_BENCH_M", "32,64,128")) {
        const int64_t m = std::stoll(token);
        const auto row = [&](const std::string& how, double t) {
          std::snprintf(
              line, sizeof line,
              "{\"set\": \"cuts\", \"type\": \"%s\", \"x\": \"%s\", \"group\": %lld, \"k\": %lld, \"n\": %lld, "
              "\"m\": %lld, \"cut\": \"%s\", \"us\": %.3f}",
              type.c_str(), x.c_str(), (long long)group, (long long)s.k, (long long)s.n, (long long)m, how.c_str(),
              t * 1e6);
          b.row(line);
          return t;
        };
        const auto attempt = [&](const std::string& how, const Params& wish) {
          try {
            return row(how, time_packed(b, p, m, wish, 12));
          } catch (const Failure& failure) {
            if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
            return 1.0;
          }
        };
        const double dense = row("cublas", time_dense(b, d, m, 12)), choice = attempt("choice", {});
        double best = 1;
        std::string best_how;
        const auto better = [&](const std::string& how, double t) {
          if (t < best) best = t, best_how = how;
        };
        for_each_cut("scaled", kScaledCuts, multiprocessors, s.n, m,
                     [&](const std::string& how, const Params& wish) { better(how, attempt(how, wish)); });
        std::printf("%s %s M=%lld: cuBLAS %.2f, choice %.2f, best %.2f %s\n", of.c_str(), type.c_str(), (long long)m,
                    dense * 1e6, choice * 1e6, best * 1e6, best_how.c_str());
        std::fflush(stdout);
      }
    }
  }
  b.replays = 11;
}
