import { type Config, keyOf, positive, settingNumber } from './config.js';
import type { Activation, LinearPlan, NormPlan } from './plan.js';
import type { ExpertsApartPlan } from './plan-experts-apart.js';
import type { ExpertsTable, SharedExpertTable } from './tables/experts.js';

/** What follows gate and up: act(gate) * up, limited or not, act(up), or GPT-OSS's clamped gate. */
export type GatePlan =
  | { readonly kind: 'gated'; readonly activation: Activation }
  | { readonly kind: 'plain'; readonly activation: Activation }
  | { readonly kind: 'clamped'; readonly alpha: number; readonly limit: number }
  | { readonly kind: 'limited'; readonly limit: number };

export interface ExpertPlan {
  /** None: the activation is of what `up` makes. */
  readonly gate?: LinearPlan;
  readonly up: LinearPlan;
  readonly down: LinearPlan;
}

/** A mixture of experts, and the MLP beside it. */
export interface ExpertsPlan {
  readonly kind: 'experts';
  readonly norm: NormPlan;
  /** More rows than there are experts where some are idle: those hand on what they read. */
  readonly router: LinearPlan;
  readonly routing: RoutingPlan;
  readonly experts: readonly ExpertPlan[];
  readonly intermediate: number;
  readonly gate: GatePlan;
  readonly shared: SharedExpertPlan | undefined;
  /** Around the experts alone. */
  readonly latent?: { readonly into: LinearPlan; readonly back: LinearPlan };
  readonly apart?: ExpertsApartPlan;
}

/** The parameters of ops.routeTopK. */
export interface RoutingPlan {
  readonly perToken: number;
  readonly sigmoid: boolean;
  /** Roots of softpluses in the place of other shares; `table`: full name and shape of what names experts by the tokens' ids. */
  readonly root?: { readonly table?: { readonly name: string; readonly shape: readonly number[] } };
  readonly normalize: boolean;
  readonly scale: number;
  /** 1: experts are not grouped. */
  readonly groups: number;
  readonly topGroups: number;
  readonly topTwo: boolean;
  /** True: weights multiply the experts' inputs. */
  readonly weighInput: boolean;
  /** SparseMixer's, or 0. */
  readonly jitter: number;
  /** Full name and shape of the tensor of E numbers that is added when experts are chosen. */
  readonly bias: { readonly name: string; readonly shape: readonly number[] } | undefined;
}

/** The linears of an expert that read its input. */
export function expertInto({ gate, up, gateUp }: ExpertPlan & Partial<SharedExpertPlan>): LinearPlan[] {
  if (gateUp) return [gateUp];
  return gate ? [gate, up] : [up];
}

export interface SharedExpertPlan extends ExpertPlan {
  /** One linear of gate, then up, which are its parts: N of each, and the name of the whole. */
  readonly gateUp?: LinearPlan;
  /** Multiplies what it makes. */
  readonly multiplier: number;
  readonly intermediate: number;
  readonly outputGate: LinearPlan | undefined;
}

/** Far beyond any model: a config that says more is damaged, and must not keep the planner busy for hours. */
const MOST_EXPERTS = 4096;

/** Whether a block has experts, by its index. Throws LPQ_CONFIG. */
export function expertsRule(config: Config, table: ExpertsTable): (index: number) => boolean {
  const every = settingNumber(config, table.every);
  const dense = new Set(config.list(table.denseBlocks, 'number'));
  const first = settingNumber(config, table.firstDense ?? 0);
  const written = settingNumber(config, table.lastSparse ?? -1);
  const last = written === -1 ? Number.POSITIVE_INFINITY : written;
  const frequency = table.frequency === undefined ? 1 : config.count([table.frequency], 1);
  const sparse = table.sparseBlocks === undefined ? undefined : config.find(table.sparseBlocks);
  const chosen = sparse && new Set(config.list(sparse.key, 'number'));
  const types = table.blockTypes === undefined ? [] : config.list(table.blockTypes, 'string');
  const offset = table.offset === undefined ? every - 1 : settingNumber(config, table.offset);
  return (index) => {
    if (types.length > 0) return isSparse(config, table.blockTypes as string, types, index);
    if (chosen) return chosen.has(index);
    if (index < first || index > last || dense.has(index)) return false;
    return every > 0 && index % every === offset && index % frequency === 0;
  };
}

