import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { createRuntime, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { Checkpoint } from '../safetensors/checkpoint.js';
import { dequantizeModule } from './dequantize.js';
import { CanonicalCheckpoint } from './read.js';

/** A plain Hugging Face checkpoint as a weight source (src/model/source.ts); weights are zero-copy views. */
export class SourceCheckpoint {
  private constructor(
    readonly dir: string,
    readonly config: Record<string, unknown>,
    readonly weights: Checkpoint,
  ) {}

  /** Throws LPQ_FILE, LPQ_CONFIG, LPQ_SAFETENSORS, LPQ_SAFETENSORS_INDEX. */
  static open(dir: string): SourceCheckpoint {
    const weights = Checkpoint.open(dir);
    try {
      return new SourceCheckpoint(dir, weights.config(), weights);
    } catch (error) {
      weights.close();
      throw error;
    }
  }

  names(): Iterable<string> {
    return this.weights.names();
  }

  has(name: string): boolean {
    return this.weights.has(name);
  }

  shape(name: string): readonly number[] {
    return this.weights.shape(name);
  }

  /** F32, F16 and BF16 as they are, F64 rounded to f32. Throws LPQ_DTYPE for the rest, LPQ_TENSOR_MISSING. */
  async tensor(name: string): Promise<Tensor> {
    return floatTensor(this.weights, name);
  }

  close(): void {
    this.weights.close();
  }
}

/** A canonical checkpoint as a weight source: module M appears as M.weight, dequantized to f32 on demand. */
export class CanonicalSource {
  private constructor(
    readonly checkpoint: CanonicalCheckpoint,
    private readonly runtime: NativeRuntime,
  ) {}

  /** `runtime` does the dequantizing; without one the source has its own. Errors as CanonicalCheckpoint.open. */
  static open(dir: string, runtime?: NativeRuntime): CanonicalSource {
    return new CanonicalSource(CanonicalCheckpoint.open(dir), runtime ?? createRuntime());
  }

  get dir(): string {
    return this.checkpoint.dir;
  }

  get config(): Record<string, unknown> {
    return this.checkpoint.config;
  }

  *names(): Iterable<string> {
    yield* Object.keys(this.checkpoint.manifest.carried);
    for (const module of this.checkpoint.moduleNames()) yield `${module}.weight`;
  }

  has(name: string): boolean {
    return this.moduleOf(name) !== undefined || this.checkpoint.weights.has(name);
  }

  shape(name: string): readonly number[] {
    const module = this.moduleOf(name);
    return module === undefined ? this.checkpoint.weights.shape(name) : this.checkpoint.module(module).shape;
  }

  async tensor(name: string): Promise<Tensor> {
    const module = this.moduleOf(name);
    if (module === undefined) return floatTensor(this.checkpoint.weights, name);
    return dequantizeModule(this.runtime, this.checkpoint, module);
  }

  close(): void {
    this.checkpoint.close();
  }

  private moduleOf(name: string): string | undefined {
    const module = name.endsWith('.weight') ? name.slice(0, -'.weight'.length) : undefined;
    return module !== undefined && Object.hasOwn(this.checkpoint.manifest.modules, module) ? module : undefined;
  }
}

/** What a directory holds: a plain checkpoint, one of lpq's formats, or what config.json calls its quant_method. */
export type DirectoryKind = 'source' | 'lpq-canonical' | 'lpq-artifact' | `foreign:${string}`;

/** Looks at lpq.json, then config.json. Throws LPQ_FILE when there is no directory, LPQ_CANONICAL for another lpq.json. */
export function directoryKind(dir: string): DirectoryKind {
  if (!existsSync(dir)) throw new LpqError('LPQ_FILE', `${dir} does not exist`);
  const manifest = path.join(dir, 'lpq.json');
  if (existsSync(manifest)) {
    const format = (readJson(manifest) as { format?: unknown } | null)?.format;
    if (format === 'lpq-canonical' || format === 'lpq-artifact') return format;
    throw new LpqError('LPQ_CANONICAL', `${manifest} is malformed at /format`, {
      got: JSON.stringify(format) ?? 'nothing',
      expected: 'lpq-canonical or lpq-artifact',
      ...(format === 'lpq-statistics' && { hint: 'These are saved statistics: give them to lpq quantize --stats.' }),
    });
  }
  const config = path.join(dir, 'config.json');
  if (!existsSync(config)) return 'source';
  const value = readJson(config) as { quantization_config?: { quant_method?: unknown } } | null;
  const method = value?.quantization_config?.quant_method;
  return typeof method === 'string' ? `foreign:${method}` : 'source';
}

/**
 * Opens a directory as a weight source: plain or canonical. Throws LPQ_CONFIG for a checkpoint that another tool
 * quantized, LPQ_CANONICAL for an artifact (the verifier opens those), and what the readers throw.
 */
export function openSource(dir: string, runtime?: NativeRuntime): SourceCheckpoint | CanonicalSource {
  const kind = directoryKind(dir);
  if (kind === 'source') return SourceCheckpoint.open(dir);
  if (kind === 'lpq-canonical') return CanonicalSource.open(dir, runtime);
  if (kind === 'lpq-artifact')
    throw new LpqError('LPQ_CANONICAL', `${dir} is a packed artifact, not a checkpoint`, {
      hint: 'Use the directory that it was packed from.',
    });
  throw new LpqError('LPQ_CONFIG', `${dir} is quantized already, by another tool`, {
    got: kind.slice('foreign:'.length),
    hint: 'Start from the unquantized checkpoint.',
  });
}

function floatTensor(weights: Checkpoint, name: string): Tensor {
  const dtype = weights.dtype(name);
  if (dtype === 'F32' || dtype === 'F16' || dtype === 'BF16') return weights.tensor(name);
  if (dtype !== 'F64')
    throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${weights.path} is no floating-point weight`, {
      got: dtype,
      expected: 'F32, F16, BF16 or F64',
    });
  const wide = weights.tensor(name);
  const narrow = fromTyped('f32', wide.shape, Float32Array.from(typed<Float64Array>(wide)));
  wide.dispose();
  return narrow;
}

function readJson(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}
