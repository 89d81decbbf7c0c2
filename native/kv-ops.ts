import type { NativeRuntime, OpParams, Tensor } from './binding.js';

/** Pages of one side of a cache: U8 [pages, bytes] each; one tensor may be given for all. */
export interface KvTensors {
  readonly codes: Tensor;
  readonly scales: Tensor;
  readonly zeros: Tensor;
}

/** The cache of keys and values in few bits (docs/kv-cache.md), part of the operation table (ops.ts); on CUDA kvDecode, kvPack and kvAppend alone. */
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
   * Decode attention over packed pages (formats/kv/spec.md) and an exact tail: y [B*queries, heads*headDim] f16 or f32, 0 where a query
   * sees no token. q f16 [B*queries, heads*headDim]; the pages U8 [pages, bytes]; table I32 [B,P]; lengths I32 [B] of packed tokens
   * (bitdecoding: whole tiles), tails I32 [B], at most R; tailKeys, tailValues f16 [B, R, kvHeads*headDim]. queries (1 where it is not
   * given) tokens of a sequence are its newest, packed or in the tail: query i sees tokens up to its own, the
   * (lengths + tails - queries + i)-th. splits overrides into how many runs tokens are cut, warps how many warps a block has; neither
   * changes more than the order of sums. A page or length that is none: LPQ_NATIVE_ARGUMENT.
   */
  kvDecode: (
    rt: NativeRuntime,
    q: Tensor,
    cache: { pages: KvPages; table: Tensor; lengths: Tensor; tailKeys: Tensor; tailValues: Tensor; tails: Tensor },
    y: Tensor,
    p: KvForm & { heads: number; scale: number; queries?: number; splits?: number; warps?: number },
  ) => {
    const { pages, table, lengths, tailKeys, tailValues, tails } = cache;
    rt.enqueue('kv_decode', [q, ...pages, table, lengths, tailKeys, tailValues, tails], [y], { ...p });
  },

  /**
   * Quantizes k, v f16 [T, kvHeads*headDim] (bitdecoding: whole blocks) as kvQuantize does, and packs them as tokens first .. of the
   * sequence whose pages table I32 [P] names. NaN and infinity: LPQ_NATIVE_NUMERICS; a page that is none: LPQ_NATIVE_ARGUMENT.
   */
  kvPack: (rt: NativeRuntime, k: Tensor, v: Tensor, table: Tensor, pages: KvPages, p: KvForm & { first?: number }) =>
    rt.enqueue('kv_pack', [k, v, table], [...pages], { ...p }),

  /**
   * A step's token of every sequence, k and v f16 [B, kvHeads*headDim]. Where the tail is full (tails = residual, R where it is not
   * given, whole blocks) it is packed first, as tokens lengths .. (whole blocks), lengths grows by residual and tails becomes 0; then the token
   * goes to the tail, and tails grows by 1. So the step that fills a tail still reads it exactly (BitDecoding, section V-B). turbomind:
   * the token is packed at once, lengths grows by 1. table I32 [B,P]; lengths, tails I32 [B] and the tails f16 [B, R, kvHeads*headDim] are
   * read and written on the device. Failures as of kvPack.
   */
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

/** What kvDecode, kvPack and kvAppend know of a cache: heads of 64, 128 or 256 dims. */
export interface KvForm {
  /** 2, 4 or 8: of keys and, where valueBits is not given, of values. */
  bits: number;
  /** Other bits of values: 4, with keys of 8. */
  valueBits?: number;
  /** turbomind: 4 and 8 bits, one scale and zero a token and head, pages of whole 64 tokens; keyGroup and valueGroup are headDim. Default bitdecoding. */
  form?: 'bitdecoding' | 'turbomind';
  /** Of keys: a scale a channel over keyGroup tokens (default), or a token over keyGroup dims. */
  granularity?: 'channel' | 'token';
  headDim: number;
  kvHeads: number;
  /** 32, 64 or 128 tokens; by token, dims, and valueGroup. */
  keyGroup: number;
  /** Dims: min(keyGroup, headDim). */
  valueGroup: number;
  pageTokens: number;
  /** Heads outside tokens. */
  outer?: boolean;
}