function isSparse(config: Config, key: string, types: readonly string[], index: number): boolean {
  const type = types[index];
  if (type === 'sparse' || type === 'dense') return type === 'sparse';
  throw config.error(key, `does not say what block ${index} is`, type ?? `${types.length} entries`, 'sparse or dense');
}

/** A count that a list may state block by block. */
export function countAt(
  config: Config,
  keys: readonly string[],
  index: number,
  most?: number,
  otherwise?: number,
): number {
  const found = config.find(...keys);
  if (!Array.isArray(found?.value)) return config.count(keys, otherwise, 1, most);
  const value = config.list(found.key, 'number')[index];
  if (Number.isSafeInteger(value) && value! >= 1 && value! <= (most ?? Number.MAX_SAFE_INTEGER)) return value!;
  throw config.error(found.key, `has no count for block ${index}`, value ?? null, 'a positive integer for each block');
}

/** The experts of the block whose names start with `prefix`. Throws LPQ_CONFIG naming the key. */
export function expertsPlan(
  config: Config,
  table: ExpertsTable,
  { prefix, index, multiplier }: { readonly prefix: string; readonly index: number; readonly multiplier: number },
  hidden: number,
  norm: NormPlan,
  activation: Activation,
): ExpertsPlan {
  const count = countAt(config, table.count, index, MOST_EXPERTS);
  const choices = count + idleExperts(config, table);
  const inner = countAt(config, table.intermediate, index);
  const { names } = table;
  const linear = (name: string, n: number, k: number, bias = false): LinearPlan => ({
    name: prefix + name,
    n,
    k,
    bias,
  });
  const bias = table.bias?.experts ?? false;
  const width = table.latent && config.find(table.latent.size) ? config.count([table.latent.size]) : undefined;
  const outer = width ?? hidden;
  const expert = (name: string, e: number, n: number, k: number) =>
    linear(name.replace('{expert}', String(e)), n, k, bias);
  return {
    kind: 'experts',
    norm,
    router: linear(names.router, choices, hidden, config.flag(table.bias?.router ?? false)),
    routing: routingPlan(config, table, choices, { prefix, index }, countAt(config, table.perToken, index), multiplier),
    experts: Array.from({ length: count }, (_, e) => ({
      ...(names.gate !== undefined && { gate: expert(names.gate, e, inner, outer) }),
      up: expert(names.up, e, inner, outer),
      down: expert(names.down, e, outer, inner),
    })),
    ...(table.latent &&
      width !== undefined && {
        latent: { into: linear(table.latent.into, width, hidden), back: linear(table.latent.back, hidden, width) },
      }),
    intermediate: inner,
    gate: gatePlan(config, table, activation),
    shared: table.shared && sharedPlan(config, table.shared, { inner, hidden, multiplier }, linear),
  };
}

/** Throws LPQ_CONFIG. */
function gatePlan(config: Config, { gate, limit, names }: ExpertsTable, activation: Activation): GatePlan {
  if (limit) return { kind: 'limited', limit: positive(config, limit) };
  if (gate) return { kind: 'clamped', alpha: positive(config, gate.alpha), limit: positive(config, gate.limit) };
  return { kind: names.gate === undefined ? 'plain' : 'gated', activation };
}

/** Throws LPQ_CONFIG. */
function idleExperts(config: Config, { idle = 0 }: ExpertsTable): number {
  return typeof idle === 'number' ? idle : config.count(idle.keys, idle.otherwise, 0, MOST_EXPERTS);
}

