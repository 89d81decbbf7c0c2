// lpq_kernels::linear, rows, experts_linear and experts as operations of torch, on its stable ABI
// (TORCH_TARGET_VERSION 2.10): one file for every torch from there on. ops.py of the package loads it, gives it
// liblpq_kernels' functions (lpq_torch_bind), and registers the fakes.
#include <dlfcn.h>
#include <lpq_kernels.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "common.h"

namespace {

using namespace lpq::torch_ops;

struct Functions {
  decltype(&lpq_cpu_block) block;
  decltype(&lpq_cpu_gemm) gemm;
  decltype(&lpq_cpu_gemm_experts) gemm_experts;
  decltype(&lpq_cpu_rows) rows;
  decltype(&lpq_last_error) last_error;
} kernels;

void check(lpq_status status) {
  if (status != LPQ_OK) fail(kernels.last_error());
}

lpq_cpu_info described(const Tensor& block) {
  lpq_cpu_info info{};
  info.size = sizeof info;
  if (!block.is_contiguous()) fail("the packed weight is not contiguous");
  check(kernels.block(block.const_data_ptr(), static_cast<size_t>(block.numel()), &info));
  return info;
}

std::string shape(const lpq_cpu_info& info) { return pair(info.n, info.k); }

int threads() { return static_cast<int>(torch::stable::get_num_threads()); }

/** `like`'s shape with another last dimension. */
Tensor made(const Tensor& like, int64_t last, ScalarType type, bool more = false) {
  return dense(shaped(like, last, more), type, aoti_torch_device_type_cpu(), 0);
}

/** y [M, N] of x [M, K], both `type`. */
void multiply(const Tensor& block, int64_t m, int type, const void* x, void* y) {
  check(kernels.gemm(block.const_data_ptr(), static_cast<size_t>(block.numel()), m, type, x, y, threads()));
}

Tensor linear(const Tensor& x, const Tensor& block, int64_t n, int64_t k) {
  const lpq_cpu_info info = described(block);
  if (info.n != n || info.k != k)
    fail("the packed weight is " + shape(info) + ", not [" + std::to_string(n) + ", " + std::to_string(k) + "]");
  if (x.dim() == 0 || x.size(x.dim() - 1) != k)
    fail("x has the shape " + list(x) + ", and the packed weight is " + shape(info));
  const int type = kind(x.scalar_type(), "x");
  const Tensor from = x.is_contiguous() ? x : torch::stable::contiguous(x);
  Tensor y = made(x, n, x.scalar_type());
  multiply(block, x.numel() / k, type, from.const_data_ptr(), y.mutable_data_ptr());
  return y;
}

Tensor experts_linear(const Tensor& x, const Tensor& offsets, const Tensor& block, int64_t n, int64_t k) {
  const lpq_cpu_info info = described(block);  // of the first expert; the library compares the others with it
  if (info.n != n || info.k != k) fail("the packed experts are " + shape(info) + ", not " + pair(n, k));
  require_sorted(x, offsets, offsets.numel() - 1);
  if (x.size(1) != k) fail("x has the shape " + list(x) + ", and the packed experts are " + shape(info));
  const int type = kind(x.scalar_type(), "x");
  const Tensor from = x.is_contiguous() ? x : torch::stable::contiguous(x);
  Tensor y = made(x, n, x.scalar_type());
  check(kernels.gemm_experts(block.const_data_ptr(), static_cast<size_t>(block.numel()), offsets.numel() - 1, x.size(0),
                             type, from.const_data_ptr(), offsets.const_data_ptr<int32_t>(), y.mutable_data_ptr(),
                             threads()));
  return y;
}

Tensor whole(const Tensor& ids) {
  const Tensor same = ids.scalar_type() == ScalarType::Long ? ids : torch::stable::to(ids, ScalarType::Long);
  return same.is_contiguous() ? same : torch::stable::contiguous(same);
}

Tensor rows(const Tensor& ids, const Tensor& block, int64_t k, ScalarType dtype) {
  const lpq_cpu_info info = described(block);
  if (info.k != k) fail("the packed weight has " + std::to_string(info.k) + " columns, not " + std::to_string(k));
  const int type = kind(dtype, "dtype");
  const Tensor wanted = whole(ids);
  Tensor y = made(ids, k, dtype, true);
  check(kernels.rows(block.const_data_ptr(), static_cast<size_t>(block.numel()), wanted.numel(),
                     wanted.const_data_ptr<int64_t>(), type, y.mutable_data_ptr(), threads()));
  return y;
}

/** torch's own activation, in f32. */
Tensor activated(const Tensor& x, const std::string& name) {
  using torch::stable::detail::from;
  const bool gelu = name != "silu";
  std::array<StableIValue, 2> stack{from(x), gelu ? from(std::string(name == "gelu" ? "none" : "tanh")) : 0};
  if (name != "silu" && name != "gelu" && name != "gelu_tanh")
    fail("'" + name + "' is no activation: silu, gelu, gelu_tanh");
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher(gelu ? "aten::gelu" : "aten::silu", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor experts(const Tensor& x, const Tensor& weights, const Tensor& ids, const std::vector<Tensor>& gate,
               const std::vector<Tensor>& up, const std::vector<Tensor>& down, const std::string& activation) {
  const ScalarType dtype = x.scalar_type();
  kind(dtype, "x");  // or it fails
  if (x.dim() != 2 || ids.dim() != 2 || ids.size(0) != x.size(0) || list(weights) != list(ids))
    fail("x has the shape " + list(x) + ", ids " + list(ids) + " and weights " + list(weights) +
         ", not [T, H] and twice [T, J]");
  const int64_t hidden = x.size(1), places = ids.size(1), count = static_cast<int64_t>(gate.size());
  const Tensor from = x.is_contiguous() ? x : torch::stable::contiguous(x), chosen = whole(ids);
  const Tensor shares = torch::stable::contiguous(torch::stable::to(weights, ScalarType::Float));
  const auto* id = chosen.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> of(gate.size());  // places of an expert, in order of tokens
  for (int64_t i = 0; i < chosen.numel(); ++i) {
    if (id[i] == -1) continue;
    if (id[i] < -1 || id[i] >= count)
      fail("expert " + std::to_string(id[i]) + " is asked for, and there are " + std::to_string(count));
    of[static_cast<size_t>(id[i])].push_back(i);
  }
  Tensor sums = torch::stable::new_zeros(x, {x.size(0), hidden}, ScalarType::Float);
  float* sum = sums.mutable_data_ptr<float>();
  const size_t row = static_cast<size_t>(hidden) * x.element_size();
  for (size_t e = 0; e < of.size(); ++e) {
    if (of[e].empty()) continue;
    const auto m = static_cast<int64_t>(of[e].size());
    Tensor picked = torch::stable::new_empty(x, {m, hidden}, dtype);
    for (int64_t i = 0; i < m; ++i)
      std::memcpy(static_cast<char*>(picked.mutable_data_ptr()) + static_cast<size_t>(i) * row,
                  static_cast<const char*>(from.const_data_ptr()) +
                      static_cast<size_t>(of[e][static_cast<size_t>(i)] / places) * row,
                  row);
    const auto product = [&](const Tensor& input, const Tensor& block) {
      return linear(input, block, described(block).n, input.size(1));
    };
    const Tensor opened = activated(torch::stable::to(product(picked, gate[e]), ScalarType::Float), activation);
    Tensor raised = torch::stable::contiguous(torch::stable::to(product(picked, up[e]), ScalarType::Float));
    if (list(opened) != list(raised))
      fail("gate and up of an expert have " + list(opened) + " and " + list(raised) + " outputs");
    auto* inner = raised.mutable_data_ptr<float>();
    const auto* factor = opened.const_data_ptr<float>();
    for (int64_t i = 0; i < raised.numel(); ++i) inner[i] *= factor[i];
    const Tensor lowered = torch::stable::to(product(torch::stable::to(raised, dtype), down[e]), ScalarType::Float);
    if (lowered.size(1) != hidden)
      fail("down of an expert has " + std::to_string(lowered.size(1)) + " outputs, not " + std::to_string(hidden));
    const auto* out = lowered.const_data_ptr<float>();
    for (int64_t i = 0; i < m; ++i) {
      const int64_t place = of[e][static_cast<size_t>(i)];
      const float share = shares.const_data_ptr<float>()[place];
      float* to = sum + place / places * hidden;
      for (int64_t h = 0; h < hidden; ++h) to[h] += out[i * hidden + h] * share;
    }
  }
  return torch::stable::to(sums, dtype);
}

}  // namespace

/** Takes the functions of a liblpq_kernels that dlopen gave `library` for. Returns the name of one that it has not, or
 * NULL. */
extern "C" __attribute__((visibility("default"))) const char* lpq_torch_bind(void* library) {
  const auto found = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!found("lpq_cpu_block", kernels.block)) return "lpq_cpu_block";
  if (!found("lpq_cpu_gemm", kernels.gemm)) return "lpq_cpu_gemm";
  if (!found("lpq_cpu_gemm_experts", kernels.gemm_experts)) return "lpq_cpu_gemm_experts";
  if (!found("lpq_cpu_rows", kernels.rows)) return "lpq_cpu_rows";
  if (!found("lpq_last_error", kernels.last_error)) return "lpq_last_error";
  return bind_device(library);
}

STABLE_TORCH_LIBRARY(lpq_kernels, m) {
  m.def("linear(Tensor x, Tensor block, SymInt n, SymInt k) -> Tensor");
  m.def("linear_on_device(Tensor x, Tensor block, SymInt n, SymInt k) -> Tensor");
  m.def("experts_linear(Tensor x, Tensor offsets, Tensor block, SymInt n, SymInt k) -> Tensor");
  m.def("experts_linear_on_device(Tensor x, Tensor offsets, Tensor block, SymInt n, SymInt k) -> Tensor");
  m.def(
      "mixture_on_device(Tensor x, Tensor weights, Tensor ids, Tensor gate_up, Tensor down, int activation) -> "
      "Tensor");
  m.def("rows(Tensor ids, Tensor block, SymInt k, ScalarType dtype) -> Tensor");
  m.def(
      "experts(Tensor x, Tensor weights, Tensor ids, Tensor[] gate, Tensor[] up, Tensor[] down, str activation) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(lpq_kernels, CPU, m) {
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("experts_linear", TORCH_BOX(&experts_linear));
  m.impl("rows", TORCH_BOX(&rows));
  m.impl("experts", TORCH_BOX(&experts));
}
