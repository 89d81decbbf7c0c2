import { existsSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { type ErrorFacts, LpqError } from '../../src/core/error.js';
import { Patterns } from '../../src/core/patterns.js';
import { readRegularText } from '../directory/read-file.js';

/** What lpq reads of adapter_config.json, as PEFT writes it. */
const adapterSchema = z.looseObject({
  peft_type: z.literal('LORA'),
  r: z.int().positive(),
  lora_alpha: z.number(),
  use_rslora: z.boolean().default(false),
  use_dora: z.boolean().default(false),
  lora_bias: z.boolean().default(false),
  fan_in_fan_out: z.boolean().default(false),
  init_lora_weights: z.union([z.boolean(), z.string()]).default(true),
  target_modules: z.union([z.string(), z.array(z.string()).min(1)]).nullish(),
  modules_to_save: z.array(z.string()).nullish(),
  rank_pattern: z.record(z.string(), z.int().positive()).nullish(),
  alpha_pattern: z.record(z.string(), z.number()).nullish(),
  base_model_name_or_path: z.string().nullish(),
});
export type AdapterConfig = z.infer<typeof adapterSchema>;

/** Initialisations that take the adapter's first state out of the base model's weights: merged into those as they are, it would be wrong. */
const CHANGES_BASE = /^(pissa|olora|corda|loftq)/i;

/** Settings that mean something else than W + s B A, and that are empty or false in plain adapters. */
const REFUSED: Readonly<Record<string, string>> = {
  target_parameters: 'it adapts parameters that are not separate linears, such as experts that share a tensor',
  layer_replication: 'it repeats blocks of the model',
  trainable_token_indices: 'it replaces single rows of the embedding',
  alora_invocation_tokens: 'it is active only from certain tokens on',
  use_qalora: 'it pools inputs',
  use_bdlora: 'it is cut into diagonal blocks',
  monteclora_config: 'it is sampled',
};

/** Throws LPQ_LORA about an adapter. */
export function badAdapter(dir: string, problem: string, facts: ErrorFacts = {}): never {
  throw new LpqError('LPQ_LORA', `the adapter ${dir} cannot be merged: ${problem}`, facts);
}

/** Reads DIR/adapter_config.json. Throws LPQ_LORA for an adapter that is none of PEFT's LoRA, or does more than it. */
export function readAdapterConfig(dir: string): AdapterConfig {
  const file = path.join(dir, 'adapter_config.json');
  if (!existsSync(file))
    badAdapter(dir, 'there is no adapter_config.json', { hint: 'Give the directory that PEFT saved the adapter in.' });
  let value: unknown;
  try {
    value = JSON.parse(readRegularText(file));
  } catch (cause) {
    badAdapter(dir, `adapter_config.json cannot be read: ${(cause as Error).message}`, { cause });
  }
  const type = (value as { peft_type?: unknown } | null)?.peft_type;
  if (type !== 'LORA') badAdapter(dir, 'it is not a LoRA', { got: type ?? 'none', expected: 'LORA' });
  const parsed = adapterSchema.safeParse(value);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    badAdapter(dir, `adapter_config.json is malformed at /${issue?.path.join('/')}: ${issue?.message}`);
  }
  const config = parsed.data;
  for (const [key, why] of Object.entries(REFUSED)) if (isSet(config[key])) badAdapter(dir, why, { got: key });
  if (typeof config.init_lora_weights === 'string' && CHANGES_BASE.test(config.init_lora_weights))
    badAdapter(dir, 'its initialisation changes the weights of the base model', {
      got: `init_lora_weights ${config.init_lora_weights}`,
      hint: 'Save it with PEFT as a plain LoRA (path_initial_model_for_weight_conversion), or merge it with PEFT.',
    });
  if (config.lora_bias)
    badAdapter(dir, 'it adapts biases', { got: 'lora_bias', hint: 'Merge it with PEFT (merge_and_unload) first.' });
  return config;
}

function isSet(value: unknown): boolean {
  if (value === undefined || value === null || value === false) return false;
  return typeof value !== 'object' || Object.keys(value).length > 0;
}

/** The rank that a module should have, and what its B A is multiplied by: lora_alpha / r, or lora_alpha / sqrt(r) of rsLoRA (arXiv 2312.03732). */
export class Scaling {
  private readonly ranks: readonly [Patterns, readonly number[]];
  private readonly alphas: readonly [Patterns, readonly number[]];

  constructor(
    dir: string,
    private readonly config: AdapterConfig,
  ) {
    this.ranks = listed(`${dir}/adapter_config.json: rank_pattern`, config.rank_pattern);
    this.alphas = listed(`${dir}/adapter_config.json: alpha_pattern`, config.alpha_pattern);
  }

  rank(module: string): number {
    return first(this.ranks, module) ?? this.config.r;
  }

  factor(module: string): number {
    const rank = this.rank(module);
    const alpha = first(this.alphas, module) ?? this.config.lora_alpha;
    return alpha / (this.config.use_rslora ? Math.sqrt(rank) : rank);
  }
}

/** As PEFT matches them: the whole name, or its end behind a point. */
function listed(
  place: string,
  pattern: Readonly<Record<string, number>> | null | undefined,
): readonly [Patterns, readonly number[]] {
  const keys = Object.keys(pattern ?? {});
  const sources = keys.map((key) => `(?:.*\\.)?(?:${key})$`);
  return [new Patterns(place, sources), keys.map((key) => (pattern as Record<string, number>)[key] as number)];
}

function first([patterns, values]: readonly [Patterns, readonly number[]], module: string): number | undefined {
  return values[patterns.first(module)];
}

/** Whether the adapter's settings say that a module is adapted, as PEFT decides it. Embeddings and linears alike. */
export function targets(dir: string, config: AdapterConfig): (module: string) => boolean {
  const { target_modules: wanted } = config;
  if (wanted === null || wanted === undefined || wanted === 'all-linear') return () => true;
  if (typeof wanted !== 'string')
    return (module) => wanted.some((each) => module === each || module.endsWith(`.${each}`));
  const pattern = new Patterns(`${dir}/adapter_config.json: target_modules`, [`(?:${wanted})$`]);
  return (module) => pattern.first(module) >= 0;
}
