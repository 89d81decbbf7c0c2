// layout_pack and layout_unpack (native/ops.ts): the plan is made on the CPU, as for the CPU's engine, and its tables go
// along with the call.
#include <algorithm>

#include "cuda/exec.h"
#include "cuda/layout/pack.h"
#include "lpq/layout_plan.h"

namespace lpq::cuda {
namespace {

using layout::Plan;
using layout::Spec;

template <class T>
Scratch upload(CudaExec& exec, const std::vector<T>& table) {
  Scratch room = exec.scratch(std::max<size_t>(16, table.size() * sizeof(T)));
  exec.write_small(room.as<void>(), table.data(), table.size() * sizeof(T));
  return room;
}

LayoutArgs read_matrix(const Tensor& tensor, const Params& params, const Spec& spec) {
  LayoutArgs a{};
  require(tensor.rank() == 2, "the matrix has two dimensions");
  a.matrix = reinterpret_cast<uint8_t*>(tensor.raw());
  a.bits = spec.bits;
  a.stream = params.integer("streamed", 0) != 0;
  a.rows = tensor.dim(0);
  a.columns = params.integer("columns", tensor.dim(1));
  const int64_t width = spec.bits <= 8 ? 1 : spec.bits / 8;
  require(static_cast<int64_t>(dtype_bytes(tensor.dtype)) == width, "the matrix has elements of another width than the layout");
  require(!a.stream || spec.bits <= 8, "only codes of up to 8 bits come as a bitstream");
  a.row_bytes = a.stream ? (a.columns * spec.bits + 7) / 8 : a.columns * width;
  require(a.columns >= 0 && a.row_bytes == tensor.dim(1) * width, "the matrix has another number of columns than it was said to have");
  require(a.rows <= spec.extent[0] && a.columns <= spec.extent[1], "the matrix is larger than the layout");
  require(reinterpret_cast<uintptr_t>(a.matrix) % static_cast<size_t>(width) == 0, "the matrix does not start at a multiple of its element's size");
  a.bias = static_cast<uint32_t>(params.integer("bias", 0));
  a.pad = static_cast<uint32_t>(params.integer("pad", 0));
  return a;
}

void run(CudaExec& exec, const char* kernel, LayoutArgs a, const Plan& plan, const Tensor& packed, const std::vector<uint32_t>& first, const Scratch& pieces, int64_t work) {
  const Scratch rows = upload(exec, plan.outer[0]), columns = upload(exec, plan.outer[1]), words = upload(exec, plan.words), starts = upload(exec, first);
  a.packed = reinterpret_cast<uint8_t*>(packed.raw());
  a.word_bytes = plan.word_bits / 8;
  require(reinterpret_cast<uintptr_t>(a.packed) % static_cast<size_t>(a.word_bytes) == 0, "the packed tensor does not start at a whole word");
  a.tile_rows = plan.tile[0];
  a.tile_columns = plan.tile[1];
  a.tiles_down = static_cast<int64_t>(plan.outer[0].size());
  a.tiles_across = static_cast<int64_t>(plan.outer[1].size());
  a.outer_rows = rows.as<int64_t>();
  a.outer_columns = columns.as<int64_t>();
  a.words = words.as<int64_t>();
  a.word_count = static_cast<int64_t>(plan.words.size());
  a.first = starts.as<uint32_t>();
  a.pieces = pieces.as<void>();
  if (work > 0) exec.launch(kernel, Dim3(std::min<int64_t>((work + 255) / 256, int64_t{exec.device().multiprocessors} * 32)), Dim3(256), 0, a);
}

void layout_pack(Call& call, CudaExec& exec) {
  for (const Tensor& tensor : call.in) require_device(exec, tensor, "an input");
  const Tensor& out = call.output(0);
  require_device(exec, out, "the packed tensor");
  const Spec spec = layout::read_spec(call.params, out.bytes());
  LayoutArgs a = read_matrix(call.input(0), call.params, spec);
  if (call.in.size() > 1) {
    require(call.in[1].elements() == a.columns, "the order names every column once");
    a.order = call.in[1].data<int32_t>();
    if (a.columns > 0)
      exec.launch("lpq_layout_check_order", Dim3((a.columns + 255) / 256), Dim3(256), 0, a.order, a.columns,
                  exec.fault("LPQ_NATIVE_ARGUMENT", "the order names a column that is not there"));
  }
  const int64_t pad = call.params.integer("pad", 0);
  require(pad >= 0 && (spec.bits == 32 || pad < (1LL << spec.bits)), "the padding is not a code");
  const Plan plan = layout::make_plan(spec, 1);
  if (!plan.fills && call.params.integer("keep", 0) == 0) exec.fill_zero(out.raw(), out.bytes());
  run(exec, "lpq_layout_pack", a, plan, out, plan.first, upload(exec, plan.pieces), plan.tiles() * static_cast<int64_t>(plan.words.size()));
}

void layout_unpack(Call& call, CudaExec& exec) {
  const Tensor &packed = call.input(0), &matrix = call.output(0);
  require_device(exec, packed, "the packed tensor");
  require_device(exec, matrix, "the matrix");
  const Spec spec = layout::read_spec(call.params, packed.bytes());
  const LayoutArgs a = read_matrix(matrix, call.params, spec);
  const Plan plan = layout::make_plan(spec, a.stream ? 8 : 1);
  // The pieces by element instead of by word.
  const size_t elements = static_cast<size_t>(plan.tile[0] * plan.tile[1]);
  std::vector<uint32_t> first(elements + 1, 0);
  for (const layout::Piece& piece : plan.pieces) ++first[piece.element + 1];
  for (size_t i = 0; i < elements; ++i) first[i + 1] += first[i];
  std::vector<LayoutRun> runs(plan.pieces.size());
  std::vector<uint32_t> next(first.begin(), first.end() - 1);
  for (size_t w = 0; w < plan.words.size(); ++w)
    for (uint32_t i = plan.first[w]; i < plan.first[w + 1]; ++i)
      runs[next[plan.pieces[i].element]++] = {static_cast<uint32_t>(w), plan.pieces[i].mask, plan.pieces[i].shift};
  run(exec, "lpq_layout_unpack", a, plan, packed, first, upload(exec, runs), a.rows * (a.stream ? a.row_bytes : a.columns));
}

LPQ_CUDA_OP(layout_pack, "layout_pack");
LPQ_CUDA_OP(layout_unpack, "layout_unpack");

}  // namespace
}  // namespace lpq::cuda
