import path from 'node:path';
import type { Command } from 'commander';
import type { PackRate } from '../../../bench/pack/engine.js';
import { LpqError } from '../../core/error.js';
import { integer } from '../options/parse.js';
import { openPackRuntime } from '../pack/command.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { bytes } from '../terminal/units.js';
import { machine, measure, synthesize } from './quantize.js';

interface PackFlags extends ComputeOptions {
  readonly layouts?: string;
  readonly shape: string;
  readonly passes: number;
  readonly model?: string;
  readonly blocks?: number;
  readonly dtype?: string;
  readonly target?: string;
  readonly rounds?: number;
  readonly keep?: string;
}

/** `lpq bench pack`. */
export function benchPackCommand(bench: Command, run: Run): Command {
  return computeOptions(
    bench
      .command('pack')
      .description('time the pack engine layout by layout, or packing a whole model and copying its output')
      .option(
        '--layouts <list>',
        'tilus, marlin, turbomind, comet, gptq, compressed-tensors, with a width (tilus-4) or all of them',
      )
      .option('--shape <KxN>', 'shape of the weight', '8192x8192')
      .option('--passes <n>', 'number of timed passes; the median counts', integer('--passes', 1, 10000), 5)
      .option('--model <name>', 'pack a quantized model of this shape instead: tiny, llama-3-8b, ... or a config.json')
      .option('--blocks <n>', 'only the first n blocks of the model', integer('--blocks', 1))
      .option('--dtype <type>', 'type of the model (default: i4)')
      .option('--target <name>', 'target, as for lpq pack (default: sm90)')
      .option(
        '--rounds <n>',
        'number of packings and copies, in turns; the median counts (default: 3)',
        integer('--rounds', 1),
      )
      .option('--keep <dir>', 'keep the checkpoint in this directory, and reuse one that exists'),
  ).action((flags: PackFlags) => benchPack(flags, run));
}

async function benchPack(flags: PackFlags, run: Run): Promise<void> {
  if (flags.model !== undefined) return benchModel(flags, flags.model, run);
  for (const option of ['blocks', 'dtype', 'target', 'rounds', 'keep'] as const)
    if (flags[option] !== undefined)
      throw new LpqError('LPQ_USAGE', `--${option} has no effect without --model`, { hint: 'Add --model.' });
  const { parseShapes } = await import('../../../bench/kernels/cases.js');
  const { packCases } = await import('../../../bench/pack/layouts.js');
  const { benchEngine } = await import('../../../bench/pack/engine.js');
  const shapes = parseShapes(flags.shape, '--shape');
  const [shape] = shapes;
  if (!shape || shapes.length > 1)
    throw new LpqError('LPQ_USAGE', '--shape takes one shape', { got: flags.shape, expected: 'K x N' });
  const cases = packCases(flags.layouts ?? 'all', shape.n, shape.k);
  const rt = openRuntime(run, flags);
  const { passes } = flags;
  const report = await benchEngine(rt, cases, { ...shape, passes }, (row) => {
    run.interrupt.check();
    run.report.event('layout', row, `${row.layout} ${row.bits} bits: ${rate(row)}`);
  });
  const cpu = rt.device === 'cpu';
  run.report.result(
    { command: 'bench pack', machine: machine([rt]), ...report },
    table(
      ['layout', 'bits', 'GB/s', cpu ? 'GB/s if idle' : 'of copies'],
      report.rows.map((row) => [
        row.layout,
        `${row.bits}`,
        (row.bytesPerSecond / 1e9).toFixed(2),
        cpu ? ((row.idleBytesPerSecond as number) / 1e9).toFixed(2) : `${(100 * row.copyShare).toFixed(1)}%`,
      ]),
    ) + facts([['copies', `${bytes(report.copyBytesPerSecond)}/s read and written`]]),
  );
}

const rate = ({ bytesPerSecond, copyShare }: PackRate): string =>
  `${bytes(bytesPerSecond)}/s of packed output, ${(100 * copyShare).toFixed(1)}% of copies`;

/** Processor time is what a busy machine cannot spoil: of all threads together. */
interface Timed {
  readonly seconds: number;
  readonly processorSeconds: number;
}

