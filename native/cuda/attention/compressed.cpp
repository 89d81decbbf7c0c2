// compress, append_rows, compressed_attention.
#include "ops/compressed.h"
#include "cuda/recurrent/places.h"

namespace lpq::cuda {
namespace {

// As in compressed.cu.
struct Compressed {
  const float *x, *gate;
  const void* bias;
  float* y;
  int bias_type, rate, series, dim, width;
};

void compress(Call& call, CudaExec& exec) {
  const ops::Compress a(call);
  const int64_t tokens = a.x.dim(0);
  if (tokens == 0) return;
  const Past past = past_of(exec, a.past, tokens);
  const int entries = static_cast<int>(a.y.dim(0));
  const Places places(exec, past, {a.rate, entries, 0, 0});
  const Compressed of{a.x.data<float>(),          a.gate.data<float>(),         a.bias.raw(),
                      a.y.data<float>(),          type_index(a.bias.dtype),     static_cast<int>(a.rate),
                      static_cast<int>(a.series), static_cast<int>(a.y.dim(1)), static_cast<int>(a.x.dim(1))};
  exec.launch("lpq_compress", {div_up(a.y.dim(1), 128), entries}, {128}, 0, of, past, places.get(), entries);
  if (past.state)
    exec.launch("lpq_compress_state", {past.sequences, std::min<int64_t>(tokens, 256)}, {128}, 0, of, past,
                places.get());
}

void append(Call& call, CudaExec& exec) {
  const ops::AppendRows a(call);
  if (a.x.dim(0) == 0) return;
  const Past past = past_of(exec, a.past, a.x.dim(0));
  const Places places(exec, past, {1, a.x.dim(0), a.past.state->dim(1), 0});
  append_rows(exec, a.x, places, past.sequences, 1, *a.past.state);
}

// As in compressed.cu.
struct Windowed {
  const float *q, *k, *entries;
  const void* sinks;
  const int32_t* selected;
  float* y;
  int heads, dim, window, rate, top, rows, room, sinks_type;
  float scale;
};

void compressed_attention(Call& call, CudaExec& exec) {
  const ops::CompressedAttention a(call);
  const int64_t tokens = a.q.dim(0);
  if (tokens == 0) return;
  require(a.dim <= 512, "heads have " + std::to_string(a.dim) + " dims: on CUDA 512 at most");
  const int64_t rows = a.kept ? a.k.dim(1) : 0, room = a.kept && a.rate > 0 ? a.entries.dim(1) : 0;
  const Past past = past_of(exec, a.starts, a.slots, a.totals, a.kept ? a.k.dim(0) : 0, tokens);
  const Places places(exec, past, {a.rate, a.kept || a.rate == 0 ? -1 : a.entries.dim(0), rows, room});
  const Windowed of{a.q.data<float>(),
                    a.k.data<float>(),
                    a.entries.data<float>(),
                    a.sinks.raw(),
                    a.chosen ? a.selected->data<int32_t>() : nullptr,
                    a.y.data<float>(),
                    static_cast<int>(a.heads),
                    static_cast<int>(a.dim),
                    static_cast<int>(a.window),
                    static_cast<int>(a.rate),
                    a.chosen ? static_cast<int>(a.selected->dim(1)) : 0,
                    static_cast<int>(rows),
                    static_cast<int>(room),
                    type_index(a.sinks.dtype),
                    a.scale};
  const char* dims = a.dim <= 128 ? "_4" : a.dim <= 256 ? "_8" : "_16";
  exec.launch(std::string("lpq_compressed_attention") + dims, {tokens, div_up(a.heads, 4)}, {32, 4},
              static_cast<unsigned>(16 * a.dim), of, past, places.get());
}

}  // namespace
LPQ_CUDA_OP(compress, "compress");
LPQ_CUDA_OP(append, "append_rows");
LPQ_CUDA_OP(compressed_attention, "compressed_attention");
}  // namespace lpq::cuda
