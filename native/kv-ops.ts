import type { NativeRuntime, OpParams, Tensor } from './binding.js';

/** Pages of one side of a cache: U8 [pages, bytes] each; one tensor may be given for all. */
export interface KvTensors {
  readonly codes: Tensor;
  readonly scales: Tensor;
  readonly zeros: Tensor;
}

/** The cache of keys and values in few bits (docs/kv-cache.md), part of the operation table (ops.ts); where nothing else is said, the CPU only. */
export const kvOps = {
  /**
   * x [T,C] f32 (rounded to f16 first) or f16 -> codes U8 [T,C], scales and zeros f16 [ceil(T/groupTokens), C/groupDims]:
   * zero = the smallest of the group, scale = f16((largest - zero) / (2^bits - 1)), code = (x - zero) / scale rounded to nearest even, at
   * most 2^bits - 1, 0 where the scale is 0; the last group of tokens may be shorter. Fails with LPQ_NATIVE_NUMERICS for what f16 cannot hold.
   */
  kvQuantize: (
    rt: NativeRuntime,
    x: Tensor,
    out: KvTensors,
    p: { bits: number; groupTokens: number; groupDims: number },
  ) => rt.enqueue('kv_quantize', [x], [out.codes, out.scales, out.zeros], p),

  /** y f32 [T,C] = fma(code, scale, zero), of what kvQuantize gives. */
  kvDequantize: (
    rt: NativeRuntime,
    q: KvTensors,
    y: Tensor,
    { groupTokens, groupDims }: { groupTokens: number; groupDims: number },
  ) => rt.enqueue('kv_dequantize', [q.codes, q.scales, q.zeros], [y], { groupTokens, groupDims }),

  /** y f32 [T,C]: the first T tokens of the pages that table I32 [P] names; `layout` has sideCodes*, sideScales*, sideZeros*. */
  kvUnpack: (rt: NativeRuntime, side: KvTensors, table: Tensor, y: Tensor, layout: OpParams) =>
    rt.enqueue('kv_unpack', [side.codes, side.scales, side.zeros, table], [y], layout),

  /**
   * One query token a sequence: y [B, heads*headDim] f32, or f64 (computed so), = softmax(q kᵀ * scale) v over packed tokens, then
   * exact ones; 0 for an empty sequence. q f32 [B, heads*headDim]; table I32 [B,P] of pages, lengths I32 [B] of packed tokens;
   * tailKeys and tailValues f16 [B, R, kvHeads*headDim], tails I32 [B] tokens of them. `layout`: keysCodes*, ..., valuesZeros*.
   */
  kvAttention: (
    rt: NativeRuntime,
    q: Tensor,
    cache: {
      keys: KvTensors;
      values: KvTensors;
      table: Tensor;
      lengths: Tensor;
      tailKeys: Tensor;
      tailValues: Tensor;
      tails: Tensor;
    },
    y: Tensor,
    p: { heads: number; kvHeads: number; headDim: number; scale: number },
    layout: OpParams,
  ) => {
    const { keys, values, table, lengths, tailKeys, tailValues, tails } = cache;
    const sides = [keys, values].flatMap(({ codes, scales, zeros }) => [codes, scales, zeros]);
    rt.enqueue('kv_attention', [q, ...sides, table, lengths, tailKeys, tailValues, tails], [y], { ...p, ...layout });
  },

  /**
   * CUDA only. Decode attention over pages of the form bitdecoding with keys by channel (formats/kv/spec.md): one query token a
   * sequence, y [B, heads*headDim] f16 or f32, 0 for an empty sequence. q f16 [B, heads*headDim]; the pages U8 [pages, bytes]; table
   * I32 [B,P]; lengths and tails I32 [B], whole tiles and at most R; tailKeys, tailValues f16 [B, R, kvHeads*headDim]. headDim 64, 128,
   * 256; keyGroup 128 with valueGroup min(headDim, 128), or 32 with 32. splits overrides into how many runs tokens are cut. What
   * the table names on the device is not checked.
   */
  kvDecode: (
    rt: NativeRuntime,
    q: Tensor,
    cache: { pages: KvPages; table: Tensor; lengths: Tensor; tailKeys: Tensor; tailValues: Tensor; tails: Tensor },
    y: Tensor,
    p: KvForm & { heads: number; scale: number; splits?: number },
  ) => {
    const { pages, table, lengths, tailKeys, tailValues, tails } = cache;
    rt.enqueue('kv_decode', [q, ...pages, table, lengths, tailKeys, tailValues, tails], [y], { ...p });
  },

  /**
   * CUDA only. Quantizes whole blocks k, v f16 [T, kvHeads*headDim] as kvQuantize does, and packs them as tokens first .. of the
   * sequence whose pages table I32 [P] names. What f16 does not hold is not looked for, nor pages that are none.
   */
  kvPack: (rt: NativeRuntime, k: Tensor, v: Tensor, table: Tensor, pages: KvPages, p: KvForm & { first?: number }) =>
    rt.enqueue('kv_pack', [k, v, table], [...pages], { ...p }),
} as const;

/** Keys, their numbers, values, their numbers: the tensors of a page of the form bitdecoding. */
export type KvPages = readonly [Tensor, Tensor, Tensor, Tensor];

interface KvForm {
  bits: number;
  headDim: number;
  kvHeads: number;
  keyGroup: number;
  valueGroup: number;
  pageTokens: number;
  /** Heads outside tokens. */
  outer?: boolean;
}
