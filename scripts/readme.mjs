// Fills the table of figures in README.md from bench/results: node scripts/readme.mjs. A figure whose file is not there is left out.
import { fileURLToPath } from 'node:url';
import { fill, fillFile, result } from './figures.mjs';
import {
  cardPeers,
  costOf,
  DOLLARS_AN_HOUR,
  deviceOf,
  largest,
  memoryOf,
  PART,
  peers,
  perplexityOf,
  secondsOf,
  WHOLE,
  wholeSeconds,
} from './peer-cells.mjs';

/** Rows of the table: what was measured, lpq's figure, the one beside it, the machine, the file. */
const ROWS = [
  {
    file: '2026-11-29-h200-rows-alone.json',
    machine: 'NVIDIA H200',
    rows({ results }) {
      const run = results.find((each) => each.run === 'one device');
      const memory = (run.peak.device / 1e9).toFixed(1);
      return [['GPTQ of Llama-3-8B, 4 bits, 128 × 2048 tokens', `${run.seconds.toFixed(1)} s, ${memory} GB`, '']];
    },
  },
  {
    file: '2026-11-21-cpu-quality.json',
    machine: 'any CPU',
    rows({ sourcePpl, gptq }) {
      return ['W4 g128 sym', 'W3 g128 sym', 'W2 g64 sym'].map((name) => {
        const { ppl, reference } = gptq.find(({ row }) => row === name);
        const [, bits, group] = /W(\d) g(\d+)/.exec(name);
        return [
          `perplexity of a small Llama, ${bits} bits, groups of ${group}`,
          ppl.toFixed(2),
          `the original GPTQ code, run elsewhere, ${reference.toFixed(2)}; 16 bits ${sourcePpl.toFixed(2)}`,
        ];
      });
    },
  },
  {
    file: '2026-11-23-h200-model.json',
    machine: 'NVIDIA H200',
    rows({ runs }) {
      const all = runs
        .flatMap(({ rows }) => rows)
        .filter(({ phase, kv, context }) => phase !== 'prefill' && kv === 16 && context === 1024);
      const ms = (weights, m) => all.find((row) => row.weights === weights && row.m === m).ms.toFixed(2);
      return [1, 16, 64].map((m) => [
        `one decoding step of Llama-3-8B with lpq's kernels, 4 bits, ${m === 1 ? 'one sequence' : `${m} sequences`}`,
        `${ms('u4', m)} ms`,
        `16 bits with cuBLAS ${ms('dense', m)} ms`,
      ]);
    },
  },
  {
    file: '2026-11-25-h100-kernels-in-turns.json',
    machine: 'NVIDIA H100',
    rows({ rows }) {
      const table = rows.filter((row) => row.type === 'u4' && row.x === 'f16' && row.peer_us);
      const shapes = new Set(table.map((row) => row.KxN));
      const mean = (m, of) => {
        const values = table.filter((row) => row.m === m).map((row) => Math.log(row[of] / row.us));
        return Math.exp(values.reduce((sum, value) => sum + value, 0) / values.length).toFixed(2);
      };
      return [16, 64, 128].map((m) => [
        `speedup over cuBLAS fp16: 4-bit weights, ${m} tokens, ${shapes.size} shapes`,
        mean(m, 'cublas_us'),
        `the best of CUTLASS, Machete and Marlin ${(mean(m, 'cublas_us') / mean(m, 'peer_us')).toFixed(2)}`,
      ]);
    },
  },
];

/** Peers on SmolLM2, beside lpq as it is without options. */
const PEERS = ['gptqmodel', 'llmcompressor', 'autoround-200', 'autoround-50'];

function peerRows() {
  const found = peers();
  if (!found) return [];
  const row = (what, bits, shown) => {
    const own = found.cell('smollm2', bits, 'lpq');
    const others = PEERS.flatMap((tool) => {
      const cell = found.cell('smollm2', bits, tool);
      return cell && shown(cell) ? [`${found.label(tool)} ${shown(cell)}`] : [];
    });
    const cells = [`${what} of SmolLM2-135M, ${bits} bits, groups of 64`, shown(own ?? {}), others.join('; ')];
    const last = [`CPU, ${found.machine.threads} threads`, `[file](bench/results/${found.file})`];
    return own && shown(own) ? [`| ${[...cells, ...last].join(' | ')} |`] : [];
  };
  return [
    ...row('quantization', 4, (cell) => (cell.seconds ? `${secondsOf(cell)} s, ${memoryOf(cell)} GB` : '')),
    ...[4, 3, 2].flatMap((bits) => row('perplexity', bits, perplexityOf)),
  ];
}

/** A row for what solves and one for what trains: the 8B model of a card, whole where each tool has that, else two of its blocks. */
export function cardRows(found) {
  const whole = (tool) => found && largest(found, WHOLE, 4, tool);
  const part = (tool) => found?.cell(PART, 4, tool);
  const row = (what, own, others) => {
    const all = [own, ...others].every((tool) => whole(tool) || !part(tool));
    const of = all ? whole : part;
    const mine = of(own);
    if (!mine || mine.failed) return [];
    const seconds = (cell) =>
      cell.extrapolatedFrom ? `${wholeSeconds(cell).toFixed(0)} s (extrapolated)` : `${cell.seconds.toFixed(0)} s`;
    const shown = (cell) => [seconds(cell), `${deviceOf(cell)} GB`, ...(all ? [costOf(cell)] : [])].join(', ');
    const rest = others.flatMap((tool) => {
      const cell = of(tool);
      return cell ? [`${found.label(tool)} ${cell.failed ? 'fails' : shown(cell)}`] : [];
    });
    const price = all ? `, at $${DOLLARS_AN_HOUR.toFixed(2)} an hour` : '';
    const cells = [`${what} of ${all ? '' : 'two blocks of '}the shape of Llama-3-8B, 4 bits${price}`, shown(mine)];
    return [`| ${[...cells, rest.join('; '), found.machine.gpu, `[file](bench/results/${found.file})`].join(' | ')} |`];
  };
  return [
    ...row('GPTQ', 'lpq', ['gptqmodel', 'llmcompressor']),
    ...row('trained rounding, 200 steps,', 'lpq-tune200', ['autoround-200']),
  ];
}

/** The table, from the files that are there. */
export function figures() {
  const lines = ROWS.flatMap(({ file, machine, rows }) => {
    const data = result(file);
    return data
      ? rows(data).map((cells) => `| ${[...cells, machine, `[file](bench/results/${file})`].join(' | ')} |`)
      : [];
  });
  return [
    '| measured | lpq | compared with | machine | |',
    '|---|---|---|---|---|',
    ...lines,
    ...peerRows(),
    ...cardRows(cardPeers()),
  ].join('\n');
}

/** README.md with the table as it should be. */
export const filled = (text) => fill(text, 'scripts/readme.mjs', figures());

if (process.argv[1] === fileURLToPath(import.meta.url)) fillFile('README.md', filled);
