#include "cuda/gemm/tuning.h"

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>

#include "lpq/json.h"

#ifndef LPQ_VERSION
#define LPQ_VERSION "unknown"
#endif

namespace lpq::cuda {
namespace {

// Differences below this are the device's mood.
constexpr double kWorthwhile = 1.01;

const Json& member(const Json& object, const char* name, Json::Kind kind) {
  const Json* found = object.find(name);
  if (!found || !found->is(kind))
    throw Failure("LPQ_JSON", std::string("'") + name + "' is missing or of another kind");
  return *found;
}

int64_t whole(const Json& object, const char* name) {
  const auto value = member(object, name, Json::Kind::number).natural();
  if (!value) throw Failure("LPQ_JSON", std::string("'") + name + "' is no whole number");
  return *value;
}

void expect(const Json& object, const char* name, const std::string& wanted) {
  const Json& value = member(object, name, Json::Kind::string);
  if (value.text() != wanted)
    throw Failure("LPQ_JSON", std::string(name) + " is '" + value.text() + "', not '" + wanted + "'");
}

void read_points(const Json& root, Tuning& tuning) {
  for (const Json& row : member(root, "points", Json::Kind::list).items()) {
    const Json& group = *(row.find("group") ? row.find("group") : &row);
    const std::string length = group.is(Json::Kind::string) && group.text() == "channel"
                                   ? "channel"
                                   : "g" + std::to_string(whole(row, "group"));
    const std::string key = member(row, "layout", Json::Kind::string).text() + " " +
                            member(row, "type", Json::Kind::string).text() + " " +
                            member(row, "activations", Json::Kind::string).text() + " " + length + " " +
                            member(row, "zeros", Json::Kind::string).text() + " " + std::to_string(whole(row, "k")) +
                            "x" + std::to_string(whole(row, "n"));
    TunedPoint point;
    point.m = whole(row, "m");
    const double choice = member(row, "choiceUs", Json::Kind::number).number(),
                 best = member(row, "bestUs", Json::Kind::number).number();
    if (!(choice > 0) || !(best > 0)) throw Failure("LPQ_JSON", "a time is not above 0");
    point.ratio = choice / best;
    const Json& settings = member(row, "best", Json::Kind::object);
    for (size_t i = 0; i < settings.names().size(); ++i) {
      const Json& value = settings.items()[i];
      if (value.is(Json::Kind::string)) point.best.emplace_back(settings.names()[i], value.text());
      else if (value.is(Json::Kind::number)) point.best.emplace_back(settings.names()[i], value.number());
      else throw Failure("LPQ_JSON", "a setting is neither a number nor a string");
    }
    tuning.points[key].push_back(std::move(point));
  }
}

}  // namespace

std::string tuning_key(const ops::GemmProduct& p) {
  return p.layout + " " + p.type + " " + std::string(dtype_name(p.x)) + " " +
         (p.group_size == 0 ? "channel" : "g" + std::to_string(p.group_size)) + " " +
         (p.zeros ? std::string(dtype_name(*p.zeros)) : "none") + " " + std::to_string(p.k) + "x" + std::to_string(p.n);
}

const TunedPoint* Tuning::find(const ops::GemmProduct& product) const {
  const auto list = points.find(tuning_key(product));
  if (list == points.end()) return nullptr;
  const auto eights = [](int64_t m) { return (m + 7) / 8; };
  const TunedPoint* nearest = nullptr;
  for (const TunedPoint& point : list->second) {
    if (eights(point.m) != eights(product.m)) continue;
    if (!nearest || std::llabs(point.m - product.m) < std::llabs(nearest->m - product.m)) nearest = &point;
  }
  return nearest && !nearest->best.empty() && nearest->ratio > kWorthwhile ? nearest : nullptr;
}

std::string tuning_path(const std::string& device, int driver_version) {
  if (const char* given = std::getenv("LPQ_KERNEL_TUNING"); given && *given)
    return std::string(given) == "off" ? "" : given;
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::string folder;
  if (cache && *cache == '/') folder = cache;
  else if (home && *home == '/') folder = std::string(home) + "/.cache";
  else return "";
  std::string slug;
  for (const char c : device) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!slug.empty() && slug.back() != '-') slug += '-';
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return folder + "/lpq/kernels/" + slug + "-driver-" + std::to_string(driver_version) + "-lpq-" LPQ_VERSION ".json";
}

Tuning read_tuning(const std::string& path, const std::string& device, int driver_version) {
  Tuning tuning;
  tuning.path = path;
  if (path.empty()) return tuning;
  std::ifstream file(path, std::ios::binary);
  if (!file) return tuning;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  try {
    const Json root = Json::parse(text);
    expect(root, "format", "lpq-kernel-tuning");
    if (whole(root, "version") != 1) throw Failure("LPQ_JSON", "its version is not 1");
    expect(root, "device", device);
    expect(root, "lpq", LPQ_VERSION);
    if (whole(root, "driver") != driver_version)
      throw Failure("LPQ_JSON", "it is of driver " + std::to_string(whole(root, "driver")) + ", not " +
                                    std::to_string(driver_version));
    read_points(root, tuning);
  } catch (const Failure& failure) {
    tuning.points.clear();
    tuning.problem = failure.what();
  }
  return tuning;
}

const Tuning& tuning_of(const DeviceFacts& device) {
  static std::mutex lock;
  static std::map<std::string, std::unique_ptr<Tuning>> read;
  const std::lock_guard<std::mutex> hold(lock);
  std::unique_ptr<Tuning>& tuning = read[device.name];
  if (!tuning) {
    const int version = driver().version;
    tuning = std::make_unique<Tuning>(read_tuning(tuning_path(device.name, version), device.name, version));
  }
  return *tuning;
}

}  // namespace lpq::cuda
