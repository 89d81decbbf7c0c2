// What the autotuner found (`lpq bench kernels --tune`), kept in a file for each device, driver and version of lpq:
//   LPQ_KERNEL_TUNING (a path; "off": none), else
//   ${XDG_CACHE_HOME:-~/.cache}/lpq/kernels/DEVICE-driver-VERSION-lpq-VERSION.json
// JSON of format lpq-kernel-tuning (src/bench/kernels/tuning.ts writes it). A point counts for every M with as many
// eights of tokens, since the kernels cut tokens into eights.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/exec.h"
#include "ops/gemm.h"

namespace lpq::cuda {

struct TunedPoint {
  int64_t m = 0;
  double ratio = 1;  // time of the choice over the best setting's
  std::vector<std::pair<std::string, Params::Value>> best;
};

struct Tuning {
  std::string path;
  std::string problem;  // why the file there is not used; empty: it is, or there is none
  std::map<std::string, std::vector<TunedPoint>> points;  // by tuning_key
  // The point of as many eights of tokens whose M is nearest; null: none, or its best is the choice itself.
  const TunedPoint* find(const ops::GemmProduct& product) const;
};

// What a point stands for, but for M: 'tilus u4 f16 g128 none 4096x28672' (K x N).
std::string tuning_key(const ops::GemmProduct& product);

// Where the tuning of a device lies; empty: nowhere (off, or no home).
std::string tuning_path(const std::string& device, int driver_version);

// Reads a file, which may be absent. `device` and `driver_version` must be those in it; so must the version of lpq.
Tuning read_tuning(const std::string& path, const std::string& device, int driver_version);

// The device's, read once in a process.
const Tuning& tuning_of(const DeviceFacts& device);

}  // namespace lpq::cuda
