import type { ArtifactManifest, PackedModule } from '../../formats/artifact/schema.js';
import { quantType } from '../core/quant-type.js';
import type { Fail, Json } from './keys.js';
import { isSymmetric } from './layout.js';
import { layoutOf } from './layouts/index.js';
import type { Linear, ModelLinears } from './linears.js';

/** What a loader would believe of a module; undefined: it would take it for an unquantized one. */
export interface Scheme {
  readonly bits: unknown;
  /** Features a group, -1 for whole channels. */
  readonly group: unknown;
  readonly sym: unknown;
  /** Whether groups are named by g_idx. */
  readonly order?: unknown;
  /** int or float; the storage form; what is said of activations. compressed-tensors only. */
  readonly type?: unknown;
  readonly format?: unknown;
  readonly activations?: unknown;
}

/** A quantization_config as a loader of its kind reads it. */
export interface Reading {
  /** What it says of a linear; undefined: that it is plain. */
  scheme(linear: Linear): Scheme | undefined;
  /** Whether it claims a tensor that is no linear, by its name. */
  byName(name: string): boolean;
}

/** A configuration that programs other than lpq read. */
export interface LoaderConfig {
  read(fail: Fail, config: Json, manifest: ArtifactManifest, model: ModelLinears): Reading;
  /** What a reading must say of a packed module. */
  scheme(module: PackedModule): Scheme;
}

/** What an artifact for a target may consist of, to the verifier. One file a family in targets/, listed in targets/index.ts. */
export interface VerifiedTarget {
  readonly name: string;
  /** Layouts of packed modules. */
  readonly layouts: readonly string[];
  /** How a module that the target cannot pack is left. */
  readonly left: 'dense' | 'carried';
  /** Files that are made for it beside config.json, lpq.json and the shards. */
  readonly files: readonly string[];
  /** A file that repeats quantization_config in the form of older loaders. */
  readonly beside?: { readonly file: string; says(config: Json): Json };
  /** Undefined: quantization_config points to lpq.json, which says all. */
  readonly config?: LoaderConfig;
  /** Name and shape of the FP8 scale of an attention's keys or values, if it was calibrated. */
  kvScale?(attention: string, side: 'k' | 'v'): { readonly name: string; readonly shape: readonly number[] };
  /** Activations become codes: one scale per token, or a precision for each block of channels, which modules say. */
  readonly activations?: 'tokens' | 'blocks';
}

/** Bits, group size and symmetry. */
export function plainScheme(module: PackedModule): Scheme {
  const { bits, kind } = quantType(module.type);
  const { scales, granularity } = module;
  const [rows] = scales.block;
  const size = granularity.kind === 'channel' ? -1 : granularity.size;
  const shared = layoutOf(module.layout)?.compressed?.whole ? scales.stored : undefined;
  const group = shared === 'tensor' ? shared : shared ? shared.join(' x ') : rows > 1 ? `${rows} x ${size}` : size;
  return { bits, group, sym: kind === 'float' || isSymmetric(module) };
}
