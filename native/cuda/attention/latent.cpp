// latent_decode, latent_pack and latent_append: how launches are cut up.
#include "ops/latent.h"
#include "cuda/attention/latent_shape.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void require_there(const CudaExec& exec, const Tensor& tensor, const char* name) {
  require(tensor.device == exec.device().ordinal, std::string(name) + " is not on the device of the queue");
  if (tensor.dtype != DType::i32) require_sixteen(tensor, name);
}

template <class Args>
void tell_form(const ops::LatentForm& f, Args& a) {
  require(f.bytes() < (int64_t{1} << 31), "a page holds 2 GiB or more");
  a.page_bytes = f.bytes(), a.numbers = static_cast<int>(f.numbers()), a.rope = static_cast<int>(f.rope());
  a.number_row = static_cast<int>(f.number_row()), a.latent = static_cast<int>(f.latent),
  a.rotary = static_cast<int>(f.rotary), a.page_tokens = static_cast<int>(f.page_tokens),
  a.page_count = static_cast<int>(f.pages->dim(0));
}

// A kernel by its rows.
struct Kernel {
  const char *name, *join;
  int rows, tokens, threads, record, shared;
};
template <class T>
Kernel kernel_of(const char* name, const ops::LatentForm& f) {
  return {name,
          name,
          T::kRows,
          T::kTokens,
          kLatentThreads,
          T::kRecord * 4,
          T::shared(static_cast<int>(f.bits), f.exact() ? 32 : static_cast<int>(f.group))};
}
// Blocks of 16 rows where these suffice; of 64 by wgmma, or where the device has room for them. wish: of this many, or
// 0.
Kernel choose_kernel(const ops::LatentForm& f, int64_t rows, int64_t wish, const DeviceFacts& device) {
  if (wish == 16 || (!wish && rows <= 16)) return kernel_of<LatentFew>("few", f);
  const Kernel many = kernel_of<LatentMany>("many", f);
  if (wish == 32 || (!wish && many.shared > device.shared_per_block)) return kernel_of<LatentSmall>("small", f);
  using T = LatentHopper;
  static_assert(T::kRecord == LatentMany::kRecord);
  if (device.features.wgmma && f.latent == kLatentDims)
    return {"sm90", "many", T::kRows, T::kTokens, T::kThreads, T::kRecord * 4, T::kBytes};
  return many;
}

