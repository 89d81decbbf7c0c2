import type { Command } from 'commander';
import type { ProgramBench, ProgramRow } from '../../../bench/tilus/schema.js';
import { LpqError, oneOf } from '../../core/error.js';
import { progress, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { duration } from '../terminal/units.js';
import { openDevice } from '../tilus/device.js';
import { withFolder } from '../tilus/nvcc.js';
import { knownArch } from '../tilus/program.js';
import { version } from '../version.js';
import { type ResultFlags, refuseFiles, resultOptions, writeFiles } from './results.js';

interface TilusFlags extends ResultFlags {
  readonly program: string;
  readonly types: string;
  readonly shapes: string;
  readonly m: string;
  readonly group?: string;
}

/** `lpq bench tilus`. */
export function benchTilusCommand(bench: Command, run: Run): Command {
  return resultOptions(
    bench
      .command('tilus')
      .description('tune a program of tiles on a CUDA device, and time it beside hand-written kernels and cuBLAS')
      .option('--program <name>', 'matmul, or hopper (sm_90)', 'matmul')
      .option('--types <list>', 'types such as u4,i3,f6e3m2, or all', 'u4')
      .option('--shapes <list>', 'K x N of the weights, such as 4096x28672, or table', 'table')
      .option('--m <list>', 'tokens of a product', '1,8,16')
      .option('--group <n>', '32, 64, 128 or channel (default: 128; hopper: channel)'),
  ).action((flags: TilusFlags) => benchTilus(flags, run));
}

async function benchTilus(flags: TilusFlags, run: Run): Promise<void> {
  const { parseGroup, parseShapes, parseTokens, parseTypes } = await import('../../../bench/kernels/cases.js');
  const program = oneOf('--program', ['matmul', 'hopper'], flags.program);
  const hopper = program === 'hopper';
  const group = parseGroup(flags.group ?? (hopper ? 'channel' : '128'));
  if (hopper && group !== 0)
    throw new LpqError('LPQ_USAGE', 'the program hopper has one scale for each column', {
      got: `--group ${flags.group}`,
      expected: 'channel',
    });
  const types = parseTypes(flags.types);
  const shapes = parseShapes(flags.shapes);
  const tokens = parseTokens(flags.m);
  refuseFiles(flags.results, flags.markdown);
  const { rt, gpu } = openDevice(run, flags.device === 'auto' ? 'cuda' : flags.device);
  const { benchPrograms } = await import('../../../bench/tilus/run.js');
  const shown = progress(run, 'tilus');
  const arch = hopper ? knownArch(gpu.arch) : 80;
  const bench = await withFolder((folder) =>
    benchPrograms(
      rt,
      { program, types, shapes, tokens, group, passes: flags.passes, arch, folder, lpq: version() },
      {
        onStep: (what, done, total) => shown.step(done, total, what),
        onRow: (row) =>
          run.report.event(
            'product',
            row,
            `${row.type} ${row.k}x${row.n} M=${row.m}: ${cells(row).slice(3).join(' ')}`,
          ),
      },
    ),
  );
  shown.end();
  const titles = ['type', 'K x N', 'M', 'us', 'portable us', 'x', 'choice us', 'x', 'cuBLAS us', 'x', 'configuration'];
  const { markdownTable } = await import('../../../bench/markdown.js');
  await writeFiles(bench, flags, () => markdownTable(titles, bench.rows.map(cells)));
  run.report.result(
    { command: 'bench tilus', ...bench },
    table(titles, bench.rows.map(cells)) + facts(summary(bench, gpu.name)),
  );
}

function cells(row: ProgramRow): string[] {
  const peer = (us: number | null) => (us === null ? ['-', '-'] : [us.toFixed(2), (us / row.us).toFixed(3)]);
  const { T: _, N: _n, K: _k, GROUPS: _g, ...settings } = row.settings;
  return [
    ...[row.type, `${row.k} x ${row.n}`, `${row.m}`, row.us.toFixed(2)],
    ...[...peer(row.portableUs), ...peer(row.choiceUs), ...peer(row.cublasUs)],
    Object.entries(settings)
      .map(([name, value]) => `${name}=${value}`)
      .join(' '),
  ];
}

function summary({ tuning, seconds }: ProgramBench, gpu: string): [string, string][] {
  const sum = (of: (each: ProgramBench['tuning'][number]) => number) => tuning.reduce((all, each) => all + of(each), 0);
  return [
    ['device', gpu],
    [
      'tuning',
      `${sum((each) => each.compiled)} configurations compiled in ${duration(sum((each) => each.compileSeconds))} by ${tuning[0]!.jobs} jobs, ${sum((each) => each.refused)} refused`,
    ],
    ['took', duration(seconds)],
  ];
}
