// native/cuda/kernels/fragment_ptx.cuh for device.h. Operands and metadata as the PTX ISA draws them ("Matrix fragments for sparse
// mma.m16n8k32") and as test/fixtures/probe-*.json found them with selector 0.
#pragma once
#include "device.h"
//
#include <map>

namespace fake {
struct SparseWarp {
  uint32_t b[32][4], metadata[32];
};
// A barrier that counts arrivals and bytes. What is copied lands when somebody waits for it and all others have arrived.
struct Barrier {
  struct Bulk {
    uint32_t to;
    std::vector<unsigned char> bytes;
  };
  int arrivals = 0, missing = 0;
  long long bytes = 0;
  long phase = 0;
  std::vector<Bulk> copies;
  void settle() {
    if (missing > 0) return;
    for (const Bulk& copy : copies) {
      std::memcpy(lpq::cuda::shared + copy.to, copy.bytes.data(), copy.bytes.size());
      bytes -= static_cast<long long>(copy.bytes.size());
    }
    copies.clear();
    if (bytes < 0) fail("more bytes came than a barrier was told of");
    if (bytes > 0) return;
    missing = arrivals, ++phase, ++block->progress;
  }
  void arrive() {
    if (--missing < 0) fail("more arrivals than a barrier was made for");
    ++block->progress;
  }
};
inline std::map<uint32_t, Barrier> barriers;
inline Barrier& barrier_at(uint32_t address) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) fail("a barrier that was not made");
  return found->second;
}
struct Box {
  const unsigned char* base;
  uint32_t element;  // bytes
  uint64_t dims[3], strides[2];
  uint32_t box[3];
  bool swizzle;
};
struct Among {
  int waiting = 0;
  long generation = 0;
};
inline Among among;
}  // namespace fake

namespace lpq::cuda {

template <bool BF, int Selector>
inline void multiply_sparse(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t metadata) {
  static fake::SparseWarp more[32];
  fake::SparseWarp& own = more[fake::current / 32];
  fake::together(
      BF ? (Selector ? "mma.sp.bf16 1" : "mma.sp.bf16 0") : Selector ? "mma.sp.f16 1" : "mma.sp.f16 0",
      [&](fake::Warp& w, int lane) {
        std::memcpy(w.a[lane], a, 16);
        std::memcpy(own.b[lane], b, 16);
        own.metadata[lane] = metadata, w.c[lane] = c;
      },
      [&](fake::Warp& w) {
        const auto number = [](uint32_t word, int half) {
          const auto bits = static_cast<uint16_t>(word >> 16 * half);
          return static_cast<double>(BF ? bf16_to_f32(bits) : f16_to_f32(bits));
        };
        double dense[16][32] = {}, tokens[32][8];
        for (int lane = 0; lane < 32; ++lane)
          for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) tokens[2 * (lane % 4) + half + 8 * i][lane / 4] = number(own.b[lane][i], half);
            for (int i = 0; i < 4; ++i) {
              const int row = lane / 4 + 8 * (i % 2), kept = 2 * (lane % 4) + half + 8 * (i / 2), quad = kept / 2;
              const uint32_t word = own.metadata[lane / 4 * 4 + 2 * Selector + quad / 4];
              const uint32_t places = word >> (16 * (row / 8) + 4 * (quad % 4)) & 15;
              if ((places & 3) >= places >> 2) fake::fail("metadata that is not in order");
              dense[row][4 * quad + (places >> 2 * (kept % 2) & 3)] = number(w.a[lane][i], half);
            }
          }
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            double sum = w.c[lane][i];
            for (int k = 0; k < 32; ++k)
              if (dense[lane / 4 + 8 * (i / 2)][k] != 0) sum += dense[lane / 4 + 8 * (i / 2)][k] * tokens[k][2 * (lane % 4) + i % 2];
            w.c[lane][i] = static_cast<float>(sum);
          }
      });
}

