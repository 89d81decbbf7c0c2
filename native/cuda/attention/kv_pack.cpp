// kv_pack and kv_append.
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

void launch(const KvCache& c, CudaExec& exec, const KvPackArgs& a, int64_t numbers, bool fit) {
  const bool words = c.form == KvForm::kWords;
  const int64_t chunk = words ? (c.dims > 256 ? 512 : 128) : std::min<int64_t>(c.dims, 128),
                chunks = words ? 1 : c.dims / chunk;
  const int threads = words ? 256 : static_cast<int>(chunk) / 2 * kPackWarps,
            most = static_cast<int>(words ? c.dims : std::max(c.key_group, c.value_group)),
            shared = fit     ? kv_fit_shared(threads, most)
                     : words ? 0
                             : kv_pack_shared(static_cast<int>(chunk), static_cast<int>(c.block),
                                              static_cast<int>(c.key_group), c.form == KvForm::kTokens);
  const std::string form = words ? "_word_" : c.form == KvForm::kTokens ? "_token_" : "_channel_";
  const std::string kernel =
      (a.lengths ? "lpq_kv_append_" : "lpq_kv_pack_") + (fit ? "fit" : c.bits_name()) + form + std::to_string(chunk);
  const Dim3 grid(2 * chunks * c.heads * numbers), block(threads);
  if (a.early) exec.launch_through(kernel, grid, block, static_cast<unsigned>(shared), a);
  else exec.launch_after(kernel, grid, block, static_cast<unsigned>(shared), a);
}

void kv_pack(Call& call, CudaExec& exec) {
  const ops::KvPack of(call);
  const Tensor &k = of.k, &v = of.v, &table = of.table;
  const KvCache c = kv_cache_of(of.form, exec);
  for (const Tensor* t : {&k, &v, &table}) require_on_device(exec, *t, "a tensor");
  const int64_t first = of.first, tokens = k.dim(0);
  if (tokens == 0) return;
  KvPackArgs a = pack_args(c, exec, k, v, table);
  a.first = static_cast<int>(first), a.tokens = static_cast<int>(tokens);
  const auto& pages = of.form.pages;
  a.early = 1;
  for (const Tensor* each : {&k, &v, &table}) a.early = a.early && exec.follows_untouched_cache(*each);
  for (const Tensor* each : pages) a.early = a.early && exec.follows_apart(*each);
  launch(c, exec, a, div_up(tokens, c.block), of.form.fit);
  exec.wrote(*pages[0], *pages[1], *pages[2], *pages[3]);
  exec.read(k, v, table);
}
LPQ_CUDA_OP(kv_pack, "kv_pack");

void kv_append(Call& call, CudaExec& exec) {
  const ops::KvAppend of(call);
  const Tensor &k = of.k, &v = of.v, &table = of.table, &lengths = of.lengths, &tails = of.tails,
               &tail_keys = of.tail_keys, &tail_values = of.tail_values;
  const KvCache c = kv_cache_of(of.form, exec);
  for (const Tensor* t : {&k, &v, &table, &lengths, &tails, &tail_keys, &tail_values})
    require_on_device(exec, *t, "a tensor");
  const int64_t sequences = of.sequences, room = tail_keys.dim(1), residual = of.residual;
  if (sequences == 0) return;
  KvPackArgs a = pack_args(c, exec, k, v, table);
  a.places.room = static_cast<int>(room), a.residual = static_cast<int>(residual);
  a.lengths = lengths.data<int32_t>(), a.tails = tails.data<int32_t>(), a.tail_keys = tail_keys.data<uint16_t>(),
  a.tail_values = tail_values.data<uint16_t>();
  a.counters = exec.counters(static_cast<size_t>(sequences));
  launch(c, exec, a, sequences, of.form.fit);
}
LPQ_CUDA_OP(kv_append, "kv_append");

}  // namespace
}  // namespace lpq::cuda
