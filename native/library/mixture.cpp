// A mixture of experts of the C interface: rows grouped by expert, both products, the gate in the first or between
// them, and the sums of each token, one operation after the other on a stream.
#include <algorithm>
#include <string>

#include "cuda/nn/routing.h"
#include "library/context.h"
#include "library/status.h"
#include "ops/gemm_packed.h"

namespace lpq::library {
namespace {

using namespace lpq::cuda;

constexpr int64_t kMostPlaces = 1024;
// lpq_activation: what a gated product takes (ops/gemm_experts.h), the last of which no operation between products has.
constexpr const char* kActivations[] = {"silu",  "gelu",       "gelu_tanh", "relu",
                                        "relu2", "quick_gelu", "sigmoid",   "clamped"};

struct Mixture {
  const lpq_weight &both, &down;
  lpq_context* context;
  int64_t places, experts, groups;  // groups: of rows, one more where some are of no expert
  int64_t k, inner, up;             // up: its first column in the product of gate and up, where that is not gated
  const char* activation;
  double alpha, limit;  // of a gated product; 0: none
  DType type;

  int64_t rows(int64_t tokens) const { return tokens * places; }
  bool gated() const { return both.product.gated; }
};

const char* activation_of(const lpq_mixture_desc& d) {
  argument(d.activation >= 0 && d.activation < static_cast<int>(std::size(kActivations)),
           "activation is none of LPQ_SILU to LPQ_CLAMPED");
  const bool clamped = d.activation == LPQ_CLAMPED, limited = clamped || d.activation == LPQ_SILU;
  argument(limited || d.limit == 0, "limit is not 0, and only LPQ_SILU and LPQ_CLAMPED have one");
  argument(clamped || d.alpha == 0, "alpha is not 0, and only LPQ_CLAMPED has one");
  argument(clamped ? d.alpha > 0 && d.limit > 0 : d.limit >= 0,
           clamped ? "LPQ_CLAMPED needs alpha and limit above 0" : "limit is negative or NaN");
  if (!d.gate_up->product.gated && (clamped || d.limit != 0))
    throw Failure("LPQ_UNSUPPORTED",
                  "only a gated product clamps: set lpq_experts_desc.gated, or lpq_weight_desc.gated, of gate_up");
  return kActivations[d.activation];
}

Mixture mixture_of(const lpq_mixture_desc* desc) {
  const lpq_mixture_desc d = taken(desc, "desc");
  argument(d.gate_up != nullptr && d.down != nullptr, "gate_up or down is NULL");
  argument(grouped(*d.gate_up) && grouped(*d.down), "gate_up or down is not of experts");
  const ops::GemmProduct &both = d.gate_up->product, &down = d.down->product;
  argument(d.gate_up->context == d.down->context, "gate_up and down are of two contexts");
  if (both.experts != down.experts)
    argument(false,
             "gate_up has " + std::to_string(both.experts) + " experts, and down " + std::to_string(down.experts));
  argument(both.x == down.x, "gate_up and down have activations of two types");
  const int64_t up = ops::up_to(down.k, ops::GemmPacked::kBlockN);
  if (both.gated && both.n != down.k)
    argument(false, "gate_up makes " + std::to_string(both.n) + " outputs, and down takes " + std::to_string(down.k));
  if (!both.gated && both.n != up + down.k)
    argument(false, "gate_up has " + std::to_string(both.n) + " outputs, not " + std::to_string(up + down.k) +
                        ": gate and up of " + std::to_string(down.k) + ", each from a multiple of 32 on");
  argument(!down.gated, "down is gated, which only gate_up may be");
  argument(d.places >= 1 && d.places <= kMostPlaces, "places is not between 1 and 1024");
  return {*d.gate_up,
          *d.down,
          d.gate_up->context,
          d.places,
          both.experts,
          both.experts + (d.some_none != 0),
          both.k,
          down.k,
          up,
          activation_of(d),
          d.alpha,
          d.limit,
          both.x};
}

void require_tokens(const Mixture& m, int64_t tokens) {
  argument(tokens >= 0 && tokens < ops::kMostRows / m.places, "tokens is negative, or gives 2^31 rows or more");
}

// What lies between the operations, one after another from multiples of 512 on.
class Between {
 public:
  Between(const Mixture& m, int64_t tokens, void* memory) : m_(m), memory_(static_cast<std::byte*>(memory)) {
    const int64_t rows = m.rows(tokens);
    order = take(DType::i32, {rows});
    offsets = take(DType::i32, {m.groups + 1});
    // Inputs have ended when outputs are written.
    const Tensor wider = take(m.type, {rows, std::max(m.k, m.down.product.n)});
    picked = part(wider, {rows, m.k}), lowered = part(wider, {rows, m.down.product.n});
    if (!m.gated()) both = take(m.type, {rows, m.both.product.n});
    inner = take(m.type, {rows, m.inner});
  }
  Tensor order, offsets, picked, both, inner, lowered;
  size_t bytes() const { return used_; }

