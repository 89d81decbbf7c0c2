import os from 'node:os';
import type { Command } from 'commander';
import type { ModelRow } from '../../../bench/model/schema.js';
import { LpqError } from '../../core/error.js';
import { integer, number } from '../options/parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { table } from '../terminal/table.js';
import { bytes } from '../terminal/units.js';
import { version } from '../version.js';

interface ModelFlags extends ComputeOptions {
  readonly shape?: string;
  readonly blocks?: number;
  readonly weights: string;
  readonly group: string;
  readonly actInt4Share: number;
  readonly kv: string;
  readonly m: string;
  readonly context: string;
  readonly prefill: number;
  readonly passes: number;
  readonly results?: string;
  readonly markdown?: string;
}

/** `lpq bench model`. */
export function benchModelCommand(bench: Command, run: Run): Command {
  return computeOptions(
    bench
      .command('model')
      .description('time steps of a whole model with random weights, packed and not, and what they are spent on')
      .option(
        '--shape <name>',
        'llama-3-8b, llama-3-70b, ... or the path of a config.json (default: llama-3-8b; tiny on a CPU)',
      )
      .option('--blocks <n>', 'blocks to measure; the others take what these do (default: all)', integer('--blocks', 1))
      .option(
        '--weights <list>',
        'dense (16 bits), types such as u4,u3,f6e3m2, and with activations as codes too w4ax, w8a8, fp8',
        'dense,u4',
      )
      .option('--group <n>', 'of types: 32, 64, 128 or channel', '128')
      .option(
        '--act-int4-share <share>',
        'of w4ax: blocks of activations that have 4 bits',
        number('--act-int4-share'),
        0.84,
      )
      .option('--kv <list>', 'bits of keys and values: 16, 8, 4 or 2', '16')
      .option('--m <list>', 'sequences of a decode step', '1,16')
      .option('--context <list>', 'tokens of each of them', '1024')
      .option(
        '--prefill <n>',
        'tokens of a prompt, read at once: time to the first token; 0: none',
        integer('--prefill', 0),
        2048,
      )
      .option('--passes <n>', 'replays that count; the median is kept', integer('--passes', 1, 10000), 9)
      .option('--results <file>', 'write everything there as JSON')
      .option('--markdown <file>', 'write tables there'),
  ).action((flags: ModelFlags) => model(flags, run));
}

async function model(flags: ModelFlags, run: Run): Promise<void> {
  const { parseGroup } = await import('../../../bench/kernels/cases.js');
  const { parseForms } = await import('../../../bench/model/forms.js');
  const { modelShape } = await import('../../../bench/shapes.js');
  const rt = openRuntime(run, flags);
  const shape = modelShape(flags.shape ?? (rt.device === 'cpu' ? 'tiny' : 'llama-3-8b'));
  const blocks = flags.blocks ?? shape.blocks;
  if (blocks > shape.blocks)
    throw new LpqError('LPQ_USAGE', `--blocks does not take ${blocks} for ${shape.name}`, {
      got: blocks,
      expected: `1 to ${shape.blocks}`,
    });
  const { actInt4Share: int4Share } = flags;
  if (int4Share < 0 || int4Share > 1)
    throw new LpqError('LPQ_USAGE', `--act-int4-share does not take ${int4Share}`, {
      got: int4Share,
      expected: 'a number from 0 to 1',
    });
  const request = {
    ...{ shape, blocks, int4Share, forms: parseForms(flags.weights), group: parseGroup(flags.group) },
    ...{ prefill: flags.prefill, passes: flags.passes },
    kv: numbers('--kv', flags.kv, (bits) => [2, 4, 8, 16].includes(bits), '16, 8, 4 or 2') as (16 | 8 | 4 | 2)[],
    m: numbers('--m', flags.m, (m) => m >= 1, 'integers of at least 1'),
    contexts: numbers('--context', flags.context, (tokens) => tokens >= 2, 'integers of at least 2'),
    lpq: version(),
    processor: os.cpus()[0]?.model.trim() ?? os.arch(),
  };
  const { refuseExisting } = await import('../../../formats/directory/place.js');
  for (const file of [flags.results, flags.markdown]) if (file !== undefined) refuseExisting(file);
  const { benchModel, benchBytes } = await import('../../../bench/model/run.js');
  // The kernel would end the process, perhaps another; a device says itself what it lacks.
  if (rt.device === 'cpu')
    (await import('../options/preflight.js')).requireMemory(
      `lpq bench model of ${blocks} blocks of ${shape.name}`,
      benchBytes(request),
      'Use --blocks with fewer of them (the others take what these do), a smaller --shape, or --device cuda.',
    );
  let task: ReturnType<typeof run.report.task> | undefined;
  const bench = await benchModel(rt, request, {
    check: () => run.interrupt.check(),
    onStep: (what, done, total) => {
      task ??= run.report.task('model', total);
      task.update(done, what);
    },
    onRow: (row) => run.report.event('step', row, line(row)),
  });
  task?.end();
  const { modelMarkdown } = await import('../../../bench/model/markdown.js');
  const { writeFile } = await import('node:fs/promises');
  for (const [file, text] of [
    [flags.results, `${JSON.stringify(bench, null, 1)}\n`],
    [flags.markdown, modelMarkdown(bench)],
  ] as const) {
    if (file === undefined) continue;
    try {
      await writeFile(file, text, { flag: 'wx' });
    } catch (cause) {
      throw new LpqError('LPQ_OUTPUT_WRITE', `${file} could not be written: ${(cause as Error).message}`, { cause });
    }
  }
  const left = bench.leftOut.map((what) => `not measured, for want of memory: ${what}\n`).join('');
  run.report.result({ command: 'bench model', ...bench }, print(bench.rows) + left);
}

function listOf(text: string): string[] {
  return text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
}

function numbers(flag: string, text: string, takes: (value: number) => boolean, expected: string): number[] {
  const values = listOf(text).map(Number);
  if (values.length > 0 && values.every((value) => Number.isSafeInteger(value) && takes(value))) return values;
  throw new LpqError('LPQ_USAGE', `${flag} does not take '${text}'`, { got: text, expected });
}

function line({ weights, kv, phase, m, context, ms, tokensPerSecond }: ModelRow): string {
  const first = phase === 'prefill' ? ' to the first token' : '';
  return `${weights} KV${kv} ${phase} M=${m} of ${context}: ${ms.toFixed(3)} ms${first}, ${tokensPerSecond.toFixed(0)} tokens/s`;
}

/** Prompts and decode steps apart: what the first are timed for is the time to the first token. */
function print(rows: readonly ModelRow[]): string {
  const percent = (share: number) => `${Math.round(100 * share)}%`;
  const shares = ['products', 'attention', 'rest'] as const;
  return (['prefill', 'decode'] as const)
    .map((phase) => [phase, rows.filter((row) => row.phase === phase)] as const)
    .filter(([, own]) => own.length > 0)
    .map(([phase, own]) =>
      table(
        [
          ...['weights', 'KV', 'step', 'M', 'context', phase === 'prefill' ? 'ms to first token' : 'ms', 'tokens/s'],
          ...shares,
          ...['weights', 'cache', 'memory'],
        ],
        own.map((row) => [
          ...[row.weights, String(row.kv), row.phase, String(row.m), String(row.context)],
          ...[row.ms.toFixed(3), row.tokensPerSecond.toFixed(0)],
          ...shares.map((kind) => percent(row.shares[kind])),
          ...[bytes(row.weightBytes), bytes(row.cacheBytes), bytes(row.memoryBytes)],
        ]),
      ),
    )
    .join('\n');
}
