// Lists of calls that run again and again (native/runtime.ts): timed by the host's clock, and recorded ones.
#include <algorithm>
#include <chrono>
#include <map>

#include "lpq/exec.h"

namespace lpq {
namespace {

void run_one(Backend& backend, const std::string& op, Call& call) {
  const Outcome outcome = outcome_of(op, [&] { backend.run(op, call); });
  if (!outcome.ok) throw OpFailure(outcome.code, outcome.detail, outcome.op);
  if (backend.aborted()) throw Failure("LPQ_ABORTED", "stopped on request");
}

}  // namespace

void Backend::replay(Recording& recording) {
  for (auto& [op, call] : recording.calls) run_one(*this, op, call);
}

bool Recording::matches(const Recording& other) const {
  if (calls.size() != other.calls.size()) return false;
  std::map<const Storage*, const Storage*> twins;
  const auto same = [&](const Tensor& a, const Tensor& b) {
    if (a.dtype != b.dtype || a.shape != b.shape || a.offset != b.offset || a.device != b.device) return false;
    if (!made.count(a.storage)) return a.storage == b.storage;
    return other.made.count(b.storage) > 0 &&
           twins.emplace(a.storage.get(), b.storage.get()).first->second == b.storage.get();
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& [op, call] = calls[i];
    const auto& [its_op, its] = other.calls[i];
    if (op != its_op || !(call.params == its.params)) return false;
    if (!std::equal(call.in.begin(), call.in.end(), its.in.begin(), its.in.end(), same)) return false;
    if (!std::equal(call.out.begin(), call.out.end(), its.out.begin(), its.out.end(), same)) return false;
  }
  return true;
}

std::vector<double> Backend::time(std::vector<std::pair<std::string, Call>>& calls, const Timing& how) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto pass = [&] {
    const auto from = Clock::now();
    for (auto& [op, call] : calls) run_one(*this, op, call);
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
