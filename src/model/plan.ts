import type { Architecture, AttentionTable, GatedMlpTable } from './architecture.js';
import { Config } from './config.js';
import { type ExpertsPlan, expertsPlan, expertsRule } from './plan-experts.js';
import { type MlaPlan, mlaPlanner } from './plan-mla.js';
import { type RopeSpec, ropeSpec } from './rope.js';

/** A model with every question answered: architecture table + config.json, in numbers and full names. */
export interface ModelPlan {
  readonly architecture: string;
  readonly hidden: number;
  readonly vocab: number;
  readonly embedding: string;
  readonly finalNorm: NormPlan;
  readonly head: LinearPlan;
  readonly tied: boolean;
  readonly blocks: readonly BlockPlan[];
}

export interface BlockPlan {
  readonly attention: AttentionPlan | MlaPlan;
  readonly mlp: GatedMlpPlan | ExpertsPlan;
}

/** RMS norm over rows of `size`. `weight` is a full tensor name. */
export interface NormPlan {
  readonly weight: string;
  readonly size: number;
  readonly epsilon: number;
}

/** The norm of a module path; `size` is the model's unless given. */
export type NormMaker = (name: string, size?: number) => NormPlan;

/** A linear layer N x K; its tensors are NAME.weight and, with `bias`, NAME.bias. */
export interface LinearPlan {
  readonly name: string;
  readonly n: number;
  readonly k: number;
  readonly bias: boolean;
}

export interface AttentionPlan {
  readonly kind: 'attention';
  readonly norm: NormPlan;
  readonly q: LinearPlan;
  readonly k: LinearPlan;
  readonly v: LinearPlan;
  readonly o: LinearPlan;
  readonly qNorm: NormPlan | undefined;
  readonly kNorm: NormPlan | undefined;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Multiplies q kᵀ. */
  readonly scale: number;
  /** Tokens seen, the own one included; 0 without a window. */
  readonly window: number;
  /** Full name of the tensor [heads] of sinks. */
  readonly sinks?: string;
  readonly rope: RopeSpec;
}

export type Activation = 'silu' | 'gelu' | 'gelu_tanh';

export interface GatedMlpPlan {
  readonly kind: 'gated';
  readonly norm: NormPlan;
  readonly gate: LinearPlan;
  readonly up: LinearPlan;
  readonly down: LinearPlan;
  readonly activation: Activation;
}

/** Far beyond any model: a config that says more is damaged, and must not keep the planner busy for hours. */
const MOST_BLOCKS = 4096;

/** Resolves a table against a config.json. Throws LPQ_CONFIG naming the key. */
export function planModel(table: Architecture, raw: Readonly<Record<string, unknown>>, dir: string): ModelPlan {
  const config = new Config(raw, `${dir}/config.json`);
  const hidden = config.count(['hidden_size']);
  const vocab = config.count(['vocab_size']);
  const layers = config.count(['num_hidden_layers'], undefined, 1, MOST_BLOCKS);
  const epsilon = settingNumber(config, table.norm.epsilon);
  const norm: NormMaker = (name, size = hidden) => ({ weight: `${name}.weight`, size, epsilon });
  const activation = activationOf(config, table.mlp.activation.keys, table.mlp.activation.otherwise);
  const attention = table.mla
    ? mlaPlanner(config, table.mla, table.attention.rope.theta, hidden, norm)
    : attentionPlanner(config, table.attention, hidden, norm);
  const sparse = table.experts && expertsRule(config, table.experts);
  const blocks = Array.from({ length: layers }, (_, index): BlockPlan => {
    const prefix = table.names.block.replace('{layer}', String(index));
    const mlp =
      table.experts && sparse?.(index)
        ? expertsPlan(config, table.experts, prefix, hidden, norm(prefix + table.mlp.names.norm), activation)
        : gatedPlan(config, table.mlp, prefix, hidden, norm(prefix + table.mlp.names.norm), activation);
    return { attention: attention(prefix, index, layers), mlp };
  });
  const tied = config.flag(table.tied);
  return {
    architecture: table.modelType,
    hidden,
    vocab,
    embedding: `${table.names.embedding}.weight`,
    finalNorm: norm(table.names.finalNorm),
    head: { name: tied ? table.names.embedding : table.names.head, n: vocab, k: hidden, bias: false },
    tied,
    blocks,
  };
}

