import path from 'node:path';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { CanonicalModule, ScaleDtype } from '../../../formats/canonical/schema.js';
import { type ModuleDeclaration, scaleShape } from '../../../formats/canonical/tensors.js';
import { CanonicalWriter, type ModuleData } from '../../../formats/canonical/write.js';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { decodeCode, quantType } from '../../../src/core/quant-type.js';
import { integers, provenance, stream } from '../../formats/canonical/fixture.js';
import { random } from '../verify/numbers.js';

/** A module with f16 scales (any bits: packing only moves them) and what its tensors hold, in plain arrays. */
export interface Made {
  readonly declaration: ModuleDeclaration;
  readonly data: ModuleData;
  /** [N, K] raw codes. */
  readonly codes: readonly number[];
  /** [N, G] raw 16-bit scales. */
  readonly scales: Uint16Array;
  /** [N, G] stored zeros. */
  readonly zeros: readonly number[];
  readonly groups: number;
}

/** Scales of two levels, [N], [N, G] and their products, which f16 holds; multiples of a row have no common divisor. */
export function twoLevels(n: number, groups: number, seed: number) {
  const rows = integers(n, 64, seed).map((value) => (64 + value) * 2 ** -13);
  const multiples = integers(n * groups, 32, seed + 1).map((value, i) => (i % groups === 0 ? 1 : value - 15 || 1));
  return { rows, multiples, products: multiples.map((value, i) => value * rows[Math.floor(i / groups)]!) };
}

/** f16 of a number that f16 holds, from 2^-14 on. */
function halfBits(value: number): number {
  const power = Math.floor(Math.log2(Math.abs(value)));
  return (value < 0 ? 0x8000 : 0) + ((power + 15) << 10) + (Math.abs(value) / 2 ** power - 1) * 1024;
}

export function made(options: {
  type: string;
  n: number;
  k: number;
  group?: number;
  zeros?: CanonicalModule['zeros'];
  zeroRange?: readonly [number, number];
  scaleDtype?: ScaleDtype;
  block?: number;
  global?: boolean;
  twoLevel?: true;
  extras?: readonly ('g_idx' | 'permutation' | 'mask')[];
  activations?: CanonicalModule['activations'];
  transposed?: boolean;
  seed?: number;
}): Made {
  const { n, k, group, zeros = { kind: 'none' }, scaleDtype = 'f16', extras = [], seed = 1 } = options;
  const type = quantType(options.type);
  const declaration: ModuleDeclaration = {
    type: type.name,
    shape: [n, k],
    granularity: group ? { kind: 'group', size: group } : { kind: 'channel' },
    scales: {
      dtype: scaleDtype,
      block: [options.block ?? 1, group ?? k],
      global: options.global ?? false,
      ...(options.twoLevel && { twoLevel: true }),
    },
    zeros,
    groupIndex: extras.includes('g_idx'),
    permutation: extras.includes('permutation'),
    sparsity: extras.includes('mask') ? '2:4' : 'none',
    sourceDtype: 'BF16',
    ...(options.activations && { activations: options.activations }),
    ...(options.transposed && { transposed: true }),
  };
  const [scaleRows, groups] = scaleShape(declaration);
  // A code that is no number is in no weight.
  const number = (code: number) => (Number.isNaN(decodeCode(type, code)) ? code ^ 0x40 : code);
  const codes = integers(n * k, 2 ** type.bits, seed).map(number);
  // 0x3000 to 0x37ff: f16 between 1/8 and 1/2.
  const products = options.twoLevel && twoLevels(n, groups, seed).products;
  const scales = products
    ? Uint16Array.from(products, halfBits)
    : Uint16Array.from(integers(scaleRows * groups, 0x800, seed + 1), (bits) => 0x3000 + bits);
  const [low, high] = options.zeroRange ?? [0, 2 ** type.bits - 1];
  const zeroValues = integers(n * groups, high - low + 1, seed + 2).map((value) => value + low);
  zeroValues[0] = low;
  zeroValues[zeroValues.length - 1] = high;
  const permutation = Array.from({ length: k }, (_, j) => (j * 7 + 3) % k);
  const gIdx = Int32Array.from({ length: k }, (_, i) => (i * 5 + 1) % groups);
  const wide = Float32Array.from(products ?? scales, (value) => (products ? value : value / 4096));
  const data: ModuleData = {
    codes: stream(codes, n, k, type.bits),
    scales:
      scaleDtype === 'f32'
        ? wide
        : scaleDtype === 'f16' || scaleDtype === 'bf16'
          ? scales
          : Uint8Array.from(scales, (bits) => ((bits & 127) === 127 ? bits ^ 64 : bits)),
    ...(zeros.kind === 'int' && {
      zeros: zeros.dtype === 'u8' ? Uint8Array.from(zeroValues) : Int16Array.from(zeroValues),
    }),
    ...(zeros.kind === 'float' && { zeros: new Float32Array(n * groups) }),
    ...(options.global && { global_scale: Float32Array.of(0.5) }),
    ...(extras.includes('g_idx') && { g_idx: gIdx }),
    ...(extras.includes('permutation') && { permutation: Int32Array.from(permutation) }),
    ...(extras.includes('mask') && { mask: new Uint8Array((n * k) / 8).fill(0x33) }),
  };
  return { declaration, data, codes, scales, zeros: zeroValues, groups };
}

