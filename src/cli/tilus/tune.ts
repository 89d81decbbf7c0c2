import type { Command } from 'commander';
import { LpqError, notTaken } from '../../core/error.js';
import type { Settings } from '../../tilus/check/check.js';
import { collect, integer } from '../options/parse.js';
import { progress, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { duration } from '../terminal/units.js';
import { openDevice } from './device.js';
import { knownArch, type ProgramFlags, programOptions, settingOf, settingsOf, textOf } from './program.js';

interface TuneFlags extends ProgramFlags {
  readonly try?: readonly string[];
  readonly in?: readonly string[];
  readonly device: string;
  readonly most: number;
}

/** Rows of the table. */
const SHOWN = 10;

/** `lpq tilus tune`. */
export function tilusTuneCommand(tilus: Command, run: Run): Command {
  return programOptions(
    tilus
      .command('tune')
      .description('compile a program in many configurations, time each on a CUDA device, and name the fastest'),
  )
    .option('--try <name=values>', 'values of a constant to try, such as WN=1,2,4; may be repeated', collect)
    .option('--in <name=number>', 'a number that the launch takes, such as m=16; may be repeated', collect)
    .option('--most <n>', 'the most configurations to time', integer('--most', 1, 10000), 500)
    .option('--device <device>', 'cuda or cuda:N', 'cuda')
    .action((name: string, flags: TuneFlags) => tune(name, flags, run));
}

async function tune(name: string, flags: TuneFlags, run: Run): Promise<void> {
  const { parse } = await import('../../tilus/language/parse.js');
  const { combinations } = await import('../../tilus/enumerate.js');
  const source = parse(textOf(name));
  const scalars = scalarsOf(source.parameters, flags.in ?? []);
  const fixed = settingsOf(flags.set ?? []);
  const all = combinations(valuesOf(flags.try ?? [])).map((settings): Settings => ({ ...fixed, ...settings }));
  if (all.length > flags.most)
    throw new LpqError('LPQ_USAGE', `there are ${all.length} configurations, more than --most ${flags.most}`, {
      got: all.length,
      hint: 'Try fewer values, or allow more with --most.',
    });
  const { rt, gpu } = openDevice(run, flags.device);
  const { buildContenders } = await import('../../../bench/tilus/contenders.js');
  const { Buffers, timeContenders } = await import('../../../bench/tilus/tune.js');
  const { Noise } = await import('../../../bench/kernels/operands.js');
  const { withFolder } = await import('./nvcc.js');
  const shown = progress(run, 'tune');
  await withFolder(async (folder) => {
    const built = await buildContenders({
      ...{ source, all, arch: knownArch(gpu.arch), deviceArch: gpu.arch, folder },
      onBuilt: (done, total) => shown.step(done, 2 * total, 'compiling'),
    });
    const { contenders, refused } = built;
    if (contenders.length === 0)
      throw new LpqError('LPQ_TILUS', `none of the ${all.length} configurations of ${source.name} can run`, {
        got: refused[0]!.why,
      });
    const noise = new Noise(rt);
    const buffers = new Buffers(rt, noise, contenders, scalars, gpu.l2);
    try {
      const started = performance.now();
      const timed = await timeContenders(rt, buffers, contenders, (done) =>
        shown.step(contenders.length + done, 2 * contenders.length, 'timing'),
      );
      shown.end();
      const timeSeconds = (performance.now() - started) / 1000;
      const { checkSeconds, compileSeconds } = built;
      report(run, { name: source.name, gpu: gpu.name, timed, refused, checkSeconds, compileSeconds, timeSeconds });
    } finally {
      buffers.dispose();
      noise.dispose();
    }
  });
}

interface Tuned {
  readonly name: string;
  readonly gpu: string;
  readonly timed: readonly { readonly settings: Settings; readonly us: number; readonly leastUs: number }[];
  readonly refused: readonly { readonly settings: Settings; readonly why: string }[];
  readonly checkSeconds: number;
  readonly compileSeconds: number;
  readonly timeSeconds: number;
}

function report(run: Run, tuned: Tuned): void {
  const { timed, refused, checkSeconds, compileSeconds, timeSeconds } = tuned;
  const text = (settings: Settings) =>
    Object.entries(settings)
      .map(([constant, value]) => `${constant}=${value}`)
      .join(' ');
  run.report.result(
    { command: 'tilus tune', ...tuned },
    table(
      ['us', 'least', 'configuration'],
      timed.slice(0, SHOWN).map(({ us, leastUs, settings }) => [us.toFixed(2), leastUs.toFixed(2), text(settings)]),
    ) +
      facts([
        ['device', tuned.gpu],
        ['configurations', `${timed.length} timed, ${refused.length} refused`],
        [
          'took',
          `${duration(checkSeconds)} to check, ${duration(compileSeconds)} to compile, ${duration(timeSeconds)} to time`,
        ],
      ]),
  );
}

function valuesOf(given: readonly string[]): Record<string, (number | string)[]> {
  if (given.length === 0)
    throw new LpqError('LPQ_USAGE', 'there is nothing to tune', {
      expected: '--try NAME=VALUE,VALUE',
      hint: 'Name a constant and its values.',
    });
  return Object.fromEntries(
    given.map((each) => {
      const at = each.indexOf('=');
      if (at < 1 || at === each.length - 1) throw notTaken('--try', each, 'NAME=VALUE,VALUE, such as WN=1,2,4');
      return [
        each.slice(0, at).trim(),
        each
          .slice(at + 1)
          .split(',')
          .map(settingOf),
      ];
    }),
  );
}

/** Numbers of a launch. Throws LPQ_USAGE for one that is missing, or that the program does not take. */
function scalarsOf(
  parameters: readonly { readonly name: string; readonly pointer: boolean }[],
  given: readonly string[],
): Map<string, number> {
  const names = parameters.filter(({ pointer }) => !pointer).map(({ name }) => name);
  const scalars = new Map(
    given.map((each) => {
      const [name, value] = each.split('=');
      if (!names.includes(name!) || !/^\d+$/.test(value ?? ''))
        throw notTaken(
          '--in',
          each,
          names.length === 0 ? 'nothing: the program takes no numbers' : `${names[0]}=NUMBER`,
        );
      return [name!, Number(value)] as const;
    }),
  );
  const missing = names.find((name) => !scalars.has(name));
  if (missing !== undefined)
    throw new LpqError('LPQ_USAGE', `the launch needs the number ${missing}`, { hint: `Give --in ${missing}=NUMBER.` });
  return scalars;
}
