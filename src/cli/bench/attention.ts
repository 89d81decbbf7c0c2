import os from 'node:os';
import type { Command } from 'commander';
import type { AttentionBench, AttentionRow } from '../../../bench/attention/schema.js';
import type { KvScheme } from '../../../formats/kv/scheme.js';
import { LpqError } from '../../core/error.js';
import type { KvWish } from '../../kv/choose.js';
import { integer } from '../options/parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { facts, table } from '../terminal/table.js';
import { bytes, duration } from '../terminal/units.js';
import { version } from '../version.js';

interface AttentionFlags extends ComputeOptions {
  readonly kv: string;
  readonly kvGranularity: string;
  readonly kvGroup?: string;
  readonly contexts?: string;
  readonly heads?: string;
  readonly headDim?: string;
  readonly tail: number;
  readonly exact?: boolean;
  readonly passes: number;
  readonly results?: string;
  readonly markdown?: string;
}

/** `lpq bench attention`. */
export function benchAttentionCommand(bench: Command, run: Run): Command {
  return computeOptions(
    bench
      .command('attention')
      .description("time decode attention over packed keys and values as a share of the device's copy bandwidth")
      .option('--kv <list>', 'bits of keys and values: 2, 4, 8, k8v4', '4')
      .option(
        '--kv-granularity <list>',
        'channel, token (without --kv-group a scale a token and head, where that is a form)',
        'channel',
      )
      .option('--kv-group <list>', '32, 64, 128 (default: as of lpq quantize)')
      .option(
        '--contexts <list>',
        'sequences x tokens (default: 1x128k,8x32k,32x8k; small on the CPU); tokens in whole 256s',
      )
      .option('--heads <list>', 'query heads over kv heads (default: 32/8; 4/2 on the CPU)')
      .option('--head-dim <n>', '64, 128 or 256 (default: 128; 64 on the CPU)')
      .option('--tail <n>', 'newest tokens of a sequence that are exact', integer('--tail', 0, 65536), 64)
      .option('--exact', 'also time the same kernel over f16 alone')
      .option('--passes <n>', 'replays that count; the median is kept', integer('--passes', 1, 10000), 9)
      .option('--results <file>', 'write everything there as JSON')
      .option('--markdown <file>', 'write a table there'),
  ).action((flags: AttentionFlags) => attention(flags, run));
}

async function attention(flags: AttentionFlags, run: Run): Promise<void> {
  const { CONTEXTS, SMALL, parseContexts, parseHeadDim, parseHeads } = await import(
    '../../../bench/attention/cases.js'
  );
  const contexts = flags.contexts === undefined ? undefined : parseContexts(flags.contexts);
  const heads = flags.heads === undefined ? undefined : parseHeads(flags.heads);
  const dim = flags.headDim === undefined ? undefined : parseHeadDim(flags.headDim);
  const { results, markdown, passes, tail } = flags;
  if (results !== undefined && results === markdown)
    throw new LpqError('LPQ_USAGE', `two results would be written to ${results}`, {
      got: results,
      expected: 'a file each',
    });
  const { refuseExisting } = await import('../../../formats/directory/place.js');
  for (const file of [results, markdown]) if (file !== undefined) refuseExisting(file);
  const wishes = await parseWishes(flags);
  await schemesOf(wishes, dim ?? 64); // what is none is refused before a device is opened
  const rt = openRuntime(run, flags);
  const cpu = rt.device === 'cpu';
  const headDim = dim ?? (cpu ? 64 : 128);
  const { benchAttention } = await import('../../../bench/attention/run.js');
  let task: ReturnType<typeof run.report.task> | undefined;
  const bench = await benchAttention(
    rt,
    {
      schemes: await schemesOf(wishes, headDim),
      contexts: contexts ?? (cpu ? SMALL : CONTEXTS),
      heads: heads ?? [cpu ? { heads: 4, kvHeads: 2 } : { heads: 32, kvHeads: 8 }],
      headDim,
      tail,
      passes,
      exact: flags.exact ?? false,
      lpq: version(),
      processor: os.cpus()[0]?.model.trim() ?? os.arch(),
    },
    {
      check: () => run.interrupt.check(),
      onStep: (what, done, total) => {
        task ??= run.report.task('attention', total);
        task.update(done, what);
      },
      onRow: (row) => run.report.event('attention', row, `${row.name}: ${row.us.toFixed(1)} us`),
    },
  );
  task?.end();
  const { attentionMarkdown } = await import('../../../bench/attention/markdown.js');
  await write(results, () => `${JSON.stringify(bench, null, 1)}\n`);
  await write(markdown, () => attentionMarkdown(bench));
  await report(bench, run);
}

async function parseWishes({ kv, kvGranularity, kvGroup }: AttentionFlags): Promise<KvWish[]> {
  const { listed } = await import('../../../bench/attention/cases.js');
  const choice = <T extends string>(option: string, text: string, of: readonly T[]): T[] =>
    listed(option, text, String, (item) => {
      const found = of.find((each) => each === item);
      if (found !== undefined) return found;
      throw new LpqError('LPQ_USAGE', `${option} does not take '${item}'`, { got: item, expected: of.join(', ') });
    });
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

async function write(file: string | undefined, text: () => string): Promise<void> {
  if (file === undefined) return;
  const { writeFile } = await import('node:fs/promises');
  try {
    await writeFile(file, text(), { flag: 'wx' });
  } catch (cause) {
    throw new LpqError('LPQ_OUTPUT_WRITE', `${file} could not be written: ${(cause as Error).message}`, { cause });
  }
}

async function report(bench: AttentionBench, run: Run): Promise<void> {
  const { machine, rows } = bench;
  const { micro, percent, schemeText } = await import('../../../bench/attention/markdown.js');
  const { contextName, headsName } = await import('../../../bench/attention/cases.js');
  const cell = (value: number | null): string => (value === null ? '-' : value.toFixed(2));
  const line = (row: AttentionRow): string[] => [
    schemeText(row),
    contextName(row),
    headsName(row),
    micro(row.us),
    percent(row.copyShare),
    cell(row.halfFloorRatio),
    cell(row.exactRatio),
    cell(row.torchRatio),
    `${micro(row.append.us)} (${percent(row.append.share)})`,
    percent(row.pack.copyShare),
  ];
  run.report.result(
    { command: 'bench attention', ...bench },
    table(
      ['cache', 'contexts', 'heads', 'us', 'of copies', 'x f16 copied', 'x f16', 'x torch', 'append us', 'pack'],
      rows.map(line),
    ) +
      facts([
        ['device', machine.gpu ?? `${machine.processor}, ${machine.threads} threads`],
        ['copies', `${bytes(bench.copyBytesPerSecond)}/s read and written`],
        ['took', duration(bench.seconds)],
      ]),
  );
}
