// launch_program: a kernel that `lpq tilus compile` wrote, of a cubin that nvcc made of it. CUDA only.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// What a kernel's parameter is given. Tensors are numbered from 0, inputs first, then outputs.
struct ProgramArgument {
  enum class Kind { pointer, number, boxes } kind;
  size_t tensor = 0;
  int32_t number = 0;
  // Of boxes (a tensor map): bytes of an element, sizes of the tensor and of a box in elements, innermost first.
  int64_t element = 0, sizes[3] = {}, box[3] = {};
};

// Blocks of one dimension of the kernel `kernel` of the file `cubin`, which is read at its first launch: a path stands
// for the same bytes as long as the runtime lives. `arguments` lists each parameter: 0, tensor; 1, number; 2, tensor,
// element, sizes, box.
struct LaunchProgram : Arguments {
  const std::string& cubin = text("cubin");
  const std::string& kernel = text("kernel");
  int64_t blocks = at_least(1, "blocks"), threads = at_least(1, "threads"), shared = at_least(0, "shared");
  std::vector<const Tensor*> tensors;
  std::vector<ProgramArgument> arguments;

  explicit LaunchProgram(const Call& call) : Arguments(call, "launch_program") {
    while (left() > 0) tensors.push_back(&input("a tensor"));
    while (outputs_left() > 0) tensors.push_back(&output("a tensor"));
    const std::vector<double>& words = list("arguments");
    size_t at = 0;
    const auto next = [&](double least, double most) {
      require(at < words.size(), "arguments end within one");
      const double word = words[at++];
      require(word == std::trunc(word) && word >= least && word <= most, "arguments have a word out of range");
      return static_cast<int64_t>(word);
    };
    while (at < words.size()) {
      ProgramArgument argument{static_cast<ProgramArgument::Kind>(next(0, 2))};
      if (argument.kind == ProgramArgument::Kind::number) {
        argument.number = static_cast<int32_t>(next(-0x1p31, 0x1p31 - 1));
      } else {
        argument.tensor = static_cast<size_t>(next(0, static_cast<double>(tensors.size()) - 1));
        if (argument.kind == ProgramArgument::Kind::boxes) {
          argument.element = next(1, 2);
          for (int64_t& size : argument.sizes) size = next(1, 0x1p31);
          for (int64_t& size : argument.box) size = next(1, 256);
        }
      }
      arguments.push_back(argument);
    }
    done();
  }
};

}  // namespace lpq::ops
