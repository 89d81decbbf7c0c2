#include "cuda/nn/routing.h"

#include "cuda/launch.h"
#include "ops/routing.h"

namespace lpq::cuda {
namespace {

// As in nn/routing.cu.
struct Choice {
  int experts, k, groups, top_groups, sigmoid, normalize, top_two, bias_type;
  float scale;
  const void* bias;
};

// Routed rows that one block sees at once: those of decode steps.
constexpr int kFewRows = 1024;
// Blocks of 256 threads that share a row of `width`, where rows alone do not fill the device.
int row_parts(const CudaExec& exec, int64_t rows, int64_t width) {
  const int64_t room = div_up(int64_t{4} * exec.device().multiprocessors, std::max<int64_t>(rows, 1));
  return static_cast<int>(std::max<int64_t>(1, std::min(room, div_up(width, 256))));
}

void route_top_k(Call& call, CudaExec& exec) {
  const ops::RouteTopK a(call);
  const long long tokens = a.logits.dim(0);
  const int experts = static_cast<int>(a.logits.dim(1));
  require(experts <= 2048, "there are " + std::to_string(experts) + " experts, more than 2048");
  if (a.jitter > 0) {
    uint32_t* bad = exec.fault("LPQ_NATIVE_NUMERICS", "a routing logit is NaN or infinite");
    const int k = static_cast<int>(a.k);
    return exec.launch("lpq_route_mixer", {div_up(tokens, 4)}, {32, 4}, static_cast<unsigned>(4 * experts * 4),
                       a.logits.data<float>(), a.indices.data<int32_t>(), a.weights.data<float>(), tokens, experts, k,
                       a.jitter, a.scale, bad);
  }
  const Choice how{experts,
                   static_cast<int>(a.k),
                   static_cast<int>(a.groups),
                   static_cast<int>(a.top_groups),
                   a.sigmoid,
                   a.normalize,
                   a.top_two,
                   type_of(a.bias),
                   a.scale,
                   raw_of(a.bias)};
  uint32_t* fault = exec.fault("LPQ_NATIVE_NUMERICS", "a routing logit or bias is NaN or infinite");
  const int warps = how.experts + how.groups <= 2048 ? 4 : 2;  // within the 48 KB of shared memory that need no asking
  exec.launch("lpq_route_top_k", {div_up(tokens, warps)}, {32, warps},
              static_cast<unsigned>(warps * (how.experts + how.groups) * 4), a.logits.data<float>(),
              a.indices.data<int32_t>(), a.weights.data<float>(), tokens, how, fault);
}

void group_by_expert(Call& call, CudaExec& exec) {
  const ops::GroupByExpert op(call);
  const int experts = static_cast<int>(op.experts), count = static_cast<int>(op.indices.elements());
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "indices holds a value outside " + std::to_string(experts) + " experts");
  if (count <= kFewRows && experts <= 8192)
    return exec.launch_after("lpq_group_few", {1}, {std::max<int64_t>(1, div_up(count, 32)) * 32},
                             static_cast<unsigned>(experts + count) * 4, op.indices.data<int32_t>(), count,
                             op.offsets.data<int32_t>(), op.rows.data<int32_t>(), experts, fault);
  const Scratch counts = exec.scratch(static_cast<size_t>(experts) * 4);
  int32_t* sums = counts.as<int32_t>();
  exec.launch("lpq_count_experts", {experts}, {512}, 0, op.indices.data<int32_t>(), count, sums, experts, fault);
  exec.launch("lpq_expert_offsets", {1}, {32}, 0, sums, op.offsets.data<int32_t>(), experts);
  exec.launch("lpq_group_rows", {experts}, {512}, 0, op.indices.data<int32_t>(), count, op.offsets.data<int32_t>(),
              op.rows.data<int32_t>());
}

void gather_rows(Call& call, CudaExec& exec) {
  const ops::GatherRows op(call);
  const int width = static_cast<int>(op.x.dim(1)), divide = static_cast<int>(op.divide);
  const long long limit = op.x.dim(0);
  uint32_t* fault =
      exec.fault("LPQ_NATIVE_ARGUMENT", "rows holds a value outside x of " + std::to_string(limit) + " rows");
  const int64_t count = op.rows.dim(0);
  const int parts = row_parts(exec, count, width);
  exec.launch_after("lpq_gather" + suffix(op.x), {count * parts}, {256}, 0, op.x.raw(), op.rows.data<int32_t>(),
                    op.y.raw(), width, divide, limit, parts, fault);
}

// Where each of `limit` rows stands among `rows`; -1: nowhere.
Scratch places_of(CudaExec& exec, const Tensor& rows, int limit, uint32_t* fault) {
  Scratch scratch = exec.scratch(static_cast<size_t>(limit) * 4);
  int32_t* place = scratch.as<int32_t>();
  const int64_t count = rows.elements();
  if (limit > 0)
    check(driver().fill_words(reinterpret_cast<CUdeviceptr>(place), 0xffffffffu, static_cast<size_t>(limit),
                              exec.stream()),
          "filling memory");
  exec.launch("lpq_invert_rows", {div_up(count, 256)}, {256}, 0, rows.data<int32_t>(), static_cast<int>(count), place,
              limit, fault);
  return scratch;
}

void scatter_add_rows(Call& call, CudaExec& exec) {
  const ops::ScatterAddRows op(call);
  const int count = static_cast<int>(op.x.dim(0)), width = static_cast<int>(op.x.dim(1)),
            divide = static_cast<int>(op.divide);
  const int limit = static_cast<int>(op.weights.elements());
  require(limit == op.y.dim(0) * divide,
          "weights has " + std::to_string(limit) + " elements, not " + std::to_string(divide) + " for each row of y");
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "rows holds a value outside y and weights");
  const int64_t tokens = op.y.dim(0);
  const int parts = row_parts(exec, tokens, width);
  // Whole groups of four: the compiler reads the order four at a time.
  const auto order_bytes = static_cast<unsigned>(div_up(divide, 4) * 16);
  if (count <= kFewRows)
    return exec.launch_after("lpq_scatter_few" + suffix(op.x), {tokens * parts}, {256}, 2 * order_bytes, op.x.raw(),
                             op.rows.data<int32_t>(), op.weights.data<float>(), op.y.data<float>(), count, width,
                             divide, limit, parts, fault);
  const Scratch scratch = places_of(exec, op.rows, limit, fault);
  exec.launch_after("lpq_scatter" + suffix(op.x), {tokens * parts}, {256}, order_bytes, op.x.raw(),
                    scratch.as<int32_t>(), op.weights.data<float>(), op.y.data<float>(), width, divide, parts);
}

}  // namespace

