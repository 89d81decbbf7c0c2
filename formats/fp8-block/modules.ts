import { typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import {
  FLOATS,
  type ForeignContext,
  type ForeignModule,
  type ForeignModules,
  inPlace,
  readEach,
  required,
  requireShape,
  stems,
} from '../foreign/module.js';
import { expandScales, scaleGrid, storedBlock } from '../foreign/scales.js';
import { type Fp8Config, readFp8Config } from './config.js';

/** Last parts of the scale's name: DeepSeek's (a multiplier, whatever the name says), and that of per-tensor files. */
const SCALES = ['weight_scale_inv', 'weight_scale'] as const;

/** All FP8 linears of a checkpoint that is published in FP8. Throws LPQ_CONFIG for settings that cannot be used. */
export function fp8Modules(ctx: ForeignContext): ForeignModules {
  const config = readFp8Config(ctx.where, ctx.settings);
  const names = stems(ctx.weights, 'weight').filter((name) => ctx.weights.dtype(`${name}.weight`) === 'F8_E4M3');
  return readEach(names, (name) => fp8Module(ctx, name, config));
}

function fp8Module(ctx: ForeignContext, name: string, config: Fp8Config): ForeignModule {
  const weight = required(ctx, `${name}.weight`, ['F8_E4M3'], 2);
  const [n, k] = weight.shape as [number, number];
  const part = SCALES.find((each) => ctx.weights.has(`${name}.${each}`)) ?? SCALES[0];
  const scaleName = `${name}.${part}`;
  const rank = ctx.weights.has(scaleName) ? Math.min(2, ctx.weights.shape(scaleName).length) : 2;
  const scale = required(ctx, scaleName, ['F32', 'BF16', 'F16', 'F8_E8M0'], rank);
  const count = scale.shape.reduce((a, b) => a * b, 1);
  const grid = scaleGrid(n, k, config.block ?? (count === 1 ? [n, k] : [1, k]));
  if (rank === 2 || count !== grid.rows * grid.columns)
    requireShape(
      ctx,
      scale,
      [grid.rows, grid.columns],
      config.block ? `a scale for each block of ${config.block.join(' x ')} of [${n}, ${k}]` : `a scale for each row`,
    );
  const stored = config.block ? storedBlock(grid, n) : count === 1 ? 'tensor' : undefined;
  const narrow = scale.dtype === 'F32' ? narrowed(typed<Float32Array>(ctx.weights.tensor(scaleName))) : undefined;
  return {
    name,
    declaration: {
      type: 'f8e4m3',
      shape: [n, k],
      // Where a block is as long as a row it is still a group, which more kernels read.
      granularity: config.block ? { kind: 'group', size: grid.length } : { kind: 'channel' },
      scales: {
        dtype: narrow ? 'bf16' : { ...FLOATS, F8_E8M0: 'f8_e8m0' as const }[scale.dtype as keyof typeof FLOATS],
        block: [1, grid.length],
        global: false,
        ...(stored && { stored }),
      },
      zeros: { kind: 'none' },
      ...inPlace(ctx),
    },
    tensors: [weight.name, scaleName],
    notes: narrow ? ['its F32 scales are all exact in BF16, so lpq reads them as BF16'] : [],
    decode(which): ArrayBufferView {
      if (which === 'codes') return typed<Uint8Array>(ctx.weights.tensor(weight.name, 'u8'));
      if (which === 'scales')
        return expandScales(narrow ?? typed<Float32Array>(ctx.weights.tensor(scaleName)), grid, n);
      throw new LpqError('LPQ_INTERNAL', `an FP8 module has no ${which}`);
    },
  };
}

/**
 * F32 scales as BF16 bits where that loses nothing (powers of two, as DeepSeek-V3.1 has them), so that kernels which read
 * 16 bits take them; undefined where one of them needs more.
 */
function narrowed(scales: Float32Array): Uint16Array<ArrayBuffer> | undefined {
  const bits = new Uint32Array(scales.buffer, scales.byteOffset, scales.length);
  const out = new Uint16Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    const pattern = bits[i] as number;
    if (pattern & 0xffff) return undefined;
    out[i] = pattern >>> 16;
  }
  return out;
}
