// Fills the tables of docs/comparison.md that were measured, from bench/results: node scripts/comparison.mjs.
import { fileURLToPath } from 'node:url';
import { cardFigures } from './card-figures.mjs';
import { fill, fillFile } from './figures.mjs';
import { cardPeers, memoryOf, peers, perplexityOf, secondsOf, sizeOf } from './peer-cells.mjs';

const MODELS = [
  ['smollm2', 'SmolLM2-135M'],
  ['tiny-llama', 'a trained Llama of 4 blocks (share/tiny-llama)'],
  ['tiny-qwen3-moe', 'a trained mixture of 8 experts, 4 blocks'],
];
const WIDTHS = [4, 3, 2];

function quality(found, model, title) {
  const rows = found.tools.flatMap(([tool, label]) => {
    const cells = WIDTHS.map((bits) => found.cell(model, bits, tool));
    if (cells.every((cell) => cell === undefined)) return [];
    const parts = cells.flatMap((cell) => [
      ...[secondsOf(cell), memoryOf(cell), sizeOf(cell)],
      cell?.failed ? 'fails' : perplexityOf(cell),
    ]);
    return [`| ${[label, ...parts].join(' | ')} |`];
  });
  if (rows.length === 0) return [];
  const heads = WIDTHS.flatMap((bits) => [`W${bits}: s`, 'GB', 'MB', 'perplexity']);
  return ['', `**${title}**`, '', `| ${['', ...heads].join(' | ')} |`, `|${'-|'.repeat(13)}`, ...rows];
}

/** Time and memory alone. */
function large(found) {
  const rows = found.tools.flatMap(([tool, label]) =>
    ['llama-1b', 'llama-1b-two-blocks'].flatMap((model) => {
      const cell = found.cell(model, 4, tool);
      return cell ? [`| ${[label, secondsOf(cell), memoryOf(cell)].join(' | ')} |`] : [];
    }),
  );
  if (rows.length === 0) return [];
  const title = '**A Llama of 1B parameters, random weights, W4** (extrapolated: from 2 of 16 blocks; their memory)';
  return ['', title, '', '| | s | GB |', '|-|-|-|', ...rows];
}

/** What stands between the marks. */
export function figures() {
  const found = peers();
  if (!found) return '';
  const { processor, threads } = found.machine;
  return [
    '',
    `All on one machine, one after the other, ${found.bothOrders ? 'in both orders' : 'in turns'} (${processor}, ${threads} threads; \`bench/results/${found.file}\`):`,
    '',
    ...found.versions.map((version) => `- ${version}`),
    ...MODELS.flatMap(([model, title]) => quality(found, model, title)),
    ...large(found),
    ...cardFigures(cardPeers()),
    '',
  ].join('\n');
}

/** docs/comparison.md with the tables as they should be. */
export const filled = (text) => fill(text, 'scripts/comparison.mjs', figures());

if (process.argv[1] === fileURLToPath(import.meta.url)) fillFile('docs/comparison.md', filled);
