import { type RemoteShard, streamOf } from '../../formats/safetensors/stream.js';
import { tell } from '../core/activity.js';
import type { Progress } from './progress.js';
import type { SourceView } from './source-view.js';

/** What goes through unchanged, on its way. */
export interface Carrying {
  /** Queues what has not come yet. */
  finish(): Promise<void>;
}

/**
 * Queues the tensors that go through unchanged: at once, or where shards come one by one (--stream) each when its shard is there for other
 * reasons, and at the end those of shards that never were.
 */
export async function carryThrough(
  source: SourceView,
  names: readonly string[],
  progress: Progress,
): Promise<Carrying> {
  const stream = streamOf(source.dir);
  const left = names.filter((name) => !progress.carried(name));
  if (!stream) {
    for (const [i, name] of left.entries()) {
      tell(`writing ${name}`, i, left.length);
      await progress.carry(source, name);
    }
    return { finish: async () => {} };
  }
  const waiting = new Set(left);
  const end = stream.onArrival(async (shard: RemoteShard) => {
    // What is decoded may be of other shards, too: those would have to come while this one stays.
    const whole = shard.header.tensors.filter(
      ({ name, dtype }) => waiting.has(name) && source.spec(name).dtype === dtype,
    );
    const here = whole.map(({ name }) => name).filter((name) => waiting.delete(name));
    // A failure is that of whoever waits for all writes.
    await Promise.all(
      here.map((name) => new Promise<void>((done) => void progress.carry(source, name, done).catch(() => done()))),
    );
  });
  return {
    finish: async () => {
      const rest = [...waiting];
      waiting.clear();
      end();
      for (const name of rest) {
        tell(`writing ${name}`);
        await progress.carry(source, name, () => {});
      }
    },
  };
}
