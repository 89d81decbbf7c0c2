import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, open, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { writeError } from '../formats/directory/write-error.js';
import type { TensorSpec } from '../formats/safetensors/header.js';
import { type PlannedShard, planShards, SHARD_BYTES, type ShardPlan } from '../formats/safetensors/shard-plan.js';
import { writeFully } from '../formats/safetensors/tensor-slot.js';
import { allocate, type NativeRuntime } from '../native/binding.js';
import { LpqError, notTaken } from '../src/core/error.js';
import { architectureOf } from '../src/model/architectures/index.js';
import { buildGraph } from '../src/model/graph.js';
import { planModel } from '../src/model/plan.js';
import { requireSpace } from './directory.js';
import { benchOps, type WeightDraw } from './ops.js';
import type { ModelShape } from './shapes.js';

export interface SyntheticOptions {
  /** Blocks to make, from the first on. */
  readonly blocks: number;
  readonly seed: number;
  /** Bytes of tensors in a shard (SHARD_BYTES). */
  readonly shardBytes?: number;
  /** Called between pieces; may throw. */
  readonly onBytes?: (done: number, total: number) => void;
}

export interface SyntheticCheckpoint {
  readonly dir: string;
  /** Of all tensors. */
  readonly bytes: number;
  readonly parameters: number;
  /** Undefined when an equal one was there already. */
  readonly seconds: number | undefined;
}

/** Parameters and bytes of the first `blocks` blocks of a shape with all that lies outside blocks. Throws LPQ_USAGE, LPQ_CONFIG. */
export function shapeSize(shape: ModelShape, blocks: number): { parameters: number; bytes: number } {
  const tensors = tensorsOf(shape, cutConfig(shape, blocks));
  const parameters = tensors.reduce((sum, { spec }) => sum + spec.shape.reduce((a, b) => a * b, 1), 0);
  return { parameters, bytes: parameters * 2 };
}

/** Bytes made at once, and pieces in flight for a shard: one is drawn while the others are written. */
const PIECE_BYTES = 2 ** 25;
const PIECES = 3;
/** Shards made at once: writing to one file, the kernel copies no faster than one core does. */
const SHARDS = 4;

/** Beside the checkpoint, not in it: written last, so that a half-made checkpoint is never taken for one. */
const stampOf = (dir: string) => `${dir.replace(/\/+$/, '')}.json`;

/**
 * A checkpoint in Hugging Face's form with the dimensions of a shape and random bf16 weights, without a tokenizer. The
 * same shape and seed give the same bytes; a tensor's do not depend on `blocks`. Nothing is synced: the files are for the
 * page cache. An equal checkpoint that is there already is taken. Throws LPQ_OUTPUT_EXISTS for another one, LPQ_DISK_FULL,
 * LPQ_OUTPUT_WRITE, LPQ_USAGE for more blocks than the shape has, LPQ_CONFIG.
 */
export async function makeSynthetic(
  rt: NativeRuntime,
  dir: string,
  shape: ModelShape,
  options: SyntheticOptions,
): Promise<SyntheticCheckpoint> {
  const { config, plan, draws, parameters } = planSynthetic(shape, options);
  const facts = { dir, bytes: plan.totalSize, parameters };
  const stamp = `${JSON.stringify({ shape: shape.name, config, seed: options.seed })}\n`;
  if (existsSync(dir)) {
    const found = existsSync(stampOf(dir)) ? readFileSync(stampOf(dir), 'utf8') : undefined;
    if (found === stamp) return { ...facts, seconds: undefined };
    throw new LpqError('LPQ_OUTPUT_EXISTS', `${dir} already exists and is not the checkpoint of this benchmark`, {
      got: found?.trim().slice(0, 80) ?? 'no stamp of a finished one',
      hint: 'Remove it, or choose another directory with --keep.',
    });
  }
  const started = performance.now();
  try {
    await mkdir(dir, { recursive: true });
    await requireSpace(dir, plan.totalSize * 1.01);
    await writeFacts(dir, config, plan);
    let done = 0;
    const count = (bytes: number) => {
      done += bytes;
      options.onBytes?.(done, plan.totalSize);
    };
    const rest = plan.shards.values();
    const lane = async () => {
      for (const shard of rest) await writeShard(rt, path.join(dir, shard.file), shard, draws, count);
    };
    const lanes = await Promise.allSettled(Array.from({ length: SHARDS }, lane));
    for (const ended of lanes) if (ended.status === 'rejected') throw ended.reason;
    await writeFile(stampOf(dir), stamp);
  } catch (cause) {
    throw (cause as NodeJS.ErrnoException).syscall === undefined ? cause : writeError(dir, cause);
  }
  return { ...facts, seconds: (performance.now() - started) / 1000 };
}

/** A checkpoint that is not made yet: its shards, and how each tensor is drawn. */
export interface PlannedSynthetic {
  readonly config: Record<string, unknown>;
  readonly plan: ShardPlan;
  readonly draws: ReadonlyMap<string, WeightDraw>;
  readonly parameters: number;
}

