import os from 'node:os';
import type { Command } from 'commander';
import type { ModelRow } from '../bench/model/schema.js';
import { LpqError } from '../core/error.js';
import { integer } from './parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from './run.js';
import { table } from './table.js';
import { bytes } from './units.js';
import { version } from './version.js';

interface ModelFlags extends ComputeOptions {
  readonly shape: string;
  readonly blocks?: number;
  readonly weights: string;
  readonly group: string;
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
      .option('--shape <name>', 'llama-3-8b, llama-3-70b, ... or the path of a config.json', 'llama-3-8b')
      .option('--blocks <n>', 'blocks to measure; the others take what these do (default: all)', integer('--blocks', 1))
      .option('--weights <list>', 'dense (16 bits) and types such as u4,u3,f6e3m2', 'dense,u4')
      .option('--group <n>', '32, 64, 128 or channel', '128')
      .option('--kv <list>', 'bits of keys and values: 16, 8, 4 or 2', '16')
      .option('--m <list>', 'sequences of a decode step', '1,16')
      .option('--context <list>', 'tokens of each of them', '1024')
      .option('--prefill <n>', 'tokens of a prompt, read at once; 0: none', integer('--prefill', 0), 2048)
      .option('--passes <n>', 'replays that count; the median is kept', integer('--passes', 1, 10000), 9)
      .option('--results <file>', 'write everything there as JSON')
      .option('--markdown <file>', 'write tables there'),
  ).action((flags: ModelFlags) => model(flags, run));
}

async function model(flags: ModelFlags, run: Run): Promise<void> {
  const { parseGroup, parseTypes } = await import('../bench/kernels/cases.js');
  const { modelShape } = await import('../bench/shapes.js');
  const shape = modelShape(flags.shape);
  const blocks = flags.blocks ?? shape.blocks;
  if (blocks > shape.blocks)
    throw new LpqError('LPQ_USAGE', `--blocks does not take ${blocks} for ${shape.name}`, {
      got: blocks,
      expected: `1 to ${shape.blocks}`,
    });
  const types = listOf(flags.weights).flatMap((name) => (name === 'dense' ? [undefined] : parseTypes(name)));
  const request = {
    ...{ shape, blocks, types, group: parseGroup(flags.group), prefill: flags.prefill, passes: flags.passes },
    kv: numbers('--kv', flags.kv, (bits) => [2, 4, 8, 16].includes(bits), '16, 8, 4 or 2') as (16 | 8 | 4 | 2)[],
    m: numbers('--m', flags.m, (m) => m >= 1, 'integers of at least 1'),
    contexts: numbers('--context', flags.context, (tokens) => tokens >= 2, 'integers of at least 2'),
    lpq: version(),
    processor: os.cpus()[0]?.model.trim() ?? os.arch(),
  };
  const { refuseExisting } = await import('../../formats/directory/output-directory.js');
  for (const file of [flags.results, flags.markdown]) if (file !== undefined) refuseExisting(file);
  const rt = openRuntime(run, flags);
  const { benchModel } = await import('../bench/model/run.js');
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
  const { modelMarkdown } = await import('../bench/model/markdown.js');
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
  return `${weights} KV${kv} ${phase} M=${m} of ${context}: ${ms.toFixed(3)} ms, ${tokensPerSecond.toFixed(0)} tokens/s`;
}

function print(rows: readonly ModelRow[]): string {
  const percent = (share: number) => `${Math.round(100 * share)}%`;
  return table(
    ['weights', 'KV', 'step', 'M', 'context', 'ms', 'tokens/s', 'products', 'attention', 'rest', 'weights', 'cache'],
    rows.map((row) => [
      row.weights,
      String(row.kv),
      row.phase,
      String(row.m),
      String(row.context),
      row.ms.toFixed(3),
      row.tokensPerSecond.toFixed(0),
      percent(row.shares.products),
      percent(row.shares.attention),
      percent(row.shares.rest),
      bytes(row.weightBytes),
      bytes(row.cacheBytes),
    ]),
  );
}
