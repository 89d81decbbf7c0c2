import { isDeepStrictEqual } from 'node:util';
import { LpqError } from '../../src/core/error.js';
import type { FoundShard, ShardManifest } from './schema.js';

/**
 * All of one kind, version, source and request; no module in two of them. Throws LPQ_SHARDS naming the first fact that differs, or the
 * module.
 */
export function requireOneRun(found: readonly FoundShard[]): void {
  const [first] = found as [FoundShard];
  const was = factsOf(first.shard);
  const owner = new Map<string, string>();
  for (const { dir, shard } of found) {
    const now = factsOf(shard);
    const other = Object.keys({ ...was, ...now }).find((key) => !isDeepStrictEqual(was[key], now[key]));
    if (other !== undefined)
      throw new LpqError('LPQ_SHARDS', `${dir} belongs to another run than ${first.dir}: its ${other} differs`, {
        got: JSON.stringify(now[other])?.slice(0, 200) ?? 'nothing',
        expected: JSON.stringify(was[other])?.slice(0, 200) ?? 'nothing',
        hint: 'Make all shards with the same command, except --shard.',
      });
    for (const name of ownedBy(shard)) {
      if (owner.has(name))
        throw new LpqError('LPQ_SHARDS', `'${name}' is in ${owner.get(name)} and in ${dir}`, {
          hint: 'Make the shards again.',
        });
      owner.set(name, dir);
    }
  }
}

/** What all shards of a run have in common, as its user would name it. */
function factsOf(shard: ShardManifest): Readonly<Record<string, unknown>> {
  if (shard.of === 'statistics') {
    const { lpq, model, calibration, backend, products, parts, feeds } = shard.manifest;
    const inputs = Object.entries(feeds).map(([name, { linears, k }]) => [name, linears, k]);
    return { kind: shard.of, 'version of lpq': lpq, model, calibration, backend, products, parts, inputs };
  }
  const { of, config, manifest } = shard;
  return {
    kind: of,
    config,
    provenance: manifest.provenance,
    ...('target' in manifest && { target: manifest.target }),
    ...('kv' in manifest && { kv: manifest.kv }),
  };
}

/** Names that no other shard may have; every part of statistics has all inputs. */
function ownedBy(shard: ShardManifest): string[] {
  if (shard.of === 'statistics') return [];
  return [...Object.keys(shard.manifest.modules), ...Object.keys(shard.manifest.carried)];
}
