import type { Format } from '../cells.js';

/** What runs on a GPU: a row a cell of its record. */

export interface GpuCell extends Format {
  readonly group: 'standard' | 'plugin' | 'transformers';
  /** The wheel of python/ is on the path; vLLM's own kernels of packed integers are off. */
  readonly plugin?: boolean;
  /** Its row of the table of docs/engine-runs.md, where no directory of test/engines is the same. */
  readonly row?: string;
  /** Ranks, each with a card. */
  readonly ranks?: number;
  /** Also on a CPU, where there is no GPU: a smoke test of the driver. */
  readonly smoke?: boolean;
}

const RTN = ['--method', 'rtn'];
/** Scales in the model's bf16: vLLM rounds others to it. */
const int = (bits: number, group: string, ...more: string[]) => [
  ...[...RTN, '--bits', String(bits), '--group-size', group, '--scale-dtype', 'bf16'],
  ...more,
];
const float = (dtype: string, ...more: string[]) => [...RTN, '--dtype', dtype, ...more];
const [W3, W4, W8] = [int(3, '64'), int(4, '64'), int(8, '128')];
const W4A = int(4, '64', '--asym');
const W8A8 = int(8, 'channel');
const F16 = [...RTN, '--bits', '4', '--group-size', '64'];
const RANDOM = [...RTN, '--bits', '4', '--group-size', '32'];
const HEAD = int(4, '64', '--lm-head');
const UNTIED = { options: HEAD, model: 'tiny-llama with a head' } as const;
const MIXTURE = { model: 'tiny-qwen3-moe' } as const;

const own = { group: 'standard', dtype: 'bfloat16' } as const;
const plugin = { group: 'plugin', plugin: true, dtype: 'bfloat16' } as const;
const loaded = { group: 'transformers', dtype: 'bfloat16' } as const;

/** vLLM alone: what lpq writes in its formats. The head is tied unless a row says otherwise. */
const STANDARD: readonly GpuCell[] = [
  { name: 'gptq W4', target: 'gptq', options: W4, ...own, smoke: true },
  { name: 'gptq W8', target: 'gptq', options: W8, ...own },
  { name: 'awq W4', target: 'awq', options: W4, ...own },
  { name: 'awq W4 with zero points', target: 'awq', options: W4A, ...own },
  { name: 'compressed-tensors W4', target: 'compressed-tensors', options: W4, ...own, smoke: true },
  {
    name: 'compressed-tensors W4 with zero points',
    row: '4 bits with zero points, compressed-tensors',
    target: 'compressed-tensors',
    options: W4A,
    ...own,
  },
  { name: 'compressed-tensors W8', target: 'compressed-tensors', options: W8, ...own },
  { name: 'compressed-tensors W8A8', target: 'compressed-tensors-w8a8', options: W8A8, rounds: true, ...own },
  {
    name: 'compressed-tensors FP8',
    row: 'FP8 weights, compressed-tensors',
    target: 'compressed-tensors',
    options: float('f8e4m3'),
    ...own,
  },
  {
    ...{ name: 'compressed-tensors FP8 with activations', target: 'compressed-tensors-w8a8' },
    ...{ row: 'FP8 weights and activations, compressed-tensors-w8a8' },
    ...{ options: float('f8e4m3'), rounds: true, ...own },
  },
  {
    name: 'compressed-tensors NVFP4',
    row: 'NVFP4, compressed-tensors',
    target: 'compressed-tensors',
    options: float('nvfp4'),
    ...own,
  },
  {
    name: 'compressed-tensors MXFP4',
    row: 'MXFP4, compressed-tensors',
    target: 'compressed-tensors',
    options: float('mxfp4'),
    ...own,
  },
  { name: 'gptq W4 and the head', target: 'gptq', ...UNTIED, ...own },
  // No row of awq: vLLM 0.25.1 ends on a packed head, "'ParallelLMHead' object has no attribute 'output_size'".
  { name: 'compressed-tensors W4 and the head', target: 'compressed-tensors', ...UNTIED, ...own },
  { name: 'gptq W4, experts', row: '4 bits, gptq, experts', target: 'gptq', options: W4, ...MIXTURE, ...own },
  { name: 'awq W4, experts', row: '4 bits, awq, experts', target: 'awq', options: W4, ...MIXTURE, ...own },
  {
    name: 'compressed-tensors W4, experts',
    row: '4 bits, compressed-tensors, experts',
    target: 'compressed-tensors',
    options: W4,
    ...MIXTURE,
    ...own,
  },
  { name: 'gptq W4, two ranks', target: 'gptq', options: W4, ranks: 2, ...own },
  { name: 'compressed-tensors W4, two ranks', target: 'compressed-tensors', options: W4, ranks: 2, ...own },
];

/** The plugin both ways: standard checkpoints under lpq's kernel, and lpq's artifacts; eager, and as vLLM serves, with graphs and compiled. */
const BOTH: readonly (GpuCell & { readonly alsoCompiled?: boolean })[] = [
  { name: 'gptq W4', target: 'gptq', options: W4, ...plugin, alsoCompiled: true },
  { name: 'gptq W3', target: 'gptq', options: W3, ...plugin, smoke: true, alsoCompiled: true },
  { name: 'awq W4 with zero points', target: 'awq', options: W4A, ...plugin },
  { name: 'compressed-tensors W3', target: 'compressed-tensors', options: W3, ...plugin },
  { name: 'compressed-tensors W4 and the head', target: 'compressed-tensors', ...UNTIED, ...plugin },
  { name: 'W3, sm90', target: 'sm90', options: W3, ...plugin, smoke: true, alsoCompiled: true },
  { name: 'W4, marlin', target: 'marlin', options: F16, ...plugin },
  { name: 'W4, turbomind', target: 'turbomind', options: F16, ...plugin },
  { name: 'W4 and the head, sm90', target: 'sm90', ...UNTIED, ...plugin, alsoCompiled: true },
  {
    name: 'W4, sm90, experts',
    row: '4 bits, sm90, experts',
    target: 'sm90',
    options: W4,
    ...MIXTURE,
    ...plugin,
    alsoCompiled: true,
  },
];
const PLUGIN: readonly GpuCell[] = [
  ...BOTH.map((cell) => ({ ...cell, name: `lpq: ${cell.name}` })),
  ...BOTH.filter(({ alsoCompiled }) => alsoCompiled).map((cell) => ({
    ...{ ...cell, name: `lpq: ${cell.name}, compiled`, compiled: true, smoke: false },
  })),
  { name: 'lpq: W3, sm90, two ranks', target: 'sm90', options: W3, ranks: 2, ...plugin },
];

/** transformers with the package: six artifacts of three architectures. */
const TRANSFORMERS: readonly GpuCell[] = [
  { name: 'transformers: W3, sm90', target: 'sm90', options: W3, ...loaded, smoke: true },
  { name: 'transformers: W4, marlin', target: 'marlin', options: F16, ...loaded },
  { name: 'transformers: W4, turbomind', target: 'turbomind', options: F16, ...loaded },
  {
    name: 'transformers: W4, sm90, Qwen3-MoE',
    row: '4 bits, sm90, experts',
    target: 'sm90',
    options: W4,
    ...MIXTURE,
    ...loaded,
  },
  { name: 'transformers: W4, sm80, Qwen3', target: 'sm80', options: RANDOM, model: 'random qwen3', ...loaded },
  { name: 'transformers: W4, sm90, OLMo 2', target: 'sm90', options: RANDOM, model: 'random olmo2', ...loaded },
];

export const GPU_CELLS: readonly GpuCell[] = [...STANDARD, ...PLUGIN, ...TRANSFORMERS];
