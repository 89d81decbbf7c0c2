// rtn, pack_codes, unpack_codes and dequantize: the CPU's codes, scales and zeros
// byte for byte. Only the two sums of rtn's stats are added in another order.
#include <cmath>

#include "cuda/exec.h"
#include "cuda/quant/number.h"
#include "cuda/quant/rtn.h"
#include "ops/quant.h"

namespace lpq::cuda {
namespace {

uint8_t* bytes_of(const Tensor& tensor) { return reinterpret_cast<uint8_t*>(tensor.raw()); }

void rtn(Call& call, CudaExec& exec) {
  const ops::Rtn a(call);
  const QuantType& type = a.type;
  const Tensor &w = a.w, &stream = a.codes, &scales = a.scales;
  const int64_t n = w.dim(0), k = w.dim(1);
  RtnArgs args{};
  args.w_type = number_type(w.dtype);
  args.scale_type = number_type(scales.dtype);
  args.zero_kind = !a.zeros ? kZeroConstant : a.whole_zeros ? kZeroWhole : kZeroReal;
  if (a.zeros) args.zero_type = number_type(a.zeros->dtype), args.zeros = bytes_of(*a.zeros);
  args.has_global = a.global;
  args.grid = grid_spec(type);
  args.w = bytes_of(w);
  args.n = n;
  args.k = k;
  args.length = static_cast<int>(a.length);
  args.groups = static_cast<int>(a.groups);
  args.codes = bytes_of(stream);
  args.scales = bytes_of(scales);
  args.row_bytes = stream.dim(1);
  args.constant_zero = a.zero;
  args.levels = static_cast<float>(type.codes() - 1u);
  args.least_scale = least_scale(args.scale_type);
  args.top = args.scale_type == kNumberE8m0 ? type.max_value() : type.top();
  args.top_power = type.kind == QuantType::Kind::integer ? type.bits - 2 : std::ilogb(type.max_value());
  args.cover = a.cover;
  args.given = a.given;
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
              args.global, a.stats.data<double>());
}

void pack_codes(Call& call, CudaExec& exec) {
  const ops::Bitstream op(call, true);
  exec.launch("lpq_pack_codes", Dim3(op.codes.dim(0)), Dim3(256), 0,
              static_cast<const uint8_t*>(op.codes.data<uint8_t>()), op.codes.dim(1), op.bits,
              op.stream.data<uint8_t>(), op.stream.dim(1));
}

void unpack_codes(Call& call, CudaExec& exec) {
  const ops::Bitstream op(call, false);
  exec.launch("lpq_unpack_codes", Dim3(op.codes.dim(0)), Dim3(256), 0,
              static_cast<const uint8_t*>(op.stream.data<uint8_t>()), op.codes.dim(1), op.bits,
              op.codes.data<uint8_t>(), op.stream.dim(1));
}

void dequantize(Call& call, CudaExec& exec) {
  const ops::Dequantize a(call);
  const Tensor &codes = a.codes, &scales = a.scales, &w = a.w;
  const int64_t n = codes.dim(0), k = codes.dim(1);
  const int s_type = number_type(scales.dtype), w_type = number_type(w.dtype);
  const int z_type = a.zeros ? number_type(a.zeros->dtype) : kNumberF32;
  float table[256];
  for (uint32_t code = 0; code < 256; ++code)
    table[code] = a.type.decode(code & (a.type.codes() - 1u));  // bits above the type's are ignored
  Scratch room = exec.scratch(sizeof table);
  exec.write_small(room.as<void>(), table, sizeof table);
  const int32_t* group_data = a.group ? a.group->data<int32_t>() : nullptr;
  const uint8_t* zeros_data = a.zeros ? bytes_of(*a.zeros) : nullptr;
  exec.launch("lpq_dequantize", Dim3(n), Dim3(256), 0, static_cast<const uint8_t*>(codes.data<uint8_t>()), k,
              static_cast<const float*>(room.as<float>()), static_cast<const uint8_t*>(bytes_of(scales)), s_type,
              zeros_data, z_type, group_data, a.block_n, a.block_k, scales.dim(1), a.zero, a.global, bytes_of(w),
              w_type, exec.fault("LPQ_NATIVE_ARGUMENT", "the group index names a group that has no scale"));
}

LPQ_CUDA_OP(rtn, "rtn");
LPQ_CUDA_OP(pack_codes, "pack_codes");
LPQ_CUDA_OP(unpack_codes, "unpack_codes");
LPQ_CUDA_OP(dequantize, "dequantize");

}  // namespace
}  // namespace lpq::cuda