/** Throws LPQ_USAGE, LPQ_CONFIG. */
export function planSynthetic(
  shape: ModelShape,
  { blocks, seed, shardBytes = SHARD_BYTES }: Omit<SyntheticOptions, 'onBytes'>,
): PlannedSynthetic {
  const config = cutConfig(shape, blocks);
  const tensors = tensorsOf(shape, config);
  const specs = tensors.map(({ spec }) => spec);
  const plan = planShards(specs, { maxShardBytes: shardBytes });
  const draws = new Map(tensors.map(({ spec, draw }) => [spec.name, draw(seed)]));
  return { config, plan, draws, parameters: plan.totalSize / 2 };
}

/** All of a checkpoint but its shards. */
export async function writeFacts(dir: string, config: Record<string, unknown>, { index }: ShardPlan): Promise<void> {
  await writeFile(path.join(dir, 'config.json'), `${JSON.stringify(config, null, 2)}\n`);
  if (index) await writeFile(path.join(dir, index.file), index.text);
}

/** Removes a checkpoint that makeSynthetic made, whole or not. */
export async function removeSynthetic(dir: string): Promise<void> {
  await rm(dir, { recursive: true, force: true });
  await rm(stampOf(dir), { force: true });
}

function cutConfig(shape: ModelShape, blocks: number): Record<string, unknown> {
  if (blocks < 1 || blocks > shape.blocks)
    throw notTaken('--layers', blocks, `1 to ${shape.blocks}`, { of: shape.name });
  const { layer_types: types } = shape.config;
  return {
    ...shape.config,
    num_hidden_layers: blocks,
    ...(Array.isArray(types) && { layer_types: types.slice(0, blocks) }),
  };
}

interface DrawnTensor {
  readonly spec: TensorSpec;
  readonly draw: (seed: number) => WeightDraw;
}

function tensorsOf(shape: ModelShape, config: Record<string, unknown>): DrawnTensor[] {
  const graph = buildGraph(planModel(architectureOf(config, shape.name), config, shape.name));
  const all = [graph.outer, ...graph.blocks.map((block) => block.tensors)].flatMap((map) => [...map]);
  return all.map(([name, dims]) => ({
    spec: { name, dtype: 'BF16', shape: dims },
    draw: (seed) => drawOf(name, dims, shape.blocks, seed),
  }));
}

/**
 * How a tensor of this name is drawn. Matrices have fan-in scale, so that activations stay near 1 through any number of
 * blocks; the two that write to the residual stream are smaller by the square root of their number, as they are
 * initialised. Norm weights single out a few channels, the same ones in all blocks: that makes the outliers of the
 * activations that quantizers have to cope with.
 */
function drawOf(name: string, dims: readonly number[], blocks: number, seed: number): WeightDraw {
  const own = hash(`${seed}/${name}`);
  const plain = { seed: own, columnSeed: own, rowSpread: 0, columnSpread: 0, outlierShare: 0, outlierGain: 1 };
  if (dims.length === 1) {
    if (name.endsWith('.bias')) return { ...plain, std: 0.1 };
    const shared = { columnSeed: hash(`${seed}/residual`), columnSpread: 0.2, outlierShare: 1 / 256, outlierGain: 6 };
    return { ...plain, mean: 1, std: 0.05, ...shared };
  }
  if (/embed/.test(name)) return { ...plain, std: 0.02, rowSpread: 0.2 };
  const writes = /\.(o_proj|down_proj)\.weight$/.test(name) ? 1 / Math.sqrt(2 * blocks) : 1;
  const std = writes / Math.sqrt(dims[1] as number);
  return { ...plain, std, rowSpread: 0.25, columnSpread: 0.25, outlierShare: 1 / 512, outlierGain: 3 };
}

/** 48 bits of a text's hash. */
function hash(text: string): number {
  return createHash('sha256').update(text).digest().readUIntBE(0, 6);
}

/** Draws a shard and writes it to `file`, which must not exist. */
export async function writeShard(
  rt: NativeRuntime,
  file: string,
  shard: PlannedShard,
  draws: ReadonlyMap<string, WeightDraw>,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const handle = await open(file, 'wx');
  const pieces = Array.from({ length: PIECES }, () => {
    const memory = allocate('bf16', [PIECE_BYTES / 2]);
    return { memory, bytes: memory.bytes(), free: Promise.resolve() };
  });
  let next = 0;
  try {
    await writeFully(handle, shard.header, 0);
    for (const { name, shape, begin } of shard.tensors) {
      const rows = shape.length === 1 ? 1 : (shape[0] as number);
      const rowBytes = (shape.at(-1) as number) * 2;
      const atOnce = Math.max(1, Math.floor(PIECE_BYTES / rowBytes));
      for (let first = 0; first < rows; first += atOnce) {
        const piece = pieces[next++ % PIECES] as (typeof pieces)[number];
        await piece.free;
        const count = Math.min(atOnce, rows - first);
        const weights = piece.memory.view(shape.length === 1 ? shape : [count, rowBytes / 2]);
        benchOps.synthWeights(rt, weights, draws.get(name) as WeightDraw, first);
        await rt.sync();
        weights.dispose();
        onBytes(count * rowBytes);
        const position = shard.header.length + begin + first * rowBytes;
        piece.free = writeFully(handle, piece.bytes.subarray(0, count * rowBytes), position);
        piece.free.catch(() => {}); // thrown where the piece is waited for
      }
    }
    for (const piece of pieces) await piece.free;
  } finally {
    await Promise.allSettled(pieces.map((piece) => piece.free));
    for (const { memory } of pieces) memory.dispose();
    await handle.close();
  }
}
