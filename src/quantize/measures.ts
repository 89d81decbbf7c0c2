import type { Measures } from '../../formats/report/schema.js';
import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { valueRange } from '../core/quant-type.js';
import { constantZero } from './grid.js';
import { disposeModule, type QuantizedModule } from './result.js';
import { roundWeight } from './round.js';
import type { QuantScheme } from './scheme.js';

/** Rows whose groups stand for all of a module: with groups of 128 some thousand ratios. */
const SAMPLED_ROWS = 64;
/** Upper ends of the histogram's classes but the last. */
const CLASSES = [0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1];

/**
 * The scales that a solver chose over those that hold the whole range of their groups, for the first rows of a module:
 * `weight` [N, K] and its result, both on `rt`. Nothing for scales of 8
 * bits, whose steps are coarser than what clipping chooses among.
 */
export async function clipOf(
  rt: NativeRuntime,
  name: string,
  weight: Tensor,
  result: QuantizedModule,
): Promise<Measures> {
  const { scheme, scales } = result;
  if (scheme.globalScale || scheme.scaleDtype.startsWith('f8')) return {};
  const [n, k] = result.shape;
  const rows = Math.min(n, SAMPLED_ROWS);
  const groups = scales.shape[1] as number;
  const { sparsity, twoLevel, ...dense } = scheme;
  const sample = weight.view([rows, k]);
  const chosen = rt.allocate('f32', [rows, groups]);
  const stored = scales.view([rows, groups]);
  try {
    const full = await roundWeight(rt, sample, { ...dense, scaleDtype: 'f32' } as QuantScheme, name);
    try {
      ops.cast(rt, stored, chosen);
      const [ours, theirs] = await Promise.all([readTyped(rt, chosen), readTyped(rt, full.scales)]);
      const clip = ratios(ours, theirs);
      return clip ? { clip } : {};
    } finally {
      disposeModule(full);
    }
  } finally {
    for (const tensor of [sample, chosen, stored]) tensor.dispose();
  }
}

function ratios(ours: Float32Array, theirs: Float32Array): Measures['clip'] | undefined {
  const histogram = new Array<number>(CLASSES.length + 1).fill(0);
  let [groups, sum, smallest, largest] = [0, 0, Number.POSITIVE_INFINITY, 0];
  for (const [i, whole] of theirs.entries()) {
    if (whole === 0) continue; // a group of zeros has no range
    const ratio = Math.abs(ours[i] as number) / whole;
    if (!Number.isFinite(ratio)) continue;
    groups++;
    sum += ratio;
    smallest = Math.min(smallest, ratio);
    largest = Math.max(largest, ratio);
    const at = CLASSES.findIndex((end) => ratio < end);
    const slot = at < 0 ? CLASSES.length : at;
    histogram[slot] = (histogram[slot] as number) + 1;
  }
  return groups > 0 ? { groups, mean: sum / groups, smallest, largest, histogram } : undefined;
}

/** How far a module in the CPU's memory is from the ends of fp16's range; nothing where all its scales are 0. */
export function rangeOf({ scheme, scales, globalScale = 1 }: QuantizedModule): Measures {
  const found = extremes(scales);
  if (!found) return {};
  const [smallestScale, largestScale] = found.map((scale) => scale * Math.abs(globalScale)) as [number, number];
  const { min, max } = valueRange(scheme.type);
  // A zero point is a code of the type, so that code - zero spans the codes at most.
  const zero = constantZero(scheme);
  const reach = scheme.symmetric ? Math.max(Math.abs(min - zero), Math.abs(max - zero)) : max - min;
  const largestWeight = largestScale * reach;
  const above = Math.log2(65504 / largestWeight);
  const below = Math.log2(smallestScale / 2 ** -14);
  return { range: { smallestScale, largestScale, largestWeight, above, below } };
}

/**
 * Smallest and largest magnitude that is not 0. Magnitudes of every float are in the order of their bits without the sign,
 * so that a pass over integers finds them.
 */
function extremes(scales: Tensor): [number, number] | undefined {
  const bytes = scales.bytes();
  const size = bytes.byteLength / scales.shape.reduce((a, b) => a * b, 1);
  const aligned = bytes.byteOffset % size === 0 ? bytes : bytes.slice();
  const view = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[size] as typeof Uint16Array;
  const words = new view(aligned.buffer as ArrayBuffer, aligned.byteOffset, aligned.byteLength / size);
  const mask = scales.dtype === 'f8_e8m0' ? 0xff : 2 ** (8 * size - 1) - 1;
  let [least, most] = [mask, 0];
  for (const word of words) {
    const bits = word & mask;
    if (bits > most) most = bits;
    if (bits < least && bits > 0) least = bits;
  }
  if (most === 0 && scales.dtype !== 'f8_e8m0') return undefined;
  return [decode(scales.dtype, Math.min(least, most)), decode(scales.dtype, most)];
}

function decode(dtype: string, bits: number): number {
  if (dtype === 'f32' || dtype === 'bf16')
    return new Float32Array(Uint32Array.of(dtype === 'f32' ? bits : bits * 2 ** 16).buffer)[0] as number;
  if (dtype === 'f8_e8m0') return 2 ** (bits - 127);
  const [mantissa, bias] = dtype === 'f16' ? [10, 15] : [3, 7];
  const exponent = bits >> mantissa;
  const fraction = (bits & (2 ** mantissa - 1)) / 2 ** mantissa;
  return exponent === 0 ? fraction * 2 ** (1 - bias) : (1 + fraction) * 2 ** (exponent - bias);
}
