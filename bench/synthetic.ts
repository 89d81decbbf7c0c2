import { existsSync, readFileSync } from 'node:fs';
import { mkdir, open, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { writeError } from '../formats/directory/write-error.js';
import { type PlannedShard, planShards, SHARD_BYTES, type ShardPlan } from '../formats/safetensors/shard-plan.js';
import { writeFully } from '../formats/safetensors/tensor-slot.js';
import type { NativeRuntime } from '../native/binding.js';
import { LpqError, notTaken } from '../src/core/error.js';
import { requireSpace } from './directory.js';
import { type Draw, PieceMemory, tensorsOf, unitOf } from './drawn.js';
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
  const { plan, parameters } = planSynthetic(shape, { blocks, seed: 0 });
  return { parameters, bytes: plan.totalSize };
}

/** Bytes made at once, and pieces in flight for a shard: one is drawn while the others are written. */
const PIECE_BYTES = 2 ** 25;
const PIECES = 3;
/** Shards made at once: writing to one file, the kernel copies no faster than one core does. */
const SHARDS = 4;

/** Beside the checkpoint, not in it: written last, so that a half-made checkpoint is never taken for one. */
const stampOf = (dir: string) => `${dir.replace(/\/+$/, '')}.json`;

/**
 * A checkpoint in Hugging Face's form with the dimensions of a shape and random weights, bf16 or as GPT-OSS publishes its experts, without
 * a tokenizer. The
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
  readonly draws: ReadonlyMap<string, Draw>;
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
  return { config, plan, draws, parameters: tensors.reduce((sum, { parameters }) => sum + parameters, 0) };
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

/** Draws a shard and writes it to `file`, which must not exist. */
export async function writeShard(
  rt: NativeRuntime,
  file: string,
  shard: PlannedShard,
  draws: ReadonlyMap<string, Draw>,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const handle = await open(file, 'wx');
  const pieces = Array.from({ length: PIECES }, () => ({
    memory: new PieceMemory(PIECE_BYTES),
    free: Promise.resolve(),
  }));
  let next = 0;
  try {
    await writeFully(handle, shard.header, 0);
    for (const tensor of shard.tensors) {
      const { name, begin, end } = tensor;
      const draw = draws.get(name) as Draw;
      const unit = unitOf(tensor, draw);
      const atOnce = Math.max(1, Math.floor(PIECE_BYTES / unit)) * unit;
      for (let at = 0; at < end - begin; at += atOnce) {
        const piece = pieces[next++ % PIECES] as (typeof pieces)[number];
        await piece.free;
        const count = Math.min(atOnce, end - begin - at);
        const bytes = await piece.memory.draw(rt, tensor, draw, at, count);
        onBytes(count);
        piece.free = writeFully(handle, bytes, shard.header.length + begin + at);
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
