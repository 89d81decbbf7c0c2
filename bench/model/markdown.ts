import type { ModelBench, ModelRow } from './schema.js';

/** The rows of a benchmark as tables: of prompts, of decode steps, and of what each is spent on. */
export function modelMarkdown(bench: ModelBench): string {
  const { shape, blocks, measuredBlocks, machine, rows, leftOut, activations } = bench;
  const part = measuredBlocks < blocks ? `, ${measuredBlocks} of ${blocks} blocks measured` : '';
  const tables = (['prefill', 'decode'] as const).flatMap((phase) => {
    const own = rows.filter((row) => row.phase === phase);
    if (own.length === 0) return [];
    const ms = phase === 'prefill' ? 'ms to first token' : 'ms';
    const titles = [
      'weights',
      'KV bits',
      'M',
      'context',
      ms,
      'tokens/s',
      'x dense',
      ...SHARES.map((kind) => `${kind} %`),
    ];
    return [
      ...['', phase === 'prefill' ? 'Prompts:' : 'Decode steps:', ''],
      ...head([...titles, 'weights GB', 'cache GB', 'memory GB']),
      ...own.map((row) => line(cells(row, rows))),
    ];
  });
  return [
    `${shape}${part}, activations ${activations}${ofBlocks(bench)}, ${machine.gpu ?? machine.processor}.`,
    ...tables,
    ...(rows.length === 0 ? [] : spending(rows)),
    ...(leftOut.length > 0 ? ['', `Not measured, for want of memory: ${leftOut.join('; ')}.`] : []),
    '',
  ].join('\n');
}

const SHARES = ['products', 'attention', 'rest'] as const;
const percent = (share: number): string => `${Math.round(100 * share)}`;
const gigabytes = (bytes: number): string => (bytes / 1e9).toFixed(2);
const line = (parts: readonly string[]): string => `| ${parts.join(' | ')} |`;
const head = (titles: readonly string[]): string[] => [line(titles), `|${titles.map(() => '---|').join('')}`];

function ofBlocks({ rows, int4Share }: ModelBench): string {
  return rows.some(({ weights }) => weights === 'w4ax')
    ? ` (of w4ax ${percent(int4Share)} % of the blocks in 4 bits)`
    : '';
}

function cells(row: ModelRow, rows: readonly ModelRow[]): string[] {
  const base = rows.find((each) => each.weights === 'dense' && each.kv === 16 && same(each, row))?.ms;
  return [
    ...[row.weights, `${row.kv}`, `${row.m}`, `${row.context}`, row.ms.toFixed(3), row.tokensPerSecond.toFixed(0)],
    base === undefined ? '' : (base / row.ms).toFixed(2),
    ...SHARES.map((kind) => percent(row.shares[kind])),
    ...[row.weightBytes, row.cacheBytes, row.memoryBytes].map(gigabytes),
  ];
}

/** Operations that take a hundredth and more, the largest first. */
function spending(rows: readonly ModelRow[]): string[] {
  return [
    ...['', 'Of which each operation takes:', ''],
    ...head(['weights', 'KV bits', 'step', 'M', 'context', '%']),
    ...rows.map((row) => {
      const named = Object.entries(row.kernels).filter(([, share]) => share >= 0.01);
      const each = named.map(([op, share]) => `${op} ${percent(share)}`).join(', ');
      return line([row.weights, `${row.kv}`, row.phase, `${row.m}`, `${row.context}`, each]);
    }),
  ];
}

function same(a: ModelRow, b: ModelRow): boolean {
  return a.phase === b.phase && a.m === b.m && a.context === b.context;
}
