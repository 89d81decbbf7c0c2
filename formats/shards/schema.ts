import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { LpqError } from '../../src/core/error.js';
import { artifactSchema, packedModuleSchema } from '../artifact/schema.js';
import { canonicalSchema } from '../canonical/schema.js';
import { cardFactsSchema } from '../card/card.js';
import { readRegularText } from '../directory/read-file.js';
import { statisticsSchema } from '../statistics/schema.js';
import { SHARD_FILE, shardPath } from './shard.js';

const part = {
  format: z.literal('lpq-shard'),
  version: z.literal(1),
  index: z.int().nonnegative(),
  count: z.int().min(1),
};

/**
 * `shard.json` of OUT.shard-I-of-N: a part of a checkpoint, an artifact or statistics that several processes make. `manifest` is that of
 * its own tensors (of statistics: of all, summed over its share of the sequences); `config` is the text of config.json as the whole shall have it (of a checkpoint: as its source has it).
 */
export const shardSchema = z.discriminatedUnion('of', [
  z.strictObject({
    ...part,
    of: z.literal('canonical'),
    config: z.string(),
    manifest: canonicalSchema,
  }),
  z.strictObject({
    ...part,
    of: z.literal('artifact'),
    config: z.string(),
    card: cardFactsSchema,
    manifest: artifactSchema.pick({ target: true, kv: true, carried: true, provenance: true }).extend({
      modules: z.record(z.string(), packedModuleSchema),
    }),
  }),
  z.strictObject({ ...part, of: z.literal('statistics'), manifest: statisticsSchema }),
]);
export type ShardManifest = z.infer<typeof shardSchema>;
/** One of those that divide modules. */
export type WeightsShard = Exclude<ShardManifest, { of: 'statistics' }>;
export type StatisticsShard = Extract<ShardManifest, { of: 'statistics' }>;

/** A shard and where it lies. */
export interface FoundShard<S extends ShardManifest = ShardManifest> {
  readonly dir: string;
  readonly shard: S;
}

/** The shards of an output, in order, as directories with their manifests. Throws LPQ_FILE, LPQ_SHARDS. */
export function findShards(output: string): FoundShard[] {
  const target = path.resolve(output);
  const parent = path.dirname(target);
  const name = path.basename(target);
  const pattern = /^\.shard-(\d+)-of-(\d+)$/;
  const names = existsSync(parent) ? readdirSync(parent).filter((each) => each.startsWith(`${name}.shard-`)) : [];
  const dirs = names.filter((each) => pattern.test(each.slice(name.length)));
  if (dirs.length === 0)
    throw new LpqError('LPQ_SHARDS', `there are no shards of ${output}`, {
      expected: `${name}.shard-0-of-N and so on, in ${parent}`,
      hint: 'Make them with lpq quantize or lpq pack, -o OUT --shard I/N, or with --save-stats OUT --shard I/N.',
    });
  const counts = [...new Set(dirs.map((each) => Number(pattern.exec(each.slice(name.length))?.[2])))];
  if (counts.length > 1)
    throw new LpqError('LPQ_SHARDS', `the shards of ${output} belong to different --shard counts`, {
      got: counts.map((count) => `of ${count}`).join(', '),
      hint: 'Remove those that you do not want.',
    });
  const [count = 0] = counts;
  return Array.from({ length: count }, (_, index) => {
    const dir = shardPath(target, { index, count });
    if (!existsSync(dir))
      throw new LpqError('LPQ_SHARDS', `shard ${index} of ${count} of ${output} is missing`, {
        got: existsSync(`${dir}.partial`) ? `${dir}.partial, which a stopped run left` : 'no such directory',
        expected: dir,
        hint: `Run its command again${existsSync(`${dir}.partial`) ? ', with --resume' : ''}.`,
      });
    const shard = readShard(dir);
    if (shard.index !== index || shard.count !== count)
      throw new LpqError('LPQ_SHARDS', `${dir} does not hold the shard that its name says`, {
        got: `${shard.index} of ${shard.count}`,
      });
    return { dir, shard };
  });
}

/** Throws LPQ_FILE, LPQ_SHARDS. */
export function readShard(dir: string): ShardManifest {
  const file = path.join(dir, SHARD_FILE);
  try {
    return shardSchema.parse(JSON.parse(readRegularText(file)));
  } catch (cause) {
    const issue = cause instanceof z.ZodError ? cause.issues[0] : undefined;
    const what = issue ? `/${issue.path.map(String).join('/')}: ${issue.message}` : (cause as Error).message;
    throw new LpqError('LPQ_SHARDS', `${file} is malformed: ${what}`, { hint: 'Make this shard again.', cause });
  }
}
