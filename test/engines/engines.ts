import { FORMATS, type Format } from './cells.js';

/** The engines, and which directories each is given. */

export interface Engine {
  readonly name: string;
  /** Of test/engines. */
  readonly driver: string;
  /** Arguments of the driver behind its files. */
  readonly modules?: readonly string[];
  /** A folder of build, and the variable that names another Python. */
  readonly environment: string;
  readonly variable: string;
  /** The wheel of python/ is on its path. */
  readonly plugin: boolean;
  readonly env?: Readonly<Record<string, string>>;
  /** What it computes in whatever a format says; int8: inputs of linears are rounded to 8 bits a block of them. */
  readonly dtype?: 'bfloat16' | 'float32' | 'int8';
  readonly targets: RegExp;
  /** Perplexities are compared, too: of a text, or of the prompt where blocks are floats. */
  readonly perplexity?: boolean;
  /** Formats whose outcome is that of processors with AVX-512, or of those without: compared on one of the same kind. */
  readonly ofProcessor?: RegExp;
}

const NOT_GGUF = /^(?!gguf)/;
const OWN = /^(sm\d|marlin|tilus|turbomind|comet)/;
const vllm = { driver: 'drive_vllm.py', environment: 'engines/vllm', variable: 'LPQ_VLLM_PYTHON' };
const transformers = {
  driver: 'drive_transformers.py',
  environment: 'consumers',
  variable: 'LPQ_CONSUMERS_PYTHON',
  dtype: 'float32',
} as const;

export const ENGINES: readonly Engine[] = [
  {
    ...vllm,
    name: 'vLLM 0.32',
    plugin: false,
    dtype: 'bfloat16',
    targets: NOT_GGUF,
    ofProcessor: /^4 bits(?!.*gptq_v2).*(gptq|awq|compressed)/,
  },
  {
    ...vllm,
    name: 'vLLM 0.32 with lpq_kernels',
    plugin: true,
    // So that 4 bits run in lpq's kernel, too.
    env: { VLLM_DISABLED_KERNELS: 'CPUWNA16LinearKernel' },
    targets: NOT_GGUF,
  },
  { ...transformers, name: 'transformers 5.18', plugin: false, targets: /^compressed-tensors/ },
  {
    ...transformers,
    name: 'transformers 5.18 with lpq_kernels',
    plugin: true,
    modules: ['lpq_kernels.transformers'],
    targets: OWN,
  },
  {
    name: 'GPTQModel 7.7',
    driver: 'drive_gptqmodel.py',
    environment: 'engines/gptqmodel',
    variable: 'LPQ_GPTQMODEL_PYTHON',
    plugin: false,
    dtype: 'bfloat16',
    targets: /^(gptq|awq)/,
  },
  {
    name: 'llama.cpp 11434',
    driver: 'drive_llama.py',
    environment: 'engines/llama',
    variable: 'LPQ_LLAMA_PYTHON',
    plugin: false,
    dtype: 'int8',
    targets: /^gguf/,
    perplexity: true,
  },
];

/** What an engine is given. Damage is for those that open lpq's own directories. */
export function formatsOf(engine: Engine): readonly Format[] {
  return FORMATS.filter(
    ({ target, damage, engines }) =>
      engine.targets.test(target) && (engine.plugin || !damage) && (engines?.test(engine.name) ?? true),
  );
}