function attentionPlanner(
  config: Config,
  table: AttentionTable,
  hidden: number,
  norm: NormMaker,
): (prefix: string, index: number, layers: number) => AttentionPlan {
  const heads = config.count(['num_attention_heads']);
  const kvHeads = config.count(['num_key_value_heads'], heads);
  if (heads % kvHeads !== 0)
    throw config.error('num_key_value_heads', 'does not divide num_attention_heads', kvHeads, `a divisor of ${heads}`);
  const headDim = config.count(['head_dim'], table.headDim === 'hidden/heads' ? hidden / heads : table.headDim);
  const rope = ropeSpec(config, table.rope, headDim);
  const { names } = table;
  return (prefix, index, layers) => {
    const linear = (name: string, n: number, k: number, bias: boolean): LinearPlan => ({
      name: prefix + name,
      n,
      k,
      bias,
    });
    return {
      kind: 'attention',
      norm: norm(prefix + names.norm),
      q: linear(names.q, heads * headDim, hidden, config.flag(table.bias.q)),
      k: linear(names.k, kvHeads * headDim, hidden, config.flag(table.bias.k)),
      v: linear(names.v, kvHeads * headDim, hidden, config.flag(table.bias.v)),
      o: linear(names.o, hidden, heads * headDim, config.flag(table.bias.o)),
      qNorm: names.qNorm === undefined ? undefined : norm(prefix + names.qNorm, headDim),
      kNorm: names.kNorm === undefined ? undefined : norm(prefix + names.kNorm, headDim),
      heads,
      kvHeads,
      headDim,
      scale: 1 / Math.sqrt(headDim),
      window: windowOf(config, table, index, layers),
      ...(names.sinks !== undefined && { sinks: prefix + names.sinks }),
      rope,
    };
  };
}

function windowOf(config: Config, table: AttentionTable, index: number, layers: number): number {
  const { window } = table;
  if (!config.flag(window.enabled)) return 0;
  const size = config.has('sliding_window') ? config.count(['sliding_window'], 0, 0) : (window.otherwise ?? 0);
  const types = window.layerTypes ? config.list('layer_types', 'string') : [];
  if (types.length === 0 && window.alternateUpTo !== undefined)
    return index % 2 === 0 && index < settingNumber(config, window.alternateUpTo) ? size : 0;
  if (types.length === 0) return index >= settingNumber(config, window.fullBlocks) ? size : 0;
  const type = types[index];
  if (types.length !== layers || (type !== 'sliding_attention' && type !== 'full_attention'))
    throw config.error(
      'layer_types',
      `does not say what block ${index} is`,
      type ?? `${types.length} entries`,
      `${layers} entries, each sliding_attention or full_attention`,
    );
  return type === 'sliding_attention' ? size : 0;
}

function gatedPlan(
  config: Config,
  table: GatedMlpTable,
  prefix: string,
  hidden: number,
  norm: NormPlan,
  activation: Activation,
): GatedMlpPlan {
  const inner = config.count(table.intermediate);
  const bias = config.flag(table.bias);
  const linear = (name: string, n: number, k: number): LinearPlan => ({ name: prefix + name, n, k, bias });
  return {
    kind: 'gated',
    norm,
    gate: linear(table.names.gate, inner, hidden),
    up: linear(table.names.up, inner, hidden),
    down: linear(table.names.down, hidden, inner),
    activation,
  };
}

const ACTIVATIONS: Readonly<Record<string, Activation>> = {
  silu: 'silu',
  swish: 'silu',
  gelu: 'gelu',
  gelu_new: 'gelu_tanh',
  gelu_fast: 'gelu_tanh',
  gelu_pytorch_tanh: 'gelu_tanh',
};

function activationOf(config: Config, keys: readonly string[], otherwise: string): Activation {
  const name = config.text(keys, otherwise);
  const activation = Object.hasOwn(ACTIVATIONS, name) ? ACTIVATIONS[name] : undefined;
  if (activation) return activation;
  throw config.error(
    keys[0] as string,
    'is an activation that lpq does not know',
    name,
    Object.keys(ACTIVATIONS).join(', '),
  );
}

export function settingNumber(config: Config, setting: Architecture['norm']['epsilon']): number {
  return typeof setting === 'number' ? setting : config.number(setting.keys, setting.otherwise);
}
