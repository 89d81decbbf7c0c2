import type { Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { ArtifactWriter, type PackedDeclaration } from '../artifact/write.js';
import type { CanonicalModule } from '../canonical/schema.js';
import { type ModuleDeclaration, moduleTensors } from '../canonical/tensors.js';
import { CanonicalWriter, type ModuleData } from '../canonical/write.js';
import { OutputDirectory } from '../directory/output-directory.js';
import { Checkpoint } from '../safetensors/checkpoint.js';
import { mergeStatistics } from './merge-statistics.js';
import { requireOneRun } from './one-run.js';
import { type FoundShard, findShards, type ShardManifest, type WeightsShard } from './schema.js';
import { SHARD_FILE } from './shard.js';

/** A shard's tensors, mapped. */
interface Open {
  readonly dir: string;
  readonly shard: WeightsShard;
  readonly weights: Checkpoint | undefined;
}

export interface MergeEvents {
  readonly onModule?: (name: string, done: number, total: number) => void;
  readonly onOutput?: (output: OutputDirectory) => void;
  readonly check?: () => void;
}

export interface Merged {
  readonly of: ShardManifest['of'];
  readonly shards: number;
  /** Of statistics: inputs of linears. */
  readonly modules: number;
  readonly carried: number;
}

/**
 * Puts the shards of `output` together: the bytes that one process would have written. Throws LPQ_SHARDS where one is missing,
 * damaged or of another run; LPQ_OUTPUT_EXISTS, LPQ_OUTPUT_WRITE, LPQ_DISK_FULL. The shards stay.
 */
export async function mergeShards(target: string, events: MergeEvents = {}): Promise<Merged> {
  const shards = findShards(target);
  requireOneRun(shards);
  if (shards[0]?.shard.of === 'statistics') return mergeStatistics(target, shards, events);
  const found = shards as FoundShard<WeightsShard>[];
  const output = await OutputDirectory.create(target);
  events.onOutput?.(output);
  const open: Open[] = [];
  try {
    for (const { dir, shard } of found) {
      const holds = Object.keys(shard.manifest.modules).length + Object.keys(shard.manifest.carried).length > 0;
      open.push({ dir, shard, weights: holds ? Checkpoint.open(dir) : undefined });
    }
    await output.carryFrom((open[0] as Open).dir, { except: [SHARD_FILE] });
    const merged =
      open[0]?.shard.of === 'canonical'
        ? await mergeCanonical(output, open, events)
        : await mergeArtifact(output, open, events);
    events.check?.();
    await output.commit();
    return merged;
  } catch (error) {
    await output.abort();
    throw error;
  } finally {
    for (const { weights } of open) weights?.close();
  }
}

async function mergeCanonical(output: OutputDirectory, open: readonly Open[], events: MergeEvents): Promise<Merged> {
  const modules = new Map<string, { declaration: ModuleDeclaration; entry: CanonicalModule; from: Open }>();
  for (const from of open)
    for (const [name, entry] of Object.entries(from.shard.manifest.modules) as [string, CanonicalModule][]) {
      const { sha256, quality, ...declaration } = entry;
      modules.set(name, { declaration, entry, from });
    }
  const carried = carriedOf(open);
  const { config, manifest } = (open[0] as Open).shard as Extract<WeightsShard, { of: 'canonical' }>;
  const writer = await CanonicalWriter.create(output, {
    modules: new Map([...modules].map(([name, { declaration }]) => [name, declaration])),
    carried: carried.map(({ spec }) => spec),
    config,
    ...(manifest.kv && { kv: manifest.kv }),
  });
  try {
    let done = 0;
    for (const [name, { declaration, entry, from }] of modules) {
      events.check?.();
      const parts = [...moduleTensors(name, declaration)].map(
        ([part, spec]) => [part, tensorOf(from, spec.name)] as const,
      );
      await writer.writeModule(name, Object.fromEntries(parts) as ModuleData, entry.quality);
      for (const [, tensor] of parts) tensor.dispose();
      requireHashes(from, name, entry.sha256, await writer.hashes(name));
      events.onModule?.(name, ++done, modules.size);
    }
    await copyCarried(carried, (name, tensor) => writer.writeCarried(name, tensor), events);
    const made = await writer.finish(manifest.provenance);
    for (const { spec, from } of carried) requireHashes(from, spec.name, from.shard.manifest.carried, made.carried);
  } catch (error) {
    await writer.abort();
    throw error;
  }
  return { of: 'canonical', shards: open.length, modules: modules.size, carried: carried.length };
}

async function mergeArtifact(output: OutputDirectory, open: readonly Open[], events: MergeEvents): Promise<Merged> {
  const modules = new Map<string, PackedDeclaration>();
  const owner = new Map<string, Open>();
  for (const from of open)
    for (const [name, entry] of Object.entries(from.shard.manifest.modules)) {
      if (!('layout' in entry)) continue;
      modules.set(name, {
        ...entry,
        tensors: Object.keys(entry.tensors).map((tensor) => (from.weights as Checkpoint).spec(tensor)),
      });
      owner.set(name, from);
    }
  const carried = carriedOf(open);
  const { config, card, manifest } = (open[0] as Open).shard as Extract<WeightsShard, { of: 'artifact' }>;
  const plan = {
    target: manifest.target,
    ...(manifest.kv && { kv: manifest.kv }),
    modules,
    carried: carried.map(({ spec }) => spec),
    config,
    card,
  };
  const writer = await ArtifactWriter.create(output, plan);
  try {
    let done = 0;
    for (const [name, { tensors }] of modules) {
      events.check?.();
      for (const { name: tensorName } of tensors) {
        const tensor = tensorOf(owner.get(name) as Open, tensorName);
        await writer.write(tensorName, tensor);
        tensor.dispose();
      }
      events.onModule?.(name, ++done, modules.size);
    }
    await copyCarried(carried, (name, tensor) => writer.write(name, tensor), events);
    const made = await writer.finish(manifest.provenance);
    for (const [name, from] of owner)
      requireHashes(
        from,
        name,
        (from.shard.manifest.modules[name] as { tensors: Record<string, string> }).tensors,
        made.modules[name]?.tensors ?? {},
      );
    for (const { spec, from } of carried) requireHashes(from, spec.name, from.shard.manifest.carried, made.carried);
  } catch (error) {
    await writer.abort();
    throw error;
  }
  return { of: 'artifact', shards: open.length, modules: modules.size, carried: carried.length };
}

function carriedOf(open: readonly Open[]) {
  return open.flatMap((from) =>
    Object.keys(from.shard.manifest.carried).map((name) => ({ spec: (from.weights as Checkpoint).spec(name), from })),
  );
}

async function copyCarried(
  carried: ReturnType<typeof carriedOf>,
  write: (name: string, tensor: Tensor) => Promise<void>,
  { check }: MergeEvents,
): Promise<void> {
  for (const { spec, from } of carried) {
    check?.();
    const tensor = tensorOf(from, spec.name);
    await write(spec.name, tensor);
    tensor.dispose();
  }
}

function tensorOf({ dir, weights }: Open, name: string): Tensor {
  if (!weights?.has(name))
    throw new LpqError('LPQ_SHARDS', `${dir} lacks tensor '${name}'`, { hint: 'Make this shard again.' });
  return weights.tensor(name);
}

/** What was copied must be what the shard's process wrote; only keys of `was` that `now` has too. */
function requireHashes(
  { dir }: Open,
  name: string,
  was: Readonly<Record<string, string>>,
  now: Readonly<Record<string, string>>,
): void {
  for (const [key, hash] of Object.entries(was))
    if (now[key] !== undefined && now[key] !== hash)
      throw new LpqError('LPQ_SHARDS', `${key} of '${name}' in ${dir} has changed since it was written`, {
        got: `sha256 ${now[key]}`,
        expected: `sha256 ${hash}`,
        hint: 'Make this shard again.',
      });
}