inline uint32_t fma_pair_f16(uint32_t a, uint32_t b, uint32_t c);
inline uint32_t fma_pair_bf16(uint32_t a, uint32_t b, uint32_t c);
template <bool BF, int OfB, int OfC>
inline uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
  const auto taken = [](uint32_t word, int half) { return half < 0 ? word : (word >> 16 * half & 0xffffu) * 0x10001u; };
  return BF ? fma_pair_bf16(a, taken(b, OfB), taken(c, OfC)) : fma_pair_f16(a, taken(b, OfB), taken(c, OfC));
}
inline void load_if(bool any, uint32_t& v, const void* from, size_t size) {
  if (!any) return;
  const auto* at = static_cast<const unsigned char*>(from);
  bool known = false;
  for (const auto& [begin, bytes] : fake::tensors) known = known || (at >= begin && at + size <= begin + bytes && static_cast<size_t>(at - begin) % size == 0);
  if (!known) fake::fail("a load from outside the tensors");
  v = 0;
  std::memcpy(&v, from, size);
}
inline void load2_if(bool any, uint32_t& v, const void* from) { load_if(any, v, from, 2); }
inline void load1_if(bool any, uint32_t& v, const void* from) { load_if(any, v, from, 1); }
inline unsigned count_up(unsigned* counter) { return (*counter)++; }
inline void store_shared8(uint32_t address, uint32_t a, uint32_t b) {
  fake::inside(address, 8);
  std::memcpy(shared + address, &a, 4);
  std::memcpy(shared + address + 4, &b, 4);
}
inline void store_shared4(uint32_t address, uint32_t v) {
  fake::inside(address, 4);
  std::memcpy(shared + address, &v, 4);
}
inline void store_shared2(uint32_t address, uint16_t v) {
  fake::inside(address, 2);
  std::memcpy(shared + address, &v, 2);
}

inline void barrier_init(uint32_t address, int arrivals) { fake::barriers[address] = {arrivals, arrivals, 0, 0, {}}; }
inline void barriers_are_there() {}
inline void operation_before() {}
inline void barrier_arrive(uint32_t address) {
  fake::barrier_at(address).arrive();
  if (fake::barrier_at(address).copies.empty()) fake::barrier_at(address).settle();
}
inline void barrier_expect(uint32_t address, int bytes) {
  fake::barrier_at(address).bytes += bytes;
  fake::barrier_at(address).arrive();
}
inline void barrier_wait(uint32_t address, int parity) {
  while ((fake::barrier_at(address).phase & 1) == parity) {
    fake::barrier_at(address).settle();
    if ((fake::barrier_at(address).phase & 1) == parity) fake::yield();
  }
}
// A box of a tensor, in the bytes of a TensorMap; sizes in elements, strides in bytes.
inline void copy_box(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  fake::Box box;
  std::memcpy(&box, map, sizeof(box));
  if (to % (box.swizzle ? 1024 : 128) != 0) fake::fail("a box goes to an address that the bulk engine refuses");
  const uint32_t row = box.box[0] * box.element, bytes = row * box.box[1] * box.box[2];
  if (to + bytes > fake::kShared) fake::fail("an address outside shared memory");
  fake::Barrier::Bulk copy{to, std::vector<unsigned char>(bytes, 0)};
  for (uint32_t z = 0; z < box.box[2]; ++z)
    for (uint32_t r = 0; r < box.box[1]; ++r)
      for (uint32_t e = 0; e < box.box[0]; ++e) {
        const uint64_t at[3] = {static_cast<uint64_t>(c0) + e, static_cast<uint64_t>(c1) + r, static_cast<uint64_t>(c2) + z};
        if (at[0] >= box.dims[0] || at[1] >= box.dims[1] || at[2] >= box.dims[2]) continue;
        uint32_t in_row = e * box.element;
        if (box.swizzle) in_row ^= (r & 7) << 4;
        std::memcpy(&copy.bytes[(z * box.box[1] + r) * row + in_row], box.base + at[0] * box.element + at[1] * box.strides[0] + at[2] * box.strides[1], box.element);
      }
  fake::barrier_at(barrier).copies.push_back(std::move(copy));
  std::memset(shared + to, 0xff, bytes);
}
inline void copy_box_once(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) { copy_box(to, map, c0, c1, c2, barrier); }
template <int N>
void registers_up() {}
template <int N>
void registers_down() {}
inline void barrier_among(int, int threads) {
  const long generation = fake::among.generation;
  if (++fake::among.waiting == threads) {
    fake::among.waiting = 0;
    ++fake::among.generation, ++fake::block->progress;
  } else {
    while (fake::among.generation == generation) fake::yield();
  }
}

}  // namespace lpq::cuda
