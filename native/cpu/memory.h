// Memory of tensors. Fresh pages cost a fault each, so blocks that were let go are kept for the next tensor of
// about their size: up to 1 GB, and a sixteenth of the memory that this process may use.
#pragma once
#include <cstddef>

namespace lpq {

struct Block {
  void* data = nullptr;
  size_t bytes = 0;  // the capacity, at least what was asked for
};

// 64-byte aligned (2 MB from 4 MB on, with large pages asked for). data is null when there is no memory.
Block take_block(size_t bytes);
void give_block(Block block);

}  // namespace lpq
