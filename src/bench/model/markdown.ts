import type { ModelBench, ModelRow } from './schema.js';

/** The rows of a benchmark as tables: one of prompts, one of decode steps. */
export function modelMarkdown({
  shape,
  blocks,
  measuredBlocks,
  machine,
  rows,
  leftOut,
  activations,
}: ModelBench): string {
  const part = measuredBlocks < blocks ? `, ${measuredBlocks} of ${blocks} blocks measured` : '';
  const dense = (row: ModelRow) =>
    rows.find((each) => each.weights === 'dense' && each.kv === 16 && same(each, row))?.ms;
  const lines = (phase: ModelRow['phase']) =>
    rows
      .filter((row) => row.phase === phase)
      .map((row) => {
        const base = dense(row);
        const share = (value: number) => `${Math.round(100 * value)}`;
        return `| ${row.weights} | ${row.kv} | ${row.m} | ${row.context} | ${row.ms.toFixed(3)} | ${row.tokensPerSecond.toFixed(0)} | ${base === undefined ? '' : (base / row.ms).toFixed(2)} | ${share(row.shares.products)} | ${share(row.shares.attention)} | ${share(row.shares.rest)} | ${(row.weightBytes / 1e9).toFixed(2)} | ${(row.cacheBytes / 1e9).toFixed(2)} |`;
      });
  const head = [
    '| weights | KV bits | M | context | ms | tokens/s | x dense | products % | attention % | rest % | weights GB | cache GB |',
    '|---|---|---|---|---|---|---|---|---|---|---|---|',
  ];
  const tables = (['prefill', 'decode'] as const).flatMap((phase) => {
    const own = lines(phase);
    return own.length === 0 ? [] : ['', phase === 'prefill' ? 'Prompts:' : 'Decode steps:', '', ...head, ...own];
  });
  return [
    `${shape}${part}, activations ${activations}, ${machine.gpu ?? machine.processor}.`,
    ...tables,
    ...(leftOut.length > 0 ? ['', `Not measured, for want of memory: ${leftOut.join('; ')}.`] : []),
    '',
  ].join('\n');
}

function same(a: ModelRow, b: ModelRow): boolean {
  return a.phase === b.phase && a.m === b.m && a.context === b.context;
}
