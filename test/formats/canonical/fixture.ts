import path from 'node:path';
import type { CanonicalModule, Provenance } from '../../../formats/canonical/schema.js';
import { type ModuleDeclaration, scaleShape } from '../../../formats/canonical/tensors.js';
import { type CanonicalPlan, CanonicalWriter, type ModuleData } from '../../../formats/canonical/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { WriterOptions } from '../../../formats/safetensors/write.js';
import { decodeCode, quantType } from '../../../src/core/quant-type.js';

export const provenance: Provenance = {
  lpq: '0.1.0',
  source: { name: 'made-up', revision: null, fingerprint: '0'.repeat(64) },
  method: 'rtn',
  options: { bits: 4 },
  calibration: null,
};

/** Deterministic integers below `limit`. */
export function integers(count: number, limit: number, seed: number): number[] {
  let state = (seed * 2654435761 + 12345) >>> 0;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) % limit;
  });
}

/** Rows of a little-endian bitstream, by big integers: the slow definition. */
export function stream(codes: readonly number[], n: number, k: number, bits: number): Uint8Array {
  const rowBytes = Math.ceil((k * bits) / 8);
  const out = new Uint8Array(n * rowBytes);
  for (let row = 0; row < n; row++) {
    let big = 0n;
    for (let i = 0; i < k; i++) big |= BigInt(codes[row * k + i] as number) << BigInt(i * bits);
    for (let b = 0; b < rowBytes; b++) out[row * rowBytes + b] = Number((big >> BigInt(8 * b)) & 255n);
  }
  return out;
}

export interface MadeModule {
  readonly declaration: ModuleDeclaration;
  readonly data: ModuleData;
  readonly codes: readonly number[];
  /** The dequantized weight [N*K] by definition, in f64. */
  readonly weight: readonly number[];
}

/** A module of random codes with f32 scales (so that the reference needs no narrow float) and any of the extras. */
export function makeModule(options: {
  type: string;
  n: number;
  k: number;
  group?: number;
  zeros?: CanonicalModule['zeros'];
  global?: boolean;
  extras?: readonly ('g_idx' | 'permutation' | 'mask')[];
  seed?: number;
}): MadeModule {
  const { type: name, n, k, group, zeros = { kind: 'none' }, global = false, extras = [], seed = 1 } = options;
  const type = quantType(name);
  const has = (extra: 'g_idx' | 'permutation' | 'mask') => extras.includes(extra);
  const declaration: ModuleDeclaration = {
    type: name,
    shape: [n, k],
    granularity: group ? { kind: 'group', size: group } : { kind: 'channel' },
    scales: { dtype: 'f32', block: [1, group ?? k], global },
    zeros,
    groupIndex: has('g_idx'),
    permutation: has('permutation'),
    sparsity: has('mask') ? '2:4' : 'none',
    sourceDtype: 'BF16',
  };
  const [, groups] = scaleShape(declaration);
  const codes = integers(n * k, 2 ** type.bits, seed).map((c) => (Number.isFinite(decodeCode(type, c)) ? c : 0));
  // Powers of two: every product is exact, so the comparison can be exact too.
  const scales = integers(n * groups, 8, seed + 1).map((e) => 2 ** (e - 4));
  const zero = integers(n * groups, 2 ** Math.min(type.bits, 7), seed + 2);
  const order = Array.from({ length: k }, (_, j) => (j * 7 + 3) % k); // a permutation when 7 does not divide k
  const gIdx = Array.from({ length: k }, (_, i) => (i * 5 + 1) % groups);
  const mask = Array.from({ length: n * k }, (_, i) => i % 4 < 2 === i % 8 < 4);
  const weight = new Array<number>(n * k);
  for (let row = 0; row < n; row++)
    for (let j = 0; j < k; j++) {
      const g = has('g_idx') ? (gIdx[j] as number) : Math.floor(j / (group ?? k));
      const z = zeros.kind === 'none' ? 0 : zeros.kind === 'const' ? zeros.value : (zero[row * groups + g] as number);
      const value =
        (decodeCode(type, codes[row * k + j] as number) - z) *
        (scales[row * groups + g] as number) *
        (global ? 0.5 : 1);
      const column = has('permutation') ? (order[j] as number) : j;
      weight[row * k + column] = has('mask') && !mask[row * k + j] ? 0 : value;
    }
  const data: ModuleData = {
    codes: stream(codes, n, k, type.bits),
    scales: Float32Array.from(scales),
    ...(zeros.kind === 'int' && { zeros: zeros.dtype === 'u8' ? Uint8Array.from(zero) : Int16Array.from(zero) }),
    ...(zeros.kind === 'float' && zeros.dtype === 'f32' && { zeros: Float32Array.from(zero) }),
    ...(global && { global_scale: Float32Array.of(0.5) }),
    ...(has('g_idx') && { g_idx: Int32Array.from(gIdx) }),
    ...(has('permutation') && { permutation: Int32Array.from(order) }),
    ...(has('mask') && { mask: stream(mask.map(Number), n, k, 1) }),
  };
  return { declaration, data, codes, weight };
}

