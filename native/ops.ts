import type { NativeRuntime, OpParams, Tensor } from './binding.js';
import { cacheOps } from './cache-ops.js';
import { kvOps } from './kv-ops.js';
import { packedOps } from './packed-ops.js';
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
 * The operation table: every native operation, with its shapes and dtypes. A backend (cpu, later cuda) registers each
 * of these names; the model graph runs unchanged on either. Activations are f32 on the CPU; on CUDA, where a signature
 * says f32 below, what linears read and the operations between them make may also be f16 or bf16 (fp32 in registers), and
 * bad ids or NaN are reported by the next sync() or download(). Weights may be f32, f16 or bf16, owned or mapped. T tokens of all sequences stand one after another (ragged batch, no padding); `starts` is I32
 * [S+1], the first token of each sequence and T.
 *
 * Each function only enqueues; outputs hold their values after `runtime.sync()`.
 */
export const ops = {
  /** y = x in y's dtype (f64, f32, f16, bf16; also i32 -> f32), round to nearest even, overflow to infinity. */
  cast: (rt: NativeRuntime, x: Tensor, y: Tensor) => rt.enqueue('cast', [x], [y]),

  /** y[t] = table[ids[t]] * scale; ids I32 [T], table [V,C], y f32 [T,C]. An id outside the table fails. */
  embedding: (rt: NativeRuntime, ids: Tensor, table: Tensor, y: Tensor, p: { scale?: number } = {}) =>
    rt.enqueue('embedding', [ids, table], [y], p),

  /** An RMS norm of rows, or of runs of columns (native/ops/norm.h). */
  rmsnorm: (rt: NativeRuntime, x: Tensor, weight: Tensor, y: Tensor, p: { eps: number; offset?: number } & Runs) =>
    rt.enqueue('rmsnorm', [x, weight], [y], p),

  /** A layer norm of rows, or of runs of columns. */
  layernorm: (
    rt: NativeRuntime,
    x: Tensor,
    weight: Tensor | undefined,
    bias: Tensor | undefined,
    y: Tensor,
    p: { eps: number; turns?: number; width?: number } & Runs,
  ) => rt.enqueue('layernorm', weight ? (bias ? [x, weight, bias] : [x, weight]) : [x], [y], p),

  /** h += y * scale, then x = a norm of h. */
  addNorm: (
    rt: NativeRuntime,
    h: Tensor,
    y: Tensor,
    weight: Tensor | undefined,
    bias: Tensor | undefined,
    x: Tensor,
    p: { kind: 'rms' | 'layer'; eps: number; offset?: number; scale?: number },
  ) => rt.enqueue('add_norm', [h, y, ...(weight ? (bias ? [weight, bias] : [weight]) : [])], [h, x], p),

  /**
   * y = x Wᵀ + bias (accumulate: added to y); x f32 [T,K], W [N,K], bias [N], y f32 [T,N], not x. fp32: a chain of fma for
   * every 512 k from 0, then added in order to (y +) bias.
   */
  linear: (
    rt: NativeRuntime,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | undefined,
    y: Tensor,
    p: { accumulate?: boolean } = {},
  ) => rt.enqueue('linear', bias ? [x, weight, bias] : [x, weight], [y], p),

  /**
   * Rotates x f32 [T, heads*headDim] in place, the first `rotary` dims of each head. cos, sin f32 [P, rotary/2],
   * positions I32 [T]. style half: pairs (i, i + rotary/2); interleaved: pairs (2i, 2i+1). With `first` x has more columns, of
   * which the heads are those from there on.
   */
  rope: (
    rt: NativeRuntime,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    p: { heads: number; headDim: number; rotary: number; style: RopeStyle; first?: number },
  ) => rt.enqueue('rope', [x, cos, sin, positions], [x], p),

  /**
   * Causal attention inside each sequence: y = softmax(q kᵀ * scale) v. q f32 [T, heads*headDim],
   * k [T, kvHeads*headDim], v [T, kvHeads*valueDim], y [T, heads*valueDim]. window w > 0: token t sees t-w+1 .. t.
   * softCap c > 0: softmax of c * tanh(q kᵀ * scale / c) (Gemma 2).
   * sinks [heads] (optional): a further logit of each head's softmax, without a value. qFirst, kFirst, vFirst: as `first` of rope.
   */
  attention: (
    rt: NativeRuntime,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    y: Tensor,
    p: AttentionParams & FirstColumns,
    sinks?: Tensor,
  ) => rt.enqueue('attention', sinks ? [q, k, v, starts, sinks] : [q, k, v, starts], [y], p),

  /**
   * Part of every head copied: y[t][h][to .. to+width) = x[t][h][from .. from+width), the rest of y left as it is. x
   * [T, heads*fromDim] (`shared`: [T, fromDim], one head for all), y [T, heads*toDim], of one dtype.
   */
  copyHeads: (
    rt: NativeRuntime,
    x: Tensor,
    y: Tensor,
    p: { heads: number; width: number; fromDim: number; from: number; toDim: number; to: number; shared?: boolean },
  ) => rt.enqueue('copy_heads', [x], [y], p),

  /** CPU only: y[n][k] = x.flat[first + n*rowStep + k*columnStep]; y [N,K], x of the same dtype and any shape. */
  stridedMatrix: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { first: number; rowStep: number; columnStep: number }) =>
    rt.enqueue('strided_matrix', [x], [y], p),

  /**
   * y = act(gate) * up; f32, any equal shapes; y may be gate or up. With `first` and `upFirst` y [T,C] is neither, and gate and up are
   * columns of matrices, maybe of one, from there on.
   */
  gatedActivation: (
    rt: NativeRuntime,
    gate: Tensor,
    up: Tensor,
    y: Tensor,
    p: { act: ActivationName; first?: number; upFirst?: number },
  ) => rt.enqueue('gated_activation', [gate, up], [y], p),

  /**
   * y = act(x); f32, any equal shapes; y may be x. gelu: x Φ(x); gelu_tanh: its tanh approximation (Hendrycks and Gimpel
   * 2016); quick_gelu: x sigmoid(1.702 x); relu2: max(x, 0)^2.
   */
  activation: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { act: ActivationName }) =>
    rt.enqueue('activation', [x], [y], p),

  /** y = x * scale, then with a cap > 0 cap * tanh(y / cap); f32, any equal shapes; y may be x. */
  softCap: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { scale?: number; cap?: number }) =>
    rt.enqueue('soft_cap', [x], [y], p),

  /** y [R,W] = columns first .. first+W-1 of x [R,C]; one dtype, any. */
  sliceColumns: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { first: number }) =>
    rt.enqueue('slice_columns', [x], [y], p),

  /** Columns first .. first+W-1 of y [R,C] = x [R,W], the others left as they are; one dtype, any. */
  placeColumns: (rt: NativeRuntime, x: Tensor, y: Tensor, p: { first: number }) =>
    rt.enqueue('place_columns', [x], [y], p),

  /** y [C,R] = xᵀ of x [R,C]; one dtype, any of 1 to 8 bytes; y is not x. */
  transpose: (rt: NativeRuntime, x: Tensor, y: Tensor) => rt.enqueue('transpose', [x], [y]),

  /**
   * y = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit), the gate of GPT-OSS's experts; f32, any
   * equal shapes; y may be gate or up. alpha, limit > 0.
   */
  clampedSwiglu: (rt: NativeRuntime, gate: Tensor, up: Tensor, y: Tensor, p: { alpha: number; limit: number }) =>
    rt.enqueue('clamped_swiglu', [gate, up], [y], p),

  /** y = a + b * scale; f32 (on the CPU also f64, on CUDA b also f16 or bf16), equal shapes; y may be a. */
  add: (rt: NativeRuntime, a: Tensor, b: Tensor, y: Tensor, p: { scale?: number } = {}) =>
    rt.enqueue('add', [a, b], [y], p),

  /**
   * Mixture-of-experts routing. Shares of logits f32 [T,E]: softmax, or with `sigmoid` that of each logit. The k experts with
   * the highest share + bias (bias [E], optional; ties: lower index) among those of the topGroups best of `groups` groups of
   * neighbours, a group scoring its best expert, or with `topTwo` the sum of its two best. weights f32 [T,k]: their
   * shares without the bias, normalize: divided by their sum, times scale; indices I32 [T,k].
   */
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
    },
    bias?: Tensor,
  ) => rt.enqueue('route_top_k', bias ? [logits, bias] : [logits], [indices, weights], p),

  /**
   * Groups routed tokens by expert: indices I32 [T,k] -> rows I32 [T*k] (flat t*k+j, ascending inside an expert) and
   * offsets I32 [E+1].
   */
  groupByExpert: (rt: NativeRuntime, indices: Tensor, rows: Tensor, offsets: Tensor, p: { experts: number }) =>
    rt.enqueue('group_by_expert', [indices], [rows, offsets], p),

  /** y[m] = x[rows[m] div `divide`]; x f32 [T,C], rows I32 [M], y f32 [M,C]. */
  gatherRows: (rt: NativeRuntime, x: Tensor, rows: Tensor, y: Tensor, p: { divide?: number } = {}) =>
    rt.enqueue('gather_rows', [x, rows], [y], p),

  /** y[rows[m] div `divide`] += weights.flat[rows[m]] * x[m]; in order of m, so experts add in a fixed order. */
  scatterAddRows: (rt: NativeRuntime, x: Tensor, rows: Tensor, weights: Tensor, y: Tensor, p: { divide: number }) =>
    rt.enqueue('scatter_add_rows', [x, rows, weights, y], [y], p),

  /** nll f64 [T] = -log softmax(logits)[target], 0 where targets I32 [T] is -1; logits f32 [T,V], arithmetic in f64. */
  negLogLikelihood: (rt: NativeRuntime, logits: Tensor, targets: Tensor, nll: Tensor) =>
    rt.enqueue('neg_log_likelihood', [logits, targets], [nll]),

  /**
   * Rows as 16 bits: y f16 [T,C] = x * scale rounded to nearest even, x f32 [T,C], scales f32 [T]: the power of two that
   * brings the largest |y| of the row into [2^14, 2^15), never above 2^127; 1 where all is 0. Infinity and NaN stay and do
   * not count. The same bytes on every device.
   */
  packRows: (rt: NativeRuntime, x: Tensor, y: Tensor, scales: Tensor) => rt.enqueue('pack_rows', [x], [y, scales]),

  /** x = y / scales, exactly; y f16 [T,C], scales f32 [T] of packRows, x f32 [T,C]. */
  unpackRows: (rt: NativeRuntime, y: Tensor, scales: Tensor, x: Tensor) => rt.enqueue('unpack_rows', [y, scales], [x]),

  /** y = 0, any dtype. */
  zero: (rt: NativeRuntime, y: Tensor) => rt.enqueue('zero', [], [y]),

  /**
   * H += weight * xᵀx for x f32 [T,K] into the symmetric H f64 [K,K]. Products accumulate in fp32 over at most 512 rows,
   * then in f64 (CUDA: 16-bit x over all rows of the call, then in H's f32 or f64; only the lower triangle, gramFinish). Fails with LPQ_NATIVE_NUMERICS when x holds NaN or infinity.
   */
  gramAccumulate: (rt: NativeRuntime, x: Tensor, h: Tensor, p: { weight?: number } = {}) =>
    rt.enqueue('gram_accumulate', [x, h], [h], p),

  /** Once after the last gramAccumulate: H is whole. CUDA sums only its lower triangle until then. */
  gramFinish: (rt: NativeRuntime, h: Tensor) => rt.enqueue('gram_finish', [h], [h]),

  /**
   * c = (c - H) * scale: sum (xf - xq) xqᵀ from c = sum xf xqᵀ and H = sum xq xqᵀ, both [K,K] in the moment dtype. Reads the
   * lower triangle of h only, so it may come before gramFinish.
   */
  crossDrift: (rt: NativeRuntime, h: Tensor, c: Tensor, p: { scale?: number } = {}) =>
    rt.enqueue('cross_drift', [h, c], [c], p),

  /** d f64 [K] = the diagonal of h f32|f64 [K,K]. */
  diagonal: (rt: NativeRuntime, h: Tensor, d: Tensor) => rt.enqueue('diagonal', [h], [d]),

  /** C += weight * aᵀb for a, b f32 [T,K] into C f64 [K,K]; arithmetic as gramAccumulate. */
  crossAccumulate: (rt: NativeRuntime, a: Tensor, b: Tensor, c: Tensor, p: { weight?: number } = {}) =>
    rt.enqueue('cross_accumulate', [a, b, c], [c], p),

  /** In place: lower Cholesky factor L of A f64 [K,K] (strict upper part zeroed). info I32 [1]: 0, or 1 + the failing column. */
  cholesky: (rt: NativeRuntime, a: Tensor, info: Tensor) => rt.enqueue('cholesky', [a], [a, info]),

  /** sums f64 [2] = tr(D H Dᵀ), tr(W H Wᵀ), D = W - Wq; weight, quantized f32 [N,K], H f64 [K,K]. */
  moduleError: (rt: NativeRuntime, weight: Tensor, quantized: Tensor, h: Tensor, sums: Tensor) =>
    rt.enqueue('module_error', [weight, quantized, h], [sums]),

  // --- quantized types -------------------------------------------------------------------------------------------
  // `type` is typeParams() of src/core/quant-type.ts. Codes are raw bit patterns.

  /** Byte codes U8 [N,K] -> rows of a little-endian bitstream U8 [N, ceil(K*bits/8)], element k at bit k*bits; padding 0. */
  packCodes: (rt: NativeRuntime, codes: Tensor, stream: Tensor, p: { bits: number }) =>
    rt.enqueue('pack_codes', [codes], [stream], p),

  /** The inverse of packCodes. */
  unpackCodes: (rt: NativeRuntime, stream: Tensor, codes: Tensor, p: { bits: number }) =>
    rt.enqueue('unpack_codes', [stream], [codes], p),

  /**
   * W[n][k] = (decode(q) - zero) * scale * global in f32, stored in w's dtype (f32, f16, bf16); w [N,K].
   * codes U8 [N,K]; scales [N/blockN, K/blockK] f16|bf16|f32|f8_e8m0|f8_e4m3; zeros (optional) u8|i16|f16|f32 of the
   * same shape; group (optional, g_idx) I32 [K] overrides k div blockK. zero: the constant used when zeros is absent.
   */
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

  /**
   * Round to nearest (docs/numerics.md): w [N,K] f32|f16|bf16 -> codes, a bitstream U8 [N, ceil(K*bits/8)], scales
   * [N, K/groupLength] in their dtype and, for asymmetric grids, zeros u8|i16 (whole) or f16|f32 (real) of that shape.
   * `zero` is the constant of symmetric grids; `global` adds a second level to e4m3 scales; `scaleCover` makes e8m0
   * scales saturate nothing. stats f64 [9]: sum of squared errors, sum of squares, scales too large for the dtype,
   * scales too small for it, weights that are not finite, flat index of the first of them (or -1), the second level, smallest
   * and largest fp32 scale.
   */
  rtn: (
    rt: NativeRuntime,
    w: Tensor,
    out: { codes: Tensor; scales: Tensor; zeros?: Tensor; stats: Tensor },
    type: OpParams,
    p: { groupLength: number; zero?: number; global?: boolean; scaleCover?: boolean },
  ) =>
    rt.enqueue('rtn', [w], [out.codes, out.scales, out.stats, ...(out.zeros ? [out.zeros] : [])], {
      ...type,
      ...p,
      symmetric: out.zeros === undefined,
    }),

  /** Of every four neighbours of a row the two largest stay: w [N,K] f32|f16|bf16 -> f32 [N,K] and U8 [N, ceil(K/8)]. */
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

  /**
   * The words of a pack layout (src/layout/memory.ts) from a matrix: U8 codes [rows, columns], bitstream rows (streamed)
   * or 16- and 32-bit elements; order (optional) I32 [columns]: the source column of each. packed: any dtype.
   */
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

  ...packedOps,
  ...w4axOps,
  ...cacheOps,
  ...kvOps,
} as const;