 private:
  Tensor take(DType dtype, std::vector<int64_t> shape) {
    Tensor made = tensor_at(memory_ ? memory_ + used_ : nullptr, 0, dtype, std::move(shape), m_.context->facts.ordinal,
                            m_.context);
    used_ += (made.bytes() + 511) / 512 * 512;
    return made;
  }
  static Tensor part(Tensor of, std::vector<int64_t> shape) {
    of.shape = std::move(shape);
    return of;
  }
  const Mixture& m_;
  std::byte* memory_;
  size_t used_ = 0;
};

// One operation of the table.
void run(CudaExec& exec, const char* op, std::vector<Tensor> in, std::vector<Tensor> out, Params params = {}) {
  Call call{std::move(in), std::move(out), std::move(params)};
  cuda_op_table().at(op)(call, exec);
}

void run_mixture(const Mixture& m, int64_t tokens, const void* x, const int32_t* ids, const float* weights, void* y,
                 const Between& at, CudaExec& exec) {
  const auto given = [&](const void* address, DType dtype, std::vector<int64_t> shape) {
    return tensor_at(address, 0, dtype, std::move(shape), m.context->facts.ordinal, m.context);
  };
  const auto places = static_cast<double>(m.places);
  run(exec, "group_by_expert", {given(ids, DType::i32, {tokens, m.places})}, {at.order, at.offsets},
      {{"experts", static_cast<double>(m.groups)}});
  run(exec, "gather_rows", {given(x, m.type, {tokens, m.k}), at.order}, {at.picked}, {{"divide", places}});
  const auto product = [&](const lpq_weight& weight, const Tensor& from, const Tensor& to, const Params& more = {}) {
    Call call = product_of_rows(weight, from.dim(0), from.raw(), at.offsets.raw(), to.raw());
    for (size_t i = 0; i < more.size(); ++i) call.params.set(more.name(i), more.value(i));
    exec.share(&weight.plans);
    weight.op(call, exec);
  };
  if (m.gated()) {
    Params gate{{"gate", m.activation}};
    if (m.alpha != 0) gate.set("alpha", m.alpha);
    if (m.limit != 0) gate.set("limit", m.limit);
    product(m.both, at.picked, at.inner, gate);
  } else {
    product(m.both, at.picked, at.both);
    run(exec, "gated_activation", {at.both, at.both}, {at.inner},
        {{"act", m.activation}, {"first", 0.0}, {"upFirst", static_cast<double>(m.up)}});
  }
  product(m.down, at.inner, at.lowered);
  // Rows of no expert stand behind the others, and were not written.
  combine_rows(exec, at.lowered, at.order, at.offsets.data<int32_t>() + m.experts, weights,
               given(y, m.type, {tokens, m.down.product.n}), m.places);
}

// Beside its products the operations keep a number an expert, or a number a row.
size_t workspace_bytes(const Mixture& m, int64_t tokens) {
  size_t most = kHostedHead + 512 + 4 * static_cast<size_t>(std::max(m.groups, m.rows(tokens)));
  for (int64_t token = 1; token <= tokens; ++token)
    for (const lpq_weight* weight : {&m.both, &m.down})
      most = std::max(most, choice_of(*weight, m.rows(token)).workspace);
  return most;
}

}  // namespace
}  // namespace lpq::library

using namespace lpq;
using namespace lpq::library;

extern "C" {

lpq_status lpq_mixture_sizes(const lpq_mixture_desc* desc, int64_t tokens, size_t* scratch, size_t* workspace) {
  return guarded([&] {
    const Mixture m = mixture_of(desc);
    require_tokens(m, tokens);
    const Current current(m.context);
    if (scratch) *scratch = Between(m, tokens, nullptr).bytes();
    if (workspace) *workspace = workspace_bytes(m, tokens);
  });
}

lpq_status lpq_mixture(const lpq_mixture_desc* desc, int64_t tokens, const void* x, const int32_t* ids,
                       const float* weights, void* y, void* scratch, size_t scratch_bytes, void* workspace,
                       size_t bytes, void* stream, unsigned flags) {
  return guarded([&] {
    const Mixture m = mixture_of(desc);
    argument((flags & ~LPQ_GEMM_SETTLED) == 0, "there is no such flag");
    require_tokens(m, tokens);
    if (tokens == 0) return;
    require_address(x, "x");
    require_address(y, "y");
    require_address(ids, "ids", 4);
    require_address(weights, "weights", 4);
    require_address(scratch, "scratch", 512);
    require_address(workspace, "workspace", 512);
    const Between at(m, tokens, scratch);
    if (scratch_bytes < at.bytes() || bytes < cuda::kHostedHead)
      throw Failure("LPQ_WORKSPACE", scratch_bytes < at.bytes()
                                         ? "scratch has " + std::to_string(scratch_bytes) + " bytes, and " +
                                               std::to_string(at.bytes()) + " are needed"
                                         : "the workspace is too small: ask lpq_mixture_sizes()");
    const Current current(m.context);
    cuda::Hosted hosted(m.context->facts, *m.context->kernels, static_cast<cuda::CUstream>(stream), m.context,
                        static_cast<std::byte*>(workspace), bytes, (flags & LPQ_GEMM_SETTLED) != 0);
    hosted.exec().tune(&m.context->tuning);
    run_mixture(m, tokens, x, ids, weights, y, at, hosted.exec());
  });
}
}