async function timed(work: () => Promise<unknown>): Promise<Timed> {
  const [started, used] = [performance.now(), process.cpuUsage()];
  await work();
  const { user, system } = process.cpuUsage(used);
  return { seconds: (performance.now() - started) / 1000, processorSeconds: (user + system) / 1e6 };
}

async function benchModel(flags: PackFlags, model: string, run: Run): Promise<void> {
  if (flags.layouts !== undefined)
    throw new LpqError('LPQ_USAGE', '--layouts has no effect with --model, whose layouts --target chooses');
  const { modelShape } = await import('../../../bench/shapes.js');
  const { fileSizes, totalBytes, workDirectory } = await import('../../../bench/directory.js');
  const { copyLike, settle } = await import('../../../bench/copy.js');
  const { median } = await import('../../../bench/kernels/time.js');
  const { mergeSettings, checkFlags } = await import('../quantize/settings.js');
  const { packCheckpoint } = await import('../../pack/pack-checkpoint.js');
  const { CanonicalCheckpoint } = await import('../../../formats/canonical/read.js');
  const { rm } = await import('node:fs/promises');
  const { dtype = 'i4', target = 'sm90', rounds = 3, threads } = flags;
  const shape = modelShape(model);
  const blocks = flags.blocks ?? shape.blocks;
  const settings = mergeSettings(checkFlags({ dtype, method: 'rtn' }), {});
  const runtime = await openPackRuntime(flags, run);
  const work = await workDirectory(flags.keep);
  const [quantized, output] = ['quantized', 'packed'].map((name) => path.join(work.dir, `${name}-${process.pid}`)) as [
    string,
    string,
  ];
  try {
    const checkpoint = await synthesize(
      shape,
      { dir: path.join(work.dir, 'checkpoint'), blocks, seed: 0 },
      threads,
      run,
    );
    await measure({ checkpoint, output: quantized, settings, calibration: undefined }, [runtime], run);
    const times: { packed: Timed; copied: Timed }[] = [];
    let sizes: Awaited<ReturnType<typeof fileSizes>> = [];
    for (let round = 0; round < rounds; round++) {
      await settle(quantized);
      const input = CanonicalCheckpoint.open(quantized);
      const packed = await timed(() =>
        packCheckpoint({ input, target, output, runtime, signal: run.interrupt.signal }),
      );
      input.close();
      sizes = await fileSizes(output);
      await rm(output, { recursive: true });
      await settle(quantized);
      const copied = await timed(() => copyLike(quantized, output, sizes));
      await rm(output, { recursive: true });
      times.push({ packed, copied });
      run.report.event(
        'round',
        { round, packed, copied },
        `round ${round + 1}: ${packed.seconds.toFixed(2)} s, reading and writing alone ${copied.seconds.toFixed(2)} s`,
      );
      run.interrupt.check();
    }
    const middle = (which: 'packed' | 'copied', what: keyof Timed) => median(times.map((each) => each[which][what]));
    const [seconds, copySeconds] = [middle('packed', 'seconds'), middle('copied', 'seconds')];
    const [processor, copyProcessor] = [middle('packed', 'processorSeconds'), middle('copied', 'processorSeconds')];
    const size = totalBytes(sizes);
    run.report.result(
      {
        command: 'bench pack',
        model: shape.name,
        blocks,
        blocksOfShape: shape.blocks,
        dtype,
        target,
        machine: machine([runtime]),
        output: { bytes: size },
        seconds,
        copySeconds,
        ratio: seconds / copySeconds,
        processorSeconds: processor,
        copyProcessorSeconds: copyProcessor,
        rounds: times,
      },
      facts([
        ['packed', `${bytes(size)} for ${target} in ${seconds.toFixed(2)} s, ${bytes(size / seconds)}/s`],
        ['reading and writing alone', `${copySeconds.toFixed(2)} s`],
        ['ratio', (seconds / copySeconds).toFixed(2)],
        ['processor time', `${processor.toFixed(2)} s, of the copy ${copyProcessor.toFixed(2)} s`],
      ]),
    );
  } finally {
    await rm(quantized, { recursive: true, force: true });
    await rm(output, { recursive: true, force: true });
    await work.remove();
  }
}
