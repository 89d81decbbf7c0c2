#include "cuda/attention/kv_prefill.h"

#include "cuda/attention/kv_prefill/shape.h"

namespace lpq::cuda {
namespace {

// Of a kernel: shared memory of a block, threads, rows and tokens of a tile, blocks that run side by side.
struct Facts {
  int shared, threads, rows, tokens, at_once;
};
Facts facts_of(const KvCache& c, bool wgmma) {
  return kv_of(c, [wgmma]<int KEYS, int VALUES, int DIMS, KvForm FORM>() {
    constexpr KvForm form = FORM == KvForm::kWide ? KvForm::kFine : FORM;  // told at run time
    using Hopper = HopperTile<KEYS, VALUES, DIMS, form>;
    using Portable = PrefillTile<KEYS, VALUES, DIMS, form>;
    static_assert(kPrefillShared<Portable> <= 99 << 10, "a block of 8.6 and 8.9 has 99 KiB");
    // Registers let two blocks of the portable kernel run side by side, shared memory of 512 dims one.
    return wgmma ? Facts{HopperShared<Hopper>::kBytes, HopperShared<Hopper>::kThreads, kHopperRows<Hopper>,
                         Hopper::kTokens, 1}
                 : Facts{kPrefillShared<Portable>, kPrefillWorkers, kPrefillRows<Portable>, Portable::kTokens,
                         2 / Portable::kSharers};
  });
}

// Splits that end soonest, in tenths of a tile of tokens: rounds of blocks, each so many tiles and two to begin and to
// end; what is found has to be brought together.
int64_t choose_splits(int64_t tiles, int64_t units, int64_t at_once) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t splits = 1; splits <= 64 && splits <= std::max<int64_t>(units, 1); ++splits) {
    const int64_t cost =
        div_up(tiles * splits, at_once) * (div_up(units, splits) + 2) * 10 + (splits > 1 ? 10 + 4 * splits : 0);
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

}  // namespace

void kv_prefill(const ops::KvDecode& of, const KvCache& c, KvDecodeArgs a, CudaExec& exec) {
  const DeviceFacts& device = exec.device();
  const bool wgmma = device.features.wgmma;
  const Facts facts = facts_of(c, wgmma);
  const int64_t rows = of.queries * (of.heads / c.heads), of_block = facts.rows, row_tiles = div_up(rows, of_block),
                tiles = of.sequences * c.heads * row_tiles;
  const int64_t at_once = device.multiprocessors * facts.at_once;
  const int64_t units = div_up(of.table.dim(1) * c.page_tokens + of.tail_keys.dim(1), facts.tokens),
                splits = of.splits ? of.splits : choose_splits(tiles, units, at_once);
  a.query_tiles = static_cast<int>(row_tiles), a.splits = static_cast<int>(splits);
  require(tiles * splits < (int64_t{1} << 31), "queries times heads times splits are too many for a launch");
  const int64_t record = (2 * of_block + of_block * c.dims) * 4;
  Scratch partial = exec.scratch(static_cast<size_t>(splits > 1 ? tiles * splits * record : 16));
  a.partial = partial.as<float>(), a.counters = exec.counters(static_cast<size_t>(splits > 1 ? tiles : 1));
  const char* const form = c.form == KvForm::kWords ? "_word_" : c.form == KvForm::kTokens ? "_token_" : "_channel_";
  exec.launch((wgmma ? "lpq_kv_prefill_sm90_" : "lpq_kv_prefill_") + c.bits_name() + form + std::to_string(c.dims),
              Dim3(tiles * splits), Dim3(facts.threads), static_cast<unsigned>(facts.shared), a);
}

}  // namespace lpq::cuda
