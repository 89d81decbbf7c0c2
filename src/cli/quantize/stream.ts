import { existsSync } from 'node:fs';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { endStream, setStream } from '../../../formats/safetensors/stream.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import { parseModelName, printModelName } from '../../hub/name.js';
import { blockTensors } from '../../model/graph.js';
import { StreamFolder } from '../../stream/folder.js';
import { type OpenStream, openStream } from '../../stream/open.js';
import { downloaded, userAgent } from '../options/hub.js';
import type { Run } from '../run.js';
import { bytes } from '../terminal/units.js';
import type { QuantizeOptions } from './options.js';

const open = new WeakMap<Run, OpenStream>();

/**
 * The directory of a model on the Hub whose shards come when they are read (--stream). endStreams() ends that. Throws LPQ_USAGE for a model
 * on this disk, and what downloading throws.
 */
export async function streamedDirectory(
  given: string,
  { output, partial, shard }: Pick<QuantizeOptions, 'output' | 'partial' | 'shard'>,
  run: Run,
): Promise<string> {
  const model = existsSync(given) ? undefined : parseModelName(given);
  if (model === undefined)
    throw new LpqError('LPQ_USAGE', `--stream has no effect on ${given}, which is not a model on the Hub`, {
      expected: 'ORG/NAME[@REVISION]',
      hint: 'Leave it out.',
    });
  const folder = new StreamFolder(output);
  const before = partial === 'resume' ? folder.commitOf(model) : undefined;
  const known = before === undefined ? model : { ...model, revision: before };
  const { dir, commit, weights, left } = await downloaded(given, known, run, { events: true }, { weights: false });
  if (left.length === 0) {
    run.report.event('stream', { shards: 0 }, 'all weights are in the cache, so --stream fetches none');
    return dir;
  }
  const { interrupt, report } = run;
  const streamed = { model, commit, dir, shards: weights, left: new Set(left) };
  const stream = await openStream(streamed, folder, partial, {
    signal: interrupt.signal,
    userAgent: userAgent(),
    onWarning: (message) => report.warn(message),
  });
  const { supply } = stream;
  open.set(run, stream);
  setStream(dir, supply);
  supply.begin(blocksOf(dir).filter((_, block) => !shard || block % shard.count === shard.index));
  const size = left.reduce((sum, file) => sum + file.size, 0);
  const most = supply.mostBytes;
  report.event(
    'stream',
    { shards: left.length, bytes: size, mostBytes: most, folder: folder.path },
    `streaming ${counted(left.length, 'shard')} of ${printModelName(model)}, ${bytes(size)}, at most ${bytes(most)} at once in ${folder.path}`,
  );
  return dir;
}

/** Runs what may stream; afterwards the shards are gone, but for a run that failed: those serve its --resume. */
export async function streaming(run: Run, work: () => Promise<void>): Promise<void> {
  let failed = true;
  try {
    await work();
    failed = false;
  } finally {
    await endStreaming(run, failed);
  }
}

/** Ends the stream of a run, if there is one. */
export async function endStreaming(run: Run, failed: boolean): Promise<void> {
  const stream = open.get(run);
  open.delete(run);
  if (!stream) return;
  endStream(stream.supply);
  await stream.close(failed);
  const { bytes: came, files, peak } = stream.supply.moved;
  if (failed || files === 0) return;
  run.report.event(
    'streamed',
    { shards: files, bytes: came, peakBytes: peak },
    `fetched ${counted(files, 'shard')}, ${bytes(came)}; at most ${bytes(peak)} of them were on the disk at once`,
  );
}

/** Names of the tensors of each block, by headers and config.json alone. */
function blocksOf(dir: string): string[][] {
  const source = SourceCheckpoint.open(dir);
  try {
    return blockTensors(source);
  } finally {
    source.close();
  }
}
