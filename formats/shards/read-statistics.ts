import { LpqError } from '../../src/core/error.js';
import { SavedStatistics } from '../statistics/read.js';
import { readShard } from './schema.js';
import type { Shard } from './shard.js';

/** A part of statistics. The caller closes it. Throws LPQ_SHARDS for another part or none, LPQ_STATISTICS, LPQ_SAFETENSORS. */
export function readStatisticsShard(dir: string, { index, count }: Shard): SavedStatistics {
  const shard = readShard(dir);
  if (shard.of === 'statistics' && shard.index === index && shard.count === count)
    return SavedStatistics.over(dir, shard.manifest, Buffer.of());
  throw new LpqError('LPQ_SHARDS', `${dir} does not hold the shard that its name says`, {
    got: `${shard.index} of ${shard.count}, of ${shard.of}`,
  });
}