/** A module of which two of every four weights stay, drawn from the seed; the others have the code of 0. */
export function sparse(options: Parameters<typeof made>[0]): Made & { kept: Uint8Array } {
  const base = made({ ...options, extras: [...(options.extras ?? []), 'mask'] });
  const { n, k, zeros } = options;
  const zero = zeros?.kind === 'const' ? zeros.value : 0;
  const next = random(options.seed ?? 1);
  const kept = new Uint8Array(n * k);
  for (let j = 0; j < n * k; j += 4) {
    const first = next() % 4;
    kept[j + first] = kept[j + ((first + 1 + (next() % 3)) % 4)] = 1;
  }
  const codes = base.codes.map((code, i) => (kept[i] ? code : zero));
  const { bits } = quantType(options.type);
  const data = { ...base.data, codes: stream(codes, n, k, bits), mask: stream([...kept], n, k, 1) };
  return { ...base, codes, kept, data };
}

/** What goes along unchanged: an embedding, a norm, a plain linear. */
export const CARRIED = [
  { name: 'model.embed_tokens.weight', dtype: 'BF16', shape: [4, 2], data: Uint16Array.of(1, 2, 3, 4, 5, 6, 7, 8) },
  { name: 'model.layers.0.mlp.gate.weight', dtype: 'BF16', shape: [2, 2], data: Uint16Array.of(9, 8, 7, 6) },
  { name: 'model.norm.weight', dtype: 'BF16', shape: [2], data: Uint16Array.of(0x3f80, 0x3f80) },
] as const satisfies readonly Carried[];

export interface Carried {
  readonly name: string;
  readonly dtype: 'BF16';
  readonly shape: readonly number[];
  readonly data: Uint16Array;
}

/** Writes a canonical checkpoint of these modules and opens it. */
export async function checkpointOf(
  dir: string,
  name: string,
  modules: Readonly<Record<string, Made>>,
  config: Readonly<Record<string, unknown>> = { model_type: 'llama', architectures: ['LlamaForCausalLM'] },
  carried: readonly Carried[] = CARRIED,
): Promise<CanonicalCheckpoint> {
  const output = await OutputDirectory.create(path.join(dir, name));
  await output.writeFile('tokenizer.json', '{"made": "up"}\n');
  const writer = await CanonicalWriter.create(output, {
    modules: new Map(Object.entries(modules).map(([module, { declaration }]) => [module, declaration])),
    carried: carried.map(({ name: tensor, dtype, shape }) => ({ name: tensor, dtype, shape })),
    config: JSON.stringify(config),
  });
  for (const { name: tensor, data } of carried) await writer.writeCarried(tensor, data);
  for (const [module, { data }] of Object.entries(modules)) await writer.writeModule(module, data);
  await writer.finish(provenance);
  await output.commit();
  return CanonicalCheckpoint.open(output.target);
}
