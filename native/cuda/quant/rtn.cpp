// rtn, pack_codes, unpack_codes and dequantize (native/ops.ts says what they do): the CPU's codes, scales and zeros
// byte for byte. Only the two sums of rtn's stats are added in another order.
#include <cmath>

#include "cuda/exec.h"
#include "cuda/quant/number.h"
#include "cuda/quant/rtn.h"

namespace lpq::cuda {
namespace {

int scale_type(const Tensor& scales) {
  const int type = number_type(scales.dtype);
  if (type < 0 || type > kNumberE4m3)
    throw Failure("LPQ_NATIVE_DTYPE", "scales are not stored as " + std::string(dtype_name(scales.dtype)));
  return type;
}

int weight_type(const Tensor& w) {
  const int type = number_type(w.dtype);
  require(type >= 0 && type <= kNumberBf16, "the weight is f32, f16 or bf16");
  return type;
}

uint8_t* bytes_of(const Tensor& tensor) { return reinterpret_cast<uint8_t*>(tensor.raw()); }

void on_device(CudaExec& exec, const Call& call) {
  for (const Tensor& tensor : call.in) require_device(exec, tensor, "an input");
  for (const Tensor& tensor : call.out) require_device(exec, tensor, "an output");
}

void rtn(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Params& params = call.params;
  const QuantType type = QuantType::from(params);
  const Tensor &w = call.input(0), &stream = call.output(0), &scales = call.output(1), &stats = call.output(2);
  const bool symmetric = params.integer("symmetric") != 0;
  const Tensor* zeros = symmetric ? nullptr : &call.output(3);
  const int64_t length = params.integer("groupLength");
  require(w.rank() == 2, "the weight is [N,K]");
  RtnArgs args{};
  args.w_type = weight_type(w);
  const int64_t n = w.dim(0), k = w.dim(1);
  require(length > 0 && k % length == 0,
          "groups of " + std::to_string(length) + " do not divide K = " + std::to_string(k));
  const int64_t groups = k / length, bytes = (k * type.bits + 7) / 8;
  require(stream.dtype == DType::u8 && stream.shape == std::vector<int64_t>({n, bytes}),
          "the codes are u8 [N, ceil(K*bits/8)]");
  require(scales.shape == std::vector<int64_t>({n, groups}), "the scales are [N, K/groupLength]");
  require(stats.dtype == DType::f64 && stats.elements() == 9, "the stats are f64 [9]");
  args.scale_type = scale_type(scales);
  args.zero_kind = kZeroConstant;
  if (zeros) {
    require(type.kind == QuantType::Kind::integer, "only integers have asymmetric grids");
    require(zeros->shape == scales.shape, "the zeros are [N, K/groupLength]");
    const bool whole = zeros->dtype == DType::i16 || (zeros->dtype == DType::u8 && !type.is_signed);
    require(whole || zeros->dtype == DType::f16 || zeros->dtype == DType::f32,
            "zeros are u8 (unsigned types), i16, f16 or f32");
    args.zero_kind = whole ? kZeroWhole : kZeroReal;
    args.zero_type = number_type(zeros->dtype);
    args.zeros = bytes_of(*zeros);
  }
  args.has_global = params.integer("global", 0) != 0;
  require(!args.has_global || scales.dtype == DType::f8_e4m3, "only e4m3 scales have a second level");
  args.grid = grid_spec(type);
  args.w = bytes_of(w);
  args.n = n;
  args.k = k;
  args.length = static_cast<int>(length);
  args.groups = static_cast<int>(groups);
  args.codes = bytes_of(stream);
  args.scales = bytes_of(scales);
  args.row_bytes = bytes;
  args.constant_zero = static_cast<float>(params.number("zero", 0));
  args.levels = static_cast<float>(type.codes() - 1u);
  args.least_scale = least_scale(args.scale_type);
  args.top = args.scale_type == kNumberE8m0 ? type.max_value() : type.top();
  args.top_power = type.kind == QuantType::Kind::integer ? type.bits - 2 : std::ilogb(type.max_value());
  args.cover = params.integer("scaleCover", 0) != 0;
  const int64_t room = exec.device().shared_per_block - 1024;  // a little is taken by the kernel itself
  args.staged = k * 5 <= room;
  require(k <= room, "the weight has too many columns for this device");
  Scratch rows = exec.scratch(std::max<size_t>(16, static_cast<size_t>(n) * sizeof(RtnStats))),
          largest = exec.scratch(std::max<size_t>(16, static_cast<size_t>(n) * 4));
  Scratch global = exec.scratch(16);
  args.stats = rows.as<RtnStats>();
  args.largest = largest.as<float>();
  args.global = args.has_global ? global.as<float>() : nullptr;
  if (args.has_global) {
    exec.launch("lpq_rtn_largest", Dim3(n), Dim3(256), static_cast<unsigned>(args.staged ? k * 4 : 0), args);
    exec.launch("lpq_rtn_global", Dim3(1), Dim3(1024), 0, static_cast<const float*>(largest.as<float>()), n,
                global.as<float>());
  }
  exec.launch("lpq_rtn", Dim3(n), Dim3(256), static_cast<unsigned>(args.staged ? k * 5 : k), args);
  exec.launch("lpq_rtn_stats", Dim3(1), Dim3(1024), 0, static_cast<const RtnStats*>(rows.as<RtnStats>()), n,
              args.global, stats.data<double>());
}

int stream_shape(const Tensor& codes, const Tensor& stream, const Params& params, const char* op) {
  const int64_t bits = params.integer("bits");
  require(bits >= 1 && bits <= 8, "bits is 1 to 8");
  require(codes.dtype == DType::u8 && codes.rank() == 2 && stream.dtype == DType::u8 &&
              stream.shape == std::vector<int64_t>({codes.dim(0), (codes.dim(1) * bits + 7) / 8}),
          std::string(op) + ": codes are u8 [N,K] and the stream u8 [N, ceil(K*bits/8)]");
  return static_cast<int>(bits);
}

void pack_codes(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Tensor &codes = call.input(0), &stream = call.output(0);
  const int bits = stream_shape(codes, stream, call.params, "pack_codes");
  exec.launch("lpq_pack_codes", Dim3(codes.dim(0)), Dim3(256), 0, static_cast<const uint8_t*>(codes.data<uint8_t>()),
              codes.dim(1), bits, stream.data<uint8_t>(), stream.dim(1));
}

void unpack_codes(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Tensor &stream = call.input(0), &codes = call.output(0);
  const int bits = stream_shape(codes, stream, call.params, "unpack_codes");
  exec.launch("lpq_unpack_codes", Dim3(codes.dim(0)), Dim3(256), 0, static_cast<const uint8_t*>(stream.data<uint8_t>()),
              codes.dim(1), bits, codes.data<uint8_t>(), stream.dim(1));
}

void dequantize(Call& call, CudaExec& exec) {
  on_device(exec, call);
  const Params& params = call.params;
  const QuantType type = QuantType::from(params);
  const Tensor &codes = call.input(0), &scales = call.input(1), &w = call.output(0);
  const bool has_zeros = params.integer("hasZeros", 0) != 0, has_group = params.integer("hasGroup", 0) != 0;
  const Tensor* zeros = has_zeros ? &call.input(2) : nullptr;
  const Tensor* group = has_group ? &call.input(has_zeros ? 3 : 2) : nullptr;
  const int64_t block_n = params.integer("blockN"), block_k = params.integer("blockK");
  require(codes.dtype == DType::u8 && codes.rank() == 2, "codes are u8 [N,K]");
  require(w.shape == codes.shape, "the weight has another shape than its codes");
  const int w_type = weight_type(w), s_type = scale_type(scales);
  require(block_n > 0 && block_k > 0, "a block has at least one row and one column");
  const int64_t n = codes.dim(0), k = codes.dim(1), groups = (k + block_k - 1) / block_k;
  require(scales.rank() == 2 && scales.dim(0) == (n + block_n - 1) / block_n && (scales.dim(1) == groups || group),
          "scales are [N/blockN, K/blockK]");
  int z_type = kNumberF32;
  if (zeros) {
    z_type = number_type(zeros->dtype);
    require(zeros->dtype == DType::u8 || zeros->dtype == DType::i16 || zeros->dtype == DType::f16 ||
                zeros->dtype == DType::f32,
            "zeros are u8, i16, f16 or f32");
    require(zeros->shape == scales.shape, "zeros have another shape than the scales");
  }
  if (group) require(group->dtype == DType::i32 && group->elements() == k, "the group index is i32 [K]");
  float table[256];
  for (uint32_t code = 0; code < 256; ++code)
    table[code] = type.decode(code & (type.codes() - 1u));  // bits above the type's are ignored
  Scratch room = exec.scratch(sizeof table);
  exec.write_small(room.as<void>(), table, sizeof table);
  const int32_t* group_data = group ? group->data<int32_t>() : nullptr;
  const uint8_t* zeros_data = zeros ? bytes_of(*zeros) : nullptr;
  exec.launch("lpq_dequantize", Dim3(n), Dim3(256), 0, static_cast<const uint8_t*>(codes.data<uint8_t>()), k,
              static_cast<const float*>(room.as<float>()), static_cast<const uint8_t*>(bytes_of(scales)), s_type,
              zeros_data, z_type, group_data, block_n, block_k, scales.dim(1),
              static_cast<float>(params.number("zero", 0)), static_cast<float>(params.number("global", 1)), bytes_of(w),
              w_type, exec.fault("LPQ_NATIVE_ARGUMENT", "the group index names a group that has no scale"));
}

LPQ_CUDA_OP(rtn, "rtn");
LPQ_CUDA_OP(pack_codes, "pack_codes");
LPQ_CUDA_OP(unpack_codes, "unpack_codes");
LPQ_CUDA_OP(dequantize, "dequantize");

}  // namespace
}  // namespace lpq::cuda
