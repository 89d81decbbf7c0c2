import { existsSync } from 'node:fs';
import path from 'node:path';
import { createRuntime, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { readRegularText } from '../directory/read-file.js';
import { allowsRequantizing, DecodedTensors } from '../foreign/decoded.js';
import { FloatView } from '../foreign/floats.js';
import { hashedCanonical, openForeign } from '../foreign/open.js';
import { foreignContext } from '../foreign/read.js';
import { type ForeignSettings, foreignSettings, READ_METHODS } from '../foreign/settings.js';
import { fusedNames } from '../fp8-block/fused.js';
import { ggufFiles } from '../gguf/source/directory.js';
import { GgufTensors } from '../gguf/source/tensors.js';
import { type KvLatents, partedCache } from '../kv/latent.js';
import type { StoredLatents } from '../kv/schema.js';
import { Adapter } from '../lora/adapter.js';
import { mergeOf } from '../lora/directory.js';
import { LoraTensors } from '../lora/tensors.js';
import { Checkpoint, readConfig } from '../safetensors/checkpoint.js';
import { withoutBareFloats } from '../safetensors/python-floats.js';
import type { TensorReader } from '../safetensors/read.js';
import { streamOf, whenHere } from '../safetensors/stream.js';
import { StreamedTensors } from '../safetensors/streamed.js';
import { dequantizeModule } from './dequantize.js';
import { floatTensor } from './float-tensor.js';
import { mixedModule } from './mixed.js';
import { CanonicalCheckpoint } from './read.js';
import type { CanonicalManifest, CanonicalModule } from './schema.js';

/** The tensors of a source: its shards, or a view that presents low bits as floats. */
export type SourceTensors = TensorReader & { fingerprint(): string; close(): void };

/**
 * A Hugging Face checkpoint as a weight source (src/model/source.ts). Plain weights are zero-copy views; those of a model
 * that is published in FP8, MXFP4 or INT4 are decoded when they are asked for.
 */
export class SourceCheckpoint {
  private constructor(
    readonly dir: string,
    readonly config: Record<string, unknown>,
    readonly weights: SourceTensors,
    readonly part?: readonly number[],
  ) {}

  /** Throws LPQ_FILE, LPQ_CONFIG, LPQ_SAFETENSORS, LPQ_SAFETENSORS_INDEX, LPQ_FOREIGN, LPQ_LORA; of weights in GGUF LPQ_GGUF, LPQ_ARCH_UNKNOWN. */
  static open(dir: string): SourceCheckpoint {
    const gguf = ggufFiles(dir);
    if (gguf) return new SourceCheckpoint(dir, readConfig(dir), withMerge(dir, GgufTensors.open(gguf)));
    const stream = streamOf(dir);
    const weights = stream ? new StreamedTensors(dir, stream) : Checkpoint.open(dir);
    try {
      const config = readConfig(dir);
      const found = foreignSettings(dir, config);
      return new SourceCheckpoint(dir, config, withMerge(dir, floatsOf(dir, weights, config, found)));
    } catch (error) {
      weights.close();
      throw error;
    }
  }

  /** A source whose tensors are given: those of a plan, without a byte of weights. */
  static over(dir: string, config: Record<string, unknown>, weights: SourceTensors): SourceCheckpoint {
    return new SourceCheckpoint(dir, config, weights);
  }

  /** The same files as a model of some of its blocks alone (src/model/source.ts); closing either closes both. */
  ofBlocks(part: readonly number[]): SourceCheckpoint {
    return new SourceCheckpoint(this.dir, this.config, this.weights, part);
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

  /**
   * F32, F16 and BF16 as they are, F64 rounded to f32; whole numbers of tables, which are no module's weight or bias, as they are, too. Throws
   * LPQ_DTYPE for the rest, LPQ_TENSOR_MISSING; of a stream what fetching throws.
   */
  async tensor(name: string): Promise<Tensor> {
    const tensor = (await this.weights.load?.(name)) ?? (await whenHere(() => floatTensor(this.weights, name)));
    streamOf(this.dir)?.reads(name);
    return tensor;
  }

  close(): void {
    this.weights.close();
  }
}

/** What is quantized as floats, where it is published so or may be quantized again; else the file's own tensors. */
function floatsOf(
  dir: string,
  weights: SourceTensors,
  config: Readonly<Record<string, unknown>>,
  found: ForeignSettings | undefined,
): SourceTensors {
  if (!found) return weights;
  const context = () => foreignContext(dir, weights, config, found);
  if (found.unpublished === undefined) return new FloatView(weights, found.method, context());
  return allowsRequantizing(dir) ? new DecodedTensors(weights, found.method, context()) : weights;
}

/** With the adapter that is merged into it, where there is one. Closes the tensors where that fails. Throws LPQ_LORA. */
function withMerge(dir: string, weights: SourceTensors): SourceTensors {
  const merge = mergeOf(dir);
  if (!merge) return weights;
  try {
    return new LoraTensors(weights, Adapter.open(merge.adapter, weights, merge));
  } catch (error) {
    weights.close();
    throw error;
  }
}

/** The type that an input is rounded to, and its largest magnitude, for types with calibrated scales. */
interface RoundedInput {
  readonly type: NonNullable<CanonicalModule['inputType']>;
  readonly most?: number;
}

/** A canonical checkpoint as a weight source: module M appears as M.weight, dequantized to f32 on demand. */
export class CanonicalSource {
  private constructor(
    readonly checkpoint: CanonicalCheckpoint,
    private readonly runtime: NativeRuntime,
  ) {}

  /** `runtime` does the dequantizing; without one the source has its own. Errors as CanonicalCheckpoint.open. */
  static open(dir: string, runtime?: NativeRuntime): CanonicalSource {
    return CanonicalSource.over(CanonicalCheckpoint.open(dir), runtime);
  }

  /** The same over a checkpoint that is open already, for example a view of a foreign one. */
  static over(checkpoint: CanonicalCheckpoint, runtime?: NativeRuntime): CanonicalSource {
    return new CanonicalSource(checkpoint, runtime ?? createRuntime());
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

  quantized(name: string): boolean {
    return this.moduleOf(name) !== undefined;
  }

  async tensor(name: string): Promise<Tensor> {
    const module = this.moduleOf(name);
    if (module === undefined) return floatTensor(this.checkpoint.weights, name);
    return dequantizeModule(this.runtime, this.checkpoint, module);
  }

  /** What a module reads whose input is rounded; src/model/source.ts says what it is. */
  reads(name: string): { readonly rounded: RoundedInput } | undefined {
    const module = this.moduleOf(name);
    if (module === undefined) return undefined;
    const { inputType, inputMost } = this.checkpoint.module(module);
    return inputType && { rounded: { type: inputType, ...(inputMost !== undefined && { most: inputMost }) } };
  }

  /** What W4Ax multiplies with, for a module that reads codes; src/model/source.ts says what it is. */
  mixed(name: string): ReturnType<typeof mixedModule> | undefined {
    const module = this.moduleOf(name);
    return module !== undefined && this.checkpoint.module(module).activations
      ? mixedModule(this.runtime, this.checkpoint, module)
      : undefined;
  }

  get kv(): Exclude<CanonicalManifest['kv'], StoredLatents> {
    return partedCache(this.checkpoint.manifest.kv).kv;
  }

  get latents(): KvLatents | undefined {
    return partedCache(this.checkpoint.manifest.kv).latents;
  }

  close(): void {
    this.checkpoint.close();
  }

  private moduleOf(name: string): string | undefined {
    const module = name.endsWith('.weight') ? name.slice(0, -'.weight'.length) : undefined;
    return module !== undefined && Object.hasOwn(this.checkpoint.manifest.modules, module) ? module : undefined;
  }
}

/** What a directory holds: a plain checkpoint, one of lpq's formats, or the quant_method that its settings name. */
export type DirectoryKind = 'source' | 'lpq-canonical' | 'lpq-artifact' | `foreign:${string}`;

const MISSING = 'Check the path. A model on the Hugging Face Hub is ORG/NAME.';

/** Looks at lpq.json, then config.json. Throws LPQ_FILE when there is no directory, LPQ_CANONICAL for another lpq.json. */
export function directoryKind(dir: string): DirectoryKind {
  if (!existsSync(dir)) throw new LpqError('LPQ_FILE', `${dir} does not exist`, { hint: MISSING });
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
  const value = readJson(config);
  if (typeof value !== 'object' || value === null) return 'source';
  const found = foreignSettings(dir, value as Record<string, unknown>);
  return found ? `foreign:${found.method}` : 'source';
}

/** Whether a directory holds a plain checkpoint, or a model that is published in low bits and has no wider weights. Throws as directoryKind. */
export function isSource(dir: string): boolean {
  const kind = directoryKind(dir);
  return kind === 'source' || (kind.startsWith('foreign:') && unpublished(dir) === undefined);
}

/** What keeps a directory of another tool from being a source (ForeignSettings); undefined where nothing does. */
export function unpublished(dir: string): string | undefined {
  return foreignSettings(dir, readConfig(dir))?.unpublished;
}

/**
 * Opens a directory as a weight source: plain, canonical, or quantized by another tool. Throws LPQ_CONFIG for a method that
 * lpq does not read, LPQ_FOREIGN for a checkpoint that contradicts itself, LPQ_CANONICAL for an artifact (the verifier
 * opens those), and what the readers throw.
 */
export function openSource(dir: string, runtime?: NativeRuntime): SourceCheckpoint | CanonicalSource {
  const kind = directoryKind(dir);
  if (kind === 'lpq-canonical') return CanonicalSource.open(dir, runtime);
  if (kind === 'lpq-artifact')
    throw new LpqError('LPQ_CANONICAL', `${dir} is a packed artifact, not a checkpoint`, {
      hint: 'Use the directory that it was packed from.',
    });
  if (!isSource(dir)) return CanonicalSource.over(openForeign(dir).canonical, runtime);
  const source = SourceCheckpoint.open(dir);
  const stray = kind === 'source' ? strayCodes(source.weights) : undefined;
  if (stray === undefined) return source;
  source.close();
  throw new LpqError(
    'LPQ_FOREIGN',
    `${dir} holds quantized weights, but neither config.json nor another file describes them`,
    {
      got: stray,
      expected: `a quantization_config of method ${READ_METHODS.join(', ')}`,
      hint: 'Restore config.json of the quantized checkpoint.',
    },
  );
}

/**
 * Opens what can be packed, or compared with what was packed: a canonical checkpoint, or one of another tool in canonical
 * terms, with the hashes of what it decodes to (one pass over it; `blank` leaves them out, for planning). Throws as
 * openSource, and LPQ_CANONICAL for plain weights.
 */
export async function openQuantized(
  dir: string,
  options: { onModule?: (done: number, total: number) => void; blank?: boolean } = {},
): Promise<CanonicalCheckpoint> {
  const kind = directoryKind(dir);
  if (!kind.startsWith('foreign:')) return CanonicalCheckpoint.open(dir);
  const opened = openForeign(dir);
  const [fused] = fusedNames(opened.canonical);
  if (fused !== undefined) {
    opened.canonical.close();
    throw new LpqError(
      'LPQ_FOREIGN',
      `tensor '${fused}' of ${dir} holds the experts of a block in FP8, which lpq cannot pack directly`,
      {
        hint: 'Quantize the model first: lpq quantize reads such experts.',
      },
    );
  }
  if (options.blank) return opened.canonical;
  try {
    return await hashedCanonical(opened, options.onModule);
  } catch (error) {
    opened.canonical.close();
    throw error;
  }
}

/** A tensor that only quantized checkpoints have. */
function strayCodes(weights: TensorReader): string | undefined {
  for (const name of weights.names())
    if (/\.(qweight|qzeros|weight_packed|weight_scale_inv)$|_blocks$/.test(name)) return name;
  return undefined;
}

function readJson(file: string): unknown {
  try {
    return JSON.parse(withoutBareFloats(readRegularText(file)));
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}
