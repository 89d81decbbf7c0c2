import path from 'node:path';
import type { Command } from 'commander';
import { gpuOf, processorName } from '../../../bench/machine.js';
import type { Measurement } from '../../../bench/run.js';
import type { ModelShape } from '../../../bench/shapes.js';
import type { BlockEstimate } from '../../../bench/stages.js';
import type { SyntheticCheckpoint } from '../../../bench/synthetic.js';
import type { SyntheticStream } from '../../../bench/synthetic-stream.js';
import { addon, createRuntime, type NativeRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../calibrate/text.js';
import { LpqError } from '../../core/error.js';
import { needsOf } from '../../quantize/method.js';
import { integer } from '../options/parse.js';
import { deviceFor, givenSettings, type MethodFlags, methodOptions, prepared } from '../quantize/method.js';
import { methodOf } from '../quantize/methods.js';
import type { FullSettings } from '../quantize/settings.js';
import { type ComputeOptions, computeOptions, openRuntimes, progress, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { bytes, duration } from '../terminal/units.js';
import { version } from '../version.js';

interface BenchFlags extends ComputeOptions, MethodFlags {
  readonly shape: string;
  readonly layers?: number;
  readonly vocab?: number;
  readonly ids?: string;
  readonly keep?: string;
  readonly stream?: true;
  readonly output?: string;
}

/** `lpq bench quantize --shape NAME`. */
export function benchQuantizeCommand(bench: Command, run: Run): Command {
  const command = bench
    .command('quantize')
    .description('make a checkpoint of a shape, quantize it like `lpq quantize`, and show where the time goes')
    .requiredOption('--shape <name>', 'tiny, llama-3-8b, llama-3-70b, qwen3-30b-a3b, ... or the path of a config.json')
    .option('--blocks, --layers <n>', 'use only the first n blocks, and estimate the whole', integer('--layers', 1))
    .option(
      '--vocab <n>',
      'size of the vocabulary; a smaller one saves disk and does not change the blocks',
      integer('--vocab', 3),
    );
  return computeOptions(
    methodOptions(command)
      .option('--ids <file>', 'calibration tokens: JSON, a list of ids or of lists (default: random)')
      .option('--keep <dir>', 'keep the checkpoint in this directory, and reuse one that exists')
      .option(
        '--stream',
        'make shards when they are read, and remove them again, those of the result too: for shapes larger than the disk',
      )
      .option('-o, --output <dir>', 'keep the result'),
  ).action((flags: BenchFlags) => benchQuantize(flags, run));
}

async function benchQuantize(flags: BenchFlags, run: Run): Promise<void> {
  const { shape: wish, layers, vocab, ids, keep, output: kept } = flags;
  const { modelShape, withVocabulary } = await import('../../../bench/shapes.js');
  const { mergeSettings } = await import('../quantize/settings.js');
  const { refuseExisting } = await import('../../../formats/directory/place.js');
  const { workDirectory } = await import('../../../bench/directory.js');
  const shape = withVocabulary(modelShape(wish), vocab);
  const given = await givenSettings(flags);
  // Seeds draw the weights too, whatever the method.
  const { seed = 0, ...checked } = given;
  const typed = checked.bits === undefined && checked.dtype === undefined ? { bits: 4, ...checked } : checked;
  const settings: FullSettings = { ...mergeSettings(typed, {}), seed };
  const calibrated = needsOf(methodOf(settings), settings) !== 'weights';
  if (!calibrated && ids !== undefined)
    throw new LpqError('LPQ_USAGE', `--ids has no effect with --method ${settings.method}, which takes no calibration`);
  if (flags.stream && keep !== undefined)
    throw new LpqError('LPQ_USAGE', '--stream and --keep exclude each other', {
      hint: 'A stream never has all of the checkpoint; leave one of them out.',
    });
  if (kept !== undefined) refuseExisting(kept);
  const rts = openRuntimes(run, deviceFor(settings, flags));
  const blocks = layers ?? shape.blocks;
  const calibration = calibrated ? await calibrate(shape, settings, ids) : undefined;
  const work = await workDirectory(keep);
  let stream: SyntheticStream | undefined;
  try {
    const place = { dir: path.join(work.dir, 'checkpoint'), blocks, seed };
    if (flags.stream) stream = await streamed(shape, place, flags.threads, run);
    const checkpoint = stream ? { ...stream, seconds: undefined } : await synthesize(shape, place, flags.threads, run);
    const output = kept ?? path.join(work.dir, `output-${process.pid}`);
    const discard = stream !== undefined && kept === undefined && !settings.tuneScales;
    const measured = await measure({ checkpoint, output, settings, calibration, discard }, rts, run);
    const what = { shape, blocks, vocab, settings, calibration, checkpoint, output, discard, measured, rts };
    await report({ ...what, kept: kept !== undefined, made: stream?.made() }, run);
  } finally {
    await stream?.close();
    await work.remove();
  }
}

/** A checkpoint whose shards are made on the CPU when they are read. */
async function streamed(
  shape: ModelShape,
  { dir, ...options }: { dir: string; blocks: number; seed: number },
  threads: number | undefined,
  run: Run,
): Promise<SyntheticStream> {
  const { streamSynthetic } = await import('../../../bench/synthetic-stream.js');
  const stream = await streamSynthetic(run.interrupt.watch(createRuntime(threads)), dir, shape, options);
  const { bytes: size, parameters } = stream;
  run.report.event(
    'checkpoint',
    { dir, shape: shape.name, ...options, bytes: size, parameters, seconds: null },
    `${options.blocks} of ${shape.blocks} blocks of ${shape.name}, ${bytes(size)}, made when they are read`,
  );
  return stream;
}

async function calibrate(shape: ModelShape, settings: FullSettings, ids: string | undefined): Promise<Calibration> {
  const { randomIds, readIds } = await import('../../../bench/ids.js');
  const { samples, seqLen: length, seed } = settings;
  const options = { samples, length, seed, vocab: Number(shape.config.vocab_size) };
  return ids === undefined ? randomIds(options) : readIds(ids, options);
}

/** Makes the checkpoint, on the CPU whatever the device. */
export async function synthesize(
  shape: ModelShape,
  { dir, blocks, seed }: { dir: string; blocks: number; seed: number },
  threads: number | undefined,
  run: Run,
): Promise<SyntheticCheckpoint> {
  const { makeSynthetic, removeSynthetic } = await import('../../../bench/synthetic.js');
  const cpu = run.interrupt.watch(createRuntime(threads));
  const shown = progress(run, 'make');
  let begun = false;
  try {
    const made = await makeSynthetic(cpu, dir, shape, {
      blocks,
      seed,
      onBytes: (done, total) => {
        begun = true;
        shown.step(done, total, bytes(done));
      },
    });
    shown.end();
    const { seconds, bytes: size } = made;
    const how = seconds === undefined ? 'there already' : `made in ${duration(seconds)}`;
    run.report.event(
      'checkpoint',
      { dir, shape: shape.name, blocks, seed, bytes: size, parameters: made.parameters, seconds: seconds ?? null },
      `${blocks} of ${shape.blocks} blocks of ${shape.name}, ${bytes(size)}, ${how}`,
    );
    return made;
  } catch (error) {
    if (begun) await removeSynthetic(dir);
    throw error;
  }
}

interface Job {
  readonly checkpoint: SyntheticCheckpoint;
  readonly output: string;
  readonly settings: FullSettings;
  readonly calibration: Calibration | undefined;
  /** Weight files of the output lose their bytes once they are whole. */
  readonly discard?: boolean;
}

/** One measured run of the pipeline. */
export async function measure(job: Job, rts: readonly NativeRuntime[], run: Run): Promise<Measurement> {
  const { measureQuantization } = await import('../../../bench/run.js');
  const { emptied } = await import('../../../bench/directory.js');
  const { SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const { schemesFrom } = await import('../quantize/schemes.js');
  const { checkpoint, output, settings, calibration } = job;
  const quantizer = await methodOf(settings).quantizer(settings);
  const request = { source: checkpoint.dir, ...schemesFrom(settings, []), lmHead: settings.lmHead };
  const started = performance.now();
  const source = SourceCheckpoint.open(checkpoint.dir);
  const work = { settings, quantizer, calibration };
  const more = await prepared(source, request, work, rts, run).finally(() => source.close());
  const prepare = (performance.now() - started) / 1000;
  let task: ReturnType<typeof run.report.task> | undefined;
  let [done, stage] = [0, ''];
  const measured = await measureQuantization(
    rts,
    {
      ...request,
      output,
      quantizer,
      calibration,
      ...more,
      options: { ...settings },
      version: version(),
      partial: 'restart',
    },
    {
      onPlan: ({ modules }) => {
        task = run.report.task('quantize', modules);
      },
      onStage: (block, blocks, name) => {
        run.interrupt.check();
        stage = `block ${block + 1}/${blocks} ${name}`;
        task?.update(done, stage);
      },
      onModule: () => {
        run.interrupt.check();
        task?.update(++done, stage);
      },
      ...(job.discard && { onFile: emptied }),
    },
    (directory) => run.interrupt.cleanup(() => directory.abortSync()),
  );
  task?.end();
  const { seconds, stages } = measured;
  return { ...measured, seconds: prepare + seconds, stages: { ...stages, prepare } };
}

interface Finished extends Job {
  readonly shape: ModelShape;
  readonly blocks: number;
  readonly vocab: number | undefined;
  readonly measured: Measurement;
  readonly rts: readonly NativeRuntime[];
  readonly kept: boolean;
  /** What a stream made. */
  readonly made: ReturnType<SyntheticStream['made']> | undefined;
}

async function report(finished: Finished, run: Run): Promise<void> {
  const { shape, blocks, settings, calibration, checkpoint, output, measured, rts, kept } = finished;
  const { fileSizes, totalBytes, weightsHash } = await import('../../../bench/directory.js');
  const { estimateWhole } = await import('../../../bench/stages.js');
  const { schemeFrom } = await import('../quantize/schemes.js');
  const { printScheme } = await import('../../quantize/scheme.js');
  const { rm } = await import('node:fs/promises');
  const outputBytes = totalBytes(await fileSizes(output));
  const sha256 = await weightsHash(output);
  if (!kept) await rm(output, { recursive: true, force: true });
  const { summary, seconds, stages, overlap, blockSeconds, operations, peak } = measured;
  const estimate = wholeOf(estimateWhole(seconds - stages.prepare, blockSeconds, shape.blocks), finished);
  const errors = summary.modules.map((line) => line.relativeError).filter((error) => error !== null);
  const data = {
    command: 'bench quantize',
    shape: shape.name,
    blocks,
    blocksOfShape: shape.blocks,
    vocabulary: { size: Number(shape.config.vocab_size), reduced: finished.vocab !== undefined },
    method: settings.method,
    scheme: printScheme(schemeFrom(settings)),
    settings,
    calibration: calibration && {
      name: calibration.name,
      sequences: calibration.sequences.length,
      tokens: calibration.tokens,
    },
    machine: machine(rts),
    source: {
      bytes: checkpoint.bytes,
      parameters: checkpoint.parameters,
      seconds: checkpoint.seconds ?? null,
      ...(finished.made && { streamed: finished.made }),
    },
    output: {
      ...{ bytes: outputBytes, bitsPerWeight: summary.bitsPerWeight, modules: summary.modules.length },
      ...{ sha256, discarded: finished.discard === true },
    },
    seconds,
    stages,
    overlap,
    blockSeconds,
    estimate,
    peak,
    relativeError: errors.length > 0 ? errors.reduce((a, b) => a + b, 0) / errors.length : null,
    operations,
  };
  run.report.result(data, text(finished, outputBytes, estimate));
}

/** With what is decided before, of all blocks. */
function wholeOf(of: BlockEstimate | null, { shape, blocks, measured }: Finished): BlockEstimate | null {
  return of && { ...of, seconds: of.seconds + (measured.stages.prepare * shape.blocks) / blocks };
}

/** Where a benchmark ran. */
export function machine(rts: readonly NativeRuntime[]): Record<string, unknown> {
  const names = rts.flatMap((rt) => gpuOf(rt)?.name ?? []);
  return {
    device: rts.map(({ device }) => device).join(','),
    ...(names.length > 0 && { gpu: names.join(', ') }),
    isa: addon().isa(),
    threads: rts[0]?.threads,
    processor: processorName(),
  };
}

function text(finished: Finished, outputBytes: number, estimate: BlockEstimate | null): string {
  const { shape, blocks, vocab, settings, checkpoint, measured, rts } = finished;
  const { seconds, stages, overlap, peak, blockSeconds } = measured;
  const share = (part: number) => `${((100 * part) / seconds).toFixed(1)}%`;
  const rows = Object.entries(stages).map(([name, part]) => [name, part.toFixed(3), share(part)]);
  const { device, threads } = machine(rts);
  return `${table(['stage', 'seconds', 'share'], rows)}\n${facts([
    ['shape', `${shape.name}, ${blocks} of ${shape.blocks} blocks, ${settings.method}`],
    ...(vocab === undefined ? [] : [['vocabulary', `${vocab} instead of the shape's`] as const]),
    ['device', `${device}, ${threads} threads`],
    ['wall time', `${duration(seconds)}${overlap > 0 ? `, ${duration(overlap)} of the stages beside others` : ''}`],
    ['a block', `${(blockSeconds.reduce((a, b) => a + b, 0) / blockSeconds.length).toFixed(3)} s`],
    ...(estimate && blocks < shape.blocks
      ? [['whole model', `about ${duration(estimate.seconds)}, estimated`] as const]
      : []),
    ['read', bytes(checkpoint.bytes)],
    ...(finished.made
      ? [
          [
            'made meanwhile',
            `${bytes(finished.made.bytes)} in ${duration(finished.made.seconds)} of up to four at once, at most ${bytes(finished.made.peak)} on the disk`,
          ] as const,
        ]
      : []),
    ['written', bytes(outputBytes)],
    ['peak memory', `${bytes(peak.rss)}, ${bytes(peak.anonymous)} of it anonymous`],
    ...(peak.device === null ? [] : [['peak device memory', bytes(peak.device)] as const]),
  ])}`;
}