function routingPlan(
  config: Config,
  table: ExpertsTable,
  count: number,
  { prefix, index }: { readonly prefix: string; readonly index: number },
  perToken: number,
  multiplier: number,
): RoutingPlan {
  const { names, scoring = 'softmax' } = table;
  const kind = typeof scoring === 'string' ? scoring : config.text(scoring.keys, scoring.otherwise);
  if (kind !== 'softmax' && kind !== 'sigmoid' && kind !== 'sqrtsoftplus')
    throw config.error(keyOf(scoring), 'is an expert scoring that lpq does not know', kind, 'softmax or sigmoid');
  const hashed = table.hashed && isHashed(config, table.hashed, index);
  const { groups, topGroups, topTwo } = groupsOf(config, table, count);
  const open = (count / groups) * topGroups;
  if (perToken > open)
    throw config.error(
      config.find(...table.perToken)?.key ?? (table.perToken[0] as string),
      'exceeds the number of experts',
      perToken,
      groups > 1 ? `at most ${open}: ${topGroups} of ${groups} groups of ${count / groups}` : `at most ${open}`,
    );
  return {
    perToken,
    sigmoid: kind === 'sigmoid',
    ...(kind === 'sqrtsoftplus' && {
      root: hashed ? { table: hashTable(config, table.hashed!, prefix, perToken) } : {},
    }),
    normalize: config.flag(table.normalize),
    scale: multiplier * settingNumber(config, table.scale ?? 1),
    groups,
    topGroups,
    topTwo,
    weighInput: table.weighInput ?? false,
    jitter: settingNumber(config, table.jitter ?? 0),
    bias:
      names.choiceBias === undefined || hashed
        ? undefined
        : { name: prefix + names.choiceBias, shape: table.choiceBiasRow ? [1, count] : [count] },
  };
}

type Hashed = NonNullable<ExpertsTable['hashed']>;

function isHashed(config: Config, { list, type, others }: Hashed, index: number): boolean {
  const types = config.list(list, 'string');
  const found = types[index];
  if (found === type || (found !== undefined && others.includes(found))) return found === type;
  throw config.error(
    list,
    `does not say how block ${index} chooses experts`,
    found ?? `${types.length} entries`,
    [type, ...others].join(' or '),
  );
}

function hashTable(config: Config, { table }: Hashed, prefix: string, perToken: number) {
  return { name: prefix + table, shape: [config.count(['vocab_size']), perToken] };
}

function groupsOf(
  config: Config,
  table: ExpertsTable,
  count: number,
): { groups: number; topGroups: number; topTwo: boolean } {
  const none = { groups: 1, topGroups: 1, topTwo: false };
  if (!table.groups) return none;
  const { when, count: key, top, score } = table.groups;
  if (when) {
    const method = config.text([when.key], when.off);
    if (method === when.off) return none;
    if (method !== when.on)
      throw config.error(when.key, 'is an expert choice that lpq does not know', method, `${when.off} or ${when.on}`);
  }
  const groups = config.count([key], 1);
  if (groups === 1) return none;
  const topGroups = config.count([top], undefined, 1, groups);
  if (count % groups !== 0) throw config.error(key, 'does not divide the experts', groups, `a divisor of ${count}`);
  if (score === 'two best' && count / groups < 2)
    throw config.error(
      key,
      'leaves groups of one expert, whose two best are asked for',
      groups,
      `at most ${count / 2}`,
    );
  return { groups, topGroups, topTwo: score === 'two best' };
}

/** Undefined where the config asks for none. */
function sharedPlan(
  config: Config,
  table: SharedExpertTable,
  { inner: expertInner, hidden, multiplier }: Readonly<Record<'inner' | 'hidden' | 'multiplier', number>>,
  linear: (name: string, n: number, k: number) => LinearPlan,
): SharedExpertPlan | undefined {
  const { names, intermediate, outputGate } = table;
  const inner =
    'keys' in intermediate
      ? config.count(intermediate.keys, undefined, 0)
      : expertInner * settingNumber(config, intermediate.times);
  if (inner === 0) return undefined;
  const separate = 'gateUp' in names ? { gate: names.gateUp, up: names.gateUp } : names;
  return {
    ...(separate.gate !== undefined && { gate: linear(separate.gate, inner, hidden) }),
    up: linear(separate.up, inner, hidden),
    ...('gateUp' in names && { gateUp: linear(names.gateUp, 2 * inner, hidden) }),
    down: linear(names.down, hidden, inner),
    multiplier,
    intermediate: inner,
    outputGate: outputGate === undefined ? undefined : linear(outputGate, 1, hidden),
  };
}
