import { GGUF_MODELS } from './gguf-models.js';

/** The directories that engines are given, and what of an outcome is compared with lpq's own. */

/** The bundled model, and something beside its tensors. */
export type EditedModel = 'tiny-llama with biases' | 'tiny-llama with a head';

/** A model of random weights, made of a configuration of test/fixtures/architectures. */
export type RandomModel = `random ${string}`;

/** A checkpoint of test/fixtures/architectures as it is, which reads images, too. */
export type FixtureModel = `fixture ${string}`;

export interface Format {
  /** Unique; with the engine's name it is a cell of the table. */
  readonly name: string;
  readonly target: string;
  /** Of `lpq quantize`. */
  readonly options: readonly string[];
  /** Rules of a recipe beside them. */
  readonly rules?: readonly object[];
  /** Of `lpq pack`. */
  readonly packing?: readonly string[];
  /** vLLM compiles the model by torch.compile, as it does unless told otherwise. */
  readonly compiled?: boolean;
  /** What it is asked to compute in, where the engine takes no float32 for this format. */
  readonly dtype?: 'bfloat16';
  /** tiny-llama unless it says otherwise. */
  readonly model?: EditedModel | RandomModel | FixtureModel | 'tiny-qwen3-moe';
  /** Settings of a random model in the place of its fixture's. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** The directory is damaged after it was packed: cut short, a byte changed, a module of a type that there is none of. */
  readonly damage?: 'cut' | 'changed' | 'type';
  /** Only what `lpq verify` passes may be opened. */
  readonly verified?: boolean;
  /** Blocks of GGUF are decoded to f32, so that the engine rounds no inputs of theirs: experts are chosen by more than luck. */
  readonly floats?: boolean;
  /** llama.cpp computes flash attention. */
  readonly flash?: boolean;
  /** The engine looks GELU up in a table of f16; and how many blocks add up what is off, if more than 4. */
  readonly halves?: boolean;
  readonly blocks?: number;
  /** The engine rounds activations too, which `lpq logits` does not: it only has to run. */
  readonly rounds?: boolean;
  /** Inputs become codes, and a sum in another order turns some at a tie: most tokens are compared, not all. */
  readonly ties?: boolean;
  /** The engines that it is for, by name; all that take its target unless it says so. */
  readonly engines?: RegExp;
  /** Part of the tier of every commit. */
  readonly commit?: boolean;
}

const RTN = ['--method', 'rtn'];
// Scales in the model's bf16: vLLM rounds others to it.
const int = (bits: number, group: number, ...more: string[]) => [
  ...[...RTN, '--bits', String(bits), '--group-size', String(group), '--scale-dtype', 'bf16'],
  ...more,
];
const [W2, W3, W4, W8] = [int(2, 32), int(3, 64), int(4, 64), int(8, 128)];
const HEAD = int(4, 64, '--lm-head');
// A few windows: what matters is that some scales come out negative.
const GPTQ = [
  '--method',
  'gptq',
  '--bits',
  '4',
  '--group-size',
  '64',
  '--scale-dtype',
  'bf16',
  '--samples',
  '4',
  '--seq-len',
  '128',
];
const FMPQ = ['--method', 'fmpq', '--bits', '4', '--group-size', '128', '--samples', '4', '--seq-len', '128'];
const [W3A, W4A] = [int(3, 64, '--asym'), int(4, 64, '--asym')];
// Their kernels read f16 scales; vLLM computes in bf16, and rounds them to it.
const F16 = [...RTN, '--bits', '4', '--group-size', '64'];
const FP8 = [...RTN, '--dtype', 'f8e4m3'];
/** Types of blocks of llama.cpp. */
const ggml = (bits: number, group: string, ...more: string[]) => [
  ...[...RTN, '--bits', String(bits), '--group-size', group],
  ...more,
];
const RANDOM = ggml(4, '32');
/** Architectures beside Llama, which take vLLM minutes each to look at. */
const OTHERS = { engines: /^transformers/ };
const SEES = int(4, 32);
const VLLM = { engines: /^vLLM.*lpq/ };
const bfloat16 = { dtype: 'bfloat16' } as const;

