// short_conv, gated_delta, selective_scan.
#include "ops/recurrent.h"
#include "cuda/recurrent/past.h"
#include "cuda/recurrent/rows.h"

namespace lpq::cuda {
namespace {

void short_conv(Call& call, CudaExec& exec) {
  const ops::ShortConv a(call);
  const int channels = static_cast<int>(a.weight.dim(0)), taps = static_cast<int>(a.weight.dim(1));
  if (a.x.dim(0) == 0) return;
  const Past past = past_of(exec, a.past, a.x.dim(0));
  const float *matrix = a.x.data<float>(), *x = matrix + a.columns.first,
              *times = a.multiplied ? matrix + a.times.first : nullptr,
              *gate = a.gated ? matrix + a.gate.first : nullptr;
  const long long pitch = a.columns.pitch;
  const void *weight = a.weight.raw(), *bias = raw_of(a.bias);
  const int weight_type = type_index(a.weight.dtype), bias_type = type_of(a.bias), silu = a.silu;
  // Few tokens: each a thread of its own, so that they reach more multiprocessors.
  const int each = a.x.dim(0) <= 1024 ? 1 : 32;
  const std::string kernel = "lpq_short_conv_" + std::to_string(taps <= 4 && taps >= 2 ? taps : 0);
  exec.launch(kernel, {div_up(channels, 128), div_up(a.x.dim(0), each)}, {128}, 0, x, times, gate, pitch, weight,
              weight_type, bias, bias_type, a.y.data<float>(), past, channels, taps, silu, each);
  if (past.state)
    exec.launch("lpq_short_conv_state", {div_up(channels, 128), past.sequences}, {128}, 0, x, times, pitch, past,
                channels, taps);
}

// As in gated_delta.cu.
struct Delta {
  const float *q, *k, *product, *factor, *weight, *v;
  float* y;
  int heads, key_heads, key_dim, value_dim;
};

void gated_delta(Call& call, CudaExec& exec) {
  const ops::GatedDelta a(call);
  const int64_t tokens = a.q.dim(0), keys = a.key_heads * a.key_dim, gates = a.decay.dim(1);
  if (tokens == 0) return;
  const Past past = past_of(exec, a.past, tokens);
  const std::string form = (a.by_channel() ? "channels_" : "") + std::to_string(rows_of_thread(a.key_dim, 4));
  const Dim3 grid{a.heads * div_up(a.value_dim, 32), past.sequences};
  const DeltaGiven given(a);
  Delta of{};
  of.v = a.v.data<float>(), of.y = a.y.data<float>();
  of.heads = static_cast<int>(a.heads), of.key_heads = static_cast<int>(a.key_heads);
  of.key_dim = static_cast<int>(a.key_dim), of.value_dim = static_cast<int>(a.value_dim);
  // Decoding: a token a sequence.
  if (tokens == past.sequences) {
    exec.launch("lpq_gated_delta_step_" + form, grid, {64}, 0, of, given, past);
    return;
  }
  const Scratch room = exec.scratch(static_cast<size_t>(tokens * (2 * keys + a.key_heads + gates + a.heads)) * 4);
  float *unit_q = room.as<float>(), *unit_k = unit_q + tokens * keys, *factor = unit_k + tokens * keys,
        *product = factor + tokens * gates, *weight = product + tokens * a.key_heads;
  exec.launch("lpq_delta_factors", {tokens}, {256}, 0, given, of.heads, of.key_heads, of.key_dim,
              static_cast<int>(gates), unit_q, unit_k, product, factor, weight);
  of.q = unit_q, of.k = unit_k, of.product = product, of.factor = factor, of.weight = weight;
  exec.launch("lpq_gated_delta_" + form, grid, {128}, 0, of, past);
}

// As in selective_scan.cu.
struct Scan {
  const float *x, *b, *c, *step;
  const void *rate, *skip;
  float* y;
  int heads, head_dim, groups, size, rate_type, skip_type;
};

void selective_scan(Call& call, CudaExec& exec) {
  const ops::SelectiveScan a(call);
  const int64_t tokens = a.x.dim(0);
  if (tokens == 0) return;
  const Past past = past_of(exec, a.past, tokens);
  const int each = rows_of_thread(a.size, 2);
  const std::string form = (a.by_channel ? "channels_" : "") + std::to_string(each);
  const Dim3 grid{a.heads * div_up(a.head_dim, 32), past.sequences};
  const ScanGiven given(a);
  Scan of{a.x.data<float>(),
          a.b.data<float>(),
          a.c.data<float>(),
          nullptr,
          a.rate.raw(),
          a.skip.raw(),
          a.y.data<float>(),
          static_cast<int>(a.heads),
          static_cast<int>(a.head_dim),
          static_cast<int>(a.groups),
          static_cast<int>(a.size),
          type_index(a.rate.dtype),
          type_index(a.skip.dtype)};
  // Decoding: a token a sequence. A thread that has rates of many rows, too, would spill its state.
  if (tokens == past.sequences && (!a.by_channel || each <= 8)) {
    exec.launch("lpq_selective_scan_step_" + form, grid, {64}, 0, of, given, past);
    return;
  }
  const long long count = a.step.elements();
  const Scratch room = exec.scratch(static_cast<size_t>(count) * 4);
  float* const steps = room.as<float>();
  exec.launch("lpq_scan_steps", {stride_blocks(exec, count, 256)}, {256}, 0, given, steps, count);
  of.step = steps;
  exec.launch("lpq_selective_scan_" + form, grid, {128}, 0, of, past);
}

}  // namespace
LPQ_CUDA_OP(short_conv, "short_conv");
LPQ_CUDA_OP(gated_delta, "gated_delta");
LPQ_CUDA_OP(selective_scan, "selective_scan");
}  // namespace lpq::cuda
