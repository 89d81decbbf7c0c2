import { isDeepStrictEqual } from 'node:util';
import type { Shard } from '../../../formats/shards/shard.js';
import type { SavedStatistics } from '../../../formats/statistics/read.js';
import type { StatisticsManifest } from '../../../formats/statistics/schema.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../calibrate/text.js';
import { LpqError } from '../../core/error.js';
import { registerOutput } from '../options/run-output.js';
import type { Run } from '../run.js';
import { bytes } from '../terminal/units.js';
import { version } from '../version.js';
import type { CalibrationOptions } from './options.js';

/** The calibration sequences that the options ask for, and `further` ones, reported. Errors as loadMix(). */
export async function calibrate(
  { source, settings, calib }: CalibrationOptions,
  run: Run,
  further = 0,
): Promise<Calibration> {
  const { bundledCalibration } = await import('../../calibrate/bundled.js');
  const { ChatTemplate } = await import('../../calibrate/chat.js');
  const { loadMix } = await import('../../calibrate/mix.js');
  const { openTokenizer } = await import('../../calibrate/tokenizer.js');
  const { openPrefix } = await import('../../calibrate/prefix.js');
  const { samples, seqLen, seed, calibJoin, bos } = settings;
  const given = calib.length > 0 ? calib : [{ file: bundledCalibration(), weight: 1 }];
  const found = await loadMix(given, await openTokenizer(source), {
    samples,
    length: seqLen,
    seed,
    ...(further > 0 && { further }),
    join: calibJoin,
    prefix: openPrefix(source, bos).ids,
    prefixConversations: bos === 'always',
    chat: () => ChatTemplate.open(source),
  });
  const { sequences, tokens, available, name, sha256, kind, prefix, chatTemplate, files } = found;
  run.report.event(
    'calibration',
    {
      ...(given.length === 1 && { file: given[0]?.file }),
      ...{ name, sha256, kind, sequences: sequences.length, tokens, length: seqLen, seed, available },
      ...(prefix && { prefix }),
      ...(chatTemplate !== undefined && { chatTemplate }),
      ...(files && { files }),
    },
    `calibrating on ${sequences.length} of ${available} ${kind === 'mix' ? 'sequences' : kind} of ${name}: ${tokens.toLocaleString('en')} tokens, at most ${seqLen} in a sequence${prefix ? `, each behind token ${prefix.join(' ')}` : ''}, seed ${seed}`,
  );
  await warnOfLength(source, found, run);
  if (files && sequences.length < samples) {
    const given = files.map((file) => `${file.sequences} of ${file.name}`).join(', ');
    run.report.warn(`the texts give only ${sequences.length} of the ${samples} sequences asked for: ${given}`, {
      sequences: sequences.length,
      samples,
      files,
    });
  } else if (sequences.length < samples)
    run.report.warn(`${name} gives only ${sequences.length} of the ${samples} sequences asked for`, {
      sequences: sequences.length,
      samples,
    });
  return found;
}

