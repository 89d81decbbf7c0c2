import path from 'node:path';
import { allocate, type DType, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { FileTensors } from './floats.js';
import type { ForeignContext, ForeignModule } from './module.js';
import { numbersOf } from './numbers.js';
import { Overlay } from './overlay.js';
import { readModules } from './read.js';

interface Decoded {
  readonly entry: TensorEntry;
  readonly module: ForeignModule;
}

const allowed = new Set<string>();

/** Makes a checkpoint that another tool quantized from wider weights a source, for this process. */
export function allowRequantizing(dir: string): void {
  allowed.add(path.resolve(dir));
}

export function allowsRequantizing(dir: string): boolean {
  return allowed.has(path.resolve(dir));
}

/**
 * A checkpoint that another tool quantized as if it held floats: MODULE.weight in F32, (code - zero) * scale, one product rounded to f32.
 * What those weights were before is not in it.
 */
export class DecodedTensors extends Overlay<FileTensors, Decoded> {
  /** Of the narrowest codes. */
  readonly bits: number;

  /** Throws LPQ_FOREIGN for a checkpoint that contradicts itself, LPQ_CONFIG for settings or a method that lpq does not read. */
  constructor(file: FileTensors, method: string, ctx: ForeignContext) {
    super(file);
    const { modules, problems } = readModules(ctx, method);
    if (problems[0]) throw problems[0];
    let bits = 16;
    for (const module of modules) {
      for (const name of module.tensors) this.consumed.add(name);
      const { shape, type } = module.declaration;
      const name = `${module.name}.weight`;
      this.made.set(name, { entry: { name, dtype: 'F32', shape, begin: 0, end: 4 * shape[0] * shape[1] }, module });
      bits = Math.min(bits, widthOf(type));
    }
    this.bits = bits;
  }

  /** Names of the tensors that were decoded. */
  decodedNames(): Iterable<string> {
    return this.made.keys();
  }

  tensor(name: string, as?: DType): Tensor {
    const found = this.made.get(name);
    if (!found) {
      this.spec(name);
      return this.file.tensor(name, as);
    }
    if (as !== undefined && as !== 'f32')
      throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.path} cannot be read as ${as}`, { got: 'f32' });
    const out = allocate('f32', found.entry.shape);
    decode(found.module, typed<Float32Array>(out));
    return out;
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    const found = this.made.get(name);
    for (const tensor of found ? found.module.tensors : [name]) this.file.advise(tensor, advice);
  }

  fingerprint(): string {
    return this.file.fingerprint();
  }
}

function widthOf(type: string): number {
  return Number(/\d/.exec(type)?.[0]);
}

function decode({ declaration, decode: part }: ForeignModule, out: Float32Array): void {
  const { type, shape, granularity, scales: stored, zeros: zero, groupIndex } = declaration;
  const [n, k] = shape;
  const bits = widthOf(type);
  const values = valuesOf(type, bits);
  const size = granularity.kind === 'channel' ? k : granularity.size;
  const groups = k / size;
  const scales = numbersOf(part('scales'), stored.dtype);
  const global = stored.global ? (part('global_scale') as Float32Array)[0] : undefined;
  const zeros = zero.kind === 'int' ? (part('zeros') as Uint8Array | Int16Array) : undefined;
  const constant = zero.kind === 'const' ? zero.value : 0;
  const index = groupIndex ? (part('g_idx') as Int32Array) : undefined;
  const codes = part('codes') as Uint8Array;
  const row = Math.ceil((k * bits) / 8);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < k; j++) {
      const bit = j * bits;
      const at = i * row + (bit >> 3);
      const word = (codes[at] as number) | ((codes[at + 1] ?? 0) << 8);
      const group = i * groups + (index ? (index[j] as number) : Math.floor(j / size));
      const value = values[(word >> (bit & 7)) & (2 ** bits - 1)] as number;
      const scale = global === undefined ? (scales[group] as number) : Math.fround((scales[group] as number) * global);
      out[i * k + j] = (value - (zeros ? (zeros[group] as number) : constant)) * scale;
    }
  }
}

const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

/** What each code stands for. */
function valuesOf(type: string, bits: number): ArrayLike<number> {
  const count = 2 ** bits;
  if (type === 'f8e4m3')
    return numbersOf(
      Uint8Array.from({ length: count }, (_, code) => code),
      'f8_e4m3',
    );
  if (type === 'f4e2m1') return [...E2M1, ...E2M1.map((value) => -value)];
  const signed = type.startsWith('i');
  if (!signed && !type.startsWith('u'))
    throw new LpqError('LPQ_INTERNAL', `codes of type ${type} are not decoded here`);
  return Array.from({ length: count }, (_, code) => (signed && code >= count / 2 ? code - count : code));
}
