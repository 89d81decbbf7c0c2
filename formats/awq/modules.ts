import { typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { Part } from '../canonical/tensors.js';
import { transposeFloats, transposeHalves } from '../foreign/bits.js';
import {
  FLOAT_DTYPES,
  FLOATS,
  type ForeignContext,
  type ForeignModule,
  type ForeignModules,
  foreign,
  groupsIn,
  inPlace,
  readEach,
  required,
  requireShape,
  stems,
} from '../foreign/module.js';
import { AWQ_COLUMNS, awqCodes, awqZeros } from './decode.js';
import { type AwqConfig, readAwqConfig } from './read-config.js';

/** All AWQ linears of a checkpoint. Throws LPQ_CONFIG for settings that cannot be used. */
export function awqModules(ctx: ForeignContext): ForeignModules {
  const config = readAwqConfig(ctx.where, ctx.settings);
  return readEach(stems(ctx.weights, 'qweight', 'qzeros'), (name) => awqModule(ctx, name, config));
}

function awqModule(ctx: ForeignContext, name: string, { granularity, zeroPoint }: AwqConfig): ForeignModule {
  const qweight = required(ctx, `${name}.qweight`, ['I32', 'U32'], 2);
  const scales = required(ctx, `${name}.scales`, FLOAT_DTYPES, 2);
  const hasZeros = zeroPoint || ctx.weights.has(`${name}.qzeros`);
  const qzeros = hasZeros ? required(ctx, `${name}.qzeros`, ['I32', 'U32'], 2) : undefined;
  const [k, columns] = qweight.shape as [number, number];
  const [groups, n] = scales.shape as [number, number];
  if (columns === n && columns !== n / AWQ_COLUMNS)
    foreign(`module '${name}' of ${ctx.dir} is not stored in AWQ's form`, {
      got: `qweight [${qweight.shape}], scales [${scales.shape}]`,
      expected: `qweight [K, ${n / AWQ_COLUMNS}]`,
      hint: "Its qweight is [K/8, N], GPTQ's: correct quant_method in config.json.",
    });
  requireShape(ctx, qweight, [k, n / AWQ_COLUMNS], `a word for every 8 of the ${n} output features`);
  const size = granularity.kind === 'channel' ? k : granularity.size;
  requireShape(ctx, scales, [groupsIn(ctx, name, size, k), n], `${k} input features in groups of ${size}`);
  if (qzeros) requireShape(ctx, qzeros, [groups, n / AWQ_COLUMNS], 'a word for every 8 scales');
  const zeros = (): Uint8Array<ArrayBuffer> =>
    awqZeros(typed<Int32Array>(ctx.weights.tensor(`${name}.qzeros`, 'i32')), groups, n);
  const constant = !zeroPoint && (!qzeros || zeros().every((zero) => zero === 8));
  return {
    name,
    declaration: {
      type: 'u4',
      shape: [n, k],
      granularity,
      scales: { dtype: FLOATS[scales.dtype as keyof typeof FLOATS], block: [1, size], global: false },
      zeros: constant ? { kind: 'const', value: 8 } : { kind: 'int', dtype: 'u8' },
      ...inPlace(ctx),
    },
    tensors: [qweight.name, scales.name, ...(qzeros ? [qzeros.name] : [])],
    notes: [],
    contradictions:
      !zeroPoint && !constant ? ['the settings say zero_point false, but its zero points are not all 8'] : [],
    decode(part: Part): ArrayBufferView {
      if (part === 'codes') return awqCodes(typed<Int32Array>(ctx.weights.tensor(qweight.name, 'i32')), k, n);
      if (part === 'zeros') return zeros();
      if (part !== 'scales') throw new LpqError('LPQ_INTERNAL', `an AWQ module has no ${part}`);
      const tensor = ctx.weights.tensor(scales.name);
      return scales.dtype === 'F32'
        ? transposeFloats(typed<Float32Array>(tensor), groups, n)
        : transposeHalves(typed<Uint16Array>(tensor), groups, n);
    },
  };
}
