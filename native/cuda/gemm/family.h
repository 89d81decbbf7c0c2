// Kernels of a product, and which of them runs. A family is one kernel with its planner: what it needs of a device, how
// it cuts a problem, how long that should last, how it is launched. An operation lists its families; the one whose plan
// ranks first runs. A rehearsal (hosted.h) is told the whole ranking.
#pragma once
#include <any>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/exec.h"
#include "cuda/features.h"
#include "ops/gemm.h"

namespace lpq::cuda {

struct Plan {
  // A lower tier goes first: timings (docs/internals/kernels/choice.md) put its kernel ahead wherever it takes the
  // product.
  int tier = 0;
  // As predicted, of an H200; within a tier the least goes first, then those without a model, in the operation's order.
  std::optional<double> microseconds;
  std::any cut;     // the family's own
  std::string how;  // the cut in words, where exec.rehearsing()
};

// A plan, or a sentence that says why there is none.
struct Answer {
  std::optional<Plan> plan;
  std::string reason;
  Answer(Plan of) : plan(std::move(of)) {}
  Answer(std::string why) : reason(std::move(why)) {}
  Answer(const char* why) : reason(why) {}
};

// Problem: what a parsed call (native/ops) is to its kernels. It has `wish`, the ops::GemmSettings that hold, and
// `asked()`: a kernel is asked for by name.
template <class Problem>
struct Family {
  const char* name;
  Features needs;
  // Throws Failure("LPQ_NATIVE_ARGUMENT") where it would take the problem, but not with the settings wished for.
  Answer (*plan)(const Problem&, CudaExec&);
  void (*launch)(const Problem&, const Plan&, CudaExec&);
};

struct Ranked {
  size_t family;  // of the operation's
  const char* name;
  Answer answer;
  bool unfit = false;  // for the settings alone
};

// The plans of a product whose calls differ in M alone, kept from call to call. Any thread may ask and keep.
class Plans {
 public:
  struct Kept {
    size_t family;  // of the operation's
    Plan plan;
    ops::GemmSettings wish;  // that the plan was made for
  };
  // Null where there is none yet. What is found stays where it is.
  const Kept* find(int64_t m) const;
  void keep(int64_t m, Kept kept);

 private:
  mutable std::shared_mutex guard_;
  std::unordered_map<int64_t, Kept> kept_;
};

// Plans first, the best of them at the front; sentences behind.
void sort_ranking(std::vector<Ranked>& ranking);
// Why a device lacks what a family needs; empty: it does not.
std::string missing_feature(const Features& needs, const DeviceFacts& device);
// Tells a rehearsal.
void tell_ranking(const std::vector<Ranked>& ranking, const ops::GemmSettings& wish, CudaExec& exec);
// The first of a sorted ranking. Throws Failure("LPQ_NATIVE_ARGUMENT") where no family has a plan, or one that stands
// before it in the operation's order would have but for the settings.
const Ranked& best_plan(const std::vector<Ranked>& ranking);
// Settings that were timed for the product on this device (tuning.h), where a call that asks for nothing has some.
// `read`: the operation's, of their names.
std::optional<ops::GemmSettings> tuned_settings(const ops::GemmSettings& wish, const ops::GemmProduct& product,
                                                ops::GemmSettings (*read)(Arguments&), CudaExec& exec);

template <class Problem, size_t Count>
std::vector<Ranked> rank_families(const Problem& problem, const Family<Problem> (&families)[Count], CudaExec& exec) {
  std::vector<Ranked> ranking;
  for (size_t i = 0; i < Count; ++i) {
    const Family<Problem>& family = families[i];
    if (!problem.wish.kernel.empty() && problem.wish.kernel != family.name) continue;
    std::string missing = missing_feature(family.needs, exec.device());
    try {
      ranking.push_back({i, family.name, missing.empty() ? family.plan(problem, exec) : Answer(std::move(missing))});
    } catch (const Failure& failure) {
      if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
      ranking.push_back({i, family.name, failure.what(), true});
    }
    // Nothing can go before it: families stand in the order of their tiers.
    const std::optional<Plan>& plan = ranking.back().answer.plan;
    if (plan && plan->tier == 0 && !exec.rehearsing()) break;
  }
  sort_ranking(ranking);
  return ranking;
}

// Launches the best plan, which is kept for the next call of this M in `plans` unless that is null. Throws
// Failure("LPQ_NATIVE_ARGUMENT") where there is none.
template <class Problem, size_t Count>
void run_families(const Problem& problem, const Family<Problem> (&families)[Count], CudaExec& exec,
                  Plans* plans = nullptr, int64_t m = 0) {
  const std::vector<Ranked> ranking = rank_families(problem, families, exec);
  const Ranked& best = best_plan(ranking);
  if (exec.rehearsing()) tell_ranking(ranking, problem.wish, exec);
  else if (plans) plans->keep(m, {best.family, *best.answer.plan, problem.wish});
  families[best.family].launch(problem, *best.answer.plan, exec);
}

// Launches the plan that was kept for this M: whether there is one.
template <class Problem, size_t Count>
bool launch_kept(Problem& problem, const Family<Problem> (&families)[Count], int64_t m, CudaExec& exec) {
  const Plans* const plans = exec.rehearsing() ? nullptr : exec.plans();
  const Plans::Kept* const kept = plans ? plans->find(m) : nullptr;
  if (!kept) return false;
  problem.wish = kept->wish;
  families[kept->family].launch(problem, kept->plan, exec);
  return true;
}

// The same as the first, and the plan is made once for each M.
template <class Problem, size_t Count>
void run_families(Problem& problem, const Family<Problem> (&families)[Count], int64_t m, CudaExec& exec) {
  if (!launch_kept(problem, families, m, exec))
    run_families(std::as_const(problem), families, exec, exec.rehearsing() ? nullptr : exec.plans(), m);
}

// The same, with settings that were timed where there are some and they fit.
template <class Problem, size_t Count>
void run_families(Problem& problem, const Family<Problem> (&families)[Count], const ops::GemmProduct& product,
                  ops::GemmSettings (*read)(Arguments&), CudaExec& exec) {
  if (launch_kept(problem, families, product.m, exec)) return;
  Plans* const plans = exec.rehearsing() ? nullptr : exec.plans();
  if (const std::optional<ops::GemmSettings> tuned = tuned_settings(problem.wish, product, read, exec)) {
    const ops::GemmSettings plain = std::exchange(problem.wish, *tuned);
    try {
      return run_families(std::as_const(problem), families, exec, plans, product.m);
    } catch (const Failure& failure) {
      // Plans are made before anything is launched.
      if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
      exec.because(std::string("Settings that were timed do not fit: ") + failure.what() + ".");
    }
    problem.wish = plain;
  }
  run_families(std::as_const(problem), families, exec, plans, product.m);
}

}  // namespace lpq::cuda
