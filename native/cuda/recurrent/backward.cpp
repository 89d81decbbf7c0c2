// short_conv_backward, gated_delta_backward, selective_scan_backward.
#include "cuda/recurrent/past.h"
#include "cuda/recurrent/rows.h"
#include "ops/backward_recurrent.h"

namespace lpq::cuda {
namespace {

void short_conv_backward(Call& call, CudaExec& exec) {
  const ops::ShortConvBackward a(call);
  const int channels = static_cast<int>(a.weight.dim(0)), taps = static_cast<int>(a.weight.dim(1));
  const int64_t tokens = a.x.dim(0);
  if (tokens == 0) return;
  const Past past = past_of(exec, ops::Recurrence{a.starts}, tokens);
  const auto column = [](const Tensor& of, bool there, const Columns& columns) {
    return there ? of.data<float>() + columns.first : nullptr;
  };
  const float *x = column(a.x, true, a.columns), *times = column(a.x, a.multiplied, a.times),
              *gate = column(a.x, a.gated, a.gate);
  float *dx = column(a.dx, true, a.columns), *dtimes = column(a.dx, a.multiplied, a.times),
        *dgate = column(a.dx, a.gated, a.gate);
  const long long pitch = a.columns.pitch;
  const void *weight = a.weight.raw(), *bias = raw_of(a.bias);
  const int weight_type = type_index(a.weight.dtype), bias_type = type_of(a.bias), silu = a.silu,
            each = tokens <= 1024 ? 1 : 16;
  const Scratch room = exec.scratch(static_cast<size_t>(tokens * channels) * 4);
  float* slope = room.as<float>();
  const Dim3 grid(div_up(channels, 128), div_up(tokens, each));
  exec.launch("lpq_short_conv_backward_slopes", grid, {128}, 0, x, times, gate, pitch, weight, weight_type, bias,
              bias_type, a.dy.data<float>(), slope, dgate, past, channels, taps, silu, each);
  const float* made = slope;
  exec.launch("lpq_short_conv_backward", grid, {128}, 0, x, times, pitch, weight, weight_type, made, dx, dtimes, past,
              channels, taps, each);
}

// As in backward.cuh.
struct KeptStates {
  float *spans, *groups;
  int span_count, group_count, by_tokens;
};
constexpr int kSpan = 64;

// States that blocks of 32 columns keep, of rows `each` a thread.
struct Keeping {
  int64_t spans, groups, floats;
  bool by_tokens;
  Keeping(int64_t tokens, int64_t sequences, int each) : floats(int64_t{256} * each) {
    const int64_t of_group = each <= 16 ? 8 : 4, by_sequence = sequences * (kSpan / of_group);
    spans = tokens / kSpan + sequences, groups = tokens / of_group + sequences;
    by_tokens = groups < by_sequence;
    groups = std::min(groups, by_sequence);
  }
  int64_t of_block() const { return (spans + groups) * floats; }
  KeptStates at(float* room, int64_t blocks) const {
    return {room, room + blocks * spans * floats, static_cast<int>(spans), static_cast<int>(groups), by_tokens};
  }
};

// Heads that a launch takes, a multiple of `unit` of which each needs so many bytes: few enough that their scratch is a
// small part of the device's memory.
int64_t heads_at_once(const CudaExec& exec, int64_t heads, int64_t unit, int64_t bytes) {
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(exec.device().memory_bytes / 32) / (bytes * unit)),
                calls = div_up(heads / unit, most);
  return div_up(heads / unit, calls) * unit;
}

// As in gated_delta_backward.cuh.
struct DeltaGradient {
  const float *q, *k, *factor, *weight, *v, *dy;
  float *errors, *dv, *of_q, *of_k, *of_decay, *of_beta;
  int tokens, first_head, heads, key_heads, key_dim, value_dim, wide;
};

void gated_delta_backward(Call& call, CudaExec& exec) {
  const ops::GatedDeltaBackward a(call);
  const int64_t tokens = a.q.dim(0), keys = a.key_heads * a.key_dim, gates = a.decay.dim(1), per = gates / a.heads,
                share = a.heads / a.key_heads, parts = div_up(a.value_dim, 32);
  if (tokens == 0) return;
  const Past past = past_of(exec, ops::Recurrence{a.starts}, tokens);
  const int each = rows_of_thread(a.key_dim, 4);
  const Scratch factors = exec.scratch(static_cast<size_t>(tokens * (2 * keys + a.key_heads + gates + a.heads)) * 4);
  float *unit_q = factors.as<float>(), *unit_k = unit_q + tokens * keys, *factor = unit_k + tokens * keys,
        *product = factor + tokens * gates, *weight = product + tokens * a.key_heads;
  const int heads = static_cast<int>(a.heads), key_heads = static_cast<int>(a.key_heads),
            key_dim = static_cast<int>(a.key_dim), value_dim = static_cast<int>(a.value_dim),
            all_gates = static_cast<int>(gates), count = static_cast<int>(tokens);
  const DeltaGiven given(a);
  exec.launch("lpq_delta_factors", {tokens}, {256}, 0, given, heads, key_heads, key_dim, all_gates, unit_q, unit_k,
              product, factor, weight);

  // Errors lie where dv will be, if nothing else does.
  const bool apart = a.dv.raw() == a.dy.raw();
  const Scratch errors = exec.scratch(apart ? a.dv.bytes() : 4);
  const Keeping keeping(tokens, past.sequences, each);
  const int64_t sums = tokens * (2 * a.key_dim + per + 1);
  const int64_t at_once = heads_at_once(exec, a.heads, share, parts * (keeping.of_block() + sums) * 4);
  const Scratch room = exec.scratch(static_cast<size_t>(at_once * parts * (keeping.of_block() + sums)) * 4);
  for (int64_t first = 0; first < a.heads; first += at_once) {
    const int64_t taken = std::min(at_once, a.heads - first), blocks = taken * parts;
    float* const of_q = room.as<float>() + blocks * keeping.of_block();
    DeltaGradient of{};
    of.q = unit_q, of.k = unit_k, of.factor = factor, of.weight = weight;
    of.v = a.v.data<float>(), of.dy = a.dy.data<float>(), of.dv = a.dv.data<float>();
    of.errors = apart ? errors.as<float>() : of.dv;
    of.of_q = of_q, of.of_k = of_q + blocks * tokens * a.key_dim;
    of.of_decay = of.of_k + blocks * tokens * a.key_dim, of.of_beta = of.of_decay + blocks * tokens * per;
    of.tokens = count, of.first_head = static_cast<int>(first), of.heads = heads, of.key_heads = key_heads;
    of.key_dim = key_dim, of.value_dim = value_dim;
    of.wide = rows_in_fours({of.v, of.dy, of.errors}, {a.key_dim, a.value_dim});
    exec.launch((per > 1 ? "lpq_delta_backward_channels_" : "lpq_delta_backward_") + std::to_string(each),
                {blocks, past.sequences}, {128}, 0, of, past, keeping.at(room.as<float>(), blocks));
    const int shared_by = static_cast<int>(share * parts), first_key = static_cast<int>(first / share),
              first_head = of.first_head, some = static_cast<int>(taken), each_head = static_cast<int>(parts),
              per_head = static_cast<int>(per);
    for (const bool query : {true, false}) {
      const float *x = query ? given.q : given.k, *from = query ? of.of_q : of.of_k,
                  by = query ? 1 / std::sqrt(static_cast<float>(key_dim)) : 1.0f;
      float* to = (query ? a.dq : a.dk).data<float>();
      exec.launch("lpq_delta_backward_unit", {tokens, taken / share}, {128}, static_cast<unsigned>(key_dim) * 4, x,
                  from, to, count, first_key, key_heads, key_dim, shared_by, by);
    }
    const float *of_decay = of.of_decay, *of_beta = of.of_beta, *factor_read = factor;
    exec.launch("lpq_delta_backward_gates", {stride_blocks(exec, tokens * taken * per, 256)}, {256}, 0, given.decay,
                given.beta, given.rate, given.rate_type, given.bias, given.bias_type, factor_read, given.strength,
                of_decay, of_beta, a.ddecay.data<float>(), a.dbeta.data<float>(), count, first_head, some, heads,
                each_head, per_head);
  }
}

// As in selective_scan_backward.cuh.
struct ScanGradient {
  const float *x, *b, *c, *step, *dy;
  const void *rate, *skip;
  float *dx, *of_b, *of_c, *of_step;
  int tokens, first_head, heads, head_dim, groups, size, rate_type, skip_type, wide;
};

void selective_scan_backward(Call& call, CudaExec& exec) {
  const ops::SelectiveScanBackward a(call);
  const int64_t tokens = a.x.dim(0), parts = div_up(a.head_dim, 32);
  if (tokens == 0) return;
  const Past past = past_of(exec, ops::Recurrence{a.starts}, tokens);
  const int each = rows_of_thread(a.size, 2);
  const long long elements = a.step.elements();
  const Scratch of_steps = exec.scratch(static_cast<size_t>(elements * (a.by_channel ? 2 : 1)) * 4);
  float* steps = of_steps.as<float>();
  const ScanGiven given(a);
  const int count = static_cast<int>(tokens), groups = static_cast<int>(a.groups), size = static_cast<int>(a.size),
            share = static_cast<int>(a.heads / a.groups), each_head = static_cast<int>(parts);
  exec.launch("lpq_scan_steps", {stride_blocks(exec, elements, 256)}, {256}, 0, given, steps, elements);

  const Keeping keeping(tokens, past.sequences, each);
  const int64_t sums = tokens * (2 * a.size + (a.by_channel ? 0 : 1));
  const int64_t at_once = heads_at_once(exec, a.heads, 1, parts * (keeping.of_block() + sums) * 4);
  const Scratch room = exec.scratch(static_cast<size_t>(at_once * parts * (keeping.of_block() + sums)) * 4);
  for (int64_t first = 0; first < a.heads; first += at_once) {
    const int64_t taken = std::min(at_once, a.heads - first), blocks = taken * parts;
    ScanGradient of{};
    of.x = a.x.data<float>(), of.b = a.b.data<float>(), of.c = a.c.data<float>(), of.step = steps;
    of.dy = a.dy.data<float>(), of.rate = a.rate.raw(), of.skip = a.skip.raw(), of.dx = a.dx.data<float>();
    of.of_b = room.as<float>() + blocks * keeping.of_block(), of.of_c = of.of_b + blocks * tokens * a.size;
    of.of_step = a.by_channel ? steps + elements : of.of_c + blocks * tokens * a.size;
    of.tokens = count, of.first_head = static_cast<int>(first), of.heads = static_cast<int>(a.heads);
    of.head_dim = static_cast<int>(a.head_dim), of.groups = groups, of.size = size;
    of.rate_type = type_index(a.rate.dtype), of.skip_type = type_index(a.skip.dtype);
    of.wide = rows_in_fours({of.x, of.b, of.c, of.dy}, {a.head_dim, a.size});
    exec.launch((a.by_channel ? "lpq_scan_backward_channels_" : "lpq_scan_backward_") + std::to_string(each),
                {blocks, past.sequences}, {128}, 0, of, past, keeping.at(room.as<float>(), blocks));
    const int first_head = of.first_head, some = static_cast<int>(taken);
    for (const bool into : {true, false}) {
      const float* from = into ? of.of_b : of.of_c;
      float* to = (into ? a.db : a.dc).data<float>();
      exec.launch("lpq_scan_backward_groups", {stride_blocks(exec, a.b.elements(), 256)}, {256}, 0, from, to, count,
                  first_head, some, share, groups, size, each_head);
    }
    const int columns = static_cast<int>(a.by_channel ? taken * a.head_dim : taken),
              first_column = static_cast<int>(a.by_channel ? first * a.head_dim : first),
              each_column = a.by_channel ? 0 : each_head;
    const float* from = of.of_step;
    exec.launch("lpq_scan_backward_steps", {stride_blocks(exec, tokens * columns, 256)}, {256}, 0, given.step,
                given.bias, given.bias_type, given.least, given.most, from, a.dstep.data<float>(), count, first_column,
                columns, given.width, each_column);
  }
}

}  // namespace
LPQ_CUDA_OP(short_conv_backward, "short_conv_backward");
LPQ_CUDA_OP(gated_delta_backward, "gated_delta_backward");
LPQ_CUDA_OP(selective_scan_backward, "selective_scan_backward");
}  // namespace lpq::cuda
