import type { Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { SavedStatistics } from '../statistics/read.js';
import type { SavedFeed } from '../statistics/schema.js';
import { addTriangles } from '../statistics/triangle.js';
import { StatisticsWriter } from '../statistics/write.js';
import type { Merged, MergeEvents } from './merge.js';
import type { FoundShard, StatisticsShard } from './schema.js';

/**
 * Adds the sums of all parts, in their order, whatever hosts took them and when. Throws LPQ_SHARDS for a damaged part;
 * LPQ_SAFETENSORS, LPQ_OUTPUT_EXISTS, LPQ_OUTPUT_WRITE, LPQ_DISK_FULL.
 */
export async function mergeStatistics(
  target: string,
  found: readonly FoundShard[],
  events: MergeEvents,
): Promise<Merged> {
  const shards = found as readonly FoundShard<StatisticsShard>[];
  const [first] = shards as [FoundShard<StatisticsShard>];
  const { format, version, files, feeds, ...facts } = first.shard.manifest;
  const names = Object.keys(feeds);
  const saved: SavedStatistics[] = [];
  try {
    for (const { dir, shard } of shards)
      saved.push(whole(() => SavedStatistics.over(dir, shard.manifest, Buffer.of())));
    const writer = await StatisticsWriter.create(target, new Map(Object.entries(feeds)));
    events.onOutput?.(writer.output);
    try {
      for (const [done, name] of names.entries()) {
        events.check?.();
        const rows = saved.reduce((sum, { manifest }) => sum + (manifest.feeds[name] as SavedFeed).rows, 0);
        await addUp(name, saved, (sum) => writer.writePacked(name, sum, rows));
        events.onModule?.(name, done + 1, names.length);
      }
      await writer.finish(facts);
    } catch (error) {
      await writer.abort();
      throw error;
    }
  } finally {
    for (const each of saved) each.close();
  }
  return { of: 'statistics', shards: shards.length, modules: names.length, carried: 0 };
}

async function addUp(
  name: string,
  saved: readonly SavedStatistics[],
  write: (sum: Tensor) => Promise<void>,
): Promise<void> {
  const tensors: Tensor[] = [];
  try {
    for (const each of saved) tensors.push(await each.packed(name).catch(damaged));
    tensors.push(await addTriangles([...tensors]));
    await write(tensors.at(-1) as Tensor);
  } finally {
    for (const tensor of tensors) tensor.dispose();
  }
}

function whole<T>(open: () => T): T {
  try {
    return open();
  } catch (error) {
    return damaged(error);
  }
}

/** The error of statistics, as that of a part that is to be made again. */
function damaged(error: unknown): never {
  if (!(error instanceof LpqError) || error.code !== 'LPQ_STATISTICS') throw error;
  const { got, expected } = error;
  throw new LpqError('LPQ_SHARDS', error.message, {
    ...(got !== undefined && { got }),
    ...(expected !== undefined && { expected }),
    hint: 'Make this shard again.',
    cause: error,
  });
}