/** Warns of sequences beyond the positions that the model was made for: what it computes there is not what it is used for. */
async function warnOfLength(dir: string, { sequences }: Calibration, run: Run): Promise<void> {
  const { SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const { statedContext } = await import('../../model/context.js');
  const longest = sequences.reduce((most, { length }) => Math.max(most, length), 0);
  const source = SourceCheckpoint.open(dir);
  try {
    const { tokens, because } = statedContext(source);
    if (longest > tokens)
      run.report.warn(
        `sequences of up to ${longest} tokens are longer than the ${tokens} that the model was made for (${because}), which calibrates it badly: use --seq-len ${tokens} or less`,
        { longest, made: tokens },
      );
  } finally {
    source.close();
  }
}

/** The statistics of --stats, opened; undefined without the option. The caller closes them. Throws LPQ_STATISTICS. */
export async function openStatistics({ stats }: CalibrationOptions): Promise<SavedStatistics | undefined> {
  if (stats === undefined) return undefined;
  return (await import('../../../formats/statistics/read.js')).SavedStatistics.open(stats);
}

/**
 * Takes and saves the statistics of --save-stats; with --resume those that are there are kept, if they are the same run's.
 * Throws LPQ_RESUME where they are not.
 */
export async function saveStatistics(
  options: CalibrationOptions,
  calibration: Calibration,
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<{ manifest: StatisticsManifest; bytes: number }> {
  const { existsSync } = await import('node:fs');
  const { collectStatistics } = await import('../../quantize/collect.js');
  const { statisticsBytes } = await import('../../../formats/statistics/write.js');
  const { source, saveStats: output = '', partial, settings, shard } = options;
  const { further, ...read } = calibration;
  requireSequences(read, shard);
  const more = { ...(settings.mtp && { mtp: true }), ...(shard && { shard }) };
  const request = { source, output, calibration: read, version: version(), ...more };
  const sizeOf = (manifest: StatisticsManifest) => statisticsBytes(Object.values(manifest.feeds));
  if (partial === 'resume' && existsSync(output)) {
    const manifest = await sameStatistics(request, rts);
    run.report.event('statistics', { output, kept: true }, `the statistics in ${output} already exist`);
    return { manifest, bytes: sizeOf(manifest) };
  }
  let task: ReturnType<typeof run.report.task> | undefined;
  let [done, stage] = [0, ''];
  const manifest = await collectStatistics(
    rts,
    request,
    {
      onPlan: ({ feeds, bytes: size, blocks }) => {
        run.report.event(
          'statistics',
          { output, feeds, bytes: size, blocks },
          `collecting statistics of ${feeds} inputs of linears in ${blocks} blocks, ${bytes(size)}, for ${output}`,
        );
        task = run.report.task('statistics', feeds);
      },
      onStage: (block, blocks, name) => {
        run.interrupt.check();
        stage = block === blocks ? name : `block ${block + 1}/${blocks} ${name}`;
        task?.update(done, stage);
      },
      onFeed: () => {
        run.interrupt.check();
        task?.update(++done, stage);
      },
    },
    (made) => registerOutput(made, run),
  );
  task?.end();
  if (options.saveImatrix !== undefined) await saveImportance(output, options.saveImatrix, run);
  return { manifest, bytes: sizeOf(manifest) };
}

/** Throws LPQ_CALIBRATION_TEXT for parts without a sequence. */
function requireSequences({ sequences }: Calibration, shard: Shard | undefined): void {
  if (!shard || sequences.length >= shard.count) return;
  throw new LpqError(
    'LPQ_CALIBRATION_TEXT',
    `--shard ${shard.index}/${shard.count} divides the calibration sequences`,
    {
      got: `${sequences.length} sequences`,
      expected: `at least ${shard.count}`,
      hint: 'Use more --samples, or fewer parts.',
    },
  );
}

async function saveImportance(statistics: string, file: string, run: Run): Promise<void> {
  const { readImportance } = await import('../../../formats/imatrix/read.js');
  const { writeImportance } = await import('../../../formats/imatrix/write.js');
  const importance = await readImportance(statistics);
  await writeImportance(file, importance);
  const entries = importance.entries.size;
  run.report.event('imatrix', { file, entries }, `importance matrix of ${entries} tensors in ${file}`);
}

async function sameStatistics(
  request: { source: string; output: string; calibration: Calibration; version: string; shard?: Shard },
  rts: readonly NativeRuntime[],
): Promise<StatisticsManifest> {
  const { SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const { SavedStatistics } = await import('../../../formats/statistics/read.js');
  const { statisticsFacts } = await import('../../quantize/collect.js');
  const { readStatisticsShard } = await import('../../../formats/shards/read-statistics.js');
  const { output } = request;
  const saved = request.shard ? readStatisticsShard(output, request.shard) : SavedStatistics.open(output);
  const source = SourceCheckpoint.open(request.source);
  try {
    const { format, version, files, feeds, ...facts } = saved.manifest;
    const now = JSON.parse(JSON.stringify(statisticsFacts(request, source, rts))) as Record<string, unknown>;
    const other = Object.keys(now).filter((key) => !isDeepStrictEqual(now[key], facts[key as keyof typeof facts]));
    if (other.length === 0) return saved.manifest;
    throw new LpqError(
      'LPQ_RESUME',
      `the statistics in ${request.output} were saved with another ${other.join(', ')}`,
      {
        hint: 'Choose another directory for --save-stats, or remove this one.',
      },
    );
  } finally {
    saved.close();
    source.close();
  }
}
