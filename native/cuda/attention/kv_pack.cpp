// kv_pack and kv_append: contracts in native/kv-ops.ts, bytes in formats/kv/spec.md.
#include "cuda/attention/kv_form.h"

namespace lpq::cuda {
namespace {

KvPackArgs pack_args(const KvCache& c, CudaExec& exec, const Tensor& k, const Tensor& v, const Tensor& table) {
  const KvDecodeArgs& p = c.places;
  KvPackArgs a{};
  a.k = k.data<uint16_t>(), a.v = v.data<uint16_t>(), a.table = table.data<int32_t>();
  // The places are told as what is read.
  a.keys = const_cast<unsigned char*>(p.keys), a.key_numbers = const_cast<unsigned char*>(p.key_numbers);
  a.values = const_cast<unsigned char*>(p.values), a.value_numbers = const_cast<unsigned char*>(p.value_numbers);
  a.places = p, a.block = static_cast<int>(c.block), a.dims = static_cast<int>(c.dims);
  a.places.table_pages = static_cast<int>(table.dim(table.rank() - 1));
  a.fault = exec.fault("LPQ_NATIVE_NUMERICS", "a key or value is NaN, or infinite");
  a.fault_page = exec.fault("LPQ_NATIVE_ARGUMENT",
                            "the table names a page that is none, or a sequence is not of whole blocks, or longer than "
                            "its pages or its tail");
  return a;
}

// Threads of a block are two a dim of a chunk; keys by channel leave their ranges in shared memory.
void launch(const KvCache& c, CudaExec& exec, const KvPackArgs& a, int64_t numbers) {
  const bool words = c.form == KvForm::kWords;
  const int64_t chunk = words ? 128 : std::min<int64_t>(c.dims, 128), chunks = words ? 1 : c.dims / chunk;
  const unsigned shared = words ? 0 : static_cast<unsigned>(chunk / 64 * (c.block / 32) * 4 * 32 * 8);
  const std::string form = words ? "_word_" : c.form == KvForm::kTokens ? "_token_" : "_channel_";
  exec.launch_after((a.lengths ? "lpq_kv_append_" : "lpq_kv_pack_") + c.bits_name() + form + std::to_string(chunk),
                    Dim3(2 * chunks * c.heads * numbers), Dim3(2 * chunk), shared, a);
}

void kv_pack(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  const Tensor &k = call.input(0), &v = call.input(1), &table = call.input(2);
  const Tensor* const pages[4] = {&call.output(0), &call.output(1), &call.output(2), &call.output(3)};
  const KvCache c = kv_cache_of(p, exec, pages);
  require_tensor(k, "k", DType::f16, {-1, c.heads * c.dims});
  require_tensor(v, "v", DType::f16, k.shape);
  require_tensor(table, "table", DType::i32, {-1});
  for (const Tensor* t : {&k, &v, &table}) require_on_device(exec, *t, "a tensor");
  const int64_t first = p.integer("first", 0), tokens = k.dim(0), unit = c.form == KvForm::kWords ? 1 : c.block;
  require(first >= 0 && first % unit == 0 && tokens % unit == 0, "tokens come in blocks of " + std::to_string(unit));
  require(first + tokens <= table.dim(0) * c.page_tokens, "the table has too few pages");
  if (tokens == 0) return;
  KvPackArgs a = pack_args(c, exec, k, v, table);
  a.first = static_cast<int>(first), a.tokens = static_cast<int>(tokens);
  launch(c, exec, a, div_up(tokens, c.block));
}
LPQ_CUDA_OP(kv_pack, "kv_pack");

void kv_append(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  const Tensor &k = call.input(0), &v = call.input(1), &table = call.input(2), &lengths = call.output(4),
               &tails = call.output(5), &tail_keys = call.output(6), &tail_values = call.output(7);
  const Tensor* const pages[4] = {&call.output(0), &call.output(1), &call.output(2), &call.output(3)};
  const KvCache c = kv_cache_of(p, exec, pages);
  require_tensor(k, "k", DType::f16, {-1, c.heads * c.dims});
  const int64_t sequences = k.dim(0);
  require_tensor(v, "v", DType::f16, k.shape);
  require_tensor(table, "table", DType::i32, {sequences, -1});
  require_tensor(lengths, "lengths", DType::i32, {sequences});
  require_tensor(tails, "tails", DType::i32, {sequences});
  require_tensor(tail_keys, "tailKeys", DType::f16, {sequences, -1, c.heads * c.dims});
  require_tensor(tail_values, "tailValues", DType::f16, tail_keys.shape);
  for (const Tensor* t : {&k, &v, &table, &lengths, &tails, &tail_keys, &tail_values})
    require_on_device(exec, *t, "a tensor");
  const bool words = c.form == KvForm::kWords;
  const int64_t room = tail_keys.dim(1), residual = p.integer("residual", words ? 0 : room);
  require(words ? residual == 0 : residual > 0 && residual <= room && residual % c.block == 0,
          words ? "turbomind has no residual"
                : "residual is no multiple of " + std::to_string(c.block) + " up to the tails' room");
  if (sequences == 0) return;
  KvPackArgs a = pack_args(c, exec, k, v, table);
  a.places.room = static_cast<int>(room), a.residual = static_cast<int>(residual);
  a.lengths = lengths.data<int32_t>(), a.tails = tails.data<int32_t>(), a.tail_keys = tail_keys.data<uint16_t>(),
  a.tail_values = tail_values.data<uint16_t>();
  a.counters = exec.counters(static_cast<size_t>(sequences));
  launch(c, exec, a, sequences);
}
LPQ_CUDA_OP(kv_append, "kv_append");

}  // namespace
}  // namespace lpq::cuda
