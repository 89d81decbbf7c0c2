// launch_program: kernels of cubins that are made while lpq runs.
#include "cuda/launch.h"
#include "cuda/gemm/tensor_maps.h"
#include "ops/launch_program.h"

namespace lpq::cuda {
namespace {

TensorMap map_of(const ops::ProgramArgument& a, const Tensor& tensor) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  require(can_describe_tensors(), "the driver cannot describe tensors to TMA");
  require(a.sizes[0] * a.sizes[1] * a.sizes[2] * a.element <= static_cast<int64_t>(tensor.bytes()),
          "a tensor is smaller than its boxes say");
  return describe_boxes(tensor.raw(), a.element == 1 ? kMap8 : kMap16,
                        {u64(a.sizes[0]), u64(a.sizes[1]), u64(a.sizes[2])},
                        {u64(a.sizes[0] * a.element), u64(a.sizes[0] * a.sizes[1] * a.element)},
                        {u32(a.box[0]), u32(a.box[1]), u32(a.box[2])}, true);
}

void launch_program(Call& call, CudaExec& exec) {
  const ops::LaunchProgram op(call);
  require(op.shared <= exec.device().shared_per_block, "the kernel wants " + std::to_string(op.shared) +
                                                           " bytes of shared memory, the device has " +
                                                           std::to_string(exec.device().shared_per_block));
  const size_t count = op.arguments.size();
  std::vector<const void*> pointers(count);
  std::vector<TensorMap> maps(count);
  std::vector<void*> arguments(count);
  for (size_t i = 0; i < count; ++i) {
    const ops::ProgramArgument& a = op.arguments[i];
    switch (a.kind) {
      case ops::ProgramArgument::Kind::number: arguments[i] = const_cast<int32_t*>(&a.number); break;
      case ops::ProgramArgument::Kind::pointer:
        require_sixteen(*op.tensors[a.tensor], "a tensor of a program");
        pointers[i] = op.tensors[a.tensor]->raw();
        arguments[i] = &pointers[i];
        break;
      case ops::ProgramArgument::Kind::boxes:
        maps[i] = map_of(a, *op.tensors[a.tensor]);
        arguments[i] = &maps[i];
        break;
    }
  }
  exec.launch_loaded(op.cubin, op.kernel, {op.blocks}, {op.threads}, static_cast<unsigned>(op.shared),
                     arguments.data());
}
LPQ_CUDA_OP(launch_program, "launch_program");

}  // namespace
}  // namespace lpq::cuda
