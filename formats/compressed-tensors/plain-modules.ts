import { typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { CanonicalModule } from '../canonical/schema.js';
import { codesToStream } from '../foreign/bits.js';
import {
  FLOAT_DTYPES,
  FLOATS,
  type ForeignContext,
  type ForeignModule,
  foreign,
  inPlace,
  required,
  requireShape,
} from '../foreign/module.js';
import { expandScales, type ScaleGrid, scaleGrid, storedBlock } from '../foreign/scales.js';
import type { WeightScheme } from './read-schemes.js';

/** Weights of MXFP8 that share a power of two. */
const MX_GROUP = 32;

/**
 * A linear with one code per byte: mxfp8-quantized, int-quantized (`weight` I8) or float-quantized (`weight` F8_E4M3). undefined where
 * the weight is a plain float, whose scale is of something else (a KV cache).
 */
export function plainModule(ctx: ForeignContext, name: string, scheme: WeightScheme): ForeignModule | undefined {
  const dtype = ctx.weights.has(`${name}.weight`) ? ctx.weights.dtype(`${name}.weight`) : undefined;
  if (dtype === 'F32' || dtype === 'F16' || dtype === 'BF16') return undefined;
  const floats = scheme.type === 'float';
  const weight = required(ctx, `${name}.weight`, floats ? ['F8_E4M3'] : ['I8'], 2);
  if (floats && scheme.bits !== 8)
    foreign(`${ctx.where}: ${scheme.bits}-bit floats are not stored one a byte`, { expected: '8 bits' });
  const [n, k] = weight.shape as [number, number];
  const scaleName = `${name}.weight_scale`;
  const rank = ctx.weights.has(scaleName) ? ctx.weights.shape(scaleName).length : 2;
  const powers = scheme.format === 'mxfp8-quantized';
  if (powers && (!floats || scheme.groupSize !== MX_GROUP || !scheme.symmetric))
    foreign(`${ctx.where}: config_groups.${scheme.group} does not describe mxfp8-quantized`, {
      got: `${scheme.bits}-bit ${scheme.type}, groups of ${scheme.groupSize}`,
      expected: `8-bit float, symmetric, groups of ${MX_GROUP}`,
    });
  const scale = required(ctx, scaleName, powers ? ['U8', 'F8_E8M0'] : FLOAT_DTYPES, Math.min(rank, 2));
  const grid = gridOf(scheme, n, k);
  const count = scale.shape.reduce((a, b) => a * b, 1);
  if (count !== grid.rows * grid.columns || (rank === 2 && grid.rows * grid.columns > 1))
    requireShape(ctx, scale, [grid.rows, grid.columns], `strategy ${scheme.strategy} of a [${n}, ${k}] weight`);
  const length = grid.length;
  const bits = scheme.bits;
  const zeroName = `${name}.weight_zero_point`;
  if (!scheme.symmetric) {
    const zero = required(ctx, zeroName, ['I8'], Math.min(rank, 2));
    requireShape(ctx, zero, scale.shape, 'one for each scale');
  }
  const stored =
    scheme.strategy === 'tensor' ? 'tensor' : scheme.strategy === 'block' ? storedBlock(grid, n) : undefined;
  const granularity: CanonicalModule['granularity'] =
    length === k && scheme.strategy !== 'block' ? { kind: 'channel' } : { kind: 'group', size: length };
  return {
    name,
    declaration: {
      type: floats ? 'f8e4m3' : bits === 1 ? 'u1' : `i${bits}`,
      shape: [n, k],
      granularity,
      scales: {
        dtype: powers ? 'f8_e8m0' : FLOATS[scale.dtype as keyof typeof FLOATS],
        block: [1, length],
        global: false,
        ...(stored && { stored }),
      },
      zeros: scheme.symmetric ? { kind: 'none' } : { kind: 'int', dtype: 'i16' },
      ...inPlace(ctx),
    },
    tensors: [weight.name, scaleName, ...(scheme.symmetric ? [] : [zeroName])],
    notes: [],
    decode(part): ArrayBufferView {
      if (part === 'scales') return expandScales(typed<Float32Array>(ctx.weights.tensor(scaleName)), grid, n);
      if (part === 'zeros')
        return expandScales(Int16Array.from(typed<Int8Array>(ctx.weights.tensor(zeroName))), grid, n);
      if (part !== 'codes') throw new LpqError('LPQ_INTERNAL', `${name} has no ${part}`);
      const codes = typed<Uint8Array>(ctx.weights.tensor(weight.name, floats ? 'u8' : 'i8'));
      if (bits === 8) return codes;
      return codesToStream(narrow(ctx, weight.name, codes, bits), n, k, bits);
    },
  };
}

/** The signed bytes as codes of `bits`, each checked to fit. */
function narrow(ctx: ForeignContext, name: string, codes: ArrayLike<number>, bits: number): Uint8Array<ArrayBuffer> {
  const limit = 2 ** (bits - 1);
  const out = new Uint8Array(codes.length);
  for (let i = 0; i < codes.length; i++) {
    const value = codes[i] as number;
    if (value < -limit || value >= limit)
      foreign(`tensor '${name}' of ${ctx.dir} holds a code beyond ${bits} bits`, { got: `${value} at [${i}]` });
    out[i] = value & (2 ** bits - 1);
  }
  return out;
}

function gridOf({ strategy, groupSize, block }: WeightScheme, n: number, k: number): ScaleGrid {
  if (strategy === 'tensor') return scaleGrid(n, k, [n, k]);
  return scaleGrid(n, k, strategy === 'channel' ? [1, k] : (block ?? [1, groupSize as number]));
}
