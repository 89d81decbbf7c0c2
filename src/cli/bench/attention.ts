import type { Command } from 'commander';
import type { KvScheme } from '../../../formats/kv/scheme.js';
import { oneOf } from '../../core/error.js';
import type { KvWish } from '../../kv/choose.js';
import { integer } from '../options/parse.js';
import { openRuntime, progress, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { bytes, duration } from '../terminal/units.js';
import { version } from '../version.js';
import { type ResultFlags, refuseFiles, resultOptions, writeFiles } from './results.js';

interface AttentionFlags extends ResultFlags {
  readonly kv: string;
  readonly kvGranularity: string;
  readonly kvGroup?: string;
  readonly contexts?: string;
  readonly heads?: string;
  readonly headDim?: string;
  readonly tail: number;
  readonly exact?: boolean;
}

/** `lpq bench attention`. */
export function benchAttentionCommand(bench: Command, run: Run): Command {
  return resultOptions(
    bench
      .command('attention')
      .description("time decode attention over a packed KV cache, and compare it with the device's copy bandwidth")
      .option('--kv <list>', 'bits of keys and values: 2, 4, 8, k8v4', '4')
      .option(
        '--kv-granularity <list>',
        'channel, token (without --kv-group one scale for each token and head, if that form exists)',
        'channel',
      )
      .option('--kv-group <list>', '32, 64, 128 (default: as for lpq quantize)')
      .option(
        '--contexts <list>',
        'sequences x tokens (default: 1x128k,8x32k,32x8k; small on the CPU); tokens are multiples of 256',
      )
      .option('--heads <list>', 'query heads/kv heads (default: 32/8; 4/2 on the CPU)')
      .option('--head-dim <n>', '64 to 512, a multiple of 8 (default: 128; 64 on the CPU)')
      .option('--tail <n>', 'how many of the newest tokens of a sequence are exact', integer('--tail', 0, 65536), 64)
      .option('--exact', 'also time the same kernel over f16 alone'),
  ).action((flags: AttentionFlags) => attention(flags, run));
}

async function attention(flags: AttentionFlags, run: Run): Promise<void> {
  const { CONTEXTS, SMALL, parseContexts, parseHeadDim, parseHeads } = await import(
    '../../../bench/attention/cases.js'
  );
  const contexts = flags.contexts === undefined ? undefined : parseContexts(flags.contexts);
  const heads = flags.heads === undefined ? undefined : parseHeads(flags.heads);
  const dim = flags.headDim === undefined ? undefined : parseHeadDim(flags.headDim);
  const { passes, tail, exact = false } = flags;
  refuseFiles(flags.results, flags.markdown);
  const wishes = await parseWishes(flags);
  await schemesOf(wishes, dim ?? 64); // what is none is refused before a device is opened
  const rt = openRuntime(run, flags);
  const cpu = rt.device === 'cpu';
  const headDim = dim ?? (cpu ? 64 : 128);
  const { benchAttention } = await import('../../../bench/attention/run.js');
  const shown = progress(run, 'attention');
  const bench = await benchAttention(
    rt,
    {
      schemes: await schemesOf(wishes, headDim),
      contexts: contexts ?? (cpu ? SMALL : CONTEXTS),
      heads: heads ?? [cpu ? { heads: 4, kvHeads: 2 } : { heads: 32, kvHeads: 8 }],
      ...{ headDim, tail, passes, exact, lpq: version() },
    },
    {
      onStep: (what, done, total) => shown.step(done, total, what),
      onRow: (row) => run.report.event('attention', row, `${row.name}: ${row.us.toFixed(1)} us`),
    },
  );
  shown.end();
  const { attentionMarkdown, attentionTable } = await import('../../../bench/attention/markdown.js');
  const { placeOf } = await import('../../../bench/markdown.js');
  await writeFiles(bench, flags, () => attentionMarkdown(bench));
  run.report.result(
    { command: 'bench attention', ...bench },
    table(...attentionTable(bench.rows)) +
      facts([
        ['device', placeOf(bench.machine)],
        ['copies', `${bytes(bench.copyBytesPerSecond)}/s read and written`],
        ['took', duration(bench.seconds)],
      ]),
  );
}

async function parseWishes({ kv, kvGranularity, kvGroup }: AttentionFlags): Promise<KvWish[]> {
  const { listed } = await import('../../../bench/lists.js');
  const choice = <T extends string>(option: string, text: string, of: readonly T[]): T[] =>
    listed(option, text, String, (item) => oneOf(option, of, item));
  const widths = choice('--kv', kv, ['2', '4', '8', 'k8v4']);
  const granularities = choice('--kv-granularity', kvGranularity, ['channel', 'token']);
  const groups = kvGroup === undefined ? [undefined] : choice('--kv-group', kvGroup, ['32', '64', '128']).map(Number);
  return widths.flatMap((width) =>
    granularities.flatMap((granularity) =>
      groups.map((group) => ({ kv: width, granularity, ...(group !== undefined && { group }) })),
    ),
  );
}

async function schemesOf(wishes: readonly KvWish[], headDim: number): Promise<KvScheme[]> {
  const { kvSchemeOf } = await import('../../kv/choose.js');
  return wishes.map((wish) => kvSchemeOf(wish, headDim));
}
