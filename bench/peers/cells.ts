import path from 'node:path';

/** Blocks of a large model that slow methods take: the rest is extrapolated. */
const FEW_BLOCKS = 2;
/** And more of them: the line through both has no part in what is done once. */
const MORE_BLOCKS = 4;

/** Where cells run: on the CPU, or on the first CUDA device. */
export type Place = 'cpu' | 'cuda';

/** A model to quantize, the text that all samples come from, and the text that perplexity is read on. */
export interface Model {
  readonly name: string;
  /** Where it lies; undefined: made of random weights in a shape, of which nothing but time and memory is measured. */
  readonly dir?: string;
  readonly shape?: string;
  readonly samples: number;
  readonly length: number;
  /** Methods that run on it: those that solve, those that train, llama.cpp's types. */
  readonly methods: readonly ('solved' | 'trained' | 'llama.cpp')[];
  readonly blocks: number;
  /** Of how many blocks the whole has: seconds are extrapolated to them. */
  readonly of?: number;
  readonly calib: string;
  readonly text?: { readonly file: string; readonly bytes: number };
  readonly bits: readonly number[];
}

/** One run of one tool on one model. */
export interface Cell {
  readonly name: string;
  readonly model: Model;
  readonly tool: string;
  readonly bits: number;
  /** Of the tool: arguments of lpq, steps, a type of llama.cpp. */
  readonly args: readonly string[];
}

/** In a group one scale; the same for all tools and widths. llama.cpp's types have their own. */
export const GROUP = 64;
/** Of models with a text: tokens of a sample, and of a window of perplexity. */
export const LENGTH = 512;

/** The checkpoints, from the folder of shared data and of SmolLM2 (undefined: no cells of it). */
export function models(root: string, shared: string, smollm2: string | undefined, place: Place = 'cpu'): Model[] {
  const text = (name: string) => path.join(shared, 'text', name);
  const books = { calib: text('books-calibration.txt'), text: { file: text('books-valid.txt'), bytes: 200_000 } };
  const web = { calib: text('c4-sample.txt'), text: { file: text('wikitext2-test.txt'), bytes: 60_000 } };
  const all = ['solved', 'trained', 'llama.cpp'] as const;
  const small = { bits: [4, 3, 2], samples: 64, length: LENGTH, methods: all };
  const large = { bits: [4], calib: books.calib };
  const short = { shape: 'llama-3.2-1b', samples: 64, length: LENGTH, ...large };
  const long = { shape: 'llama-3-8b', samples: 128, length: 2048, ...large };
  const onPlace: Record<Place, readonly Model[]> = {
    cpu: [
      { name: 'llama-1b', blocks: 16, methods: ['solved', 'llama.cpp'], ...short },
      { name: 'llama-1b-two-blocks', blocks: FEW_BLOCKS, of: 16, methods: ['trained'], ...short },
    ],
    cuda: [
      { name: 'llama-8b', blocks: 32, methods: ['solved'], ...long },
      { name: 'llama-8b-two-blocks', blocks: FEW_BLOCKS, of: 32, methods: ['solved', 'trained'], ...long },
      { name: 'llama-8b-four-blocks', blocks: MORE_BLOCKS, of: 32, methods: ['solved', 'trained'], ...long },
    ],
  };
  return [
    { name: 'tiny-llama', dir: path.join(root, 'share', 'tiny-llama'), blocks: 4, ...small, ...books },
    { name: 'tiny-qwen3-moe', dir: path.join(shared, 'models', 'tiny-qwen3-moe'), blocks: 4, ...small, ...books },
    ...(smollm2 ? [{ name: 'smollm2', dir: smollm2, blocks: 30, ...small, ...web }] : []),
    ...onPlace[place],
  ];
}

/** Steps of a trained method: 200 for what is small, for SmolLM2 in 4 bits and for a device's large model, else 50. */
const stepsOf = ({ name }: Model, bits: number) =>
  name.startsWith('tiny') || name.startsWith('llama-8b') || (name === 'smollm2' && bits === 4) ? 200 : 50;

/** llama.cpp's types of about so many bits. */
const TYPES: Readonly<Record<number, readonly string[]>> = { 4: ['Q4_0', 'Q4_K_S'], 3: ['Q3_K_S'], 2: ['Q2_K'] };

/** Every cell, in the order of a round. */
export function allCells(list: readonly Model[]): Cell[] {
  return list.flatMap((model) => model.bits.flatMap((bits) => cellsOf(model, bits)));
}

function cellsOf(model: Model, bits: number): Cell[] {
  const steps = String(stepsOf(model, bits));
  const cell = (label: string, tool: string, args: readonly string[]): Cell => ({
    name: `${model.name}-w${bits}-${label}`,
    model,
    tool,
    bits,
    args,
  });
  const trained = () => [
    ...(steps === '200' ? ['50', '200'] : ['50']).map((n) => cell(`lpq-tune${n}`, 'lpq', ['--tune', n])),
    cell(`autoround-${steps}`, 'autoround', [steps]),
  ];
  const solved = () => [
    cell('lpq', 'lpq', []),
    cell('lpq-plain', 'lpq', ['--order', 'none', '--gptaq', '0']),
    cell('gptqmodel', 'gptqmodel', []),
    cell('llmcompressor', 'llmcompressor', []),
  ];
  const types = () => (TYPES[bits] ?? []).map((type) => cell(`llama.cpp-${type.toLowerCase()}`, 'llama.cpp', [type]));
  const made = { solved, 'llama.cpp': types, trained };
  return (['solved', 'llama.cpp', 'trained'] as const).flatMap((method) =>
    model.methods.includes(method) ? made[method]() : [],
  );
}
