// route_top_k, group_by_expert, gather_rows, scatter_add_rows. Contracts: native/ops.ts.
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// As in nn/routing.cu.
struct Choice {
  int experts, k, groups, top_groups, sigmoid, normalize, top_two, bias_type;
  float scale;
  const void* bias;
};

void route_top_k(Call& call, CudaExec& exec) {
  const Tensor &logits = call.input(0), &indices = call.output(0), &weights = call.output(1);
  require_tensor(logits, "logits", DType::f32, {-1, -1});
  const long long tokens = logits.dim(0);
  auto flag = [&](const char* name) { return call.params.number(name, 0) != 0; };
  Choice how{static_cast<int>(logits.dim(1)),
             static_cast<int>(call.params.integer("k")),
             static_cast<int>(call.params.integer("groups", 1)),
             static_cast<int>(call.params.integer("topGroups", 1)),
             flag("sigmoid"),
             flag("normalize"),
             flag("topTwo"),
             0,
             static_cast<float>(call.params.number("scale", 1.0)),
             nullptr};
  require(how.experts <= 2048, "there are " + std::to_string(how.experts) + " experts, more than 2048");
  require(how.groups >= 1 && how.experts % how.groups == 0, "groups is " + std::to_string(how.groups) +
                                                                ", which does not divide " +
                                                                std::to_string(how.experts) + " experts");
  require(how.top_groups >= 1 && how.top_groups <= how.groups,
          "topGroups is " + std::to_string(how.top_groups) + ", not between 1 and " + std::to_string(how.groups));
  const int size = how.experts / how.groups, open = how.top_groups * size;
  require(!how.top_two || size >= 2, "topTwo needs groups of two experts at least");
  require(how.k >= 1 && how.k <= open, "k is " + std::to_string(how.k) +
                                           ", not between 1 and the number of experts to choose from, " +
                                           std::to_string(open));
  require_tensor(indices, "indices", DType::i32, {tokens, how.k});
  require_tensor(weights, "weights", DType::f32, {tokens, how.k});
  if (call.in.size() > 1) {
    const Tensor& bias = call.input(1);
    require_dtype(bias, "bias", kActivations);
    require_shape(bias, "bias", {how.experts});
    how.bias = bias.raw();
    how.bias_type = type_index(bias.dtype);
  }
  uint32_t* fault = exec.fault("LPQ_NATIVE_NUMERICS", "a routing logit or bias is NaN or infinite");
  const int warps = how.experts + how.groups <= 2048 ? 4 : 2;  // within the 48 KB of shared memory that need no asking
  exec.launch("lpq_route_top_k", {div_up(tokens, warps)}, {32, warps},
              static_cast<unsigned>(warps * (how.experts + how.groups) * 4), logits.data<float>(),
              indices.data<int32_t>(), weights.data<float>(), tokens, how, fault);
}

void group_by_expert(Call& call, CudaExec& exec) {
  const Tensor &indices = call.input(0), &rows = call.output(0), &offsets = call.output(1);
  require_tensor(indices, "indices", DType::i32, {-1, -1});
  const int experts = static_cast<int>(call.params.integer("experts"));
  require(experts > 0, "experts is " + std::to_string(experts));
  require(indices.elements() < (int64_t{1} << 31), "there are 2^31 routed tokens or more");
  const int count = static_cast<int>(indices.elements());
  require_tensor(rows, "rows", DType::i32, {count});
  require_tensor(offsets, "offsets", DType::i32, {experts + 1});
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "indices holds a value outside " + std::to_string(experts) + " experts");
  const Scratch counts = exec.scratch(static_cast<size_t>(experts) * 4);
  int32_t* sums = counts.as<int32_t>();
  exec.launch("lpq_count_experts", {experts}, {512}, 0, indices.data<int32_t>(), count, sums, experts, fault);
  exec.launch("lpq_expert_offsets", {1}, {1}, 0, sums, offsets.data<int32_t>(), experts);
  exec.launch("lpq_group_rows", {experts}, {512}, 0, indices.data<int32_t>(), count, offsets.data<int32_t>(),
              rows.data<int32_t>());
}

void gather_rows(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &rows = call.input(1), &y = call.output(0);
  require_dtype(x, "x", kActivations);
  require_shape(x, "x", {-1, -1});
  require_tensor(rows, "rows", DType::i32, {-1});
  const int width = static_cast<int>(x.dim(1)), divide = static_cast<int>(call.params.integer("divide", 1));
  require(divide >= 1, "divide is " + std::to_string(divide));
  require_tensor(y, "y", x.dtype, {rows.dim(0), width});
  const long long limit = x.dim(0);
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "rows holds a value outside x of " + std::to_string(limit) + " rows");
  const void* from = x.raw();
  void* to = y.raw();
  exec.launch("lpq_gather" + suffix(x), {rows.dim(0)}, {256}, 0, from, rows.data<int32_t>(), to, width, divide, limit,
              fault);
}

void scatter_add_rows(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &rows = call.input(1), &weights = call.input(2), &y = call.output(0);
  require_dtype(x, "x", kActivations);
  require_shape(x, "x", {-1, -1});
  const int count = static_cast<int>(x.dim(0)), width = static_cast<int>(x.dim(1)),
            divide = static_cast<int>(call.params.integer("divide"));
  require(divide >= 1, "divide is " + std::to_string(divide));
  require_tensor(rows, "rows", DType::i32, {count});
  require_dtype(weights, "weights", {DType::f32});
  require_tensor(y, "y", DType::f32, {-1, width});
  const int limit = static_cast<int>(weights.elements());
  require(limit == y.dim(0) * divide,
          "weights has " + std::to_string(limit) + " elements, not " + std::to_string(divide) + " for each row of y");
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "rows holds a value outside y and weights");
  const Scratch scratch = exec.scratch(static_cast<size_t>(limit) * 4);
  int32_t* place = scratch.as<int32_t>();
  if (limit > 0)
    check(driver().fill_words(reinterpret_cast<CUdeviceptr>(place), 0xffffffffu, static_cast<size_t>(limit),
                              exec.stream()),
          "filling memory");
  exec.launch("lpq_invert_rows", {div_up(count, 256)}, {256}, 0, rows.data<int32_t>(), count, place, limit, fault);
  const void* from = x.raw();
  // Whole groups of four: the compiler reads the order four at a time.
  exec.launch("lpq_scatter" + suffix(x), {y.dim(0)}, {256}, static_cast<unsigned>(div_up(divide, 4) * 16), from, place,
              weights.data<float>(), y.data<float>(), width, divide);
}

}  // namespace
LPQ_CUDA_OP(route_top_k, "route_top_k");
LPQ_CUDA_OP(group_by_expert, "group_by_expert");
LPQ_CUDA_OP(gather_rows, "gather_rows");
LPQ_CUDA_OP(scatter_add_rows, "scatter_add_rows");
}  // namespace lpq::cuda
