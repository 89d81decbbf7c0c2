import { backwardOps } from './backward-ops.js';
import type { DType, NativeRuntime, OpParams, Tensor } from './binding.js';
import { cacheOps } from './cache-ops.js';
import { codedOps } from './coded-ops.js';
import { hyperOps } from './hyper-ops.js';
import { kvOps } from './kv-ops.js';
import { latentOps } from './latent-ops.js';
import { multiplied } from './multiplied.js';
import { packedOps } from './packed-ops.js';
import { recurrentOps } from './recurrent-ops.js';
import { selectedOps } from './selected-ops.js';
import { codeOutputs, type TokenCodes } from './token-codes.js';
import { w4axOps } from './w4ax-ops.js';

/** Activations of MLPs. */
export type ActivationName = 'silu' | 'gelu' | 'gelu_tanh' | 'relu' | 'relu2' | 'quick_gelu' | 'sigmoid';

/** What attention takes beside tensors. */
export type AttentionParams = {
  heads: number;
  kvHeads: number;
  headDim: number;
  valueDim?: number;
  scale: number;
  window?: number;
  softCap?: number;
};

export type RopeStyle = 'half' | 'interleaved';

/** The first columns of q, k and v in their matrices, which may be one: where given, those have columns of others besides. */
export type FirstColumns = { qFirst?: number; kFirst?: number; vFirst?: number };

/** Some columns of each row. */
export type Runs = { first?: number; runs?: number };

/**
 * The operation table: every native operation. Shapes, dtypes, defaults and failures are the contracts in native/ops/*.h, one for all
 * backends. Activations are f32 on the CPU; on CUDA what linears read and the operations between them make may also be f16 or bf16
 * (fp32 in registers), and bad ids or NaN are reported by the next sync() or download(). Weights may be f32, f16 or bf16, owned or
 * mapped. T tokens of all sequences stand one after another (ragged batch, no padding); `starts` is I32 [S+1], the first token of each
 * sequence and T.
 *
 * Each function only enqueues; outputs hold their values after `runtime.sync()`.
 */
