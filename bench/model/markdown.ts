import { markdownTable, page } from '../markdown.js';
import type { ModelBench, ModelRow } from './schema.js';

const SHARES = ['products', 'attention', 'rest'] as const;
const percent = (share: number): string => `${Math.round(100 * share)}`;
const gigabytes = (bytes: number): string => (bytes / 1e9).toFixed(2);

/** Steps of one kind as a table; `all`: among which those of 16 bits are, with which each is compared. */
export function stepTable(phase: ModelRow['phase'], all: readonly ModelRow[]): [head: string[], body: string[][]] {
  const head = [
    ...['weights', 'KV bits', 'step', 'M', 'context', phase === 'prefill' ? 'ms to first token' : 'ms', 'tokens/s'],
    ...['x dense', ...SHARES.map((kind) => `${kind} %`), 'weights GB', 'cache GB', 'memory GB'],
  ];
  const body = all.flatMap((row) => {
    if (row.phase !== phase) return [];
    const base = all.find((each) => each.weights === 'dense' && each.kv === 16 && same(each, row))?.ms;
    return [
      [
        ...[...stepName(row), row.ms.toFixed(3), row.tokensPerSecond.toFixed(0)],
        base === undefined ? '' : (base / row.ms).toFixed(2),
        ...SHARES.map((kind) => percent(row.shares[kind])),
        ...[row.weightBytes, row.cacheBytes, row.memoryBytes].map(gigabytes),
      ],
    ];
  });
  return [head, body];
}

/** The rows of a benchmark as tables: of prompts, of decode steps, and of what each is spent on. */
export function modelMarkdown(bench: ModelBench): string {
  const { shape, blocks, measuredBlocks, machine, rows, leftOut, activations, int4Share } = bench;
  const part = measuredBlocks < blocks ? `, ${measuredBlocks} of ${blocks} blocks measured` : '';
  const mixed = rows.some(({ weights }) => weights.startsWith('w4ax'));
  const share = mixed ? ` (of w4ax ${percent(int4Share)} % of the blocks in 4 bits)` : '';
  return page([
    `${shape}${part}, activations ${activations}${share}, ${machine.gpu ?? machine.processor}.`,
    ...(['prefill', 'decode'] as const).flatMap((phase) => {
      const [head, body] = stepTable(phase, rows);
      return body.length === 0 ? [] : [phase === 'prefill' ? 'Prompts:' : 'Decode steps:', markdownTable(head, body)];
    }),
    ...(rows.length === 0 ? [] : ['Of which each operation takes:', spending(rows)]),
    leftOut.length > 0 ? `Not measured, because memory is short: ${leftOut.join('; ')}.` : '',
  ]);
}

/** Operations that take a hundredth and more, the largest first. */
function spending(rows: readonly ModelRow[]): string {
  return markdownTable(
    ['weights', 'KV bits', 'step', 'M', 'context', '%'],
    rows.map((row) => {
      const named = Object.entries(row.kernels).filter(([, share]) => share >= 0.01);
      return [...stepName(row), named.map(([op, share]) => `${op} ${percent(share)}`).join(', ')];
    }),
  );
}

const stepName = ({ weights, kv, phase, m, context }: ModelRow) => [weights, `${kv}`, phase, `${m}`, `${context}`];

function same(a: ModelRow, b: ModelRow): boolean {
  return a.phase === b.phase && a.m === b.m && a.context === b.context;
}