void combine_rows(CudaExec& exec, const Tensor& x, const Tensor& rows, const int32_t* end, const float* weights,
                  const Tensor& y, int64_t places) {
  const int count = static_cast<int>(x.dim(0)), width = static_cast<int>(x.dim(1)), divide = static_cast<int>(places);
  const int64_t tokens = y.dim(0);
  const int limit = static_cast<int>(tokens * places), parts = row_parts(exec, tokens, width);
  uint32_t* fault = exec.fault("LPQ_NATIVE_ARGUMENT", "rows holds a value outside y and weights");
  const auto order_bytes = static_cast<unsigned>(div_up(divide, 4) * 16);
  if (count <= kFewRows)
    return exec.launch_after("lpq_combine_few" + suffix(x), {tokens * parts}, {256}, 2 * order_bytes, x.raw(),
                             rows.data<int32_t>(), end, weights, y.raw(), count, width, divide, limit, parts, fault);
  const Scratch scratch = places_of(exec, rows, limit, fault);
  exec.launch_after("lpq_combine" + suffix(x), {tokens * parts}, {256}, order_bytes, x.raw(), scratch.as<int32_t>(),
                    end, weights, y.raw(), width, divide, parts);
}

LPQ_CUDA_OP(route_top_k, "route_top_k");
LPQ_CUDA_OP(group_by_expert, "group_by_expert");
LPQ_CUDA_OP(gather_rows, "gather_rows");
LPQ_CUDA_OP(scatter_add_rows, "scatter_add_rows");
}  // namespace lpq::cuda
