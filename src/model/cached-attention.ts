import { kvStoredDims } from '../../formats/kv/forms.js';
import { fromTyped, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { cropHeads, type HeadDims, padHeads } from '../../native/kv-heads.js';
import type { KvTensors } from '../../native/kv-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { decodedAttention } from './decoded-attention.js';
import type { Batch } from './program.js';
import type { KvScheme } from './source.js';

/** Tokens of one sequence of a batch. */
interface Span {
  readonly first: number;
  readonly length: number;
}

/**
 * Attention as a decoder computes it that keeps its cache under `scheme` (docs/kv-cache.md): the query of token t reads the
 * first floor(t / N) N tokens as they are packed, N = scheme.residual, and the rest, itself included, in f16; with N = 0 every
 * token as it is packed, in groups that start with the sequence (the last may be short). q f32 [T, heads*headDim], k and v f32
 * [T, kvHeads*headDim], which are changed; y f32: on the CPU a simulation; on a device decodedAttention(). Throws LPQ_DEVICE for what that
 * cannot read, LPQ_USAGE for heads that the groups do not divide.
 */
export function cachedAttention(
  rt: NativeRuntime,
  scheme: KvScheme,
  { q, k, v, y }: { q: Tensor; k: Tensor; v: Tensor; y: Tensor },
  batch: Batch,
  p: AttentionParams,
  sinks?: Tensor,
): void {
  if (rt.device !== 'cpu') {
    decodedAttention(rt, scheme, { q, k, v, y }, batch, p, sinks);
    return;
  }
  const { keys, values, residual, fit } = scheme;
  const { headDim, kvHeads, heads } = p;
  const dims = kvStoredDims(headDim);
  if (dims % values.group !== 0 || (keys.granularity === 'token' && dims % keys.group !== 0))
    throw new LpqError('LPQ_USAGE', `the groups of the cache do not divide heads of ${headDim} dims`, {
      got: `${keys.group} and ${values.group}`,
      hint: 'Choose --kv-group for this model.',
    });
  const width = kvHeads * headDim;
  const sides = [
    {
      x: k,
      bits: keys.bits,
      groupTokens: keys.granularity === 'channel' ? keys.group : 1,
      groupDims: keys.granularity === 'channel' ? 1 : keys.group,
      ...(fit && { fit }),
    },
    { x: v, bits: values.bits, groupTokens: 1, groupDims: values.group, ...(fit && { fit }) },
  ];
  let first = 0;
  for (const length of batch.lengths) {
    const span = { first, length };
    first += length;
    if (length === 0) continue;
    const packed = sides.map((side) => packedRows(rt, side, span, width, { headDim, dims }));
    for (const { x } of sides) throughHalf(rt, x, span, width);
    const starts = (count: number): Tensor => fromTyped('i32', [2], Int32Array.of(0, count));
    const step = residual === 0 ? length : residual;
    for (let from = 0; from < length; from += step) {
      const to = Math.min(length, from + step);
      // What the last step still read exactly is packed now; without a residual, all of it.
      const turned = residual === 0 ? [0, length] : [from - step, from];
      if ((turned[0] as number) >= 0)
        for (const [i, { x }] of sides.entries())
          copyRows(
            rt,
            packed[i] as Tensor,
            turned[0] as number,
            x,
            span.first + (turned[0] as number),
            (turned[1] as number) - (turned[0] as number),
            width,
          );
      const of = (tensor: Tensor, columns: number): Tensor => tensor.view([to, columns], span.first * columns);
      const [queries, keyRows, valueRows, bounds] = [of(q, heads * headDim), of(k, width), of(v, width), starts(to)];
      const out = rt.allocate('f32', [to, heads * headDim]);
      ops.attention(rt, queries, keyRows, valueRows, bounds, out, p, sinks);
      copyRows(rt, out, from, y, span.first + from, to - from, heads * headDim);
      for (const tensor of [queries, keyRows, valueRows, bounds, out]) tensor.dispose();
    }
    for (const tensor of packed) tensor.dispose();
  }
}

/** f32 [length, width]: the span's rows of x, quantized with the zeros that are stored behind each head, and read back. */
function packedRows(
  rt: NativeRuntime,
  { x, ...p }: { x: Tensor; bits: number; groupTokens: number; groupDims: number; fit?: boolean },
  { first, length }: Span,
  width: number,
  heads: HeadDims,
): Tensor {
  const given = x.view([length, width], first * width);
  const rows = padHeads(rt, given, heads);
  const columns = rows.shape[1] as number;
  const groups = [Math.ceil(length / p.groupTokens), columns / p.groupDims];
  const parts: KvTensors = {
    codes: rt.allocate('u8', [length, columns]),
    scales: rt.allocate('f16', groups),
    zeros: rt.allocate('f16', groups),
  };
  const all = rt.allocate('f32', [length, columns]);
  const y = rt.allocate('f32', [length, width]);
  ops.kvQuantize(rt, rows, parts, p);
  ops.kvDequantize(rt, parts, all, p);
  cropHeads(rt, all, y, heads);
  for (const tensor of [given, rows, all, ...Object.values(parts)]) (tensor as Tensor).dispose();
  return y;
}

/** The span's rows of x as f16 holds them. */
export function throughHalf(rt: NativeRuntime, x: Tensor, { first, length }: Span, width: number): void {
  const rows = x.view([length, width], first * width);
  const half = rt.allocate('f16', [length, width]);
  ops.cast(rt, rows, half);
  ops.cast(rt, half, rows);
  for (const tensor of [rows, half]) tensor.dispose();
}

function copyRows(
  rt: NativeRuntime,
  x: Tensor,
  from: number,
  y: Tensor,
  to: number,
  count: number,
  width: number,
): void {
  const [source, target] = [x.view([count, width], from * width), y.view([count, width], to * width)];
  ops.copyHeads(rt, source, target, { heads: 1, width, fromDim: width, from: 0, toDim: width, to: 0 });
  for (const view of [source, target]) view.dispose();
}
