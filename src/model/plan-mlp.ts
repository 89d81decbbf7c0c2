import type { ActivationName } from '../../native/ops.js';
import { type Config, positive } from './config.js';
import { normalQuantile } from './normal.js';
import type { BranchPlan, LinearPlan } from './plan.js';
import type { BlockParts } from './plan-attention.js';
import { countAt } from './plan-experts.js';
import type { MlpTable } from './tables/mlp.js';

export type Activation = ActivationName;

export interface GatedMlpPlan extends BranchPlan {
  readonly kind: 'gated';
  readonly gate: LinearPlan;
  readonly up: LinearPlan;
  readonly down: LinearPlan;
  readonly activation: Activation;
  /** Of what gate makes, that stays which is so many standard deviations above its mean, less that. */
  readonly deviations?: number;
  /** Multiplies what gate makes. */
  readonly gateScale?: number;
  /** Instead of the activation. */
  readonly clamped?: ClampedGate;
}

export interface ClampedGate {
  readonly alpha: number;
  readonly limit: number;
}

/** gateUp has the rows of gate, then those of up. */
export interface FusedMlpPlan extends BranchPlan {
  readonly kind: 'fused';
  readonly gateUp: LinearPlan;
  readonly down: LinearPlan;
  readonly activation: Activation;
  /** Instead of the activation. */
  readonly clamped?: ClampedGate;
}

export interface PlainMlpPlan extends BranchPlan {
  readonly kind: 'plain';
  readonly up: LinearPlan;
  readonly down: LinearPlan;
  readonly activation: Activation | XieluPlan;
}

/** Full names of the tensors of one element. */
export interface XieluPlan {
  readonly positive: string;
  readonly negative: string;
  readonly beta: string;
  readonly eps: string;
}

export type MlpPlan = GatedMlpPlan | FusedMlpPlan | PlainMlpPlan;

/** The MLP of one block; `shares`: it reads another's keys and values. Throws LPQ_CONFIG. */
export function mlpPlan(
  config: Config,
  table: MlpTable,
  hidden: number,
  activation: Activation | 'xielu',
  { prefix, index, layers, linear, branch, shares = false }: BlockParts & { shares?: boolean },
): MlpPlan {
  const doubled = shares && config.flag(table.doubledShared ?? false);
  const inner = (doubled ? 2 : 1) * innerSize(config, table, hidden, index);
  const bias = config.flag(table.bias);
  const into = (name: string, n = inner) => linear(prefix + name, n, hidden, bias);
  const down = linear(prefix + table.names.down, hidden, inner, bias);
  const [gateScale, outScale] = multipliersOf(config, table);
  const branched = branch(table.names);
  const around = { ...branched, multiplier: branched.multiplier * outScale, down };
  if (table.kind === 'plain') {
    const act = activation === 'xielu' ? xieluPlan(`${prefix}${table.names.xielu}`) : activation;
    return { kind: 'plain', up: into(table.names.up), ...around, activation: act };
  }
  const { clamp } = table;
  const clamped = clamp && { alpha: positive(config, clamp.alpha), limit: positive(config, clamp.limit) };
  const common = { ...around, activation: activation as Activation, ...(clamped && { clamped }) };
  if (table.kind === 'fused') return { kind: 'fused', gateUp: into(table.names.gateUp, 2 * inner), ...common };
  const deviations = deviationsOf(config, table, index, layers);
  const gated = { kind: 'gated' as const, gate: into(table.names.gate), up: into(table.names.up), ...common };
  return {
    ...gated,
    ...(deviations !== undefined && { deviations }),
    ...(gateScale !== 1 && { gateScale }),
  };
}

function multipliersOf(config: Config, { multipliers }: MlpTable): readonly [gate: number, output: number] {
  const pair = multipliers === undefined ? [] : config.list(multipliers, 'number');
  if (pair.length === 0) return [1, 1];
  const [gate, output] = pair;
  if (gate !== undefined && output !== undefined && pair.length === 2) return [gate, output];
  throw config.error(
    multipliers as string,
    'is not a pair of numbers',
    pair.length,
    'the multipliers of gate and output',
  );
}

/** How many standard deviations above the mean the cutoff of a block's sparsity lies; undefined where nothing is cut. */
function deviationsOf(config: Config, { sparsity }: MlpTable, index: number, layers: number): number | undefined {
  if (!sparsity) return undefined;
  const { list, otherwise, blocks } = sparsity;
  const shares = config.list(list, 'number');
  const share = config.find(list) ? shares[index] : layers > blocks && index < blocks ? otherwise : 0;
  if (share === undefined || shares.length > layers || !(share >= 0 && share < 1))
    throw config.error(
      list,
      `has no share for block ${index}`,
      share ?? `${shares.length} entries`,
      `${layers} numbers from 0 to below 1`,
    );
  return share === 0 ? undefined : normalQuantile(share);
}

function innerSize(
  config: Config,
  { intermediate, widening, adjusted }: MlpTable,
  hidden: number,
  index: number,
): number {
  const stated = countAt(config, intermediate, index, undefined, widening && widening * hidden);
  if (!adjusted || !config.flag(adjusted.enabled)) return stated;
  const multiple = positive(config, adjusted.multiple);
  const scaled = Math.trunc(positive(config, adjusted.times) * Math.trunc((2 * stated) / 3));
  return multiple * Math.ceil(scaled / multiple);
}

function xieluPlan(module: string): XieluPlan {
  const [positive, negative] = [`${module}.alpha_p`, `${module}.alpha_n`];
  return { positive, negative, beta: `${module}.beta`, eps: `${module}.eps` };
}

/** Names of transformers' ACT2FN. */
const ACTIVATIONS: Readonly<Record<string, Activation>> = {
  silu: 'silu',
  swish: 'silu',
  gelu: 'gelu',
  gelu_python: 'gelu',
  gelu_new: 'gelu_tanh',
  gelu_fast: 'gelu_tanh',
  gelu_pytorch_tanh: 'gelu_tanh',
  gelu_python_tanh: 'gelu_tanh',
  gelu_accurate: 'gelu_tanh',
  quick_gelu: 'quick_gelu',
  relu: 'relu',
  relu2: 'relu2',
  sigmoid: 'sigmoid',
};

/** xielu where the table says where its parameters are. Throws LPQ_CONFIG for a name that is not known. */
export function activationOf(config: Config, table: MlpTable): Activation | 'xielu' {
  const { keys, otherwise } = table.activation;
  const name = config.text(keys, otherwise);
  if (name === 'xielu' && table.kind === 'plain' && table.names.xielu !== undefined) return name;
  const activation = Object.hasOwn(ACTIVATIONS, name) ? ACTIVATIONS[name] : undefined;
  if (activation) return activation;
  throw config.error(
    config.find(...keys)?.key ?? (keys[0] as string),
    'is an activation that lpq does not know',
    name,
    Object.keys(ACTIVATIONS).join(', '),
  );
}
