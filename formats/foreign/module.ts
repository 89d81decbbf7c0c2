import { typed } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { type ErrorFacts, LpqError } from '../../src/core/error.js';
import { printed } from '../../src/core/printed.js';
import type { ModuleDeclaration, Part } from '../canonical/tensors.js';
import type { SafetensorsDtype } from '../safetensors/dtypes.js';
import type { TensorEntry } from '../safetensors/header.js';
import type { TensorReader } from '../safetensors/read.js';

/** A linear that another tool quantized, in canonical terms. Nothing of its codes is read until decode(). */
export interface ForeignModule {
  /** Module path: model.layers.0.self_attn.q_proj. */
  readonly name: string;
  readonly declaration: ModuleDeclaration;
  /** Names of the file's tensors that it is made of; all others are carried. */
  readonly tensors: readonly string[];
  /** What deserves a sentence, for example a choice between readings. */
  readonly notes: readonly string[];
  /** What the settings state wrongly of it; it is read as it is, but other loaders may believe them. */
  readonly contradictions?: readonly string[];
  /** The bytes of one part that the declaration asks for, as formats/canonical/spec.md stores it. */
  decode(part: Part): ArrayBufferView;
}

/** Where a format's reader looks. */
export interface ForeignContext {
  readonly dir: string;
  readonly weights: TensorReader;
  /** The quantization settings, wherever they were found. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** For messages: the file and key that hold the settings. */
  readonly where: string;
  /** Safetensors name of the dtype that config.json says the model computes in. */
  readonly modelDtype: 'F32' | 'F16' | 'BF16';
}

/** What a reader found: whole modules, and what keeps others from being read. */
export interface ForeignModules {
  readonly modules: readonly ForeignModule[];
  readonly problems: readonly LpqError[];
}

/** Reads each of `names` with `read`; a designed error becomes a problem, so that a diagnosis can list them all. */
export function readEach(names: Iterable<string>, read: (name: string) => ForeignModule | undefined): ForeignModules {
  const modules: ForeignModule[] = [];
  const problems: LpqError[] = [];
  for (const name of names) {
    tell(`reading ${name}`);
    try {
      const module = read(name);
      if (module) modules.push(module);
    } catch (error) {
      if (!(error instanceof LpqError)) throw error;
      problems.push(error);
    }
  }
  return { modules, problems };
}

/** Module paths that have a tensor with one of these last parts, in the order of the file. */
export function stems(weights: TensorReader, ...parts: readonly string[]): string[] {
  const found = new Set<string>();
  for (const name of weights.names())
    for (const part of parts) if (name.endsWith(`.${part}`)) found.add(name.slice(0, -part.length - 1));
  return [...found];
}

/** A tensor of a module: its entry, in one of `dtypes` and of `rank` dimensions. Throws LPQ_FOREIGN naming it. */
export function required(
  { dir, weights }: ForeignContext,
  name: string,
  dtypes: readonly SafetensorsDtype[],
  rank: number,
): TensorEntry {
  if (!weights.has(name))
    return foreign(`${dir} lacks the tensor '${name}', which its module needs`, {
      expected: `${dtypes.join(' or ')} of ${rank} dimensions`,
      hint: 'Download the checkpoint again; a shard may be missing.',
    });
  const entry = weights.spec(name);
  if (!dtypes.includes(entry.dtype))
    foreign(`tensor '${name}' of ${dir} has the wrong dtype`, { got: entry.dtype, expected: dtypes.join(' or ') });
  if (entry.shape.length !== rank)
    foreign(`tensor '${name}' of ${dir} has the wrong number of dimensions`, {
      got: `[${entry.shape}]`,
      expected: `${rank} dimensions`,
    });
  if (entry.shape.includes(0)) foreign(`tensor '${name}' of ${dir} is empty`, { got: `[${entry.shape}]` });
  return entry;
}

/** Throws LPQ_FOREIGN when a tensor has another shape than the others of its module demand. */
export function requireShape({ dir }: ForeignContext, entry: TensorEntry, shape: readonly number[], why: string): void {
  if (`${entry.shape}` === `${shape}`) return;
  foreign(`tensor '${entry.name}' of ${dir} does not have the shape that its module needs`, {
    got: `[${entry.shape}]`,
    expected: `[${shape}]: ${why}`,
    hint: 'The tensors and the quantization settings belong to different checkpoints, or one of them is truncated.',
  });
}

/** What holds of every module that keeps its columns in their places. */
export const inPlace = ({ modelDtype }: ForeignContext) =>
  ({ groupIndex: false, permutation: false, sparsity: 'none', sourceDtype: modelDtype }) as const;

/** Plain floats of safetensors, by the names that canonical scales have. */
export const FLOATS = { F16: 'f16', BF16: 'bf16', F32: 'f32' } as const;
export const FLOAT_DTYPES = Object.keys(FLOATS) as (keyof typeof FLOATS)[];

/** Groups of `size` features in `k`. Throws LPQ_FOREIGN where they do not divide it. */
export function groupsIn({ where }: ForeignContext, name: string, size: number, k: number): number {
  if (k % size === 0) return k / size;
  return foreign(`group_size ${size} of ${where} does not divide the ${k} input features of '${name}'`, {
    got: size,
    expected: `a divisor of ${k}, or -1`,
  });
}

/** I32 [K]: the group of each feature, as a file names it. Throws LPQ_FOREIGN for one that does not exist. */
export function namedGroups({ dir, weights }: ForeignContext, name: string, groups: number): Int32Array<ArrayBuffer> {
  const tensor = weights.tensor(name);
  const index = Int32Array.from(typed<Int32Array>(tensor), Number);
  tensor.dispose();
  const stray = index.findIndex((group) => group < 0 || group >= groups);
  if (stray >= 0)
    foreign(`tensor '${name}' of ${dir} names a group that does not exist`, {
      got: `${index[stray]} at [${stray}]`,
      expected: `0 to ${groups - 1}`,
      hint: 'The tensor is damaged, or has another group size: download the checkpoint again.',
    });
  return index;
}

export function foreign(what: string, facts: ErrorFacts = {}): never {
  throw new LpqError('LPQ_FOREIGN', what, facts);
}

/** LPQ_CONFIG about one key of the settings. */
export function badSetting(where: string, key: string, got: unknown, expected: string, hint?: string): never {
  throw new LpqError('LPQ_CONFIG', `${where}: '${key}' cannot be used`, {
    got: printed(got).slice(0, 200),
    expected,
    ...(hint !== undefined && { hint }),
  });
}
