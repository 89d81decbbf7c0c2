#include "cuda/gemm/family.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <mutex>
#include <tuple>

#include "cuda/gemm/tuning.h"
#include "cuda/hosted.h"

namespace lpq::cuda {
namespace {

constexpr size_t kMostPlans = 1 << 14;  // of a product; calls of further M plan each time

}  // namespace

const Plans::Kept* Plans::find(int64_t m) const {
  const std::shared_lock lock(guard_);
  const auto found = kept_.find(m);
  return found == kept_.end() ? nullptr : &found->second;
}

void Plans::keep(int64_t m, Kept kept) {
  const std::unique_lock lock(guard_);
  if (kept_.size() < kMostPlans) kept_.emplace(m, std::move(kept));  // the first stays: somebody may be reading it
}

void sort_ranking(std::vector<Ranked>& ranking) {
  const auto place = [](const Ranked& row) {
    const std::optional<Plan>& plan = row.answer.plan;
    constexpr double kNoModel = std::numeric_limits<double>::infinity();
    return std::tuple(!plan, plan ? plan->tier : 0, plan ? plan->microseconds.value_or(kNoModel) : 0, row.family);
  };
  std::sort(ranking.begin(), ranking.end(), [&](const Ranked& a, const Ranked& b) { return place(a) < place(b); });
}

std::string missing_feature(const Features& needs, const DeviceFacts& device) {
  const auto lacks = [&](const char* feature) {
    return std::string("it needs ") + feature + ", which " + device.name + " (" + compute_capability(device.arch) +
           ") does not have";
  };
  if (needs.wgmma && !device.features.wgmma) return lacks("wgmma");
  if (needs.early_launch && !device.features.early_launch) return lacks("early launches");
  if (needs.portable && !device.features.portable) return lacks("mma.sync and cp.async");
  return "";
}

void tell_ranking(const std::vector<Ranked>& ranking, const ops::GemmSettings& wish, CudaExec& exec) {
  exec.rehearsal()->tuned = wish.timed;
  if (!wish.kernel.empty()) exec.because("The call asks for the " + wish.kernel + " kernel.");
  for (size_t i = 0; i < ranking.size(); ++i) {
    const auto& [family, name, answer, unfit] = ranking[i];
    if (!answer.plan) {
      exec.because(std::string("Not ") + name + ": " + answer.reason + ".");
      continue;
    }
    char predicted[40] = "";
    if (answer.plan->microseconds)
      std::snprintf(predicted, sizeof predicted, ", %.1f us of an H200", *answer.plan->microseconds);
    exec.because((i == 0 ? "First " : "Then ") + std::string(name) + predicted + ": " + answer.plan->how + ".");
  }
}

const Ranked& best_plan(const std::vector<Ranked>& ranking) {
  const Ranked& best = ranking.front();
  const bool any = best.answer.plan.has_value();
  for (const Ranked& row : ranking)
    if (row.unfit && (!any || row.family < best.family)) throw Failure("LPQ_NATIVE_ARGUMENT", row.answer.reason);
  if (any) return best;
  if (ranking.size() == 1) throw Failure("LPQ_NATIVE_ARGUMENT", best.answer.reason);
  std::string all = "no kernel takes this product";
  for (size_t i = 0; i < ranking.size(); ++i)
    all += (i == 0 ? ": " : "; ") + std::string(ranking[i].name) + ": " + ranking[i].answer.reason;
  throw Failure("LPQ_NATIVE_ARGUMENT", all);
}

std::optional<ops::GemmSettings> tuned_settings(const ops::GemmSettings& wish, const ops::GemmProduct& product,
                                                ops::GemmSettings (*read)(Arguments&), CudaExec& exec) {
  const Tuning* const tuning = exec.tuning();
  if (!tuning || wish != ops::GemmSettings{}) return std::nullopt;
  if (!tuning->problem.empty())
    exec.because("The settings in " + tuning->path + " are not used: " + tuning->problem + ".");
  const TunedPoint* const point = tuning->find(product);
  if (!point) return std::nullopt;
  Call call;
  for (const auto& [name, value] : point->best) call.params.set(name, value);
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f", 100 * (point->ratio - 1));
  exec.because("Settings that were timed at M = " + std::to_string(point->m) + " (" + tuning->path +
               "): the planners' choice took " + percent + " % longer.");
  try {
    Arguments arguments(call, "a tuned product");
    ops::GemmSettings settings = read(arguments);
    arguments.done();
    settings.timed = true;
    return settings;
  } catch (const Failure& failure) {
    exec.because(std::string("Settings that were timed do not fit: ") + failure.what() + ".");
    return std::nullopt;
  }
}

}  // namespace lpq::cuda
