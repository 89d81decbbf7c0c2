import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { type DType, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { buildGraph } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';
import type { WeightSource } from '../../../src/model/source.js';

/** The project's root, from dist/test/src/model. */
export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../../..');
export const SHARED = process.env.LPQ_SHARED ?? path.resolve(ROOT, '../shared');

/** A small checkpoint of every architecture with the logits that transformers computes (made by make.py there). */
export const ARCHITECTURES = path.join(ROOT, 'test', 'fixtures', 'architectures');

/** Their names, by folder. */
export const GOLDENS = readdirSync(ARCHITECTURES, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name)
  .sort();

/** Reason to skip a test that needs a folder of ../shared, or false; said aloud by node:test. */
export function skipWithout(...parts: string[]): string | false {
  const place = path.join(SHARED, ...parts);
  return existsSync(place) ? false : `${place} is not here (set LPQ_SHARED)`;
}

interface Entry {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data_offsets: readonly [number, number];
}

const DTYPES: Record<string, DType> = { BF16: 'bf16', F16: 'f16', F32: 'f32', I32: 'i32', I64: 'i64' };

/** A reader of well-formed safetensors files that shares nothing with formats/safetensors. */
export class PlainFile {
  private readonly bytes: Buffer;
  private readonly start: number;
  readonly header: Record<string, Entry>;

  constructor(file: string) {
    this.bytes = readFileSync(file);
    this.start = 8 + Number(this.bytes.readBigUInt64LE(0));
    const { __metadata__: _, ...header } = JSON.parse(this.bytes.toString('utf8', 8, this.start));
    this.header = header;
  }

  tensor(name: string): Tensor {
    const { dtype, shape, data_offsets } = this.header[name] as Entry;
    const [begin, end] = data_offsets;
    return fromTyped(DTYPES[dtype] as DType, shape, this.bytes.subarray(this.start + begin, this.start + end));
  }
}

export function plainSource(dir: string): WeightSource {
  const file = new PlainFile(path.join(dir, 'model.safetensors'));
  return {
    dir,
    config: JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8')),
    names: () => Object.keys(file.header),
    has: (name) => Object.hasOwn(file.header, name),
    shape: (name) => (file.header[name] as Entry).shape,
    tensor: async (name) => file.tensor(name),
  };
}

/** A source of shapes alone: `plan` is a config, the tensors are what the graph asks for. */
export function shapesOnly(
  config: Record<string, unknown>,
  tensors: ReadonlyMap<string, readonly number[]>,
): WeightSource {
  return {
    dir: 'models/test',
    config,
    names: () => tensors.keys(),
    has: (name) => tensors.has(name),
    shape: (name) => tensors.get(name) as readonly number[],
    tensor: () => Promise.reject(new Error('no weights here')),
  };
}

/** Every tensor that the graph of a config needs, and so many layers of multi-token prediction, as a checkpoint stores it. */
export function demanded(config: Record<string, unknown>, predictions = 0): Map<string, readonly number[]> {
  const plan = planModel(architectureOf(config, 'models/test'), config, 'models/test', predictions);
  const graph = buildGraph({ ...plan, blocks: [...plan.blocks, ...plan.predictions] });
  const all = [graph.outer, ...graph.blocks.map((block) => block.tensors)].flatMap((tensors) => [...tensors]);
  return new Map(all.map(([name, shape]) => [name, graph.transposed.has(name) ? [...shape].reverse() : shape]));
}

/** Sizes of a configuration that grow together; vocabularies, counts of heads and of experts stay. */
const SIZES =
  /^(hidden_size|n_embd|ffn_dim|word_embed_proj_dim|((global|index|linear_\w*)_?)?head_dim|v_head_dim|moe_latent_size|mamba_d_head|mamba_head_dim|mamba_d_ssm|query_pre_attn_scalar|\w*intermediate_size(_mlp)?|(expert_)?ffn_hidden_size|qk_\w+_dim|\w+_lora_rank)$/;

/**
 * Writes a checkpoint of an architecture's fixture with every size four times as large, of pseudo-random bf16 weights and the fixture's
 * tables, to `dir`; with `more` in its configuration, and so many layers of multi-token prediction.
 */
export async function writeWidened(
  name: string,
  dir: string,
  more: Record<string, unknown> = {},
  predictions = 0,
): Promise<void> {
  const text = readFileSync(path.join(ARCHITECTURES, name, 'config.json'), 'utf8');
  const wide = widened(JSON.parse(text) as object);
  const inner = wide.text_config && {
    text_config: { ...(wide.text_config as object), ...(more.text_config as object) },
  };
  const { text_config: _, ...outside } = more;
  const config = { ...wide, ...outside, ...(inner as object) };
  const source = randomSource(config, '', predictions);
  mkdirSync(dir, { recursive: true });
  writeFileSync(path.join(dir, 'config.json'), withFloats(config, text));
  const stored = new PlainFile(path.join(ARCHITECTURES, name, 'model.safetensors'));
  const tensors = [...source.names()].map(async (each) => {
    // Which experts a token goes to, by its id: no sizes of the model are in it.
    if (stored.header[each]?.dtype === 'I64')
      return { name: each, dtype: 'I64' as const, shape: source.shape(each), data: stored.tensor(each) };
    const exact = typed<Float32Array>(await source.tensor(each));
    const data = fromTyped(
      'bf16',
      source.shape(each),
      Uint16Array.from(new Uint32Array(exact.buffer), (v) => v >>> 16),
    );
    return { name: each, dtype: 'BF16' as const, shape: source.shape(each), data };
  });
  await writeSafetensors(path.join(dir, 'model.safetensors'), await Promise.all(tensors));
}

/** JSON in which whole numbers are floats (30.0) where those under the same key are in `like`: transformers' classes tell them apart. */
export function withFloats(config: object, like: string): string {
  const floats = new Set(
    [...like.matchAll(/"(\w+)":\s*(?:\[\s*)?-?\d+(?:\.\d+|(?:\.\d+)?e[-+]?\d+)/g)].map(([, key]) => key),
  );
  const mark = (value: unknown): unknown =>
    Array.isArray(value) ? value.map(mark) : Number.isInteger(value) ? `float ${value}.0` : value;
  return JSON.stringify(config, (key, value) => (floats.has(key) ? mark(value) : value)).replace(
    /"float (-?\d+\.0)"/g,
    '$1',
  );
}

/** LongRoPE's divisors, one for each pair of a head's dimensions. */
function widenedRope(parameters: Record<string, unknown>): Record<string, unknown> {
  const wide = (value: unknown) => (Array.isArray(value) ? value.flatMap((each) => [each, each, each, each]) : value);
  return Object.fromEntries(Object.entries(parameters).map(([key, value]) => [key, wide(value)]));
}

/** Sizes four times as large, those of objects inside, too. */
function widened(narrow: object): Record<string, unknown> {
  const wide = Object.entries(narrow).map(([key, value]) => {
    if (key === 'text_config' || key === 'linear_attn_config') return [key, widened(value)];
    if (key === 'per_layer_config')
      return [key, Object.fromEntries(Object.entries(value as object).map(([i, own]) => [i, widened(own)]))];
    if (key === 'rope_parameters') return [key, widenedRope(value)];
    if (!SIZES.test(key) || value === null || typeof value === 'string') return [key, value];
    return [key, Array.isArray(value) ? value.map((each) => 4 * each) : 4 * value];
  });
  return Object.fromEntries(wide);
}

/** A source of pseudo-random weights in f32; `base` is left out of their names. */
export function randomSource(config: Record<string, unknown>, base = '', predictions = 0): WeightSource {
  const tensors = new Map(
    [...demanded(config, predictions)].map(([name, shape]) => [
      name.startsWith(base) ? name.slice(base.length) : name,
      shape,
    ]),
  );
  return {
    ...shapesOnly(config, tensors),
    tensor: async (name) => {
      const shape = tensors.get(name) as readonly number[];
      const count = shape.reduce((a, b) => a * b, 1);
      // Norms near 1, and linears large enough for scores that differ.
      const mean = shape.length === 1 && name.endsWith('.weight') ? 1 : 0;
      const size = shape.length < 2 ? 0.6 : 4 / Math.sqrt(shape[1] as number);
      let state = [...name].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 65_521, 7);
      const data = Float32Array.from({ length: count }, () => {
        state = (state * 16_807) % 2_147_483_647;
        return (state / 2_147_483_647 - 0.5) * size + mean;
      });
      return fromTyped('f32', shape, data);
    },
  };
}
