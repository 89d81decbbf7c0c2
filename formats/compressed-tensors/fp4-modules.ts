import { typed } from '../../native/binding.js';
import {
  type ForeignContext,
  type ForeignModule,
  foreign,
  inPlace,
  required,
  requireShape,
} from '../foreign/module.js';
import type { WeightScheme } from './read-schemes.js';

/** Weights that share a scale: 16 in NVFP4, 32 in MXFP4. */
const GROUP = { 'nvfp4-pack-quantized': 16, 'mxfp4-pack-quantized': 32 } as const;

/** A linear of E2M1 codes, two a byte, the even one low: just the canonical stream. */
export function fp4Module(ctx: ForeignContext, name: string, scheme: WeightScheme): ForeignModule {
  const nvfp4 = scheme.format === 'nvfp4-pack-quantized';
  const size = GROUP[scheme.format as keyof typeof GROUP];
  if (scheme.type !== 'float' || scheme.bits !== 4 || !scheme.symmetric || (scheme.groupSize ?? size) !== size)
    foreign(`${ctx.where}: config_groups.${scheme.group} does not describe ${scheme.format}`, {
      got: `${scheme.bits}-bit ${scheme.type}${scheme.symmetric ? '' : ' asymmetric'}, groups of ${scheme.groupSize}`,
      expected: `4-bit float, symmetric, groups of ${size}`,
    });
  const packed = required(ctx, `${name}.weight_packed`, ['U8'], 2);
  const [n, half] = packed.shape as [number, number];
  const k = half * 2;
  if (k % size !== 0)
    foreign(`the ${k} input features of '${name}' of ${ctx.dir} are not whole groups of ${size}`, {
      got: `weight_packed [${packed.shape}]`,
    });
  const scale = required(ctx, `${name}.weight_scale`, nvfp4 ? ['F8_E4M3'] : ['U8', 'F8_E8M0'], 2);
  requireShape(ctx, scale, [n, k / size], `a scale for every ${size} of ${k} input features`);
  const global = nvfp4 ? readGlobal(ctx, `${name}.weight_global_scale`) : undefined;
  return {
    name,
    declaration: {
      type: 'f4e2m1',
      shape: [n, k],
      granularity: { kind: 'group', size },
      scales: {
        dtype: nvfp4 ? 'f8_e4m3' : 'f8_e8m0',
        block: [1, size],
        global: nvfp4,
        ...(global !== undefined && { divisor: global }),
      },
      zeros: { kind: 'none' },
      ...inPlace(ctx),
    },
    tensors: [packed.name, scale.name, ...(nvfp4 ? [`${name}.weight_global_scale`] : [])],
    notes: [],
    decode(part): ArrayBufferView {
      // The file divides by its global scale, the canonical form multiplies; `divisor` keeps the file's own number.
      if (part === 'global_scale') return Float32Array.of(1 / (global as number));
      return typed<Uint8Array>(ctx.weights.tensor(part === 'codes' ? packed.name : scale.name));
    },
  };
}

function readGlobal(ctx: ForeignContext, name: string): number {
  const rank = ctx.weights.has(name) ? Math.min(1, ctx.weights.shape(name).length) : 1;
  const entry = required(ctx, name, ['F32'], rank);
  if (rank === 1) requireShape(ctx, entry, [1], 'one number');
  const tensor = ctx.weights.tensor(name);
  const value = typed<Float32Array>(tensor)[0] as number;
  tensor.dispose();
  if (value > 0 && Number.isFinite(value) && Number.isFinite(Math.fround(1 / value))) return value;
  return foreign(`tensor '${name}' of ${ctx.dir} is not a factor that can divide weights`, { got: value });
}
