#include "cuda/hosted.h"

#include <algorithm>

#include "lpq/failure.h"

namespace lpq::cuda {

std::byte* Arena::take(size_t bytes) {
  const size_t end = used_ + (std::max<size_t>(bytes, 1) + 511) / 512 * 512;
  if (end > bytes_ || end < used_)
    throw Failure("LPQ_WORKSPACE", "the workspace is too small: " + std::to_string(end + kHostedHead) +
                                       " bytes or more are needed, " + std::to_string(bytes_ + kHostedHead) +
                                       " were given");
  blocks_.push_back({used_, end, false});
  used_ = end;
  most_ = std::max(most_, used_);
  return base_ + blocks_.back().begin;
}

void Arena::give(std::byte* address) noexcept {
  const auto begin = static_cast<size_t>(address - base_);
  for (Block& block : blocks_)
    if (block.begin == begin) block.given = true;
  while (!blocks_.empty() && blocks_.back().given) {
    used_ = blocks_.back().begin;
    blocks_.pop_back();
  }
}

Hosted::Hosted(const DeviceFacts& facts, Kernels& kernels, CUstream stream, const void* owner, std::byte* memory,
               size_t bytes, bool settled)
    : arena_(memory + kHostedHead, bytes < kHostedHead ? 0 : bytes - kHostedHead) {
  exec_.facts_ = facts;
  exec_.kernels_ = &kernels;
  exec_.stream_ = stream;
  exec_.owner_ = owner;
  exec_.arena_ = &arena_;
  exec_.head_ = memory;
  exec_.settled_ = settled;
}

Hosted::Hosted(const DeviceFacts& facts, Kernels* kernels, const void* owner, Rehearsal& rehearsal)
    : arena_(reinterpret_cast<std::byte*>(kNowhere) + kHostedHead, size_t{1} << 41) {
  exec_.facts_ = facts;
  exec_.kernels_ = kernels;
  exec_.owner_ = owner;
  exec_.arena_ = &arena_;
  exec_.head_ = reinterpret_cast<std::byte*>(kNowhere);
  exec_.rehearsal_ = &rehearsal;
}

}  // namespace lpq::cuda
