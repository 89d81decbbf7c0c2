// kv_decode and kv_pack: contracts in native/kv-ops.ts, bytes in formats/kv/spec.md.
#include <cmath>

#include "cuda/attention/kv_shape.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// Numbers of a launch that depend on the shape alone; they must be those of KvShape.
struct Facts {
  int warps, shared;
};
template <int BITS, int DIMS>
Facts facts_of(bool wide) {
  using Wide = KvShape<BITS, DIMS, 128, DIMS < 128 ? DIMS : 128>;
  using Narrow = KvShape<BITS, DIMS, 32, 32>;
  return wide ? Facts{Wide::kWarps, Wide::kShared} : Facts{Narrow::kWarps, Narrow::kShared};
}
template <int BITS>
Facts facts_of(int64_t dims, bool wide) {
  return dims == 64 ? facts_of<BITS, 64>(wide) : dims == 128 ? facts_of<BITS, 128>(wide) : facts_of<BITS, 256>(wide);
}
Facts facts_of(int64_t bits, int64_t dims, bool wide) { return bits == 2 ? facts_of<2>(dims, wide) : bits == 4 ? facts_of<4>(dims, wide) : facts_of<8>(dims, wide); }

struct Cache {
  int64_t bits, dims, heads, key_group, value_group, page_tokens, tile, block, run;
  bool outer;
  KvDecodeArgs places{};
};

void require_on_device(const CudaExec& exec, const Tensor& tensor, const char* name) {
  require(tensor.device == exec.device().ordinal, std::string(name) + " is not on the device of the queue");
  require(reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0, std::string(name) + " does not start at a multiple of 16 bytes");
}

// Pages are the four tensors from input `first` on (or outputs).
Cache cache_of(const Params& p, CudaExec& exec, const Tensor* const (&pages)[4]) {
  Cache c{p.integer("bits"), p.integer("headDim"), p.integer("kvHeads"), p.integer("keyGroup"), p.integer("valueGroup"), p.integer("pageTokens"), 0, 0, 0, p.integer("outer", 0) != 0};
  require(c.bits == 2 || c.bits == 4 || c.bits == 8, "bits is not 2, 4 or 8");
  require(c.dims == 64 || c.dims == 128 || c.dims == 256, "headDim is not 64, 128 or 256");
  require(c.key_group == 32 || c.key_group == 128, "keyGroup is not 32 or 128");
  require(c.value_group == (c.key_group == 32 ? 32 : std::min<int64_t>(c.dims, 128)), "valueGroup does not go with keyGroup");
  require(c.heads > 0, "kvHeads is not positive");
  const int64_t codes = 16 / c.bits;
  c.tile = 32 * codes, c.block = std::max(c.tile, c.key_group), c.run = std::min<int64_t>(128, c.block);
  require(c.page_tokens > 0 && c.page_tokens % c.block == 0, "pageTokens is no multiple of " + std::to_string(c.block));
  const int64_t P = c.page_tokens, H = c.heads, D = c.dims;
  const int64_t bytes[4] = {P * H * D * c.bits / 8, P / c.key_group * H * D * 4, P * H * D * c.bits / 8, D / c.value_group * H * P * 4};
  const char* const names[4] = {"keys", "keyNumbers", "values", "valueNumbers"};
  for (int i = 0; i < 4; ++i) {
    require_tensor(*pages[i], names[i], DType::u8, {pages[0]->dim(0), bytes[i]});
    require_on_device(exec, *pages[i], names[i]);
    require(bytes[i] < (int64_t{1} << 31), "a page holds 2 GiB or more");
  }
  KvDecodeArgs& a = c.places;
  a.keys_page = bytes[0], a.key_numbers_page = bytes[1], a.values_page = bytes[2], a.value_numbers_page = bytes[3];
  const int64_t lines[3] = {P / codes, P / c.key_group, P}, widths[3] = {2 * D, 4 * D, D * c.bits / 8};
  int* const rows[3] = {&a.key_row, &a.key_number_row, &a.value_row};
  int* const heads[3] = {&a.key_head, &a.key_number_head, &a.value_head};
  for (int i = 0; i < 3; ++i) *rows[i] = static_cast<int>(widths[i] * (c.outer ? 1 : H)), *heads[i] = static_cast<int>(widths[i] * (c.outer ? lines[i] : 1));
  a.value_number_group = static_cast<int>(4 * P * (c.outer ? 1 : H)), a.value_number_head = static_cast<int>(4 * P * (c.outer ? D / c.value_group : 1));
  a.page_tokens = static_cast<int>(P), a.kv_heads = static_cast<int>(H);
  return c;
}

