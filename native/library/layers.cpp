#include "library/layers.h"

#include <algorithm>
#include <optional>

#include "library/status.h"

namespace lpq::library {
namespace {

using namespace lpq::cuda;

// Bytes of the caller's; without an address a place that nobody looks at.
Tensor place(const Layer& layer, const void* address, int place, DType dtype, std::vector<int64_t> shape) {
  return tensor_at(address, place, dtype, std::move(shape), layer.ordinal, layer.owner);
}

}  // namespace

bool is_layer(int layout) { return layout == LPQ_LAYOUT_COMET; }

Layer make_layer(const lpq_weight_desc& d, int ordinal, const void* owner) {
  Layer layer;
  argument(d.n >= 1, "N is 0 or negative");
  ops::require_gemm_sizes(1, d.n, d.k);
  argument(d.zero_type == LPQ_NONE, "comet has no zero points");
  argument(d.activations == LPQ_F16 || d.activations == LPQ_BF16, "activations is neither LPQ_F16 nor LPQ_BF16");
  argument(d.experts == 0, "only tilus and turbomind have a form for experts");
  argument(d.type != nullptr && std::string(d.type) == "i4", "comet has i4 codes");
  argument(d.group == 128 && d.k % 128 == 0, "comet has groups of 128, and K of whole ones");
  argument(d.scale_type == LPQ_F32, "comet's scales are f32");
  layer.n = d.n, layer.k = d.k;
  layer.x = d.activations == LPQ_F16 ? DType::f16 : DType::bf16;
  layer.ordinal = ordinal, layer.owner = owner;
  const int64_t n_pad = ops::up_to(d.n, 16), count = d.k / 128;
  argument((d.n_padded == 0 || d.n_padded == n_pad) && (d.k_padded == 0 || d.k_padded == d.k),
           "comet is stored in N of whole sixteens, and K as it is");
  argument(d.eight_bit_blocks >= 0 && d.eight_bit_blocks <= count, "eight_bit_blocks is not between 0 and K / 128");
  layer.eights = d.eight_bit_blocks;
  const Tensor blocks = place(layer, d.blocks, 3, DType::i32, {count});
  layer.codes.in = {Tensor(), place(layer, d.block_bits, 1, DType::u8, {count}),
                    place(layer, d.block_clip, 2, DType::f32, {count}), blocks};
  if (d.permutation) layer.codes.in.push_back(place(layer, d.permutation, 4, DType::i32, {d.k}));
  layer.product.in = {Tensor(),
                      Tensor(),
                      Tensor(),
                      blocks,
                      place(layer, d.weights, 5, DType::u8, {n_pad / 16, count, 1024}),
                      place(layer, d.scales, 6, DType::f32, {count, n_pad})};
  if (d.bias) layer.product.in.push_back(place(layer, d.bias, 7, DType::f32, {d.n}));
  layer.quantize = cuda_op_table().at("quantize_comet");
  layer.multiply = cuda_op_table().at("gemm_comet");
  return layer;
}

void run_layer(const Layer& layer, int64_t m, const void* x, void* y, CudaExec& exec) {
  const int64_t count = layer.k / 128;
  std::optional<Scratch> kept[3];
  const auto between = [&](int i, DType dtype, std::vector<int64_t> shape) {
    Tensor tensor = place(layer, nullptr, 9 + i, dtype, std::move(shape));
    kept[i].emplace(exec.scratch(tensor.bytes()));
    tensor.storage->data = kept[i]->as<std::byte>();
    return tensor;
  };
  Call codes = layer.codes, product = layer.product;
  codes.in[0] = place(layer, x, 0, layer.x, {m, layer.k});
  codes.out = {between(0, DType::i8, {m, 128 * layer.eights}), between(1, DType::u8, {m, 64 * (count - layer.eights)}),
               between(2, DType::f32, {count, ops::up_to(m, 4)})};
  layer.quantize(codes, exec);
  std::copy(codes.out.begin(), codes.out.end(), product.in.begin());
  product.out = {place(layer, y, 8, layer.x, {m, layer.n})};
  layer.multiply(product, exec);
}

Choice choose_layer(const Layer& layer, int64_t m, const DeviceFacts& device, Kernels* kernels,
                    const std::set<std::string>* names) {
  if (!device.features.wgmma)
    throw Failure("LPQ_UNSUPPORTED",
                  "products of codes with codes have kernels for devices of compute capability 9.0, " + device.name +
                      " has " + compute_capability(device.arch));
  return rehearse(device, kernels, names, nullptr, layer.owner,
                  [&](CudaExec& exec) { run_layer(layer, m, nullptr, nullptr, exec); });
}

}  // namespace lpq::library
