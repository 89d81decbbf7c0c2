import path from 'node:path';
import type { z } from 'zod';
import { type Tensor, typed } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { type ErrorFacts, LpqError } from '../../src/core/error.js';
import { readRegularText } from '../directory/read-file.js';
import { Checkpoint, readConfig } from '../safetensors/checkpoint.js';
import { requireFinite } from '../safetensors/finite.js';
import { hashTensor } from '../safetensors/hash.js';
import type { TensorReader } from '../safetensors/read.js';
import { type CanonicalManifest, type CanonicalModule, canonicalSchema } from './schema.js';
import { declarationProblem, moduleTensors, type Part, scaleShape } from './tensors.js';

/** A tensor or file whose bytes are not those that the manifest was written for. */
export interface HashMismatch {
  /** Module path, or undefined for what belongs to none. */
  readonly module?: string;
  /** Tensor or file name. */
  readonly name: string;
  readonly expected: string;
  readonly got: string;
}

/** The tensors of a canonical checkpoint: its shards, or a view of another format. */
export type CanonicalTensors = TensorReader & { close(): void };

/** A quantized checkpoint, mapped. What opens has every tensor its manifest promises, in the right dtype and shape. */
export class CanonicalCheckpoint {
  private constructor(
    readonly dir: string,
    readonly manifest: CanonicalManifest,
    readonly config: Record<string, unknown>,
    readonly weights: CanonicalTensors,
  ) {}

  /** One whose tensors are decoded from elsewhere, as the manifest declares them: formats/foreign. */
  static over(
    dir: string,
    manifest: CanonicalManifest,
    config: Record<string, unknown>,
    weights: CanonicalTensors,
  ): CanonicalCheckpoint {
    return new CanonicalCheckpoint(dir, manifest, config, weights);
  }

  /** Throws LPQ_CANONICAL naming the place in lpq.json or the tensor; LPQ_FILE, LPQ_CONFIG, LPQ_SAFETENSORS. */
  static open(dir: string): CanonicalCheckpoint {
    const manifest = readManifest(dir, canonicalSchema, 'LPQ_CANONICAL');
    const config = readConfig(dir);
    const weights = Checkpoint.open(dir);
    try {
      checkTensors(dir, manifest, weights);
    } catch (error) {
      weights.close();
      throw error;
    }
    return new CanonicalCheckpoint(dir, manifest, config, weights);
  }

  /** Names of the quantized modules, in the manifest's order. */
  moduleNames(): string[] {
    return Object.keys(this.manifest.modules);
  }

