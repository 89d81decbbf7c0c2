import { cpSync, mkdirSync, readdirSync, readFileSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { model, scratch, text } from '../cli/lpq.js';
import { COMMIT, type FakeHub, fakeHub, ID, type Served, setEnvironment } from '../hub/server.js';

export const RTN = ['--bits', '4', '--method', 'rtn', '--no-report'];

/** A checkpoint with its tensors in the shards that `shardOf` names, from 1 on. */
export async function cut(
  from: string,
  into: string,
  count: number,
  shardOf: (name: string, index: number) => number,
): Promise<string[]> {
  cpSync(from, into, { recursive: true });
  rmSync(path.join(into, 'model.safetensors'));
  const checkpoint = Checkpoint.open(from);
  const map: Record<string, string> = {};
  const shards = new Map<number, string[]>();
  try {
    for (const [i, name] of [...checkpoint.names()].sort().entries()) {
      const shard = shardOf(name, i);
      shards.set(shard, [...(shards.get(shard) ?? []), name]);
    }
    for (const [number, names] of shards) {
      const file = `model-${String(number).padStart(5, '0')}-of-${String(count).padStart(5, '0')}.safetensors`;
      for (const name of names) map[name] = file;
      await writeSafetensors(
        path.join(into, file),
        names.map((name) => ({ ...checkpoint.spec(name), data: checkpoint.tensor(name).bytes() })),
      );
    }
  } finally {
    checkpoint.close();
  }
  writeFileSync(path.join(into, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: map }));
  return [...new Set(Object.values(map))].sort();
}

/** Of the bundled model: the embedding, four blocks, the last norm. */
function ownShard(name: string): number {
  const block = /layers\.(\d+)\./.exec(name)?.[1];
  return block !== undefined ? Number(block) + 2 : name.includes('embed') ? 1 : 6;
}

export interface Bench {
  readonly hub: FakeHub;
  readonly home: string;
  /** The model as it is when it was downloaded. */
  readonly dir: string;
  readonly shards: readonly string[];
  /** How often each shard was asked for from its first byte to its last; headers and samples are asked for in ranges. */
  fetched(): Record<string, number>;
}

/** The model on a Hub of our own, and what a process needs to find it. Short waits between tries are the client's. */
export async function bench(t: TestContext): Promise<Bench> {
  const home = scratch(t);
  const dir = path.join(home, `models--${ID.replace('/', '--')}`, 'snapshots', COMMIT);
  mkdirSync(dir, { recursive: true });
  await cut(model, dir, 6, ownShard);
  const files: Record<string, Served> = {};
  for (const name of readdirSync(dir))
    files[name] = { bytes: readFileSync(path.join(dir, name)), large: name.endsWith('.safetensors') };
  const hub = await fakeHub(t, files);
  setEnvironment(t, {
    HF_HOME: path.join(home, 'hf'),
    HF_ENDPOINT: hub.endpoint,
    HF_TOKEN: '',
    HF_HUB_OFFLINE: '',
    NO_PROXY: '127.0.0.1,127.0.0.2',
  });
  const shards = Object.keys(files).filter((name) => name.endsWith('.safetensors'));
  const fetched = () => {
    const whole = hub.seen.filter(({ host, headers }) => host === 'hub' && !/-\d+$/.test(headers.range ?? ''));
    return Object.fromEntries(
      shards.flatMap((shard) => {
        const times = whole.filter(({ path: asked }) => asked.endsWith(`/${shard}`)).length;
        return times > 0 ? [[shard.slice(6, 11), times] as const] : [];
      }),
    );
  };
  return { hub, home, dir, shards, fetched };
}

/** Few short sequences, for the attention's projections alone: a run of two seconds. */
export function gptq(home: string): string[] {
  const recipe = path.join(home, 'attention.json');
  const short = path.join(home, 'text.txt');
  writeFileSync(recipe, JSON.stringify({ rules: [{ match: 'mlp', skip: true }] }));
  writeFileSync(short, readFileSync(text, 'utf8').slice(0, 4000));
  return ['--bits', '4', '--samples', '2', '--seq-len', '48', '--recipe', recipe, '--calib', short, '--no-report'];
}

/**
 * Watches bytes of shards on the disk: files of the folder, and those that have no name any more but are open or mapped. The returned
 * function ends it and gives the most that there were.
 */
export function watchDisk(folder: string): () => number {
  let [most, looks] = [0, 0];
  const look = () => {
    let bytes = 0;
    for (const name of names(folder))
      if (!/\.head|stream\.json|lock/.test(name)) bytes += size(path.join(folder, name));
    for (const fd of names('/proc/self/fd')) {
      const link = `/proc/self/fd/${fd}`;
      try {
        const target = readlinkSync(link);
        if (target.startsWith(folder) && target.endsWith(' (deleted)')) bytes += size(link);
      } catch {
        // closed meanwhile
      }
    }
    if (looks++ % 32 === 0 && readFileSync('/proc/self/maps', 'utf8').includes(folder))
      bytes = Number.POSITIVE_INFINITY;
    most = Math.max(most, bytes);
  };
  const timer = setInterval(look, 4);
  return () => {
    clearInterval(timer);
    look();
    return most;
  };
}

function names(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}

function size(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

/** Names of what differs between two directories. */
export function differing(a: string, b: string): string[] {
  const all = [...new Set([...readdirSync(a), ...readdirSync(b)])];
  return all.filter((name) => {
    try {
      return !readFileSync(path.join(a, name)).equals(readFileSync(path.join(b, name)));
    } catch {
      return true;
    }
  });
}
