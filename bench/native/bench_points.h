// The set "points" of bench_kernels, included by it: for each point of LPQ_BENCH_POINTS (KxN@M, a list with commas;
// bench/points.mjs draws them) the choice, every other setting that its kernels have, and cuBLAS, in turn: what the
// planners are judged by. LPQ_BENCH_TYPE, LPQ_BENCH_X, LPQ_BENCH_GROUP: one each.

// f(name, settings) for every setting of the kernels that may take [n, k] x m tokens.
template <class F>
void for_each_setting(const Bench& b, const Shape& s, int64_t m, const F& f) {
  const int multiprocessors = b.exec.device().multiprocessors;
  const auto with = [](const char* kernel, std::initializer_list<std::pair<const char*, double>> list,
                       const char* reduce = "") {
    Params wish;
    wish.set("kernel", std::string(kernel));
    for (const auto& [name, value] : list) wish.set(name, value);
    if (*reduce) wish.set("reduce", std::string(reduce));
    return wish;
  };
  if (m <= 16) {
    for (int slices : {1, 2, 4, 8})
      f("stream/c" + std::to_string(slices), with("stream", {{"slices", double(slices)}}, "cluster"));
    for (int slices : {2, 3, 4, 6, 8, 12, 16})
      f("stream/g" + std::to_string(slices), with("stream", {{"slices", double(slices)}}, "global"));
  }
  if (m <= 64)
    for (int width : {4, 8, 12, 16}) {
      const int64_t strips = (s.n + 32 * width - 1) / (32 * width);
      f("wide/" + std::to_string(width), with("wide", {{"width", double(width)}}));
      for (int64_t sharers = 1; sharers <= 4 && strips * sharers <= multiprocessors; ++sharers)
        f("wide/" + std::to_string(width) + "/" + std::to_string(sharers),
          with("wide", {{"width", double(width)}, {"blocks", double(strips * sharers)}}));
    }
  if (m > 16) for_each_cut("scaled", kScaledCuts, multiprocessors, s.n, m, f);
}

void bench_points(Bench& b) {
  char line[512];
  const std::string x = listed("LPQ_BENCH_X", "f16")[0], type = listed("LPQ_BENCH_TYPE", "u4")[0];
  const int64_t group = std::stoll(listed("LPQ_BENCH_GROUP", "128")[0]);
  double mean = 0, worst = 0, beside = 0;
  int points = 0;
  for (const std::string& point : listed("LPQ_BENCH_POINTS", "4096x4096@16")) {
    const size_t at = point.find('@');
    const Shape s = shape_of(point.substr(0, at));
    const int64_t m = std::stoll(point.substr(at + 1));
    const Dense d = make_dense(b, s.n, s.k);
    const Packed p = make(b, type, x == "f16" ? DType::f16 : DType::bf16, s.n, s.k, group, 0);
    const size_t launches = m <= 256 ? 12 : 6;
    b.replays = 7;
    const double dense = time_dense(b, d, m, launches);
    double choice = time_packed(b, p, m, {}, launches);
    double best = choice;
    std::string best_how = "choice";
    for_each_setting(b, s, m, [&](const std::string& how, const Params& wish) {
      try {
        const double t = time_packed(b, p, m, wish, launches);
        if (t < best) best = t, best_how = how;
      } catch (const Failure& failure) {
        if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;  // a setting that does not fit
      }
    });
    // Clocks wander while the settings run: the choice once more beside the best.
    choice = std::min(choice, time_packed(b, p, m, {}, launches));
    best = std::min(best, choice);
    std::snprintf(line, sizeof line,
                  "{\"set\": \"points\", \"type\": \"%s\", \"x\": \"%s\", \"group\": %lld, \"k\": %lld, \"n\": %lld, "
                  "\"m\": %lld, \"us\": %.3f, \"best_us\": %.3f, \"best\": \"%s\", \"cublas_us\": %.3f}",
                  type.c_str(), x.c_str(), (long long)group, (long long)s.k, (long long)s.n, (long long)m, choice * 1e6,
                  best * 1e6, best_how.c_str(), dense * 1e6);
    b.row(line);
    std::printf("%s: choice %.2f, best %.2f (%.3f) %s, cuBLAS %.2f (%.2f)\n", point.c_str(), choice * 1e6, best * 1e6,
                choice / best, best_how.c_str(), dense * 1e6, dense / choice);
    std::fflush(stdout);
    ++points, mean += std::log(choice / best), worst = std::max(worst, choice / best),
                                               beside += std::log(dense / choice);
  }
  std::printf("%d points: the choice takes %.3f of the best in the mean, %.3f at most; cuBLAS takes %.3f of it\n",
              points, std::exp(mean / points), worst, std::exp(beside / points));
  b.replays = 11;
}
