// gptq_encode, gptq_store_scales and module_error.
//
// module_error multiplies on f16 operands in scaled units (block.h), fp32 accumulation inside a row's product and f64
// across: each of the K^2 terms of a row is off by about 2^-12 at random, so the sums, traces over all rows, are right
// to a few 1e-4 (measured: 3e-4 at most).
#include "cuda/exec.h"
#include "cuda/gptq/problem.h"
#include "cuda/quant/number.h"

namespace lpq::cuda::gptq {
namespace {

void encode(Call& call, CudaExec& exec) {
  const ops::GptqEncode a(call);
  const Tensor &level = a.level, &order = a.order, &codes = a.codes;
  const int64_t n = level.dim(0), k = level.dim(1);
  const int staged = k <= exec.device().shared_per_block;
  exec.launch("lpq_gptq_encode", Dim3(n), Dim3(256), staged ? static_cast<unsigned>(k) : 0u,
              static_cast<const float*>(level.data<float>()), static_cast<const int32_t*>(order.data<int32_t>()),
              static_cast<int>(k), grid_spec(a.type), codes.data<uint8_t>(), staged,
              exec.fault("LPQ_NATIVE_ARGUMENT", "order holds a column that is not there"));
}

void store_scales(Call& call, CudaExec& exec) {
  const ops::GptqStoreScales op(call);
  const int64_t count = op.scale.elements();
  const int dtype = number_type(op.stored.dtype);
  Scratch counts = exec.scratch(16);
  exec.fill_zero(counts.as<void>(), 16);
  if (count > 0)
    exec.launch("lpq_gptq_store_scales", Dim3(blocks_for(exec, count, 256)), Dim3(256), 0,
                static_cast<const float*>(op.scale.data<float>()), count, dtype, op.unit, least_scale(dtype),
                reinterpret_cast<uint8_t*>(op.stored.raw()), op.rounded.data<float>(), counts.as<unsigned long long>());
  exec.launch("lpq_gptq_counts_to_f64", Dim3(1), Dim3(32), 0,
              static_cast<const unsigned long long*>(counts.as<unsigned long long>()), 2, op.info.data<double>());
}

void error(Call& call, CudaExec& exec) {
  const ops::ModuleError a(call);
  const Tensor &w = a.weight, &q = a.quantized, &h = a.h, &out = a.sums;
  const int64_t n = w.dim(0), k = w.dim(1);
  const int w_type = number_type(w.dtype), q_type = number_type(q.dtype);
  if (n * k == 0) return exec.fill_zero(out.data<double>(), 16);
  const int ki = static_cast<int>(k);
  const int64_t chunk = std::min<int64_t>(n, 4096);
  Scratch exponent = exec.scratch(static_cast<size_t>(k + 1) * 4),
          metric = exec.scratch(static_cast<size_t>(k * k) * 2);
  {
    Scratch narrow = exec.scratch(static_cast<size_t>(k * k) * 4);
    exec.launch("lpq_gptq_narrow", Dim3(blocks_for(exec, k * k, 256)), Dim3(256), 0, static_cast<const void*>(h.raw()),
                h.dtype == DType::f32 ? 1 : 0, narrow.as<float>(), k * k);
    exec.launch("lpq_gptq_column_exponent", Dim3(1), Dim3(1024), 0, static_cast<const float*>(narrow.as<float>()), ki,
                exponent.as<int32_t>());
    scaled_metric(exec, narrow.as<float>(), k, exponent.as<int32_t>(), nullptr, k, {metric.as<uint16_t>(), nullptr});
  }
  Scratch d = exec.scratch(static_cast<size_t>(chunk * k) * 2),
          product = exec.scratch(static_cast<size_t>(chunk * k) * 4);
  Scratch row_exponent = exec.scratch(static_cast<size_t>(chunk) * 4), sums = exec.scratch(static_cast<size_t>(n) * 8);
  for (int which = 0; which < 2; ++which) {
    for (int64_t row0 = 0; row0 < n; row0 += chunk) {
      const int64_t rows = std::min(chunk, n - row0);
      const auto at = [&](const Tensor& tensor) {
        return reinterpret_cast<const uint8_t*>(tensor.raw()) +
               row0 * k * static_cast<int64_t>(dtype_bytes(tensor.dtype));
      };
      const uint8_t* subtracted = which ? nullptr : at(q);
      exec.launch("lpq_gptq_difference", Dim3(rows), Dim3(256), 0, at(w), w_type, subtracted, q_type, ki,
                  static_cast<const int32_t*>(exponent.as<int32_t>()), d.as<uint16_t>(), row_exponent.as<int32_t>());
      Gemm form;
      form.m = rows;
      form.n = form.k = k;
      form.a = d.as<void>();
      form.b = metric.as<void>();
      form.transpose_b = true;
      form.c = product.as<void>();
      form.ab = DType::f16;
      form.out = DType::f32;
      form.rows_alone = true;
      exec.gemm(form);
      const int shift = kMetricShift;
      exec.launch("lpq_gptq_row_form", Dim3(rows), Dim3(256), 0, static_cast<const uint16_t*>(d.as<uint16_t>()),
                  static_cast<const float*>(product.as<float>()), ki,
                  static_cast<const int32_t*>(exponent.as<int32_t>()),
                  static_cast<const int32_t*>(row_exponent.as<int32_t>()), shift, sums.as<double>() + row0);
    }
    exec.launch("lpq_gptq_sum", Dim3(1), Dim3(1024), 0, static_cast<const double*>(sums.as<double>()), n,
                out.data<double>() + which);
  }
}

LPQ_CUDA_OP(encode, "gptq_encode");
LPQ_CUDA_OP(store_scales, "gptq_store_scales");
LPQ_CUDA_OP(error, "module_error");

}  // namespace
}  // namespace lpq::cuda::gptq
