/** What an artifact for a target may consist of. Tables of the verifier's own. */
export interface TargetFacts {
  /** Layouts of packed modules. */
  readonly layouts: readonly string[];
  /** How a module that the target cannot pack is left. */
  readonly left: 'dense' | 'carried';
  /** Files that are made for it beside config.json, lpq.json and the shards. */
  readonly files: readonly string[];
  /** Whose quantization_config it has. */
  readonly config: 'gptq' | 'awq' | 'compressed-tensors' | 'lpq';
}

const MIRROR = ['quantize_config.json'];
const own = (...layouts: string[]): TargetFacts => ({ layouts, left: 'carried', files: [], config: 'lpq' });

const TARGETS: ReadonlyMap<string, TargetFacts> = new Map([
  ['gptq', { layouts: ['gptq'], left: 'dense', files: MIRROR, config: 'gptq' }],
  ['gptq_v2', { layouts: ['gptq_v2'], left: 'dense', files: MIRROR, config: 'gptq' }],
  ['awq', { layouts: ['awq'], left: 'dense', files: MIRROR, config: 'awq' }],
  [
    'compressed-tensors',
    {
      layouts: ['compressed-tensors', 'float-quantized', 'nvfp4-pack-quantized', 'mxfp4-pack-quantized'],
      left: 'dense',
      files: [],
      config: 'compressed-tensors',
    },
  ],
  [
    'compressed-tensors-w8a8',
    { layouts: ['int-quantized', 'float-quantized'], left: 'dense', files: [], config: 'compressed-tensors' },
  ],
  ...['marlin', 'sparse_marlin', 'turbomind', 'turbomind_sm70', 'tilus', 'comet'].map(
    (name) => [name, own(name)] as const,
  ),
  ...['sm80', 'sm86'].map((name) => [name, own('marlin', 'turbomind', 'tilus')] as const),
  ...['sm89', 'sm90'].map((name) => [name, own('tilus')] as const),
] as const);

/** Undefined for a name that is none of lpq's targets of safetensors. */
export function targetFacts(name: string): TargetFacts | undefined {
  return TARGETS.get(name);
}

/** The scheme of a cache that an artifact for the target has, of the one that its quantized checkpoint has. */
export function cacheOf<Scheme extends object>(kv: Scheme | undefined, target: string): Scheme | undefined {
  if (target.startsWith('gguf')) return undefined;
  // W4Ax simulates a cache where its activations are codes, and nowhere else.
  return kv && ('form' in kv || target === 'comet') ? kv : undefined;
}
