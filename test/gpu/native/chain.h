// Products in a row whose launches overlap.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/exec.h"
#include "harness.h"

namespace lpq::test {

struct Chain {
  std::string name, op;
  Params params;
  Tensor x;                    // f16 [m, k], k = n
  std::vector<Tensor> others;  // the operation's inputs behind x, on the host
  size_t scales = 0;           // which of them are the scales, 2-byte numbers, at most as many as x has
};

// Six launches with nothing between them: each product's y is the next one's x, and the last one's scales are the y
// before it, which it must not read early. The same bytes as where nothing overlaps, ten times.
inline void check_chain(Device& d, const Chain& chain, Report& report) {
  constexpr size_t kProducts = 6;
  const int64_t m = chain.x.dim(0), n = chain.x.dim(1);
  cuda::CudaExec& exec = d.backend().exec();
  const auto op = cuda::cuda_op_table().at(chain.op);
  const Tensor x = d.backend().upload(chain.x);
  std::vector<Tensor> others;
  for (const Tensor& other : chain.others) others.push_back(d.backend().upload(other));
  std::vector<uint8_t> want;
  for (int round = 0; round < 11; ++round) {
    Params p = chain.params;
    if (round == 0) p.set("overlap", 0.0);
    std::vector<Tensor> y;
    for (size_t i = 0; i < kProducts; ++i) y.push_back(d.backend().upload(poisoned(DType::f16, {m, n})));
    d.settle();
    // Operations are called past the queue, which waits for uploads; large and small ones have lanes of their own.
    for (const Tensor& one : y) one.storage->arrival->await_host();
    for (const Tensor& other : others) other.storage->arrival->await_host();
    x.storage->arrival->await_host();
    for (size_t i = 0; i < kProducts; ++i) {
      const bool last = i + 1 == kProducts;
      Call call;
      call.params = p;
      call.in = {i == 0 || last ? x : y[i - 1]};
      call.in.insert(call.in.end(), others.begin(), others.end());
      if (last) {
        Tensor& scales = call.in[1 + chain.scales];
        const std::vector<int64_t> shape = scales.shape;
        scales = y[i - 1], scales.shape = shape;
      }
      call.out = {y[i]};
      op(call, exec);
    }
    cuda::check(cuda::driver().stream_wait(exec.stream()), "waiting");
    std::vector<uint8_t> bytes;
    for (const Tensor& one : y) {
      const Tensor got = d.download(one);
      const uint8_t* data = reinterpret_cast<const uint8_t*>(got.raw());
      bytes.insert(bytes.end(), data, data + got.bytes());
    }
    if (round == 0) want = bytes;
    if (bytes != want) {
      const size_t at = static_cast<size_t>(std::mismatch(bytes.begin(), bytes.end(), want.begin()).first -
                                            bytes.begin()) /
                        2 * 2,
                   each = bytes.size() / kProducts;
      uint16_t got, wanted;
      std::memcpy(&got, bytes.data() + at, 2), std::memcpy(&wanted, want.data() + at, 2);
      std::printf("FAIL %s: other bytes from y %zu, %zu on: %04x, not %04x\n", chain.name.c_str(), at / each,
                  at % each / 2, got, wanted);
    }
    if (round > 0) report.that("products in a row that overlap", bytes == want);
  }
}

}  // namespace lpq::test