  /** Throws LPQ_TENSOR_MISSING. */
  module(name: string): CanonicalModule {
    const module = Object.hasOwn(this.manifest.modules, name) ? this.manifest.modules[name] : undefined;
    if (module) return module;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.dir} has no quantized module '${name}'`);
  }

  /**
   * One tensor of a module, mapped; undefined for a part that the module does not have. Scales of dtype f8_e8m0 come
   * as such although they are stored as U8; g_idx, permutation and mask are checked to be such (LPQ_CANONICAL), for native
   * code trusts them. The caller disposes of it.
   */
  part(name: string, part: Part): Tensor | undefined {
    const module = this.module(name);
    const spec = moduleTensors(name, module).get(part);
    if (!spec) return undefined;
    const tensor = this.weights.tensor(spec.name, part === 'scales' ? module.scales.dtype : undefined);
    if (part === 'g_idx') this.checkIndices(spec.name, tensor, scaleShape(module)[1], false);
    if (part === 'permutation') this.checkIndices(spec.name, tensor, module.shape[1], true);
    if (part === 'mask') this.checkMask(spec.name, tensor, module.shape[1]);
    return tensor;
  }

  /** A part that the module must have. Throws LPQ_CANONICAL. */
  require(name: string, part: Part): Tensor {
    return this.part(name, part) ?? bad(`${this.dir}: module '${name}' has no ${part}`);
  }

  /** The second-level factor of a module's scales; 1 without one. */
  globalScale(name: string): number {
    const tensor = this.part(name, 'global_scale');
    if (!tensor) return 1;
    const bytes = tensor.bytes();
    tensor.dispose();
    return new DataView(bytes.buffer, bytes.byteOffset, 4).getFloat32(0, true);
  }

  /** Compares every tensor, carried ones too, with the manifest's hashes. `onBytes` tells of progress. */
  async verifyHashes(onBytes?: (bytes: number) => void): Promise<HashMismatch[]> {
    const mismatches: HashMismatch[] = [];
    const [names, carried] = [this.moduleNames(), Object.entries(this.manifest.carried)];
    const total = names.length + carried.length;
    for (const [i, module] of names.entries()) {
      tell(`hashing ${module}`, i, total);
      mismatches.push(...(await this.mismatches(module, onBytes)));
    }
    for (const [i, [name, expected]] of carried.entries()) {
      tell(`hashing ${name}`, names.length + i, total);
      const got = await this.hash(name, onBytes);
      if (got !== expected) mismatches.push({ module: '', name, expected, got });
    }
    return mismatches;
  }

  /**
   * Throws LPQ_CANONICAL naming the first tensor of a module that is not what its hash was taken of, LPQ_MODULE_NUMERICS
   * where scales or zero points are NaN or infinite: layouts hide them in words that nobody looks at again.
   */
  async requireHashes(module: string): Promise<void> {
    for (const { name, expected, got } of await this.mismatches(module)) this.damaged(name, got, expected);
    for (const part of ['scales', 'zeros', 'global_scale'] as const) {
      const tensor = this.part(module, part);
      if (!tensor) continue;
      try {
        await requireFinite(`${module}.${part}`, tensor, tensor.dtype, tensor.shape);
      } finally {
        tensor.dispose();
      }
    }
  }

  /** The same for a carried tensor whose hash was taken on the way. */
  requireCarried(name: string, got: string): void {
    const expected = this.manifest.carried[name];
    if (got !== expected) this.damaged(name, got, expected ?? 'no hash');
  }

  private damaged(name: string, got: string, expected: string): never {
    return bad(`${this.dir}: the bytes of tensor '${name}' have changed since they were written`, {
      got,
      expected,
      hint: 'The checkpoint was damaged after it was written: quantize again, and check the disk.',
    });
  }

  private async mismatches(module: string, onBytes?: (bytes: number) => void): Promise<HashMismatch[]> {
    const mismatches: HashMismatch[] = [];
    const entry = this.module(module);
    for (const [part, { name }] of moduleTensors(module, entry)) {
      const expected = entry.sha256[part] ?? 'no hash';
      const got = await this.hash(name, onBytes);
      if (got !== expected) mismatches.push({ module, name, expected, got });
    }
    return mismatches;
  }

  private async hash(name: string, onBytes?: (bytes: number) => void): Promise<string> {
    const tensor = this.weights.tensor(name);
    const got = await hashTensor(this.weights.spec(name), tensor);
    onBytes?.(tensor.byteLength);
    tensor.dispose();
    return got;
  }

  close(): void {
    this.weights.close();
  }

  /** Of every four weights of a row at most two stay; bits behind the row's end are 0. */
  private checkMask(name: string, mask: Tensor, k: number): void {
    const rowBytes = Math.ceil(k / 8);
    const found = firstCrowded(mask.bytes(), rowBytes, k);
    if (found === undefined) return;
    const column = (found % (2 * rowBytes)) * 4;
    bad(`${this.dir}: tensor '${name}' is not a 2:4 mask`, {
      got:
        `row ${Math.floor(found / (2 * rowBytes))}, ` +
        (column < k
          ? `input features ${column} to ${column + 3}: more than two stay`
          : 'bits after its last column are set'),
      expected: 'at most two weights of every four',
    });
  }

  private checkIndices(name: string, tensor: Tensor, limit: number, once: boolean): void {
    const seen = new Uint8Array(limit);
    typed<Int32Array>(tensor).forEach((value, i) => {
      const what =
        value < 0 || value >= limit ? `outside 0 to ${limit - 1}` : once && seen[value] ? 'twice' : undefined;
      if (what) bad(`${this.dir}: tensor '${name}' holds an index ${what}`, { got: `${value} at [${i}]` });
      seen[value] = 1;
    });
  }
}

/** Reads and validates DIR/lpq.json. Throws `code`, naming the first wrong place by its path inside the manifest. */
export function readManifest<T extends z.ZodType>(
  dir: string,
  schema: T,
  code: 'LPQ_CANONICAL' | 'LPQ_ARTIFACT',
): z.infer<T> {
  const file = path.join(dir, 'lpq.json');
  let value: unknown;
  try {
    value = JSON.parse(readRegularText(file));
  } catch (cause) {
    throw new LpqError(code, `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const place = (issue?.path ?? []).map((key) => (typeof key === 'number' ? `[${key}]` : `/${String(key)}`)).join('');
  throw new LpqError(code, `${file} is malformed at ${place || '/'}: ${issue?.message}`, {
    got: at(value, issue?.path ?? []),
    hint: 'The file was edited or written by another version of lpq; write the directory again.',
  });
}