export const ops = {
  /** y = x in y's dtype (native/ops/elementwise.h). */
  cast: (rt: NativeRuntime, x: Tensor, y: Tensor) => rt.enqueue('cast', [x], [y]),

  /** y[t] = table[ids[t]] * scale (native/ops/tokens.h). */
  embedding: (rt: NativeRuntime, ids: Tensor, table: Tensor, y: Tensor, p: { scale?: number } = {}) =>
    rt.enqueue('embedding', [ids, table], [y], p),

  /** An RMS norm of rows, or of runs of columns (native/ops/norm.h). */
  rmsnorm: (
    rt: NativeRuntime,
    x: Tensor,
    weight: Tensor | undefined,
    y: Tensor,
    p: { eps: number; offset?: number; width?: number } & Runs,
  ) => rt.enqueue('rmsnorm', weight ? [x, weight] : [x], [y], p),

  /** A layer norm of rows, or of runs of columns. */
  layernorm: (
    rt: NativeRuntime,
    x: Tensor,
    weight: Tensor | undefined,
    bias: Tensor | undefined,
    y: Tensor,
    p: { eps: number; offset?: number; turns?: number; width?: number } & Runs,
  ) => rt.enqueue('layernorm', weight ? (bias ? [x, weight, bias] : [x, weight]) : [x], [y], p),

  /** h += y * scale, then x = a norm of h, and codes of x. */
  addNorm: (
    rt: NativeRuntime,
    h: Tensor,
    y: Tensor,
    weight: Tensor | undefined,
    bias: Tensor | undefined,
    x: Tensor,
    p: { kind: 'rms' | 'layer'; eps: number; offset?: number; scale?: number },
    codes?: TokenCodes,
  ) =>
    rt.enqueue(
      'add_norm',
      [h, y, ...(weight ? (bias ? [weight, bias] : [weight]) : [])],
      [h, x, ...codeOutputs(codes)],
      p,
    ),

  /** y = x Wᵀ + bias (native/ops/linalg.h). */
  linear: (
    rt: NativeRuntime,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | undefined,
    y: Tensor,
    p: { accumulate?: boolean } = {},
  ) => rt.enqueue('linear', bias ? [x, weight, bias] : [x, weight], [y], multiplied(rt, p)),

  /** CPU only: a weight of 16 bits as linear reads it fastest for few rows (native/ops/linalg.h). */
  bandWeight: (rt: NativeRuntime, weight: Tensor, words: Tensor) => rt.enqueue('band_weight', [weight], [words]),

  /** Rotary positions, in place (native/ops/attention.h). */
  rope: (
    rt: NativeRuntime,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    p: { heads: number; headDim: number; rotary: number; style: RopeStyle; first?: number },
  ) => rt.enqueue('rope', [x, cos, sin, positions], [x], p),

  /** Causal attention inside each sequence. */
  attention: (
    rt: NativeRuntime,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    y: Tensor,
    p: AttentionParams & FirstColumns,
    sinks?: Tensor,
  ) => {
    const all = rt.device === 'cpu' ? p : multiplied(rt, p);
    rt.enqueue('attention', sinks ? [q, k, v, starts, sinks] : [q, k, v, starts], [y], all);
  },

  /** Part of every head copied (native/ops/reshape.h). */
  copyHeads: (
    rt: NativeRuntime,
    x: Tensor,
    y: Tensor,
    p: { heads: number; width: number; fromDim: number; from: number; toDim: number; to: number; shared?: boolean },
  ) => rt.enqueue('copy_heads', [x], [y], p),

  /** CPU only: y[n][k] = x.flat[first + n*rowStep + k*columnStep]. */
  stridedMatrix: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { first: number; rowStep: number; columnStep: number }) =>
    rt.enqueue('strided_matrix', [x], [y], p),

  /** y = act(gate) * up, and codes of y. */
  gatedActivation: (
    rt: NativeRuntime,
    gate: Tensor,
    up: Tensor,
    y: Tensor,
    p: { act: ActivationName; first?: number; upFirst?: number },
    codes?: TokenCodes,
  ) => rt.enqueue('gated_activation', [gate, up], [y, ...codeOutputs(codes)], p),

  /** y = act(x). */
  activation: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { act: ActivationName }) =>
    rt.enqueue('activation', [x], [y], p),

  /** xIELU, whose four parameters are tensors of one element (native/ops/elementwise.h). */
  xielu: (
    rt: NativeRuntime,
    x: Tensor,
    of: { positive: Tensor; negative: Tensor; beta: Tensor; eps: Tensor },
    y: Tensor,
  ) => rt.enqueue('xielu', [x, of.positive, of.negative, of.beta, of.eps], [y]),

  /** y = x * scale, then with a cap > 0 cap * tanh(y / cap). */
  softCap: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { scale?: number; cap?: number }) =>
    rt.enqueue('soft_cap', [x], [y], p),

  /** y = columns first .. first+W-1 of x. */
  sliceColumns: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { first: number }) =>
    rt.enqueue('slice_columns', [x], [y], p),

  /** Columns first .. first+W-1 of y = x, the others left as they are. */
  placeColumns: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { first: number }) =>
    rt.enqueue('place_columns', [x], [y], p),

  /** y = xᵀ. */
  transpose: (rt: NativeRuntime, x: Tensor, y: Tensor) => rt.enqueue('transpose', [x], [y]),

  /** The gate of GPT-OSS's experts. */
  clampedSwiglu: (rt: NativeRuntime, gate: Tensor, up: Tensor, y: Tensor, p: { alpha: number; limit: number }) =>
    rt.enqueue('clamped_swiglu', [gate, up], [y], p),

  /** y = a + b * scale. */
  add: (rt: NativeRuntime, a: Tensor, b: Tensor, y: Tensor, p: { scale?: number } = {}) =>
    rt.enqueue('add', [a, b], [y], p),

  /** y[t] = x[t] * scales[t] * factor, of rows or of some columns of each (native/ops/elementwise.h). */
  scaleRows: (
    rt: NativeRuntime,
    x: Tensor,
    scales: Tensor | undefined,
    y: Tensor,
    p: { factor?: number; first?: number; width?: number } = {},
  ) => rt.enqueue('scale_rows', scales ? [x, scales] : [x], [y], p),

  /** Rows of x as large as those of `like` (native/ops/alternating.h). */
  matchRms: (rt: NativeRuntime, x: Tensor, like: Tensor, y: Tensor, p: { floor: number }) =>
    rt.enqueue('match_rms', [x, like], [y], p),

  /** y[t][c] = x[t][c] * scales[c]. */
  scaleColumns: (rt: NativeRuntime, x: Tensor, scales: Tensor, y: Tensor) =>
    rt.enqueue('scale_columns', [x, scales], [y]),

  /** What stands above so many standard deviations over the mean of its row, less that. */
  gaussianTopK: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { deviations: number }) =>
    rt.enqueue('gaussian_top_k', [x], [y], p),

  /** Mixture-of-experts routing (native/ops/routing.h). */
  routeTopK: (
    rt: NativeRuntime,
    logits: Tensor,
    indices: Tensor,
    weights: Tensor,
    p: {
      k: number;
      normalize: boolean;
      sigmoid?: boolean;
      groups?: number;
      topGroups?: number;
      topTwo?: boolean;
      scale?: number;
      jitter?: number;
    },
    bias?: Tensor,
  ) => rt.enqueue('route_top_k', bias ? [logits, bias] : [logits], [indices, weights], p),

  /** Groups routed tokens by expert. */
  groupByExpert: (rt: NativeRuntime, indices: Tensor, rows: Tensor, offsets: Tensor, p: { experts: number }) =>
    rt.enqueue('group_by_expert', [indices], [rows, offsets], p),

  /** y[m] = x[rows[m] div `divide`]. */
  gatherRows: (rt: NativeRuntime, x: Tensor, rows: Tensor, y: Tensor, p: { divide?: number } = {}) =>
    rt.enqueue('gather_rows', [x, rows], [y], p),

  /** y[rows[m] div `divide`] += weights.flat[rows[m]] * x[m], in order of m. */
  scatterAddRows: (rt: NativeRuntime, x: Tensor, rows: Tensor, weights: Tensor, y: Tensor, p: { divide: number }) =>
    rt.enqueue('scatter_add_rows', [x, rows, weights, y], [y], p),

  /** nll[t] = -log softmax(logits)[target], 0 where the target is -1. */
  negLogLikelihood: (rt: NativeRuntime, logits: Tensor, targets: Tensor, nll: Tensor) =>
    rt.enqueue('neg_log_likelihood', [logits, targets], [nll]),

  /** Rows as 16 bits with a power of two each. */
  packRows: (rt: NativeRuntime, x: Tensor, y: Tensor, scales: Tensor) => rt.enqueue('pack_rows', [x], [y, scales]),

  /** The inverse of packRows, exactly. */
  unpackRows: (rt: NativeRuntime, y: Tensor, scales: Tensor, x: Tensor) => rt.enqueue('unpack_rows', [y, scales], [x]),

  /** y = 0. */
  zero: (rt: NativeRuntime, y: Tensor) => rt.enqueue('zero', [], [y]),

  /** H += weight * xᵀx. */
  gramAccumulate: (rt: NativeRuntime, x: Tensor, h: Tensor, p: { weight?: number } = {}) =>
    rt.enqueue('gram_accumulate', [x, h], [h], multiplied(rt, p)),

  /** Once after the last gramAccumulate: H is whole. */
  gramFinish: (rt: NativeRuntime, h: Tensor) => rt.enqueue('gram_finish', [h], [h]),

  /** c = (c - H) * scale. */
  crossDrift: (rt: NativeRuntime, h: Tensor, c: Tensor, p: { scale?: number } = {}) =>
    rt.enqueue('cross_drift', [h, c], [c], p),

  /** d = the diagonal of h. */
  diagonal: (rt: NativeRuntime, h: Tensor, d: Tensor) => rt.enqueue('diagonal', [h], [d]),

  /** C += weight * aᵀb. */
  crossAccumulate: (rt: NativeRuntime, a: Tensor, b: Tensor, c: Tensor, p: { weight?: number } = {}) =>
    rt.enqueue('cross_accumulate', [a, b, c], [c], multiplied(rt, p)),

  /** In place: lower Cholesky factor L of A; info: 0, or 1 + the failing column. */
  cholesky: (rt: NativeRuntime, a: Tensor, info: Tensor) => rt.enqueue('cholesky', [a], [a, info]),

  /** sums = tr(D H Dᵀ), tr(W H Wᵀ), D = W - Wq (native/ops/gptq.h). */
  moduleError: (rt: NativeRuntime, weight: Tensor, quantized: Tensor, h: Tensor, sums: Tensor) =>
    rt.enqueue('module_error', [weight, quantized, h], [sums]),

  // --- quantized types -------------------------------------------------------------------------------------------
  // `type` is typeParams() of src/core/quant-type.ts. Codes are raw bit patterns.

  /** Byte codes -> rows of a little-endian bitstream (native/ops/quant.h). */
  packCodes: (rt: NativeRuntime, codes: Tensor, stream: Tensor, p: { bits: number }) =>
    rt.enqueue('pack_codes', [codes], [stream], p),

  /** The inverse of packCodes. */
  unpackCodes: (rt: NativeRuntime, stream: Tensor, codes: Tensor, p: { bits: number }) =>
    rt.enqueue('unpack_codes', [stream], [codes], p),

  /** W = (decode(q) - zero) * scale * global. */
  dequantize: (
    rt: NativeRuntime,
    t: { codes: Tensor; scales: Tensor; zeros?: Tensor; group?: Tensor },
    w: Tensor,
    type: OpParams,
    p: { blockN: number; blockK: number; zero?: number; global?: number },
  ) =>
    rt.enqueue('dequantize', [t.codes, t.scales, ...(t.zeros ? [t.zeros] : []), ...(t.group ? [t.group] : [])], [w], {
      ...type,
      ...p,
      hasZeros: t.zeros !== undefined,
      hasGroup: t.group !== undefined,
    }),

  /** Round to nearest (docs/internals/numerics.md); src/quantize/rtn.ts names the stats. */
  rtn: (
    rt: NativeRuntime,
    w: Tensor,
    out: { codes: Tensor; scales: Tensor; zeros?: Tensor; stats: Tensor },
    type: OpParams,
    p: { groupSize: number; zero?: number; global?: boolean; given?: boolean; scaleCover?: boolean },
  ) =>
    rt.enqueue('rtn', [w], [out.codes, out.scales, out.stats, ...(out.zeros ? [out.zeros] : [])], {
      ...type,
      ...p,
      symmetric: out.zeros === undefined,
    }),

  /** y = x f32 [T,K] as numbers of a type of few bits, times scales of neighbours; y may be x. */
  roundInputs: (
    rt: NativeRuntime,
    x: Tensor,
    y: Tensor,
    type: OpParams,
    p: { groupSize: number; scaleDtype: DType; global?: number },
  ) => rt.enqueue('round_inputs', [x], [y], { ...type, ...p }),

  /**
   * The scales of each row (f32 [N,G], in place) as one number times whole factors, -15 to 16: those nearest in the metric of the weight's
   * squares w [N,K], times the diagonal of M [K,K] if there is one; group I32 [K].
   */
  twoLevelScales: (
    rt: NativeRuntime,
    w: { w: Tensor; group: Tensor; m?: Tensor },
    scale: Tensor,
    p: { scaleDtype: DType },
  ) => {
    const energy = rt.allocate('f32', scale.shape);
    rt.enqueue('group_energy', [w.w, w.group, ...(w.m ? [w.m] : [])], [energy]);
    rt.enqueue('two_level_scales', [energy], [scale], p);
    energy.dispose();
  },

  /** Of every four neighbours of a row the two largest stay. */
  pruneMagnitude: (rt: NativeRuntime, w: Tensor, out: { pruned: Tensor; mask: Tensor }) =>
    rt.enqueue('prune_magnitude', [w], [out.pruned, out.mask]),

  /**
   * CPU only. 2:4 codes as mma.sp reads operand A: codes U8 [N, ceil(K*bits/8)] and mask U8 [N, ceil(K/8)], bitstream rows -> kept
   * U8 [N, K/2], metadata U16 [N, ceil(K/16)] (four fours a word: places of the first and second kept code, two bits each),
   * info I64 [5]: fours that do not keep two or hold another code than `zero` where pruned, row and column of the first, how
   * many it keeps, its wrong code or -1.
   */
  sparseCompress: (
    rt: NativeRuntime,
    t: { codes: Tensor; mask: Tensor },
    out: { kept: Tensor; metadata: Tensor; info: Tensor },
    p: { bits: number; zero: number },
  ) => rt.enqueue('sparse_compress', [t.codes, t.mask], [out.kept, out.metadata, out.info], p),

  // --- layouts ---------------------------------------------------------------------------------------------------

  /** The words of a pack layout (src/layout/memory.ts) from a matrix (native/ops/layout_pack.h). */
  layoutPack: (rt: NativeRuntime, matrix: Tensor, packed: Tensor, p: OpParams, order?: Tensor) =>
    rt.enqueue('layout_pack', order ? [matrix, order] : [matrix], [packed], p),

  /**
   * pairs I32 [N,G] = {s, t}, s f16 in the low half and t = f16(-(z s)), rounded to nearest even; scales f16, zeros u8.
   * info I64 [4]: pairs that z cannot be read back from, row, group and why of the first: 0, s is 0 (not counted when the
   * zero points are `constant`); 1, t is not finite.
   */
  fuseScaleZero: (
    rt: NativeRuntime,
    scales: Tensor,
    zeros: Tensor,
    pairs: Tensor,
    info: Tensor,
    p: { constant: boolean },
  ) => rt.enqueue('fuse_scale_zero', [scales, zeros], [pairs, info], p),

  /** The inverse of layoutPack, without order. */
  layoutUnpack: (rt: NativeRuntime, packed: Tensor, matrix: Tensor, p: OpParams) =>
    rt.enqueue('layout_unpack', [packed], [matrix], p),

  ...backwardOps,
  ...packedOps,
  ...codedOps,
  ...w4axOps,
  ...cacheOps,
  ...kvOps,
  ...latentOps,
  ...hyperOps,
  ...recurrentOps,
  ...selectedOps,
} as const;