export const MODULES: ReadonlyMap<string, MadeModule> = new Map([
  ['model.layers.0.q_proj', makeModule({ type: 'u4', n: 6, k: 64, group: 32, zeros: { kind: 'const', value: 8 } })],
  [
    'model.layers.2.q_proj',
    makeModule({ type: 'u3', n: 5, k: 24, group: 8, zeros: { kind: 'int', dtype: 'u8' }, seed: 2 }),
  ],
  ['model.layers.10.q_proj', makeModule({ type: 'i5', n: 3, k: 40, seed: 3, extras: ['permutation'] })],
  ['model.layers.1.q_proj', makeModule({ type: 'f4e2m1', n: 4, k: 32, group: 16, global: true, seed: 4 })],
  ['m.f32zeros', makeModule({ type: 'u2', n: 4, k: 32, group: 8, zeros: { kind: 'float', dtype: 'f32' }, seed: 5 })],
  [
    'm.i16zeros',
    makeModule({
      type: 'f6e3m2',
      n: 4,
      k: 12,
      group: 4,
      zeros: { kind: 'int', dtype: 'i16' },
      extras: ['g_idx'],
      seed: 6,
    }),
  ],
  [
    'm.sparse',
    makeModule({ type: 'u4', n: 4, k: 16, group: 8, zeros: { kind: 'const', value: 8 }, extras: ['mask'], seed: 7 }),
  ],
  ['m.eight', makeModule({ type: 'i8', n: 4, k: 20, seed: 8 })],
]);

export const CARRIED = [
  {
    name: 'model.embed_tokens.weight',
    dtype: 'BF16',
    shape: [4, 2],
    data: Uint16Array.of(1, 2, 3, 4, 5, 6, 7, 0x3f80),
  },
  { name: 'model.norm.weight', dtype: 'F64', shape: [2], data: Float64Array.of(0.1, -3) },
  { name: 'position_ids', dtype: 'I64', shape: [2], data: BigInt64Array.of(0n, 1n) },
] as const;

export const plan: CanonicalPlan = {
  modules: new Map([...MODULES].map(([name, { declaration }]) => [name, declaration])),
  carried: CARRIED.map(({ name, dtype, shape }) => ({ name, dtype, shape })),
  config: JSON.stringify({ model_type: 'llama', architectures: ['LlamaForCausalLM'] }),
};

/** Writes the fixture to DIR/NAME; `reversed` writes modules in the opposite order. */
export async function writeFixture(
  dir: string,
  name: string,
  options: WriterOptions & { reversed?: boolean } = {},
): Promise<string> {
  const output = await OutputDirectory.create(path.join(dir, name));
  const writer = await CanonicalWriter.create(output, plan, options);
  const list = [...MODULES];
  if (options.reversed) list.reverse();
  for (const { name: tensor, data } of CARRIED) await writer.writeCarried(tensor, data);
  for (const [module, { data }] of list)
    await writer.writeModule(module, data, { method: 'rtn', bitsPerWeight: 4.5, relativeError: null, damp: null });
  await writer.finish(provenance);
  await output.commit();
  return output.target;
}