export const FORMATS: readonly Format[] = [
  // First: vLLM makes the groups that experts need for the first model of a process only.
  { name: '3 bits, sm90, experts', target: 'sm90', options: W3, model: 'tiny-qwen3-moe' },
  { name: '3 bits, gptq, experts', target: 'gptq', options: W3, model: 'tiny-qwen3-moe' },
  // transformers unpacks experts in f16: test/consumers compares their weights.
  ...[W3, W4A].map((options) => ({
    ...{ name: `${options === W3 ? '3 bits' : '4 bits with zero points'}, compressed-tensors, experts`, options },
    ...{ target: 'compressed-tensors', model: 'tiny-qwen3-moe' as const, engines: /^vLLM/ },
  })),
  // Attention stays in 16 bits, since vLLM has no kernel for these weights on a CPU and would stop there.
  ...['compressed-tensors', 'compressed-tensors-w8a8'].map((target) => ({
    ...{ name: `FP8 weights${target.endsWith('a8') ? ' and activations' : ''} of experts, ${target}`, target },
    ...{
      options: FP8,
      rules: [{ match: 'self_attn', skip: true }],
      model: 'tiny-qwen3-moe' as const,
      engines: /^vLLM/,
    },
    ...{ rounds: true, ...bfloat16 },
  })),
  { name: '2 bits, gptq', target: 'gptq', options: W2 },
  { name: '3 bits, gptq', target: 'gptq', options: W3, commit: true },
  { name: '4 bits, gptq', target: 'gptq', options: W4, ...bfloat16, commit: true },
  { name: '8 bits, gptq', target: 'gptq', options: W8, ...bfloat16 },
  { name: '4 bits with zero points, gptq_v2', target: 'gptq_v2', options: W4A, commit: true },
  { name: '4 bits, awq', target: 'awq', options: W4, ...bfloat16 },
  { name: '4 bits with zero points, awq', target: 'awq', options: W4A, ...bfloat16 },
  { name: '2 bits, compressed-tensors', target: 'compressed-tensors', options: W2, commit: true },
  { name: '3 bits, compressed-tensors', target: 'compressed-tensors', options: W3 },
  { name: '3 bits with zero points, compressed-tensors', target: 'compressed-tensors', options: W3A },
  { name: '4 bits, compressed-tensors', target: 'compressed-tensors', options: W4, commit: true },
  { name: '8 bits, compressed-tensors', target: 'compressed-tensors', options: W8 },
  {
    name: '8-bit weights and activations, compressed-tensors',
    target: 'compressed-tensors-w8a8',
    options: [...RTN, '--bits', '8', '--group-size', 'channel', '--scale-dtype', 'bf16'],
    ...bfloat16,
    rounds: true,
  },
  ...['gptq', 'awq', 'compressed-tensors'].map((target) => ({
    ...{ name: `4 bits, f16 scales, ${target}`, target, options: F16, engines: /^vLLM/, ...bfloat16 },
  })),
  { name: '3 bits, sm90', target: 'sm90', options: W3, commit: true },
  { name: '3 bits, sm90, by torch.compile', target: 'sm90', options: W3, compiled: true, ...VLLM },
  { name: '3 bits, gptq, by torch.compile', target: 'gptq', options: W3, compiled: true, ...VLLM },
  { name: '3 bits, sm90, --tp 2', target: 'sm90', options: W3, packing: ['--tp', '2'], commit: true },
  { name: '3 bits, sm90, biases', target: 'sm90', options: W3, model: 'tiny-llama with biases' },
  { name: '3 bits, gptq, biases', target: 'gptq', options: W3, model: 'tiny-llama with biases' },
  { name: 'floats of 6 bits, sm89', target: 'sm89', options: [...RTN, '--dtype', 'f6e3m2', '--group-size', '128'] },
  { name: '4 bits, sm80', target: 'sm80', options: W4 },
  { name: '4 bits, marlin', target: 'marlin', options: F16 },
  { name: '2 bits, tilus', target: 'tilus', options: W2 },
  { name: '4 bits, turbomind', target: 'turbomind', options: F16 },
  { name: '4 bits, inputs of 4 and 8 bits, comet', target: 'comet', options: FMPQ, ties: true },
  { name: '4 bits and the head, gptq', target: 'gptq', options: HEAD, model: 'tiny-llama with a head', ...bfloat16 },
  { name: '4 bits and the head, awq', target: 'awq', options: HEAD, model: 'tiny-llama with a head', ...bfloat16 },
  {
    name: '4 bits and the head, compressed-tensors',
    target: 'compressed-tensors',
    options: HEAD,
    model: 'tiny-llama with a head',
  },
  { name: '4 bits and the head, sm90', target: 'sm90', options: HEAD, model: 'tiny-llama with a head' },
  { name: '4 bits by GPTQ, negative scales, gptq', target: 'gptq', options: GPTQ, ...bfloat16 },
  { name: '4 bits by GPTQ, negative scales, awq', target: 'awq', options: GPTQ, ...bfloat16 },
  { name: '4 bits by GPTQ, negative scales, compressed-tensors', target: 'compressed-tensors', options: GPTQ },
  { name: '3 bits, sm90, cut short', target: 'sm90', options: W3, damage: 'cut', commit: true },
  {
    name: '3 bits, sm90, a byte changed, hashes checked',
    target: 'sm90',
    options: W3,
    damage: 'changed',
    commit: true,
  },
  {
    name: '3 bits, sm90, a byte changed, verified first',
    target: 'sm90',
    options: W3,
    damage: 'changed',
    verified: true,
  },
  { name: '3 bits, sm90, a type that there is none of', target: 'sm90', options: W3, damage: 'type' },
  { name: '4 bits, sm80, Qwen3', target: 'sm80', options: RANDOM, model: 'random qwen3', ...OTHERS },
  { name: '4 bits, sm90, OLMo 2', target: 'sm90', options: RANDOM, model: 'random olmo2', ...OTHERS },
  { name: '4 bits, marlin, Qwen2', target: 'marlin', options: RANDOM, model: 'random qwen2', ...OTHERS },
  { name: '4 bits, sm90, Qwen3-VL', target: 'sm90', options: SEES, model: 'fixture qwen3_vl', ...OTHERS },
  ...[
    ['sm80', 'Mixtral', 'mixtral'],
    ['sm90', 'DeepSeek V3', 'deepseek_v3'],
    ['marlin', 'Granite MoE', 'granitemoe'],
    ['tilus', 'Qwen2-MoE', 'qwen2_moe'],
    ['sm90', 'GPT-OSS', 'gpt_oss'],
    ['sm90', 'GPT-2', 'gpt2'],
  ].map(([target, name, kind]) => ({
    ...{ name: `4 bits, ${target}, ${name}`, target: target!, options: target === 'marlin' ? RANDOM : SEES },
    ...{ model: `fixture ${kind}` as const, ...OTHERS },
  })),
  {
    name: '4 bits, compressed-tensors, Qwen3-VL',
    target: 'compressed-tensors',
    options: SEES,
    model: 'fixture qwen3_vl',
    ...OTHERS,
  },
  // Its linears are Conv1D, which GPTQModel reads, and no reader of the other formats.
  { name: '4 bits, gptq, GPT-2', target: 'gptq', options: SEES, model: 'fixture gpt2', engines: /^GPTQModel/ },
  { name: 'q4_0', target: 'gguf', options: ggml(4, '32'), commit: true },
  { name: 'q4_1', target: 'gguf', options: ggml(4, '32', '--asym') },
  { name: 'q5_0', target: 'gguf', options: ggml(5, '64') },
  { name: 'q5_1', target: 'gguf', options: ggml(5, '128', '--asym') },
  { name: 'q8_0', target: 'gguf', options: ggml(8, 'channel') },
  ...['q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k'].map((name) => ({
    ...{ name, target: `gguf-${name}`, options: ggml(8, '32') },
    ...(name === 'q4_k' ? { commit: true } : {}),
  })),
  { name: 'q8_0, experts', target: 'gguf', options: ggml(8, '32'), model: 'tiny-qwen3-moe' },
  ...Object.entries(GGUF_MODELS)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, { fixture = name, ...row }]) => ({
      ...{ name: `q8_0 as floats, ${name}`, target: 'gguf', options: ggml(8, '32') },
      ...{ model: `random ${fixture}` as const, floats: true, ...row },
    })),
];
