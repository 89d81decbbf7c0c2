// gptq_factor (contract: native/cpu/gptq/factor.cpp), in f64 throughout by cuSOLVER: U is the inverse of a matrix whose
// condition number reaches K / damp, about 10^6, so f32 would leave it one or two correct digits in the worst direction.
#include <cmath>

#include "cuda/exec.h"
#include "cuda/gptq/problem.h"

namespace lpq::cuda::gptq {
namespace {

// Row-major lower is column-major upper.
struct Factorisation {
  CudaExec& exec;
  int64_t k;
  double* a;
  Scratch work, info;
  size_t device_bytes = 0;
  std::vector<char> host;

  static size_t sizes(CudaExec& exec, int64_t k, double* a, size_t& host_bytes) {
    const Cusolver& solver = exec.solver();
    size_t device[2] = {}, host[2] = {};
    check_library(solver.potrf_size(solver.handle, solver.params, kUpper, k, kReal64, a, k, kReal64, &device[0], &host[0]), "cuSOLVER", "sizing a Cholesky factorisation");
    check_library(solver.trtri_size(solver.handle, kUpper, kNonUnit, k, kReal64, a, k, &device[1], &host[1]), "cuSOLVER", "sizing a triangular inverse");
    host_bytes = std::max(host[0], host[1]);
    return std::max<size_t>(std::max(device[0], device[1]), 16);
  }
  Factorisation(CudaExec& exec_, int64_t k_, double* a_, size_t host_bytes = 0)
      : exec(exec_), k(k_), a(a_), work(exec.scratch(sizes(exec, k, a, host_bytes))), info(exec.scratch(16)), device_bytes(work.bytes()), host(host_bytes) {}
  // 0, or 1 + the column that failed.
  int factor() {
    const Cusolver& solver = exec.solver();
    check_library(solver.potrf(solver.handle, solver.params, kUpper, k, kReal64, a, k, kReal64, work.as<void>(), device_bytes, host.data(), host.size(), info.as<int>()),
                  "cuSOLVER", "factoring the Hessian");
    int result = 0;
    exec.read_back(&result, info.as<int>(), sizeof result);
    return result;
  }
  void invert() {
    const Cusolver& solver = exec.solver();
    check_library(solver.trtri(solver.handle, kUpper, kNonUnit, k, kReal64, a, k, work.as<void>(), device_bytes, host.data(), host.size(), info.as<int>()), "cuSOLVER",
                  "inverting the Hessian's factor");
  }
};

void factor(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Tensor &h = call.input(0), &order = call.input(1);
  const Tensor &u = call.output(0), &m = call.output(1), &dead = call.output(2), &info = call.output(3);
  require(h.rank() == 2 && h.dim(0) == h.dim(1) && h.dim(0) > 0, "H must be square");
  const int64_t k = h.dim(0);
  require(order.elements() == k && u.elements() == k * k && m.elements() == k * k && dead.elements() == k && info.elements() == 3,
          "gptq_factor: shapes disagree with K");
  double fraction = call.params.number("damp");
  require(fraction > 0 && fraction < 10, "damp must be between 0 and 10");
  const int ki = static_cast<int>(k);
  const double* h_data = h.data<double>();
  const int32_t* order_data = order.data<int32_t>();
  uint8_t* dead_data = dead.data<uint8_t>();

  double facts[4];
  {
    Scratch seen = exec.scratch(static_cast<size_t>(k) * 4), diagonal = exec.scratch(static_cast<size_t>(k) * 8), facts_room = exec.scratch(32);
    exec.fill_zero(seen.as<void>(), seen.bytes());
    exec.launch("lpq_gptq_factor_facts", Dim3(1), Dim3(1024), 0, h_data, order_data, ki, seen.as<uint32_t>(), dead_data, diagonal.as<double>(), facts_room.as<double>());
    exec.read_back(facts, facts_room.as<void>(), sizeof facts);
  }
  require(facts[3] == 0, "order is not a permutation");
  if (facts[2] >= 0)
    throw Failure("LPQ_NATIVE_NUMERICS", "the Hessian holds NaN or infinity in column " + std::to_string(static_cast<int64_t>(facts[2])));
  const double mean = facts[0], largest = facts[1];

  Scratch reversed = exec.scratch(static_cast<size_t>(k * k) * 8), count = exec.scratch(8);
  Factorisation solver(exec, k, reversed.as<double>());
  const int staged = k * 8 <= exec.device().shared_per_block;
  unsigned long long floored = 0;
  int attempts = 0;
  double floor_value = 0;
  for (;; fraction *= 3.1622776601683795) {  // as on the CPU
    ++attempts;
    if (fraction > 1.0 && attempts > 1) floor_value = 0.01 * largest;
    if (attempts > 12) throw Failure("LPQ_NATIVE_NUMERICS", "the Hessian cannot be factored even with damping " + std::to_string(fraction));
    exec.fill_zero(count.as<void>(), 8);
    exec.launch("lpq_gptq_factor_gather", Dim3(k), Dim3(512), staged ? static_cast<unsigned>(k * 8) : 0u, h_data, order_data, ki, static_cast<const uint8_t*>(dead_data), mean,
                fraction, floor_value, reversed.as<double>(), m.data<float>(), count.as<unsigned long long>(), staged);
    if (solver.factor() == 0) break;
  }
  exec.read_back(&floored, count.as<void>(), sizeof floored);
  solver.invert();
  exec.launch("lpq_gptq_factor_turn", Dim3(k), Dim3(256), 0, static_cast<const double*>(reversed.as<double>()), ki, u.data<float>());
  const double result[3] = {fraction, static_cast<double>(attempts), static_cast<double>(floored)};
  exec.write_small(info.data<double>(), result, sizeof result);
}

LPQ_CUDA_OP(factor, "gptq_factor");

}  // namespace
}  // namespace lpq::cuda::gptq
