import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { groupCount, groupSizeOf } from '../core/granularity.js';
import { typeParams } from '../core/quant-type.js';
import { bitsPerWeight, constantZero, streamBytes, zerosOf } from './grid.js';
import type { FeedQuantizer } from './quantizer.js';
import { disposeModule, type QuantizedModule } from './result.js';
import { checkGroupSize, checkSparsity, type QuantScheme } from './scheme.js';

/** What rounding did to a weight; sums over all its elements, in f64. */
export interface RoundingSums {
  /** Sum of (W - Wq)^2 and of W^2. */
  readonly squaredError: number;
  readonly squaredNorm: number;
  /** Smallest and largest fp32 scale of groups that are not all zero; 0 when every group is. */
  readonly smallestScale: number;
  readonly largestScale: number;
}

export interface RoundedModule extends QuantizedModule {
  readonly stats: RoundingSums;
}

type Four = [number, number, number, number];
type Nine = [...Four, number, ...Four];

/**
 * Rounds a weight [N, K] (f32, f16 or bf16, owned or mapped) to the nearest point of the scheme's grid, by the rules of
 * docs/internals/numerics.md; 2:4 schemes keep the two largest of every four. Throws LPQ_TENSOR_SHAPE, LPQ_DTYPE, LPQ_GROUP_SIZE, LPQ_SPARSITY, LPQ_MODULE_NUMERICS (a weight is NaN or
 * infinite) and LPQ_SCALE_RANGE, naming `moduleName`.
 */
export async function roundWeight(
  rt: NativeRuntime,
  weight: Tensor,
  scheme: QuantScheme,
  moduleName: string,
): Promise<RoundedModule> {
  const start = performance.now();
  const [n, k] = weight.shape;
  if (n === undefined || k === undefined || weight.shape.length !== 2 || n === 0 || k === 0)
    throw new LpqError('LPQ_TENSOR_SHAPE', `the weight of ${moduleName} is not a matrix`, {
      got: `[${weight.shape.join(', ')}]`,
      expected: '[out_features, in_features]',
    });
  if (weight.dtype !== 'f32' && weight.dtype !== 'f16' && weight.dtype !== 'bf16')
    throw new LpqError('LPQ_DTYPE', `the weight of ${moduleName} cannot be quantized from ${weight.dtype}`, {
      got: weight.dtype,
      expected: 'f32, f16 or bf16',
      hint: 'Quantize from the original checkpoint.',
    });
  checkGroupSize(scheme, moduleName, k);
  checkSparsity(scheme, moduleName, k);

  const zeros = zerosOf(scheme);
  const grid = [n, groupCount(scheme.granularity, k)] as const;
  const out = {
    codes: rt.allocate('u8', [n, streamBytes(scheme.type.bits, k)]),
    scales: rt.allocate(scheme.scaleDtype, grid),
    ...(zeros.kind === 'int' ? { zeros: rt.allocate(zeros.dtype, grid) } : {}),
    ...(scheme.sparsity && { mask: rt.allocate('u8', [n, Math.ceil(k / 8)]) }),
    stats: rt.allocate('f64', [9]),
  };
  const pruned = out.mask && rt.allocate('f32', [n, k]);
  try {
    if (pruned && out.mask) ops.pruneMagnitude(rt, weight, { pruned, mask: out.mask });
    if (scheme.twoLevel) twoLevelScales(rt, weight, out, scheme);
    ops.rtn(rt, pruned ?? weight, out, typeParams(scheme.type), {
      groupSize: groupSizeOf(scheme.granularity, k),
      zero: constantZero(scheme),
      global: scheme.globalScale,
      ...(scheme.twoLevel && { given: true }),
    });
    const found = [...(await readTyped<Float64Array>(rt, out.stats))] as Nine;
    const [squaredError, squaredNorm, over, under, notFinite, first, global, smallestScale, largestScale] = found;
    if (notFinite > 0) throw notFiniteWeights(moduleName, k, notFinite, first);
    const range = { over, under, groups: n * grid[1], smallestScale, largestScale };
    if (scalesMatter(scheme, range)) throw scaleRangeError(moduleName, scheme, range);
    const { stats, ...tensors } = out;
    return {
      scheme,
      shape: [n, k],
      ...tensors,
      ...(scheme.globalScale ? { globalScale: global } : {}),
      quality: {
        method: 'rtn',
        bitsPerWeight: bitsPerWeight(scheme, n, k),
        relativeError: null,
        damp: null,
        seconds: (performance.now() - start) / 1000,
        ...(under > 0 && { note: smallScalesNote(scheme, under) }),
      },
      stats: { squaredError, squaredNorm, smallestScale, largestScale },
    };
  } catch (error) {
    disposeModule(out);
    throw error;
  } finally {
    out.stats.dispose();
    pruned?.dispose();
  }
}

