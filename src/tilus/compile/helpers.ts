/** Functions that generated kernels may call, each written where it is used. Over native/cuda/ptx alone. */
export const HELPERS = {
  four: `// Four registers from p on, as instructions take them.
template <class T>
__device__ __forceinline__ T (&four(T* p))[4] {
  return *reinterpret_cast<T(*)[4]>(p);
}
`,
  eights: `// Sums of T eights of columns, as wgmma takes them.
template <int T>
__device__ __forceinline__ float (&eights(float* p))[T][4] {
  return *reinterpret_cast<float(*)[T][4]>(p);
}
`,
  tensor_map: `// The driver's CUtensorMap.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
`,
  load_global: `// sizeof(V) bytes to registers; zeros unless they are \`wanted\`.
template <class V, class T>
__device__ __forceinline__ void load_global(T* to, const unsigned char* from, bool wanted = true) {
  V v{};
  if (wanted) v = *reinterpret_cast<const V*>(from);
  memcpy(to, &v, sizeof(V));
}
`,
  load_small: `// A byte or a half-word; 0 unless it is \`wanted\`.
template <class V>
__device__ __forceinline__ uint32_t load_small(const unsigned char* from, bool wanted = true) {
  return wanted ? *reinterpret_cast<const V*>(from) : 0u;
}
`,
  load_bits: `// \`bits\` bits (at most 8) from bit \`at\` on, which may lie in two bytes; 0 unless they are \`wanted\`.
__device__ __forceinline__ uint32_t load_bits(const unsigned char* from, long long at, int bits, bool wanted = true) {
  if (!wanted) return 0;
  const int shift = static_cast<int>(at & 7);
  uint32_t v = from[at >> 3];
  if (shift + bits > 8) v |= static_cast<uint32_t>(from[(at >> 3) + 1]) << 8;
  return v >> shift & ((1u << bits) - 1);
}
`,
  store_bits: `// The low \`bits\` bits (at most 8) of v to bit \`at\`; the other bits of their bytes stay.
__device__ __forceinline__ void store_bits(unsigned char* to, long long at, int bits, uint32_t v) {
  const int shift = static_cast<int>(at & 7);
  const uint32_t mask = ((1u << bits) - 1) << shift, put = v << shift & mask;
  unsigned char* const p = to + (at >> 3);
  p[0] = static_cast<unsigned char>((p[0] & ~mask) | put);
  if (shift + bits > 8) p[1] = static_cast<unsigned char>((p[1] & ~(mask >> 8)) | put >> 8);
}
`,
  store_global: `// Registers to sizeof(V) bytes.
template <class V, class T>
__device__ __forceinline__ void store_global(unsigned char* to, const T* from) {
  V v;
  memcpy(&v, from, sizeof(V));
  *reinterpret_cast<V*>(to) = v;
}
`,
  load_shared: `// W words from shared memory to registers.
template <int W, class T>
__device__ __forceinline__ void load_shared(T* to, uint32_t address) {
  uint32_t v[W];
  if constexpr (W == 4) ld_shared_v4(v, address);
  else if constexpr (W == 2) ld_shared_v2(v[0], v[1], address);
  else v[0] = ld_shared(address);
  memcpy(to, v, sizeof(v));
}
`,
  store_shared: `// W words from registers to shared memory.
template <int W, class T>
__device__ __forceinline__ void store_shared(uint32_t address, const T* from) {
  uint32_t v[W];
  memcpy(v, from, sizeof(v));
  if constexpr (W == 4) st_shared_v4(address, make_uint4(v[0], v[1], v[2], v[3]));
  else if constexpr (W == 2) st_shared_v2(address, v[0], v[1]);
  else st_shared(address, v[0]);
}
`,
  swizzled: `// Where byte \`byte\` of row \`row\` lies in a tensor whose rows of R bytes have their chunks of 16 exchanged by the row's number.
template <int R>
__device__ __forceinline__ int swizzled(int row, int byte) {
  constexpr int kRows = R < 128 ? 128 / R : 1, kChunks = R < 128 ? R / 16 : 8;
  return row * R + (byte ^ row / kRows % kChunks << 4);
}
`,
  half_to_float: `// A number of f16 or bf16 (BF) in the low half of v.
template <bool BF>
__device__ __forceinline__ float half_to_float(uint32_t v) {
  return BF ? __uint_as_float(v << 16) : __half2float(__ushort_as_half(static_cast<unsigned short>(v & 0xffff)));
}
`,
  bits_at: `// At least \`bits\` bits (at most 32) of a thread's W words from bit \`at\` on.
template <int W>
__device__ __forceinline__ uint32_t bits_at(const uint32_t (&q)[W], int at, int bits) {
  const int word = at >> 5, shift = at & 31;
  if (shift + bits <= 32 || word + 1 >= W) return q[word] >> shift;
  return __funnelshift_r(q[word], q[word + 1], shift);
}
`,
} as const;

export type Helper = keyof typeof HELPERS;