// Splits that end soonest, in tenths of a tile of tokens: rounds of blocks, each so many tiles and two to begin and to
// end; what is found has to be brought together, 64 rows of a split in about a third of a tile's time.
int64_t choose_splits(int64_t tiles, int64_t units, int64_t at_once, int64_t rows) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t splits = 1; splits <= 512 && splits <= std::max<int64_t>(units, 1); ++splits) {
    const int64_t cost = div_up(tiles * splits, at_once) * (div_up(units, splits) + 2) * 10 +
                         (splits > 1 ? 20 + splits * rows / 200 : 0);
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

void decode(Call& call, CudaExec& exec) {
  const ops::LatentDecode of(call);
  const ops::LatentForm& f = of.form;
  for (const Tensor* t : {&of.q, f.pages, &of.table, &of.lengths, &of.y}) require_there(exec, *t, "a tensor");
  if (of.sequences == 0) return;
  LatentArgs a{};
  tell_form(f, a);
  const int64_t rows = of.heads * of.queries;
  require(rows * f.width() < (int64_t{1} << 31), "queries times heads are too many for a launch");
  a.q = of.q.data<uint16_t>(), a.pages = reinterpret_cast<const unsigned char*>(f.pages->raw()),
  a.table = of.table.data<int32_t>(), a.lengths = of.lengths.data<int32_t>(), a.y = of.y.raw();
  a.bits = static_cast<int>(f.bits), a.group_shift = log2_of(f.group),
  a.table_pages = static_cast<int>(of.table.dim(1)), a.heads = static_cast<int>(of.heads),
  a.queries = static_cast<int>(of.queries), a.rows = static_cast<int>(rows);
  a.store = of.y.dtype == DType::f32 ? kKvStoreF32 : of.y.dtype == DType::bf16 ? kKvStoreBf16 : kKvStoreF16;
  a.bf16_queries = of.q.dtype == DType::bf16, a.scale = static_cast<float>(of.scale * 1.4426950408889634);
  a.fault = exec.fault("LPQ_NATIVE_ARGUMENT", "the table names a page that is none, or a length is beyond its pages");
  const DeviceFacts& device = exec.device();
  const Kernel kernel = choose_kernel(f, rows, of.rows, device);
  require(kernel.shared <= device.shared_per_block, "the kernel needs more than the device's " +
                                                        std::to_string(device.shared_per_block) +
                                                        " bytes of shared memory a block");
  const int64_t row_tiles = div_up(rows, kernel.rows), tiles = of.sequences * row_tiles,
                units = div_up(of.table.dim(1) * f.page_tokens, kernel.tokens),
                held = std::max<int64_t>(1, (device.shared_per_block + 1024) / (kernel.shared + 1024)),
                splits =
                    of.splits ? of.splits : choose_splits(tiles, units, device.multiprocessors * held, kernel.rows);
  a.row_tiles = static_cast<int>(row_tiles), a.splits = static_cast<int>(splits);
  require(tiles * splits < (int64_t{1} << 31), "queries times heads times splits are too many for a launch");
  Scratch partial = exec.scratch(static_cast<size_t>(splits > 1 ? tiles * splits * kernel.record : 16));
  a.partial = partial.as<float>();
  exec.launch(std::string("lpq_latent_decode_") + kernel.name, Dim3(tiles * splits), Dim3(kernel.threads),
              static_cast<unsigned>(kernel.shared), a);
  if (splits > 1)
    exec.launch(std::string("lpq_latent_join_") + kernel.join,
                Dim3(tiles * kernel.rows * kLatentDims / 4 / kLatentThreads), Dim3(kLatentThreads), 0, a);
}
LPQ_CUDA_OP(decode, "latent_decode");

// lengths: of appending, or null.
void launch_pack(CudaExec& exec, const ops::LatentForm& f, const Tensor& c, const Tensor& rope, const Tensor& table,
                 const Tensor* lengths, int64_t first) {
  for (const Tensor* t : {&c, &rope, &table, f.pages}) require_there(exec, *t, "a tensor");
  if (c.dim(0) == 0) return;
  LatentPackArgs a{};
  tell_form(f, a);
  a.c = c.data<uint16_t>(), a.rotary_dims = rope.data<uint16_t>(), a.table = table.data<int32_t>(),
  a.pages = reinterpret_cast<unsigned char*>(f.pages->raw()), a.group = static_cast<int>(f.group),
  a.table_pages = static_cast<int>(table.dim(table.rank() - 1)), a.first = static_cast<int>(first),
  a.tokens = static_cast<int>(c.dim(0));
  if (lengths) require_there(exec, *lengths, "lengths"), a.lengths = lengths->data<int32_t>();
  a.fault = exec.fault("LPQ_NATIVE_NUMERICS", "a latent or a rotary key is NaN, or infinite");
  a.fault_page =
      exec.fault("LPQ_NATIVE_ARGUMENT", "the table names a page that is none, or a sequence is longer than its pages");
  exec.launch("lpq_latent_pack_" + std::to_string(f.bits), Dim3(div_up(c.dim(0), kLatentThreads / 64)),
              Dim3(kLatentThreads), 0, a);
}

void pack(Call& call, CudaExec& exec) {
  const ops::LatentPack of(call);
  launch_pack(exec, of.form, of.c, of.rope, of.table, nullptr, of.first);
}
LPQ_CUDA_OP(pack, "latent_pack");

void append(Call& call, CudaExec& exec) {
  const ops::LatentAppend of(call);
  launch_pack(exec, of.form, of.c, of.rope, of.table, &of.lengths, 0);
}
LPQ_CUDA_OP(append, "latent_append");

}  // namespace
}  // namespace lpq::cuda