// Splits of the tokens that end soonest: rounds of blocks over the device, each of a run of units and what a block costs besides.
int64_t splits_for(int64_t tiles, int64_t units, int warps, int multiprocessors) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t splits = 1; splits <= 128 && splits * warps <= std::max<int64_t>(units, warps); ++splits) {
    const int64_t cost = div_up(tiles * splits, multiprocessors) * (div_up(div_up(units, splits), warps) + 4);
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

void kv_decode(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  const Tensor &q = call.input(0), &table = call.input(5), &lengths = call.input(6), &tail_keys = call.input(7), &tail_values = call.input(8), &tails = call.input(9),
               &y = call.output(0);
  const Tensor* const pages[4] = {&call.input(1), &call.input(2), &call.input(3), &call.input(4)};
  const Cache c = cache_of(p, exec, pages);
  const int64_t heads = p.integer("heads");
  require(heads > 0 && heads % c.heads == 0, "heads is no multiple of kvHeads");
  require_tensor(q, "q", DType::f16, {-1, heads * c.dims});
  const int64_t sequences = q.dim(0);
  require_dtype(y, "y", {DType::f16, DType::f32});
  require_shape(y, "y", q.shape);
  require_tensor(table, "table", DType::i32, {sequences, -1});
  require_tensor(lengths, "lengths", DType::i32, {sequences});
  require_tensor(tails, "tails", DType::i32, {sequences});
  require_tensor(tail_keys, "tailKeys", DType::f16, {sequences, -1, c.heads * c.dims});
  require_tensor(tail_values, "tailValues", DType::f16, tail_keys.shape);
  for (const Tensor* t : {&q, &table, &lengths, &tail_keys, &tail_values, &tails, &y}) require_on_device(exec, *t, "a tensor");
  if (sequences == 0) return;
  KvDecodeArgs a = c.places;
  const bool wide = c.key_group == 128;
  const Facts facts = facts_of(c.bits, c.dims, wide);
  a.q = q.data<uint16_t>(), a.keys = reinterpret_cast<const unsigned char*>(pages[0]->raw()), a.key_numbers = reinterpret_cast<const unsigned char*>(pages[1]->raw());
  a.values = reinterpret_cast<const unsigned char*>(pages[2]->raw()), a.value_numbers = reinterpret_cast<const unsigned char*>(pages[3]->raw());
  a.table = table.data<int32_t>(), a.lengths = lengths.data<int32_t>(), a.table_pages = static_cast<int>(table.dim(1));
  a.heads = static_cast<int>(heads), a.query_tiles = static_cast<int>(div_up(heads / c.heads, kKvQueries));
  a.scale = static_cast<float>(p.number("scale") * 1.4426950408889634);
  const int64_t tiles = sequences * c.heads * a.query_tiles, units = 2 * table.dim(1) * (c.page_tokens / c.tile), room = tail_keys.dim(1);
  const int64_t splits = p.integer("splits", splits_for(tiles, units, facts.warps, exec.device().multiprocessors));
  require(splits >= 1 && splits <= 1024, "splits is not 1 to 1024");
  a.splits = static_cast<int>(splits), a.room = static_cast<int>(room);
  a.tail_keys = tail_keys.data<uint16_t>(), a.tail_values = tail_values.data<uint16_t>(), a.tails = tails.data<int32_t>();
  require(facts.shared <= exec.device().shared_per_block, "the device has less than " + std::to_string(facts.shared) + " bytes of shared memory a block");
  const int64_t record = 2 * kKvQueries + kKvQueries * c.dims;
  Scratch partial = exec.scratch(static_cast<size_t>(tiles * a.splits * record * 4));
  a.partial = partial.as<float>(), a.counters = exec.counters(static_cast<size_t>(tiles)), a.y = y.raw(), a.wide = y.dtype == DType::f32;
  const std::string dims = std::to_string(c.dims), kernel = "lpq_kv_decode_" + std::to_string(c.bits) + "_" + dims + (wide ? "_128" : "_32");
  exec.launch(kernel, Dim3(tiles * splits), Dim3(32 * facts.warps), static_cast<unsigned>(facts.shared), a);
}
LPQ_CUDA_OP(kv_decode, "kv_decode");

void kv_pack(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  const Tensor &k = call.input(0), &v = call.input(1), &table = call.input(2);
  const Tensor* const pages[4] = {&call.output(0), &call.output(1), &call.output(2), &call.output(3)};
  const Cache c = cache_of(p, exec, pages);
  require_tensor(k, "k", DType::f16, {-1, c.heads * c.dims});
  require_tensor(v, "v", DType::f16, k.shape);
  require_tensor(table, "table", DType::i32, {-1});
  for (const Tensor* t : {&k, &v, &table}) require_on_device(exec, *t, "a tensor");
  const int64_t first = p.integer("first", 0), tokens = k.dim(0);
  require(first >= 0 && first % c.block == 0 && tokens % c.block == 0, "tokens come in blocks of " + std::to_string(c.block));
  require(first + tokens <= table.dim(0) * c.page_tokens, "the table has too few pages");
  if (tokens == 0) return;
  const int block = static_cast<int>(c.block);
  const KvPackArgs a{k.data<uint16_t>(), v.data<uint16_t>(), table.data<int32_t>(), reinterpret_cast<unsigned char*>(pages[0]->raw()), reinterpret_cast<unsigned char*>(pages[1]->raw()),
                     reinterpret_cast<unsigned char*>(pages[2]->raw()), reinterpret_cast<unsigned char*>(pages[3]->raw()), c.places, static_cast<int>(first), block,
                     static_cast<int>(c.key_group), static_cast<int>(c.value_group), static_cast<int>(c.run)};
  const int64_t groups = std::max(c.block / c.key_group * c.dims, c.dims / c.value_group * c.block);
  exec.launch("lpq_kv_pack_" + std::to_string(c.bits) + "_" + std::to_string(c.dims), Dim3(2 * c.heads * (tokens / c.block)), Dim3(256), static_cast<unsigned>(div_up(2 * c.block * (c.dims + 2), 16) * 16 + 16 * groups), a);
}
LPQ_CUDA_OP(kv_pack, "kv_pack");

}  // namespace
}  // namespace lpq::cuda
