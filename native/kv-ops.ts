import type { NativeRuntime, OpParams, Tensor } from './binding.js';

/** Pages of one side of a cache: U8 [pages, bytes] each; one tensor may be given for all. */
export interface KvTensors {
  readonly codes: Tensor;
  readonly scales: Tensor;
  readonly zeros: Tensor;
}

/** The cache of keys and values in few bits (docs/internals/kernels/attention.md), part of the operation table (ops.ts); on CUDA kvDecode, kvPack and kvAppend alone. */
export const kvOps = {
  /** x -> codes, scales and zeros (native/cpu/kv/quantize.cpp). */
  kvQuantize: (
    rt: NativeRuntime,
    x: Tensor,
    out: KvTensors,
    p: { bits: number; groupTokens: number; groupDims: number; fit?: boolean },
  ) => rt.enqueue('kv_quantize', [x], [out.codes, out.scales, out.zeros], p),

  /** The inverse of kvQuantize. */
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
   * sinks [heads]: a logit a head that takes part in the softmax and has no value.
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
    sinks?: Tensor,
  ) => {
    const { keys, values, table, lengths, tailKeys, tailValues, tails } = cache;
    const sides = [keys, values].flatMap(({ codes, scales, zeros }) => [codes, scales, zeros]);
    const all = [q, ...sides, table, lengths, tailKeys, tailValues, tails, ...(sinks ? [sinks] : [])];
    rt.enqueue('kv_attention', all, [y], { ...p, ...layout });
  },

  /** Decode attention over packed pages and an exact tail (native/ops/kv.h); q f16 or bf16; sinks [heads]: a logit a head that has no value. */
  kvDecode: (
    rt: NativeRuntime,
    q: Tensor,
    cache: { pages: KvPages; table: Tensor; lengths: Tensor; tailKeys: Tensor; tailValues: Tensor; tails: Tensor },
    y: Tensor,
    p: KvForm & { heads: number; scale: number; queries?: number; splits?: number; warps?: number },
    sinks?: Tensor,
  ) => {
    const { pages, table, lengths, tailKeys, tailValues, tails } = cache;
    const last = sinks ? [sinks] : [];
    rt.enqueue('kv_decode', [q, ...pages, table, lengths, tailKeys, tailValues, tails, ...last], [y], { ...p });
  },

  /** Quantizes k and v and packs them as tokens first .. of a sequence. */
  kvPack: (rt: NativeRuntime, k: Tensor, v: Tensor, table: Tensor, pages: KvPages, p: KvForm & { first?: number }) =>
    rt.enqueue('kv_pack', [k, v, table], [...pages], { ...p }),

  /** A step's token of every sequence; a full tail is packed first. */
  kvAppend: (
    rt: NativeRuntime,
    k: Tensor,
    v: Tensor,
    cache: { pages: KvPages; table: Tensor; lengths: Tensor; tailKeys: Tensor; tailValues: Tensor; tails: Tensor },
    p: KvForm & { residual?: number },
  ) => {
    const { pages, table, lengths, tailKeys, tailValues, tails } = cache;
    rt.enqueue('kv_append', [k, v, table], [...pages, lengths, tails, tailKeys, tailValues], { ...p });
  },
} as const;

/** Keys, their numbers, values, their numbers: the tensors of a page of the form bitdecoding. Of turbomind the one block, four times. */
export type KvPages = readonly [Tensor, Tensor, Tensor, Tensor];

/** What kvDecode, kvPack and kvAppend know of a cache: heads of 64 to 512 dims, a multiple of 8. Stored dims are 64, 128, 256 or 512, zeros behind. */
export interface KvForm {
  /** 2, 4 or 8: of keys and, where valueBits is not given, of values. */
  bits: number;
  /** Other bits of values: 4, with keys of 8. */
  valueBits?: number;
  /** turbomind: 4 and 8 bits, one scale and zero a token and head, pages of whole 64 tokens; keyGroup and valueGroup are the stored dims. Default bitdecoding. */
  form?: 'bitdecoding' | 'turbomind';
  /** Of keys: a scale a channel over keyGroup tokens (default), or a token over keyGroup dims. */
  granularity?: 'channel' | 'token';
  headDim: number;
  kvHeads: number;
  /** 32, 64 or 128 tokens; by token, dims, and valueGroup. */
  keyGroup: number;
  /** Dims: min(keyGroup, stored dims). */
  valueGroup: number;
  pageTokens: number;
  /** Heads outside tokens. */
  outer?: boolean;
  /** Ends of groups are fitted as they are packed. */
  fit?: boolean;
}
