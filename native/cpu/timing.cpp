// Timed passes over a list of calls by the host's clock (native/binding.ts, time()).
#include <chrono>

#include "lpq/exec.h"

namespace lpq {

std::vector<double> Backend::time(std::vector<std::pair<std::string, Call>>& calls, const Timing& how) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto pass = [&] {
    const auto from = Clock::now();
    for (auto& [op, call] : calls) {
      const Outcome outcome = outcome_of(op, [&, &name = op, &each = call] { run(name, each); });
      if (!outcome.ok) throw OpFailure(outcome.code, outcome.detail, outcome.op);
      if (aborted()) throw Failure("LPQ_ABORTED", "stopped on request");
    }
    drain();
    return seconds_since(from);
  };
  pass();  // pages and caches
  std::vector<double> times;
  const auto start = Clock::now();
  do times.push_back(pass());
  while (how.seconds > 0 ? seconds_since(start) < how.seconds : times.size() < static_cast<size_t>(how.passes));
  return times;
}

}  // namespace lpq
