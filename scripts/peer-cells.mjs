// Cells of bench/peers as pages show them.
import { newest, result } from './figures.mjs';

const FILE = '2026-11-29-cpu-peers.json';
/** Of a card: the newest such result; none is there until one is measured. */
const CARD = /^\d{4}-\d\d-\d\d-h[12]00-peers\.json$/;
/** Our assumption, not an offer: dollars for an hour of such a card, whatever the memory. */
export const DOLLARS_AN_HOUR = 3.5;

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

/** What was measured on a CPU; undefined if nothing was. */
export const peers = () => found(FILE, result(FILE));

/** What was measured on a card; undefined if nothing was. */
export function cardPeers() {
  const file = newest(CARD);
  return file && found(file, result(file));
}

/** A result with its cells by model, width and tool. */
export function found(file, data) {
  if (!data) return undefined;
  const cells = new Map(data.cells.map((cell) => [cell.name, cell]));
  const labels = new Map(TOOLS);
  return {
    file,
    machine: data.machine,
    without: data.without,
    /** What of it ran elsewhere. */
    also: data.also,
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
  if (transformers === undefined) return typeof lpq === 'number' ? number(lpq) : '-';
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

/** GB of a device beyond those before. */
export const deviceOf = ({ deviceBytes } = {}) => (deviceBytes === undefined ? '' : (deviceBytes / 1e9).toFixed(1));

/** The seconds of a whole model, measured or extrapolated. */
export const wholeSeconds = ({ seconds, extrapolatedSeconds } = {}) => extrapolatedSeconds ?? seconds;

/** What a whole model costs at DOLLARS_AN_HOUR. */
export const costOf = (cell) =>
  wholeSeconds(cell) === undefined ? '' : `$${((wholeSeconds(cell) * DOLLARS_AN_HOUR) / 3600).toFixed(2)}`;

/** The 8B model of a card, from the cell that tells most of the whole to the one that tells least. */
export const WHOLE = ['llama-8b', 'llama-8b-four-blocks'];
/** Two of its blocks: the seconds of the processes. Sixteen times as many would count what comes once sixteen times. */
export const PART = 'llama-8b-two-blocks';

/** Of a model of many blocks, the first cell that has seconds, of those from the whole to the fewest blocks; else one that failed. */
export function largest(of, models, bits, tool) {
  const cells = models.map((model) => of.cell(model, bits, tool));
  return cells.find((cell) => wholeSeconds(cell) !== undefined) ?? cells.find((cell) => cell?.failed);
}
