import { existsSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { type ErrorFacts, LpqError } from '../../src/core/error.js';
import { readRegularText } from '../directory/read-file.js';
import { fingerprintOf } from './fingerprint.js';
import { withoutBareFloats } from './python-floats.js';
import { SafetensorsFile } from './read.js';
import { ShardReader } from './shards.js';
import { streamOf } from './stream.js';
import { parseStrictJson, StrictJsonError } from './strict-json.js';

/** All weights of a checkpoint directory: model.safetensors, or the shards that an index names. */
export class Checkpoint extends ShardReader {
  private print: string | undefined;

  /** `files`: shards in order of their names. */
  private constructor(dir: string, files: readonly SafetensorsFile[]) {
    super(dir, files);
  }

  /**
   * Opens a directory (or one .safetensors file). Throws LPQ_FILE when there are no weights, LPQ_SAFETENSORS_INDEX when
   * the index lies, LPQ_SAFETENSORS when a shard breaks a rule of the format.
   */
  static open(dir: string): Checkpoint {
    const { names, index } = findShards(dir);
    const files: SafetensorsFile[] = [];
    try {
      for (const name of names) files.push(SafetensorsFile.open(name));
      const checkpoint = new Checkpoint(dir, files);
      for (const [name, file] of ownersOf(files, index)) checkpoint.owner.set(name, file);
      return checkpoint;
    } catch (error) {
      for (const file of files) file.close();
      throw error;
    }
  }

  /** Tells it from other checkpoints (fingerprint.ts). Throws LPQ_CONFIG without config.json, LPQ_FILE. */
  fingerprint(): string {
    this.print ??= fingerprintOf(readText(this.configPath(), 'LPQ_CONFIG'), this.files);
    return this.print;
  }

  /** config.json, parsed. Throws LPQ_CONFIG. */
  config(): Record<string, unknown> {
    return readConfig(path.dirname(this.configPath()));
  }

  private configPath(): string {
    const dir = statSync(this.path).isDirectory() ? this.path : path.dirname(this.path);
    return path.join(dir, 'config.json');
  }
}

/**
 * Which shard holds each tensor, in the order of the files. Throws LPQ_SAFETENSORS_INDEX where two do, or where they and the index differ.
 */
export function ownersOf<T extends { readonly path: string; names(): Iterable<string> }>(
  files: readonly T[],
  index: ShardIndex | undefined,
): Map<string, T> {
  const owner = new Map<string, T>();
  for (const file of files)
    for (const name of file.names()) {
      const first = owner.get(name);
      if (first) indexError(`tensor '${name}' is in two shards`, { got: `${base(first)} and ${base(file)}` });
      owner.set(name, file);
    }
  for (const [name, shard] of index?.weightMap ?? []) {
    const holder = owner.get(name);
    if (!holder || base(holder) !== shard)
      indexError(`${index?.path} puts tensor '${name}' in ${shard}, which does not hold it`, {
        ...(holder && { got: `it is in ${base(holder)}` }),
        hint: 'The shards and the index come from different downloads: fetch the checkpoint again.',
      });
  }
  // Loaders that follow the index miss it, those that read whole shards have it.
  if (index)
    for (const [name, file] of owner)
      if (!index.weightMap.has(name))
        indexError(`${index.path} leaves out tensor '${name}', which ${base(file)} holds`, {
          hint: 'The shards and the index come from different downloads: fetch the checkpoint again.',
        });
  return owner;
}

/** Reads DIR/config.json. Throws LPQ_CONFIG when it is absent, broken or no object. */
export function readConfig(dir: string): Record<string, unknown> {
  const file = path.join(dir, 'config.json');
  return parseConfig(file, withoutBareFloats(readText(file, 'LPQ_CONFIG')));
}

/**
 * The text of DIR/config.json, which was read as `config` before: what an output's is made from, so that nothing but what is changed
 * is printed anew. Throws LPQ_CONFIG, also where the file has changed since.
 */
export function readConfigText(dir: string, config: Readonly<Record<string, unknown>>): string {
  const file = path.join(dir, 'config.json');
  const text = withoutBareFloats(readText(file, 'LPQ_CONFIG'));
  if (isDeepStrictEqual(parseConfig(file, text), config)) return text;
  throw new LpqError('LPQ_CONFIG', `${file} has changed since it was read`, { hint: 'Run lpq again.' });
}

function parseConfig(file: string, text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    if (cause instanceof LpqError) throw cause;
    throw new LpqError('LPQ_CONFIG', `${file} is not valid JSON: ${(cause as Error).message}`, { cause });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new LpqError('LPQ_CONFIG', `${file} does not hold an object`);
  return value as Record<string, unknown>;
}

/**
 * Names of the tensors of a directory that has a config.json and no weights: those of its index, none without one. Undefined where there
 * are weights, of any format. Throws LPQ_SAFETENSORS_INDEX.
 */
export function namesWithoutShards(dir: string): ReadonlySet<string> | undefined {
  if (!existsSync(path.join(dir, 'config.json')) || !statSync(dir).isDirectory() || streamOf(dir)) return undefined;
  const all = readdirSync(dir).sort();
  if (all.some((name) => /\.(safetensors|gguf|bin|pt|pth)$/.test(name))) return undefined;
  const index = all.find((name) => name.endsWith('.safetensors.index.json'));
  return new Set(index === undefined ? [] : readIndex(path.join(dir, index)).weightMap.keys());
}

/** An index over shards, and which of them it names for each tensor. */
export interface ShardIndex {
  readonly path: string;
  readonly weightMap: ReadonlyMap<string, string>;
}

function findShards(dir: string): { names: string[]; index: ShardIndex | undefined } {
  if (!existsSync(dir)) throw new LpqError('LPQ_FILE', `${dir} does not exist`);
  if (!statSync(dir).isDirectory()) return { names: [dir], index: undefined };
  // The order in which transformers looks: a single file wins over an index.
  const single = path.join(dir, 'model.safetensors');
  if (existsSync(single)) return { names: [single], index: undefined };
  const all = readdirSync(dir).sort();
  const indices = all.filter((name) => name.endsWith('.safetensors.index.json'));
  const usual = 'model.safetensors.index.json';
  const chosen = indices.includes(usual) ? usual : indices.length === 1 ? indices[0] : undefined;
  if (chosen) {
    const index = readIndex(path.join(dir, chosen));
    const shards = [...new Set(index.weightMap.values())].sort();
    const missing = shards.filter((shard) => !existsSync(path.join(dir, shard)));
    if (missing.length > 0)
      indexError(`${index.path} names missing shards`, {
        got: missing.slice(0, 5).join(', ') + (missing.length > 5 ? `, and ${missing.length - 5} more` : ''),
        hint: 'Download the missing shards into the directory.',
      });
    return { names: shards.map((shard) => path.join(dir, shard)), index };
  }
  // Quantizers of other makers name their one file freely (gptq_model-4bit-128g.safetensors).
  const files = all.filter((name) => name.endsWith('.safetensors'));
  if (files.length === 1) return { names: [path.join(dir, files[0] as string)], index: undefined };
  const pickles = all.some((name) => /\.(bin|pt|pth)$/.test(name));
  throw new LpqError('LPQ_FILE', `${dir} holds no safetensors checkpoint`, {
    expected: 'model.safetensors, or model.safetensors.index.json with its shards',
    got:
      files.length > 0 ? `${files.length} .safetensors files and no index` : pickles ? 'pickled weights only' : 'none',
    ...(pickles && { hint: 'lpq never unpickles: convert the weights to safetensors first.' }),
  });
}

/** Throws LPQ_SAFETENSORS_INDEX. */
export function readIndex(file: string): ShardIndex {
  let root: unknown;
  try {
    root = parseStrictJson(readText(file, 'LPQ_SAFETENSORS_INDEX'));
  } catch (cause) {
    if (!(cause instanceof StrictJsonError)) throw cause;
    return indexError(`${file} is not valid JSON: ${cause.message}`, { cause });
  }
  const map = root instanceof Map ? root.get('weight_map') : undefined;
  if (!(map instanceof Map) || map.size === 0) return indexError(`${file} has no weight_map from tensors to shards`);
  const weightMap = new Map<string, string>();
  for (const [name, shard] of map) {
    if (typeof shard !== 'string') return indexError(`${file}: the shard of tensor '${name}' is not a string`);
    // Anything but a plain name could read files outside the checkpoint.
    if (!/^[^/\\\0:]+\.safetensors$/.test(shard) || shard.startsWith('..'))
      return indexError(
        `${file}: the shard of tensor '${name}' is not the name of a .safetensors file beside the index`,
        {
          got: JSON.stringify(shard),
          expected: 'for example model-00001-of-00002.safetensors',
        },
      );
    weightMap.set(name, shard);
  }
  return { path: file, weightMap };
}

function readText(file: string, code: 'LPQ_CONFIG' | 'LPQ_SAFETENSORS_INDEX'): string {
  try {
    return readRegularText(file);
  } catch (cause) {
    throw new LpqError(code, `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}

function base(file: { readonly path: string }): string {
  return path.basename(file.path);
}

function indexError(what: string, facts?: ErrorFacts): never {
  throw new LpqError('LPQ_SAFETENSORS_INDEX', what, facts);
}
