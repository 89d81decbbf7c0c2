import type { Command } from 'commander';
import type { KernelBench, KernelRow } from '../../../bench/kernels/schema.js';
import { LpqError, notTaken, oneOf } from '../../core/error.js';
import { number } from '../options/parse.js';
import { openRuntime, progress, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { bytes, duration } from '../terminal/units.js';
import { version } from '../version.js';
import { type ResultFlags, refuseFiles, resultOptions, writeFiles } from './results.js';

interface KernelFlags extends ResultFlags {
  readonly types?: string;
  readonly shapes?: string;
  readonly m?: string;
  readonly group: string;
  readonly dtype: string;
  readonly sustained?: string | true;
  readonly seconds?: number;
  readonly tune?: boolean;
  readonly export?: string;
  readonly import?: string;
  readonly explain?: string | true;
  readonly svg?: string;
}

/** `lpq bench kernels`. */
export function benchKernelsCommand(bench: Command, run: Run): Command {
  return resultOptions(
    bench
      .command('kernels')
      .description("time products of packed weights, and compare them with cuBLAS and the device's copy bandwidth")
      .option('--types <list>', 'types such as u4,i3,f6e3m2, or all (default: u4)')
      .option(
        '--shapes <list>',
        'K x N of the weights, such as 4096x28672, or table (default: table; small on the CPU)',
      )
      .option('--m <list>', 'tokens of a product (default: 1,16,32,64; 1,16 on the CPU)')
      .option('--group <n>', '32, 64, 128 or channel', '128')
      .option('--dtype <type>', 'type of activations and scales: f16 or bf16', 'f16')
      .option(
        '--sustained [which]',
        'also run without a pause: largest (the largest weight of each type) or all products',
      )
      .option('--seconds <s>', 'length of a sustained run (default: 10)', number('--seconds'))
      .option('--tune', "time every setting of the kernels, and compare the library's choice with the best")
      .option('--export <file>', 'with --tune: write the best settings to this file, for --import elsewhere')
      .option('--import <file>', 'use settings that --export wrote, and time nothing')
      .option(
        '--explain [device]',
        'say which kernels run and why, and time nothing (h200, h100, a100, rtx4090, rtx3090)',
      )
      .option('--svg <file>', 'draw a roofline to this file'),
  ).action((flags: KernelFlags) => kernels(flags, run));
}

async function kernels(flags: KernelFlags, run: Run): Promise<void> {
  const { SMALL, TABLE, parseActivations, parseGroup, parseShapes, parseTokens, parseTypes } = await import(
    '../../../bench/kernels/cases.js'
  );
  const types = parseTypes(flags.types ?? 'u4');
  const shapes = flags.shapes === undefined ? undefined : parseShapes(flags.shapes);
  const tokens = flags.m === undefined ? undefined : parseTokens(flags.m);
  const group = parseGroup(flags.group);
  const dtype = parseActivations(flags.dtype);
  if (flags.explain !== undefined) {
    const { explain } = await import('./explain.js');
    return explain(
      flags.explain,
      { types, shapes: shapes ?? TABLE, tokens: tokens ?? [1, 16, 32, 64], dtype, group },
      run,
    );
  }
  const [sustained, seconds] = sustainedOf(flags);
  if (flags.export !== undefined && !flags.tune)
    throw new LpqError('LPQ_USAGE', '--export has no effect without --tune', { hint: 'Add --tune.' });
  refuseFiles(flags.results, flags.markdown, flags.svg, flags.export);
  const rt = openRuntime(run, flags);
  const cpu = rt.device === 'cpu';
  if (flags.tune && cpu)
    throw new LpqError('LPQ_USAGE', '--tune needs a CUDA device: the operation of the CPU has no settings', {
      hint: 'Use --device cuda, or leave the option out.',
    });
  if (flags.import !== undefined) {
    if (cpu)
      throw new LpqError('LPQ_USAGE', '--import needs a CUDA device: settings are kept for one', {
        hint: 'Use --device cuda.',
      });
    const { importTuning } = await import('./explain.js');
    return importTuning(flags.import, rt.device, run);
  }
  const { benchKernels } = await import('../../../bench/kernels/run.js');
  const shown = progress(run, 'kernels');
  const bench = await benchKernels(
    rt,
    {
      types,
      shapes: shapes ?? (cpu ? SMALL : TABLE),
      tokens: tokens ?? (cpu ? [1, 16] : [1, 16, 32, 64]),
      dtype,
      group,
      passes: flags.passes,
      sustained,
      seconds,
      tune: flags.tune ?? false,
      lpq: version(),
    },
    {
      onStep: (what, done, total) => shown.step(done, total, what),
      onRow: (row) => run.report.event('product', row, productLine(row)),
      onTuned: ({ variants, ...point }) =>
        run.report.event(
          'tuned',
          { ...point, configurations: variants.length },
          `${point.type} ${point.k}x${point.n} M=${point.m}: ${variants.length} settings, the choice takes ${point.ratio.toFixed(2)} of the best`,
        ),
    },
  );
  shown.end();
  const { kernelMarkdown } = await import('../../../bench/kernels/markdown.js');
  const { rooflineSvg } = await import('../../../bench/kernels/roofline.js');
  await writeFiles(bench, flags, () => kernelMarkdown(bench), [flags.svg, () => rooflineSvg(bench)]);
  const { keepTuning } = await import('./explain.js');
  await report(bench, run, flags.tune ? await keepTuning(bench, rt.device, flags.export) : []);
}

function sustainedOf({ sustained, seconds }: KernelFlags): ['none' | 'largest' | 'all', number] {
  if (sustained === undefined && seconds !== undefined)
    throw new LpqError('LPQ_USAGE', '--seconds has no effect without --sustained', { hint: 'Add --sustained.' });
  if (seconds !== undefined && !(seconds > 0 && seconds <= 3600))
    throw notTaken('--seconds', seconds, 'more than 0, at most 3600');
  if (sustained === undefined) return ['none', 10];
  return [sustained === true ? 'largest' : oneOf('--sustained', ['largest', 'all'], sustained), seconds ?? 10];
}

function productLine(row: KernelRow): string {
  const { sustained } = row;
  const ratio = (value: number | null, name: string) => (value === null ? '' : `, ${value.toFixed(2)} x ${name}`);
  return [
    `${row.type} ${row.k}x${row.n} M=${row.m}: ${row.us.toFixed(1)} us, ${(100 * row.copyShare).toFixed(1)}% of copies`,
    ratio(row.cublasRatio, 'cuBLAS'),
    ratio(row.marlinRatio, 'MARLIN'),
    sustained ? `; sustained ${sustained.us.toFixed(1)} us` : '',
  ].join('');
}

async function report(bench: KernelBench, run: Run, tuned: readonly string[]): Promise<void> {
  const { rows, tuning } = bench;
  const { geometricMean } = await import('../../../bench/kernels/markdown.js');
  const { figure, placeOf } = await import('../../../bench/markdown.js');
  const mean = (key: 'cublasRatio' | 'marlinRatio') => geometricMean(rows.map((row) => row[key]));
  const [cublas, marlin] = [mean('cublasRatio'), mean('marlinRatio')];
  const within = tuning?.points.filter(({ within }) => within).length;
  run.report.result(
    { command: 'bench kernels', ...bench },
    table(
      ['type', 'K x N', 'M', 'us', 'of copies', 'cuBLAS us', 'x', 'MARLIN us', 'x'],
      rows.map((row) => [
        ...[row.type, `${row.k} x ${row.n}`, `${row.m}`, row.us.toFixed(1), `${(100 * row.copyShare).toFixed(1)}%`],
        ...[figure(row.cublasUs, 1), figure(row.cublasRatio), figure(row.marlinUs, 1), figure(row.marlinRatio)],
      ]),
    ) +
      facts([
        ['device', placeOf(bench.machine)],
        ['copies', `${bytes(bench.copyBytesPerSecond)}/s read and written`],
        ...(cublas === null ? [] : [['geometric mean', `${cublas.toFixed(2)} of cuBLAS`] as const]),
        ...(marlin === null ? [] : [['', `${marlin.toFixed(2)} of MARLIN's figures`] as const]),
        ...(tuning === undefined
          ? []
          : [
              [
                'tuning',
                `${tuning.configurations} configurations (${tuning.refused} refused) in ${duration(tuning.seconds)}; the choice is within 5% of the best for ${within} of ${tuning.points.length}`,
              ] as const,
            ]),
        ...tuned.map((line, i) => [i === 0 ? 'tuned' : '', line] as const),
        ['took', duration(bench.seconds)],
      ]),
  );
}
