import os from 'node:os';
import type { Command } from 'commander';
import type { KernelBench, KernelRow } from '../../../bench/kernels/schema.js';
import { LpqError } from '../../core/error.js';
import { integer, number } from '../options/parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { bytes, duration } from '../terminal/units.js';
import { version } from '../version.js';

interface KernelFlags extends ComputeOptions {
  readonly types?: string;
  readonly shapes?: string;
  readonly m?: string;
  readonly group: string;
  readonly dtype: string;
  readonly passes: number;
  readonly sustained?: string | true;
  readonly seconds?: number;
  readonly tune?: boolean;
  readonly export?: string;
  readonly import?: string;
  readonly explain?: string | true;
  readonly results?: string;
  readonly markdown?: string;
  readonly svg?: string;
}

/** `lpq bench kernels`. */
export function benchKernelsCommand(bench: Command, run: Run): Command {
  return computeOptions(
    bench
      .command('kernels')
      .description("time products of packed weights beside cuBLAS, as a share of the device's copy bandwidth")
      .option('--types <list>', 'types such as u4,i3,f6e3m2, or all (default: u4)')
      .option(
        '--shapes <list>',
        'K x N of the weights, such as 4096x28672, or table (default: table; small on the CPU)',
      )
      .option('--m <list>', 'tokens of a product (default: 1,16,32,64; 1,16 on the CPU)')
      .option('--group <n>', '32, 64, 128 or channel', '128')
      .option('--dtype <type>', 'of activations and scales: f16 or bf16', 'f16')
      .option('--passes <n>', 'replays that count; the median is kept', integer('--passes', 1, 10000), 9)
      .option(
        '--sustained [which]',
        'also run without a pause: largest (the largest weight of each type) or all products',
      )
      .option('--seconds <s>', 'of a sustained run (default: 10)', number('--seconds'))
      .option('--tune', "time every setting of the kernels, and the library's choice beside the best")
      .option('--export <file>', 'with --tune: write the best settings there, for --import elsewhere')
      .option('--import <file>', 'keep settings that --export wrote, and time nothing')
      .option(
        '--explain [device]',
        'say which kernels run and why, and time nothing (h200, h100, a100, rtx4090, rtx3090)',
      )
      .option('--results <file>', 'write everything there as JSON')
      .option('--markdown <file>', 'write tables there')
      .option('--svg <file>', 'draw a roofline there'),
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
  const outputs = [flags.results, flags.markdown, flags.svg, flags.export].filter((file) => file !== undefined);
  refuseTwice(outputs);
  const { refuseExisting } = await import('../../../formats/directory/place.js');
  for (const file of outputs) refuseExisting(file);
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
  let task: ReturnType<typeof run.report.task> | undefined;
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
      processor: os.cpus()[0]?.model.trim() ?? os.arch(),
    },
    {
      check: () => run.interrupt.check(),
      onStep: (what, done, total) => {
        task ??= run.report.task('kernels', total);
        task.update(done, what);
      },
      onRow: (row) => run.report.event('product', row, productLine(row)),
      onTuned: ({ variants, ...point }) =>
        run.report.event(
          'tuned',
          { ...point, configurations: variants.length },
          `${point.type} ${point.k}x${point.n} M=${point.m}: ${variants.length} settings, the choice takes ${point.ratio.toFixed(2)} of the best`,
        ),
    },
  );
  task?.end();
  await write(bench, flags);
  const { keepTuning } = await import('./explain.js');
  await report(bench, run, flags.tune ? await keepTuning(bench, rt.device, flags.export) : []);
}

function sustainedOf({ sustained, seconds }: KernelFlags): ['none' | 'largest' | 'all', number] {
  if (sustained === undefined && seconds !== undefined)
    throw new LpqError('LPQ_USAGE', '--seconds has no effect without --sustained', { hint: 'Add --sustained.' });
  const which = sustained === undefined ? 'none' : sustained === true ? 'largest' : sustained;
  if (which !== 'none' && which !== 'largest' && which !== 'all')
    throw new LpqError('LPQ_USAGE', `--sustained does not take '${which}'`, { got: which, expected: 'largest or all' });
  if (seconds !== undefined && !(seconds > 0 && seconds <= 3600))
    throw new LpqError('LPQ_USAGE', `--seconds does not take ${seconds}`, {
      got: seconds,
      expected: 'more than 0, at most 3600',
    });
  return [which, seconds ?? 10];
}

function refuseTwice(files: readonly string[]): void {
  const twice = files.find((file, i) => files.indexOf(file) !== i);
  if (twice !== undefined)
    throw new LpqError('LPQ_USAGE', `two results would be written to ${twice}`, {
      got: twice,
      expected: 'a file each',
    });
}

async function write(bench: KernelBench, { results, markdown, svg }: KernelFlags): Promise<void> {
  const { kernelMarkdown } = await import('../../../bench/kernels/markdown.js');
  const { rooflineSvg } = await import('../../../bench/kernels/roofline.js');
  const { writeFile } = await import('node:fs/promises');
  const files: readonly [string | undefined, () => string][] = [
    [results, () => `${JSON.stringify(bench, null, 1)}\n`],
    [markdown, () => kernelMarkdown(bench)],
    [svg, () => rooflineSvg(bench)],
  ];
  for (const [file, text] of files) {
    if (file === undefined) continue;
    try {
      await writeFile(file, text(), { flag: 'wx' });
    } catch (cause) {
      throw new LpqError('LPQ_OUTPUT_WRITE', `${file} could not be written: ${(cause as Error).message}`, { cause });
    }
  }
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
  const { rows, tuning, machine } = bench;
  const { geometricMean } = await import('../../../bench/kernels/markdown.js');
  const cell = (value: number | null, digits: number) => (value === null ? '-' : value.toFixed(digits));
  const mean = (values: readonly (number | null)[]) => geometricMean(values.filter((value) => value !== null));
  const [cublas, marlin] = [mean(rows.map((row) => row.cublasRatio)), mean(rows.map((row) => row.marlinRatio))];
  run.report.result(
    { command: 'bench kernels', ...bench },
    table(
      ['type', 'K x N', 'M', 'us', 'of copies', 'cuBLAS us', 'x', 'MARLIN us', 'x'],
      rows.map((row) => [
        row.type,
        `${row.k} x ${row.n}`,
        `${row.m}`,
        row.us.toFixed(1),
        `${(100 * row.copyShare).toFixed(1)}%`,
        cell(row.cublasUs, 1),
        cell(row.cublasRatio, 2),
        cell(row.marlinUs, 1),
        cell(row.marlinRatio, 2),
      ]),
    ) +
      facts([
        ['device', machine.gpu ?? `${machine.processor}, ${machine.threads} threads`],
        ['copies', `${bytes(bench.copyBytesPerSecond)}/s read and written`],
        ...(cublas === null ? [] : [['geometric mean', `${cublas.toFixed(2)} of cuBLAS`] as const]),
        ...(marlin === null ? [] : [['', `${marlin.toFixed(2)} of MARLIN's figures`] as const]),
        ...(tuning === undefined
          ? []
          : [
              [
                'tuning',
                `${tuning.configurations} configurations (${tuning.refused} refused) in ${duration(tuning.seconds)}; the choice is within 5% of the best for ${tuning.points.filter(({ within }) => within).length} of ${tuning.points.length}`,
              ] as const,
            ]),
        ...tuned.map((line, i) => [i === 0 ? 'tuned' : '', line] as const),
        ['took', duration(bench.seconds)],
      ]),
  );
}