function at(value: unknown, keys: readonly PropertyKey[]): string {
  let here: unknown = value;
  for (const key of keys) here = (here as Record<PropertyKey, unknown> | undefined)?.[key];
  return JSON.stringify(here)?.slice(0, 100) ?? 'nothing';
}

/** The first half-byte, counted from the low one, with more than two bits, or with any behind column k. */
function firstCrowded(mask: Uint8Array, rowBytes: number, k: number): number | undefined {
  const bits = (half: number): number => (half & 1) + ((half >> 1) & 1) + ((half >> 2) & 1) + (half >> 3);
  for (let i = 0; i < mask.length; i++) {
    const byte = mask[i] as number;
    const behind = ((i % rowBytes) + 1) * 8 > k && byte >> 4 !== 0; // K is a multiple of 4
    if (bits(byte & 15) > 2) return 2 * i;
    if (behind || bits(byte >> 4) > 2) return 2 * i + 1;
  }
  return undefined;
}

function checkTensors(dir: string, manifest: CanonicalManifest, weights: Checkpoint): void {
  const known = new Set(Object.keys(manifest.carried));
  for (const name of Object.keys(manifest.carried))
    if (!weights.has(name)) bad(`${dir}: the carried tensor '${name}' of lpq.json is not in the shards`);
  for (const [module, entry] of Object.entries(manifest.modules)) {
    const problem = declarationProblem(entry);
    if (problem)
      bad(`${dir}/lpq.json is malformed at /modules/${module}/${problem.path.replace('.', '/')}: ${problem.what}`);
    const tensors = moduleTensors(module, entry);
    for (const [part, spec] of tensors) {
      if (!weights.has(spec.name)) bad(`${dir}: tensor '${spec.name}' of module '${module}' is not in the shards`);
      const { dtype, shape } = weights.spec(spec.name);
      if (dtype !== spec.dtype || shape.join() !== spec.shape.join())
        bad(`${dir}: tensor '${spec.name}' does not match lpq.json's entry of module '${module}'`, {
          got: `${dtype} [${shape}]`,
          expected: `${spec.dtype} [${spec.shape}]`,
        });
      if (known.has(spec.name)) bad(`${dir}: tensor '${spec.name}' is listed as carried and as part of a module`);
      if (entry.sha256[part] === undefined)
        bad(`${dir}/lpq.json is malformed at /modules/${module}/sha256/${part}: no hash`);
      known.add(spec.name);
    }
    for (const part of Object.keys(entry.sha256))
      if (!tensors.has(part as Part))
        bad(`${dir}/lpq.json is malformed at /modules/${module}/sha256/${part}: no such tensor`);
  }
  for (const name of weights.names())
    if (!known.has(name)) bad(`${dir}: tensor '${name}' is in the shards but not in lpq.json`);
}

function bad(what: string, facts?: ErrorFacts): never {
  throw new LpqError('LPQ_CANONICAL', what, facts);
}
