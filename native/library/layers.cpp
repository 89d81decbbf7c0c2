#include "library/layers.h"

#include <optional>

#include "cuda/gemm/tensor_maps.h"
#include "cuda/hosted.h"
#include "cuda/launch.h"
#include "library/status.h"

namespace lpq::library {
namespace {

using namespace lpq::cuda;

constexpr int64_t kMost = (int64_t{1} << 31) - 1024;
int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes of the caller's; without an address a place that nobody looks at, `place` terabytes on.
Tensor tensor_at(const Layer& layer, const void* address, int place, DType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.storage = std::make_shared<Storage>();
  tensor.storage->data = address ? static_cast<std::byte*>(const_cast<void*>(address))
                                 : reinterpret_cast<std::byte*>(kNowhere + (uintptr_t(place + 1) << 42));
  tensor.storage->owner = layer.owner;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.device = layer.ordinal;
  tensor.storage->bytes = tensor.bytes();
  return tensor;
}

void require_sizes(const lpq_weight_desc& d, const char* layout) {
  argument(d.n >= 1 && d.n < kMost && d.k >= 1 && d.k < kMost, "N or K is 0, negative, or 2^31 or more");
  argument(d.zero_type == LPQ_NONE, std::string(layout) + " has no zero points");
  argument(d.activations == LPQ_F16 || d.activations == LPQ_BF16, "activations is neither LPQ_F16 nor LPQ_BF16");
  argument(d.experts == 0, "only turbomind has a form for experts");
  argument(d.type != nullptr, "type is NULL");
}

void make_sparse(const lpq_weight_desc& d, Layer& layer) {
  const std::string type = d.type;
  argument(type == "u4" || type == "i4" || type == "u8" || type == "i8",
           "sparse_marlin has u4 and u8; signed types are stored as these");
  argument(d.group == 0 || d.group == 128, "the group of sparse_marlin is not 0 (one scale a row) or 128");
  argument(d.scale_type == LPQ_F16, "sparse_marlin's scales are f16");
  argument(d.permutation == nullptr, "sparse_marlin has no order of columns");
  const int64_t n_pad = d.n_padded ? d.n_padded : round_up(d.n, 256),
                k_pad = d.k_padded ? d.k_padded : round_up(d.k, 128), bits = type[1] - '0';
  argument(n_pad >= d.n && k_pad >= d.k && n_pad % 64 == 0 && k_pad % 128 == 0 && n_pad < kMost + 1024 &&
               k_pad < kMost + 1024,
           "sparse_marlin is stored in whole tiles of 64 columns and 128 rows that hold N and K");
  Call& call = layer.product;
  call.in.resize(1);
  call.in.push_back(tensor_at(layer, d.weights, 1, DType::i32, {k_pad / 32, n_pad * bits / 2}));
  call.in.push_back(tensor_at(layer, d.metadata, 2, DType::i16, {k_pad / 32, 2 * n_pad}));
  call.in.push_back(tensor_at(layer, d.scales, 3, DType::f16, {d.group ? k_pad / d.group : 1, n_pad}));
  if (d.bias) call.in.push_back(tensor_at(layer, d.bias, 4, layer.x, {d.n}));
  call.params.set("bits", double(bits)), call.params.set("groupLength", double(d.group)),
      call.params.set("hasBias", d.bias ? 1.0 : 0.0);
  layer.multiply = cuda_op_table().at("gemm_sparse_marlin");
}

void make_comet(const lpq_weight_desc& d, Layer& layer) {
  argument(std::string(d.type) == "i4", "comet has i4 codes");
  argument(d.group == 128 && d.k % 128 == 0, "comet has groups of 128, and K of whole ones");
  argument(d.scale_type == LPQ_F32, "comet's scales are f32");
  const int64_t n_pad = d.n_padded ? d.n_padded : round_up(d.n, 16), count = d.k / 128;
  argument(n_pad == round_up(d.n, 16) && (d.k_padded == 0 || d.k_padded == d.k),
           "comet is stored in N of whole sixteens, and K as it is");
  argument(d.eight_bit_blocks >= 0 && d.eight_bit_blocks <= count, "eight_bit_blocks is not between 0 and K / 128");
  layer.eights = d.eight_bit_blocks;
  const auto i32 = [&](const void* address, int place, int64_t size) {
    return tensor_at(layer, address, place, DType::i32, {size});
  };
  layer.codes.in.resize(1);
  layer.codes.in.push_back(tensor_at(layer, d.block_bits, 1, DType::u8, {count}));
  layer.codes.in.push_back(tensor_at(layer, d.block_clip, 2, DType::f32, {count}));
  layer.codes.in.push_back(i32(d.blocks, 3, count));
  if (d.permutation) layer.codes.in.push_back(i32(d.permutation, 4, d.k));
  layer.product.in.resize(3);
  layer.product.in.push_back(i32(d.blocks, 3, count));
  layer.product.in.push_back(tensor_at(layer, d.weights, 5, DType::u8, {n_pad / 16, count, 1024}));
  layer.product.in.push_back(tensor_at(layer, d.scales, 6, DType::f32, {count, n_pad}));
  if (d.bias) layer.product.in.push_back(tensor_at(layer, d.bias, 7, DType::f32, {d.n}));
  layer.quantize = cuda_op_table().at("quantize_comet");
  layer.multiply = cuda_op_table().at("gemm_comet");
}

}  // namespace

bool is_layer(int layout) { return layout == LPQ_LAYOUT_SPARSE_MARLIN || layout == LPQ_LAYOUT_COMET; }

Layer make_layer(const lpq_weight_desc& d, int ordinal, const void* owner) {
  Layer layer;
  layer.layout = d.layout;
  require_sizes(d, d.layout == LPQ_LAYOUT_COMET ? "comet" : "sparse_marlin");
  layer.n = d.n, layer.k = d.k;
  layer.x = d.activations == LPQ_F16 ? DType::f16 : DType::bf16;
  layer.ordinal = ordinal, layer.owner = owner;
  if (d.layout == LPQ_LAYOUT_COMET) make_comet(d, layer);
  else make_sparse(d, layer);
  return layer;
}

void run_layer(const Layer& layer, int64_t m, const void* x, void* y, CudaExec& exec) {
  const Tensor rows = tensor_at(layer, x, 0, layer.x, {m, layer.k});
  Call product = layer.product;
  product.out = {tensor_at(layer, y, 8, layer.x, {m, layer.n})};
  if (!layer.quantize) {
    product.in[0] = rows;
    return layer.multiply(product, exec);
  }
  const int64_t count = layer.k / 128, pitch = round_up(m, 4);
  std::optional<Scratch> kept[3];
  const auto between = [&](int i, DType dtype, std::vector<int64_t> shape) {
    Tensor tensor = tensor_at(layer, nullptr, 9 + i, dtype, std::move(shape));
    kept[i].emplace(exec.scratch(tensor.bytes()));
    tensor.storage->data = kept[i]->as<std::byte>();
    return tensor;
  };
  Call codes = layer.codes;
  codes.in[0] = rows;
  codes.out = {between(0, DType::i8, {m, 128 * layer.eights}), between(1, DType::u8, {m, 64 * (count - layer.eights)}),
               between(2, DType::f32, {count, pitch})};
  layer.quantize(codes, exec);
  for (size_t i = 0; i < 3; ++i) product.in[i] = codes.out[i];
  layer.multiply(product, exec);
}

Choice choose_layer(const Layer& layer, int64_t m, const DeviceFacts& device, Kernels* kernels,
                    const std::set<std::string>* names) {
  if (layer.quantize && !device.features.wgmma)
    throw Failure("LPQ_UNSUPPORTED",
                  "products of codes with codes have kernels for devices of compute capability 9.0, " + device.name +
                      " has " + compute_capability(device.arch));
  std::optional<NoTensorMaps> nobody;
  if (!kernels) nobody.emplace();
  Rehearsal rehearsal;
  rehearsal.names = names;
  Hosted hosted(device, kernels, layer.owner, rehearsal);
  run_layer(layer, m, nullptr, nullptr, hosted.exec());
  Choice choice;
  choice.launches = std::move(rehearsal.launches);
  choice.reasons = std::move(rehearsal.reasons);
  choice.workspace = hosted.memory_taken();
  return choice;
}

}  // namespace lpq::library
