#include <cmath>

#include "cuda/attention/kv_form.h"
#include "cuda/attention/kv_plan.h"
#include "cuda/attention/kv_prefill.h"

namespace lpq::cuda {
namespace {

KvFacts facts_of(const KvCache& c, int queries) {
  return kv_of(c, [queries]<int KEYS, int VALUES, int DIMS, KvForm FORM>() {
    if constexpr (DIMS <= 128)
      if (queries == 16) return kv_facts_of<KvShape<KEYS, VALUES, DIMS, FORM, 16>>();
    return kv_facts_of<KvShape<KEYS, VALUES, DIMS, FORM, 8>>();
  });
}

void kv_decode(Call& call, CudaExec& exec) {
  const ops::KvDecode of(call);
  const Tensor &q = of.q, &table = of.table, &lengths = of.lengths, &tail_keys = of.tail_keys,
               &tail_values = of.tail_values, &tails = of.tails, &y = of.y;
  const KvCache c = kv_cache_of(of.form, exec);
  const int64_t sequences = of.sequences, heads = of.heads, queries = of.queries;
  for (const Tensor* t : {&q, &table, &lengths, &tail_keys, &tail_values, &tails, &y})
    require_on_device(exec, *t, "a tensor");
  if (sequences == 0) return;
  KvDecodeArgs a = c.places;
  a.q = q.data<uint16_t>(), a.table = table.data<int32_t>(), a.lengths = lengths.data<int32_t>(),
  a.table_pages = static_cast<int>(table.dim(1));
  a.heads = static_cast<int>(heads), a.queries = static_cast<int>(queries), a.room = static_cast<int>(tail_keys.dim(1));
  a.scale = static_cast<float>(of.scale * 1.4426950408889634);
  a.tail_keys = tail_keys.data<uint16_t>(), a.tail_values = tail_values.data<uint16_t>(),
  a.tails = tails.data<int32_t>();
  a.y = y.raw();
  a.store = y.dtype == DType::f32 ? kKvStoreF32 : y.dtype == DType::bf16 ? kKvStoreBf16 : kKvStoreF16;
  a.fault =
      exec.fault("LPQ_NATIVE_ARGUMENT",
                 "the table names a page that is none, or a length or tail is not of whole tiles or beyond its room");
  a.bf16_queries = q.dtype == DType::bf16;
  if (of.sinks) {
    require_on_device(exec, *of.sinks, "sinks");
    a.sinks = of.sinks->raw(), a.sinks_type = type_index(of.sinks->dtype);
  }
  const int64_t group = heads / c.heads;
  if (queries > 1) return kv_prefill(of, c, a, exec);
  const KvFacts facts = facts_of(c, kv_queries(group, c.dims));
  a.query_tiles = static_cast<int>(div_up(group, facts.queries));
  const int64_t tiles = sequences * c.heads * a.query_tiles, units = div_up(table.dim(1) * c.page_tokens, facts.unit);
  const int64_t room = exec.device().shared_per_block;
  require(of.warps <= facts.most_warps, "warps is not 1 to " + std::to_string(facts.most_warps));
  require(of.warps % facts.sharers == 0, "warps share units of this head in pairs: their number is odd");
  const KvPlan plan = kv_plan(facts, {of.warps, of.splits}, tiles, units, div_up(tail_keys.dim(1), 32),
                              exec.device().multiprocessors, room);
  require(plan.warps > 0,
          "warps need more than the device's " + std::to_string(room) + " bytes of shared memory a block");
  a.splits = static_cast<int>(plan.splits);
  a.joined = kv_joined(plan.splits);
  const int runs = kv_runs(a.splits, a.joined);
  Scratch partial = exec.scratch(static_cast<size_t>(tiles * (a.splits + runs) * facts.record));
  a.partial = partial.as<float>(), a.counters = exec.counters(static_cast<size_t>(tiles * (1 + runs)));
  a.early = true;
  for (const Tensor* each :
       {&table, &lengths, &tails, of.form.pages[0], of.form.pages[1], of.form.pages[2], of.form.pages[3]})
    a.early = a.early && exec.follows_untouched_cache(*each);
  exec.launch_after("lpq_kv_decode_" + c.bits_name() + "_" + c.form_name() + "_" + std::to_string(c.dims) + "_" +
                        std::to_string(facts.queries),
                    Dim3(tiles * plan.splits), Dim3(32 * plan.warps), static_cast<unsigned>(facts.shared(plan.warps)),
                    a);
  exec.wrote(y);
}
LPQ_CUDA_OP(kv_decode, "kv_decode");

}  // namespace
}  // namespace lpq::cuda