/** The scales that plain rounding would have, on a two-level grid, in `out.scales`; the other results are overwritten later. */
function twoLevelScales(
  rt: NativeRuntime,
  weight: Tensor,
  out: { codes: Tensor; scales: Tensor; stats: Tensor },
  scheme: QuantScheme,
): void {
  const scales = rt.allocate('f32', out.scales.shape);
  const [, k] = weight.shape as [number, number];
  const groupSize = groupSizeOf(scheme.granularity, k);
  const group = uploadTyped(
    rt,
    'i32',
    [k],
    Int32Array.from({ length: k }, (_, j) => Math.floor(j / groupSize)),
  );
  ops.rtn(rt, weight, { ...out, scales }, typeParams(scheme.type), { groupSize });
  ops.twoLevelScales(rt, { w: weight, group }, scales, { scaleDtype: scheme.scaleDtype });
  ops.cast(rt, scales, out.scales);
  for (const tensor of [scales, group]) tensor.dispose();
}

/** Rounding as the solver of a feed: what methods fall back to where they know too little of an input. */
export function nearest(rt: NativeRuntime): FeedQuantizer {
  return { solve: (name, weight, scheme) => roundWeight(rt, weight, scheme, name), dispose() {} };
}

/** Scales of a module that its dtype did not hold, and the extremes of all of them (magnitudes, fp32). */
export interface ScaleRange {
  readonly over: number;
  readonly under: number;
  readonly groups: number;
  readonly smallestScale: number;
  readonly largestScale: number;
}

/**
 * Whether they are worth refusing. Overflow always is. A scale below the range keeps few bits or becomes the least
 * subnormal; where it is 256 times smaller than the module's largest, its group adds less than 2^-16 of the output's
 * energy, and a note is enough: nearly dead groups are no reason to lose a run.
 */
export function scalesMatter(scheme: QuantScheme, { over, under, largestScale }: ScaleRange): boolean {
  const least = scheme.scaleDtype === 'f16' ? 2 ** -17 : 2 ** -126;
  return over > 0 || (under > 0 && largestScale < 256 * least);
}

export function smallScalesNote(scheme: QuantScheme, under: number): string {
  return `${under} scales of nearly empty groups are below the precise range of ${scheme.scaleDtype}`;
}

/** LPQ_SCALE_RANGE for a module whose scales do not fit their dtype; solvers throw it too. */
export function scaleRangeError(moduleName: string, scheme: QuantScheme, found: ScaleRange): LpqError {
  const { over, under, groups, smallestScale, largestScale } = found;
  const dtype = scheme.scaleDtype;
  const what =
    over > 0
      ? `${over} of ${groups} scales of ${moduleName} are too large for ${dtype}`
      : `${under} of ${groups} scales of ${moduleName} are too small for ${dtype}`;
  const ranges = {
    f16: '2^-17 to 65504',
    bf16: '2^-126 to 3.39e38',
    f32: '2^-126 to 3.40e38',
    f8_e8m0: '2^-127 to 2^127',
    f8_e4m3: '2^-6 to 448',
  };
  return new LpqError('LPQ_SCALE_RANGE', what, {
    got: `scales from ${smallestScale.toPrecision(3)} to ${largestScale.toPrecision(3)}`,
    expected: `${ranges[dtype]} (${dtype})`,
    hint:
      dtype === 'bf16' || dtype === 'f32'
        ? 'Check the weights of this module: they are implausibly large.'
        : 'Use --scale-dtype bf16, which has the range of f32.',
  });
}

/** LPQ_MODULE_NUMERICS for a weight [.., k] with values that are no numbers; solvers throw it too. */
export function notFiniteWeights(moduleName: string, k: number, count: number, first: number): LpqError {
  return new LpqError(
    'LPQ_MODULE_NUMERICS',
    `the weight of ${moduleName} holds ${count === 1 ? 'a value that is' : `${count} values that are`} NaN or infinite`,
    {
      got: `the first one is at row ${Math.floor(first / k)}, column ${first % k}`,
      expected: 'finite weights',
      hint: 'Download the checkpoint again; lpq inspect DIR --check names every such tensor.',
    },
  );
}
