#include <cmath>

#include "cuda/attention/kv_form.h"
#include "cuda/attention/kv_prefill.h"

namespace lpq::cuda {
namespace {

// Numbers of a kernel that depend on its shape alone.
struct Facts {
  int stage, most_warps, unit;
};
template <int KEYS, int VALUES, int DIMS, KvForm FORM>
Facts facts_of() {
  using Shape = KvShape<KEYS, VALUES, DIMS, FORM>;
  static_assert(Shape::kStage <= 99 << 10, "a block of 8.6 and 8.9 has 99 KiB");
  return {Shape::kStage, Shape::kMostWarps, Shape::kTokens};
}
template <int KEYS, int VALUES, int DIMS>
Facts facts_of(KvForm form) {
  if constexpr (KEYS > 2)
    if (form == KvForm::kWords) return facts_of<KEYS, VALUES, DIMS, KvForm::kWords>();
  return form == KvForm::kWide   ? facts_of<KEYS, VALUES, DIMS, KvForm::kWide>()
         : form == KvForm::kFine ? facts_of<KEYS, VALUES, DIMS, KvForm::kFine>()
                                 : facts_of<KEYS, VALUES, DIMS, KvForm::kTokens>();
}
template <int KEYS, int VALUES>
Facts facts_of(int64_t dims, KvForm form) {
  return dims == 64    ? facts_of<KEYS, VALUES, 64>(form)
         : dims == 128 ? facts_of<KEYS, VALUES, 128>(form)
                       : facts_of<KEYS, VALUES, 256>(form);
}
Facts facts_of(const KvCache& c) {
  if (c.value_bits != c.bits) return facts_of<8, 4>(c.dims, c.form);
  return c.bits == 2   ? facts_of<2, 2>(c.dims, c.form)
         : c.bits == 4 ? facts_of<4, 4>(c.dims, c.form)
                       : facts_of<8, 8>(c.dims, c.form);
}

// Warps of a block, units in its rings, splits of the tokens.
struct Choice {
  int64_t warps, stages, splits;
};
// Blocks that a multiprocessor holds at once: by shared memory, of which each takes 1 KiB besides, and by registers.
int64_t resident(const Facts& facts, int64_t warps, int64_t stages, int64_t record, int64_t room) {
  const int64_t shared = std::max(warps * stages * facts.stage, warps * record + 16);
  return shared > room ? 0 : std::min((room + 1024) / (shared + 1024), facts.most_warps / warps);
}
// What ends soonest, in times of one unit: rounds of blocks, each of so many units a warp, which take as long as there
// are warps on a multiprocessor, but at least nine (2 bits) or eight, three and half a unit a warp to begin and to
// bring together, and a quarter a split; measured on an H200 (docs/kv-cache.md). Rings of one unit are the fastest, as
// keys are copied while values are read. Fewer than six warps are for short sequences, where they have nothing to hide;
// fewer than three for devices that hold no more, as the tail is 16 tokens a warp.
Choice choose(const ops::KvDecode& of, const Facts& facts, int64_t bits, int64_t dims, int64_t tiles, int64_t units,
              const DeviceFacts& device) {
  const int64_t room = device.shared_per_block, record = (2 * kKvQueries + kKvQueries * dims) * 4, stages = of.stages,
                wanted = of.warps, splits_wanted = of.splits;
  require(stages <= 4, "stages is not 1 to 4");
  require(wanted <= facts.most_warps, "warps is not 1 to " + std::to_string(facts.most_warps));
  Choice best{0, stages, 1};
  int64_t least = INT64_MAX;
  for (const int64_t warps : {16, 12, 8, 6, 5, 4, 3, 2, 1}) {
    if (wanted ? warps != 16 : best.warps && (warps < 3 || (warps < 6 && units > 64))) continue;
    const int64_t of_block = wanted ? wanted : warps,
                  blocks = of_block > facts.most_warps ? 0 : resident(facts, of_block, stages, record, room);
    if (blocks == 0) continue;
    for (int64_t splits = splits_wanted ? splits_wanted : 1;
         splits <= (splits_wanted ? splits_wanted : 128) &&
         (splits_wanted || splits * of_block <= std::max(units, of_block));
         ++splits) {
      const int64_t all = tiles * splits, at_once = std::min(blocks, div_up(all, device.multiprocessors));
      const int64_t unit = std::max<int64_t>(at_once * of_block, bits == 2 ? 9 : 8),
                    round = 8 * div_up(div_up(units, splits), of_block) * unit + 24 + 4 * at_once * of_block;
      const int64_t cost = div_up(all, device.multiprocessors * at_once) * round + 2 * splits;
      if (cost < least) least = cost, best.warps = of_block, best.splits = splits;
    }
  }
  require(best.warps > 0,
          "warps and stages need more than the device's " + std::to_string(room) + " bytes of shared memory a block");
  return best;
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
  const int64_t group = heads / c.heads;
  if (queries > 1) return kv_prefill(of, c, a, exec);
  a.query_tiles = static_cast<int>(div_up(group, kKvQueries));
  const Facts facts = facts_of(c);
  const int64_t tiles = sequences * c.heads * a.query_tiles, units = div_up(table.dim(1) * c.page_tokens, facts.unit);
  const Choice choice = choose(of, facts, c.bits, c.dims, tiles, units, exec.device());
  a.splits = static_cast<int>(choice.splits), a.stages = static_cast<int>(choice.stages);
  const int64_t record = (2 * kKvQueries + kKvQueries * c.dims) * 4;
  const int64_t shared = std::max(choice.warps * choice.stages * facts.stage, choice.warps * record + 16);
  Scratch partial = exec.scratch(static_cast<size_t>(tiles * a.splits * record));
  a.partial = partial.as<float>(), a.counters = exec.counters(static_cast<size_t>(tiles));
  a.early = true;
  for (const Tensor* each :
       {&table, &lengths, &tails, of.form.pages[0], of.form.pages[1], of.form.pages[2], of.form.pages[3]})
    a.early = a.early && exec.follows_untouched_cache(*each);
  exec.launch_after("lpq_kv_decode_" + c.bits_name() + "_" + c.form_name() + "_" + std::to_string(c.dims),
                    Dim3(tiles * choice.splits), Dim3(32 * choice.warps), static_cast<unsigned>(shared), a);
  exec.wrote(y);
}
LPQ_CUDA_OP(kv_decode, "kv_decode");

}  // namespace
}  // namespace lpq::cuda
