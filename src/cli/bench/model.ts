import type { Command } from 'commander';
import type { ModelRow } from '../../../bench/model/schema.js';
import { notTaken, oneOf } from '../../core/error.js';
import { integer, number } from '../options/parse.js';
import { openRuntime, progress, type Run } from '../run.js';
import { table } from '../terminal/table.js';
import { version } from '../version.js';
import { type ResultFlags, refuseFiles, resultOptions, writeFiles } from './results.js';

interface ModelFlags extends ResultFlags {
  readonly shape?: string;
  readonly blocks?: number;
  readonly weights: string;
  readonly group: string;
  readonly actInt4Share: number;
  readonly head: string;
  readonly kv: string;
  readonly m: string;
  readonly context: string;
  readonly prefill?: number;
}

/** `lpq bench model`. */
export function benchModelCommand(bench: Command, run: Run): Command {
  return resultOptions(
    bench
      .command('model')
      .description('time steps of a whole model with random weights, packed and not, and show where the time goes')
      .option(
        '--shape <name>',
        'llama-3-8b, llama-3-70b, ... or the path of a config.json (default: llama-3-8b; tiny on a CPU)',
      )
      .option(
        '--blocks <n>',
        'number of blocks to measure; the others count like these (default: all)',
        integer('--blocks', 1),
      )
      .option(
        '--weights <list>',
        'dense (16 bits), types such as u4,u3,f6e3m2, or with low-bit activations w4ax, w4ax-integer, w4a8, w8a8, fp8',
        'dense,u4',
      )
      .option('--group <n>', 'group size of types: 32, 64, 128 or channel', '128')
      .option(
        '--act-int4-share <share>',
        'for w4ax and w4ax-integer: share of the activation blocks with 4 bits',
        number('--act-int4-share'),
        0.84,
      )
      .option('--head <form>', 'lm_head: dense, or one of the other forms of --weights', 'dense')
      .option('--kv <list>', 'bits of keys and values: 16, 8, 4 or 2', '16')
      .option('--m <list>', 'number of sequences in a decode step', '1,16')
      .option('--context <list>', 'tokens of each sequence', '1024')
      .option(
        '--prefill <n>',
        'tokens of a prompt, for the time to the first token; 0: none (default: 2048; 256 on a CPU)',
        integer('--prefill', 0),
      ),
  ).action((flags: ModelFlags) => model(flags, run));
}

async function model(flags: ModelFlags, run: Run): Promise<void> {
  const { parseGroup } = await import('../../../bench/kernels/cases.js');
  const { parseForms, parseHead } = await import('../../../bench/model/forms.js');
  const { modelShape } = await import('../../../bench/shapes.js');
  const { listed } = await import('../../../bench/lists.js');
  const rt = openRuntime(run, flags);
  const shape = modelShape(flags.shape ?? (rt.device === 'cpu' ? 'tiny' : 'llama-3-8b'));
  const { blocks = shape.blocks, actInt4Share: int4Share, passes } = flags;
  const prefill = flags.prefill ?? (rt.device === 'cpu' ? 256 : 2048);
  if (blocks > shape.blocks) throw notTaken('--blocks', blocks, `1 to ${shape.blocks}`, { of: shape.name });
  if (int4Share < 0 || int4Share > 1) throw notTaken('--act-int4-share', int4Share, 'a number from 0 to 1');
  const numbers = (option: string, text: string, least: number) => listed(option, text, String, integer(option, least));
  const request = {
    ...{
      shape,
      blocks,
      int4Share,
      forms: parseForms(flags.weights),
      head: parseHead(flags.head),
      group: parseGroup(flags.group),
      prefill,
      passes,
    },
    kv: listed(
      '--kv',
      flags.kv,
      String,
      (bits) => Number(oneOf('--kv', ['16', '8', '4', '2'], bits)) as 16 | 8 | 4 | 2,
    ),
    m: numbers('--m', flags.m, 1),
    contexts: numbers('--context', flags.context, 2),
    lpq: version(),
  };
  refuseFiles(flags.results, flags.markdown);
  const { benchModel } = await import('../../../bench/model/run.js');
  const { benchBytes } = await import('../../../bench/model/memory.js');
  // The kernel would end the process, perhaps another; a device says itself what it lacks.
  if (rt.device === 'cpu')
    (await import('../options/preflight.js')).requireMemory(
      `lpq bench model of ${blocks} blocks of ${shape.name}`,
      benchBytes(request),
      'Use --blocks with fewer of them (the others count like these), a smaller --shape, or --device cuda.',
    );
  const shown = progress(run, 'model');
  const bench = await benchModel(rt, request, {
    onStep: (what, done, total) => shown.step(done, total, what),
    onRow: (row) => run.report.event('step', row, line(row)),
  });
  shown.end();
  const { modelMarkdown, stepTable } = await import('../../../bench/model/markdown.js');
  await writeFiles(bench, flags, () => modelMarkdown(bench));
  // Prompts and decode steps apart: what the first are timed for is the time to the first token.
  const tables = (['prefill', 'decode'] as const)
    .map((phase) => stepTable(phase, bench.rows))
    .flatMap(([head, body]) => (body.length > 0 ? [table(head, body)] : []));
  const left = bench.leftOut.map((what) => `not measured, because memory is short: ${what}\n`).join('');
  run.report.result({ command: 'bench model', ...bench }, tables.join('\n') + left);
}

function line({ weights, kv, phase, m, context, ms, tokensPerSecond }: ModelRow): string {
  const first = phase === 'prefill' ? ' to the first token' : '';
  return `${weights} KV${kv} ${phase} M=${m} of ${context}: ${ms.toFixed(3)} ms${first}, ${tokensPerSecond.toFixed(0)} tokens/s`;
}
