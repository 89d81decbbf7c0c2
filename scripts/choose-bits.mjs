// Fills the tables of docs/choose-bits.md from bench/results: node scripts/choose-bits.mjs.
import { fileURLToPath } from 'node:url';
import { fill, fillFile, result } from './figures.mjs';

const QUALITY = '2026-11-21-cpu-quality.json';
const TUNED = '2026-11-26-cpu-tune.json';
const SIZES = '2026-11-21-h200-quantize.json';
const ACTIVATIONS = '2026-11-21-cpu-fmpq.json';
/** Rows of the table of weights, best first: the name in QUALITY and the flags that make it. */
const ROWS = [
  ['W8 g128 sym', '--bits 8'],
  ['W4 g128 sym', '--bits 4'],
  ['W4 channel sym', '--bits 4 --group-size channel'],
  ['W3 g32 sym', '--bits 3 --group-size 32'],
  ['W3 g128 sym', '--bits 3'],
  ['W2 g32 sym', '--bits 2 --group-size 32'],
  ['W2 g64 sym', '--bits 2 --group-size 64'],
];

const signed = (share) => {
  const percent = Math.abs(100 * share).toFixed(1);
  return percent === '0.0' ? 'none' : `${share < 0 ? '−' : '+'}${percent} %`;
};

/** Bits per weight with an f16 scale for each group; of a whole row of 4096. */
function stored(row) {
  const [, bits, group] = /W(\d) (?:g(\d+)|channel)/.exec(row);
  return Number(bits) + 16 / Number(group ?? 4096);
}

/** Bytes of Llama-3-8B at so many bits per weight: on the line through the measured sizes at 4.125 and at 16 bits. */
function sizeOf(bits) {
  const run = result(SIZES).runs.find(({ shape, blocks }) => shape === 'llama-3-8b' && blocks === 32);
  const { bytes, bitsPerWeight } = run.output;
  return bytes + ((bits - bitsPerWeight) * (run.source.bytes - bytes)) / (16 - bitsPerWeight);
}

function weights() {
  const { sourcePpl, gptq, rtn } = result(QUALITY);
  const tuned = result(TUNED).rows.find(({ steps }) => steps > 0);
  const cells = (flags, bits, ppl, rounded) =>
    `| \`${flags}\` | ${bits.toFixed(3)} | ${(sizeOf(bits) / 1e9).toFixed(1)} GB | ${ppl.toFixed(2)} | ${signed(ppl / sourcePpl - 1)} | ${rounded?.toFixed(2) ?? ''} |`;
  const lines = ROWS.map(([row, flags]) => {
    const of = (table) => table.find((each) => each.row === row).ppl;
    return cells(flags, stored(row), of(gptq), of(rtn));
  });
  lines.push(cells(`--bits 2 --group-size 64 --tune ${tuned.steps}`, stored('W2 g64 sym'), tuned.perplexity));
  return [
    '| options | bits per weight | Llama-3-8B | perplexity | loss | with `--method rtn` |',
    '|---|---|---|---|---|---|',
    `| 16 bits | 16 | ${(sizeOf(16) / 1e9).toFixed(1)} GB | ${sourcePpl.toFixed(2)} | | |`,
    ...lines,
  ].join('\n');
}

function activations() {
  const rows = result(ACTIVATIONS).runs.flatMap(({ factor, overrides, results }) =>
    factor === 1 && Object.keys(overrides).length === 0 ? results : [],
  );
  const NAMES = [
    ['W8A8', '8-bit weights and activations'],
    ['W4A8', '4-bit weights, 8-bit activations'],
    ['0.83 swap', '4-bit weights, 4-bit activations in 83 % of the multiplications, else 8'],
    ['1 swap', '4-bit weights and activations'],
  ];
  const lines = NAMES.map(([row, says]) => {
    const { excess } = rows.find((each) => each.row === row);
    return `| ${says} | ${signed(Math.exp(excess) - 1)} |`;
  });
  return ['| weights and activations | loss |', '|---|---|', ...lines].join('\n');
}

/** docs/choose-bits.md with the tables as they should be. */
export const filled = (text) =>
  fill(fill(text, 'scripts/choose-bits.mjs', weights()), 'scripts/choose-bits.mjs activations', activations());

if (process.argv[1] === fileURLToPath(import.meta.url)) fillFile('docs/choose-bits.md', filled);
