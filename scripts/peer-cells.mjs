// Cells of bench/peers as pages show them.
import { result } from './figures.mjs';

const FILE = '2026-11-27-cpu-peers.json';

/** Tools in the order of a table, by the end of a cell's name. */
const TOOLS = [
  ['lpq', 'lpq'],
  ['lpq-plain', 'lpq `--order none --gptaq 0`'],
  ['lpq-tune50', 'lpq `--tune 50`'],
  ['lpq-tune200', 'lpq `--tune 200`'],
  ['gptqmodel', 'GPT-QModel'],
  ['llmcompressor', 'LLM Compressor, GPTQ'],
  ['autoround-50', 'AutoRound, 50 steps'],
  ['autoround-200', 'AutoRound, 200 steps'],
  ['llama.cpp-q4_0', 'llama.cpp Q4_0'],
  ['llama.cpp-q4_k_s', 'llama.cpp Q4_K_S'],
  ['llama.cpp-q3_k_s', 'llama.cpp Q3_K_S'],
  ['llama.cpp-q2_k', 'llama.cpp Q2_K'],
];

/** The result with its cells by model, width and tool; undefined if nothing was measured. */
export function peers() {
  const data = result(FILE);
  if (!data) return undefined;
  const cells = new Map(data.cells.map((cell) => [cell.name, cell]));
  const labels = new Map(TOOLS);
  return {
    file: FILE,
    machine: data.machine,
    /** Whether every cell ran forwards and backwards. */
    bothOrders: data.cells.every(({ rounds, failed }) => failed || Object.keys(rounds).length > 1),
    versions: [...new Set(data.cells.map(({ version }) => version).filter(Boolean))],
    tools: TOOLS,
    label: (tool) => labels.get(tool),
    cell: (model, bits, tool) => cells.get(`${model}-w${bits}-${tool}`),
  };
}

const number = (value) => (value >= 1000 ? value.toFixed(0) : value >= 100 ? value.toFixed(1) : value.toFixed(2));

/** Perplexity as lpq reads it; as transformers does too, where that differs by a thousandth or more. */
export function perplexityOf({ perplexity } = {}) {
  if (!perplexity) return '';
  const { lpq, transformers } = perplexity;
  const shown = [lpq, transformers].map((value) => (typeof value === 'number' ? number(value) : '-'));
  const same = typeof lpq === 'number' && typeof transformers === 'number' && Math.abs(lpq / transformers - 1) < 1e-3;
  return same ? shown[0] : shown.join(' / ');
}

export function secondsOf({ seconds, extrapolatedSeconds } = {}) {
  if (extrapolatedSeconds !== undefined) return `${extrapolatedSeconds.toFixed(0)} (extrapolated)`;
  return seconds === undefined ? '' : seconds.toFixed(seconds < 10 ? 1 : 0);
}

/** MB of what was made. */
export const sizeOf = ({ bytes } = {}) => (bytes === undefined ? '' : (bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 1));

export const memoryOf = ({ peakBytes } = {}) => (peakBytes === undefined ? '' : (peakBytes / 1e9).toFixed(2));
