// Quantizes tokens and packs them: of a prompt, or of a tail that is full. The arithmetic is ops.kvQuantize's,
// to the bit: scale = f16(fl32((largest - zero) / top)), code = fl32((x - zero) / scale) to the nearest integer.
//
// A thread has the codes of the words that it stores. Keys: (lane, warp, reg) -> dims 2 lane and the next of 64, token
// 32 s + 8 (warp % 4) + i for s of the block's thirties-two and i of 8: words of R tokens that are 32 apart. Values:
// (lane, reg) -> words 2 (lane % L) and the next of a chunk, L = words / 2, token lane / L of several, j of a word's R
// dims. turbomind: a lane has 8 dims of a token, of heads of 512 dims
// twice 8, 256 apart. Groups with fitted ends: kv_pack/fit.cuh.
#pragma once
#include "cuda/attention/kv_pack/fit.cuh"
#include "cuda/attention/kv_pack/keys.cuh"
#include "cuda/attention/kv_pack/values.cuh"
#include "cuda/attention/kv_pack/words.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"

namespace lpq::cuda {

// The page that holds token `t` of a sequence of `count` pages; one that is none is told.
__device__ __forceinline__ int pack_page(const KvPackArgs& a, const int* table, int count, int t) {
  const int index = static_cast<int>(static_cast<unsigned>(t) / static_cast<unsigned>(a.places.page_tokens)),
            page = static_cast<unsigned>(index) < static_cast<unsigned>(count) ? table[index] : -1;
  if (static_cast<unsigned>(page) < static_cast<unsigned>(a.places.pages)) return page;
  *a.fault_page = 1;
  return -1;
}

// A block of tokens of one head: keys or values of a chunk of dims.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM, class Block>
__device__ __forceinline__ void pack_block(const KvPackArgs& a, const Block& b, bool value, int chunk) {
  const int warp = static_cast<int>(threadIdx.x >> 5);
  constexpr bool by_token = FORM == KvForm::kTokens;
  constexpr int W = kPackWarps, parts = CHUNK / 64;
  if (value) return pack_values<VALUES, CHUNK>(a, b, chunk * CHUNK, a.block, warp, W * parts);
  const int part = warp / W, dim = chunk * CHUNK + 64 * part;
  if constexpr (KEYS == 8 && VALUES == 8) {
    if (a.block == 64) return pack_keys<8, 2, W, by_token>(a, b, dim, part, parts);
  }
  pack_keys<KEYS, KEYS == 2 ? 8 : 4, W, by_token>(a, b, dim, part, parts);
}

// Blocks of threads: of a chunk of at most 128 dims, keys and values fastest, then chunks, heads, blocks of tokens or
// sequences to append to. turbomind: 64 tokens, or the one appended; CHUNK is 512 for heads of as many dims, else 128.
// FIT: ends of groups are fitted; KEYS and VALUES are then 0, bits are those of a.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM, bool APPEND, bool PADDED, bool FIT>
__device__ __forceinline__ void pack_all(const KvPackArgs& a) {
  const KvDecodeArgs& p = a.places;
  constexpr bool words = FORM == KvForm::kWords;
  const int chunks = words ? 1 : a.dims / CHUNK, thread = static_cast<int>(threadIdx.x),
            head_dims = PADDED ? p.head_dims : a.dims;
  const unsigned index = blockIdx.x, of_head = index >> (32 - __clz(chunks)), heads = static_cast<unsigned>(p.kv_heads);
  const bool value = index & 1;
  const int chunk = static_cast<int>(index >> 1) & (chunks - 1), number = static_cast<int>(of_head / heads),
            head = static_cast<int>(of_head) - number * p.kv_heads;
  const int* const table = APPEND ? a.table + static_cast<long long>(number) * p.table_pages : a.table;
  const unsigned short* const given = value ? a.v : a.k;
  const int length = APPEND ? a.lengths[number] : 0, tail = APPEND && !words ? a.tails[number] : 0;
  if (APPEND && (length < 0 || (!words && length % a.block != 0) || tail < 0 || tail > a.residual)) {
    if (thread == 0) *a.fault_page = 1;
    return;
  }
  if constexpr (words) {
    constexpr int kParts = CHUNK > 256 ? 2 : 1;  // eights of dims of a lane
    const int lanes = a.dims / (8 * kParts), at_once = static_cast<int>(blockDim.x) / lanes,
              first = APPEND ? length : a.first + 64 * number,
              count = APPEND                        ? 1
                      : a.tokens - 64 * number < 64 ? a.tokens - 64 * number
                                                    : 64;
    for (int i = FIT ? thread / 32 : thread / lanes; FIT ? i < count : i - thread / lanes < count;
         i += FIT ? static_cast<int>(blockDim.x) / 32 : at_once) {
      const int own = i < count ? i : 0, page = pack_page(a, table, p.table_pages, first + own),
                in_page = (first + own) % p.page_tokens;
      const unsigned short* const from =
          given + (static_cast<long long>(APPEND ? number : 64 * number + own) * p.kv_heads + head) * head_dims;
      const long long at = page < 0 ? 0 : page;
      unsigned char* const number_to = (value ? a.value_numbers : a.key_numbers) + at * p.keys_page +
                                       static_cast<long long>(head) * p.key_number_head + 4 * in_page;
      unsigned char* const to = (value ? a.values : a.keys) + at * p.keys_page +
                                static_cast<long long>(head) * p.key_head +
                                static_cast<long long>(in_page) * (value ? p.value_row : p.key_row);
      if constexpr (FIT) {
        if (page >= 0) fit_words(a, value ? p.value_bits : p.key_bits, from, to, number_to, head_dims);
      } else if (value) pack_words<VALUES, kParts>(a, from, to, number_to, head_dims, a.dims, i < count && page >= 0);
      else pack_words<KEYS, kParts>(a, from, to, number_to, head_dims, a.dims, i < count && page >= 0);
    }
  } else {
    // Of a prompt a block; of a tail, when it is full, all.
    const int row = p.kv_heads * head_dims, count = APPEND ? (tail == a.residual ? a.residual : 0) : a.block,
              first = APPEND ? length : a.first + number * a.block;
    unsigned short* const kept =
        (value ? a.tail_values : a.tail_keys) + static_cast<long long>(number) * p.room * row + head * head_dims;
    const unsigned short* const from =
        APPEND ? kept : given + static_cast<long long>(number) * a.block * row + head * head_dims;
#pragma unroll 1
    for (int done = 0; done < count; done += a.block) {
      const int page = pack_page(a, table, p.table_pages, first + done);
      if (page < 0) break;
      if (done) __syncthreads();
      const KvPackBlock<PADDED> block{
          from + static_cast<long long>(done) * row, row, head_dims, page, (first + done) % p.page_tokens, head};
      if constexpr (FIT) fit_block<CHUNK, FORM == KvForm::kTokens>(a, block, value, chunk * CHUNK);
      else pack_block<KEYS, VALUES, CHUNK, FORM>(a, block, value, chunk);
    }
    if (APPEND) {
      __syncthreads();  // the tail has been read
      if (thread < CHUNK / 8 && chunk * CHUNK + 8 * thread < head_dims)
        *reinterpret_cast<uint4*>(kept + static_cast<long long>(tail == a.residual ? 0 : tail) * row + chunk * CHUNK +
                                  8 * thread) =
            *reinterpret_cast<const uint4*>(given + static_cast<long long>(number) * row + head * head_dims +
                                            chunk * CHUNK + 8 * thread);
    }
  }
  if constexpr (!APPEND) return;
  // All of a sequence's blocks have read how long it is before the last writes it.
  __syncthreads();
  if (thread != 0 || atom_inc_acq_rel(a.counters + number) != static_cast<unsigned>(2 * chunks * p.kv_heads - 1))
    return;
  a.counters[number] = 0;
  if constexpr (words) {
    a.lengths[number] = length + 1;
  } else {
    if (tail == a.residual) a.lengths[number] = length + a.residual;
    a.tails[number] = tail == a.residual ? 1 : tail + 1;
  }
}

constexpr int pack_threads(int chunk, KvForm form) { return form == KvForm::kWords ? 256 : chunk / 2 * kPackWarps; }

// Packs of several layers or sequences in a row touch nothing of each other: they run side by side, and wait for each
// other as they end.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM, bool APPEND, bool FIT = false>
__device__ __forceinline__ void kv_pack(const KvPackArgs& a) {
  if (a.early) griddepcontrol_launch_dependents();
  else griddepcontrol_wait_and_launch();
  if (a.places.head_dims == a.dims) pack_all<KEYS, VALUES, CHUNK, FORM, APPEND, false, FIT>(a);
  else pack_all<KEYS, VALUES, CHUNK, FORM, APPEND, true, FIT>(a);
  if (a.early) griddepcontrol_wait();
}

// Prompts and appending apart, so that the one keeps no registers for the other.
#define LPQ_KV_PACK(keys, values, chunk, form, name)                                     \
  LPQ_KV_PACK_ONE(keys, values, chunk, form, lpq_kv_pack_##name##_##chunk, false, false) \
  LPQ_KV_PACK_ONE(keys, values, chunk, form, lpq_kv_append_##name##_##chunk, true, false)
#define LPQ_KV_PACK_FIT(chunk, form, name)                                          \
  LPQ_KV_PACK_ONE(0, 0, chunk, form, lpq_kv_pack_fit_##name##_##chunk, false, true) \
  LPQ_KV_PACK_ONE(0, 0, chunk, form, lpq_kv_append_fit_##name##_##chunk, true, true)
#define LPQ_KV_PACK_ONE(keys, values, chunk, form, name, append, fit)                                          \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::pack_threads(chunk, lpq::cuda::KvForm::form),        \
                                               1024 / lpq::cuda::pack_threads(chunk, lpq::cuda::KvForm::form)) \
      name(const __grid_constant__ lpq::cuda::KvPackArgs a) {                                                  \
    lpq::cuda::kv_pack<keys, values, chunk, lpq::cuda::KvForm::form, append, fit>(a);                          \
  }

}  // namespace lpq::cuda
