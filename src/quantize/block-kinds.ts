import type { BlockPlan, ModelPlan } from '../model/plan.js';
import type { Block, ModelGraph } from '../model/program.js';
import { blockProducts } from './estimate-time.js';
import { linearsOf } from './linears.js';
import { printScheme, type QuantScheme } from './scheme.js';

/** What a block costs beside others of its model. */
export interface BlockCost {
  /** Blocks that compute the same on other weights have the same. */
  readonly kind: string;
  /** Products of a token with its weights, or how many there are; 0: nothing is done. */
  readonly products: number;
  /** Whether any of its modules is quantized. */
  readonly quantized: boolean;
}

/** Kinds that a trial measures; those of fewer products are scaled from others. */
const MOST_KINDS = 4;
/** Of all products, what a kind must have to be measured. */
const LEAST_SHARE = 0.02;
/** Blocks of a trial where the model has as many: the first has one-time costs, and behind the last none is read ahead. */
const LEAST_BLOCKS = 4;
/** What a trial reaches in models whose blocks read what earlier ones made. */
const MOST_IN_ORDER = 12;

/** Of every block of a graph. `passes`: tokens go through all of a block; otherwise only what is quantized of it costs anything. */
export function costsOf(
  { blocks }: Pick<ModelGraph, 'blocks'>,
  plans: readonly BlockPlan[],
  schemes: ReadonlyMap<string, QuantScheme>,
  passes: boolean,
): BlockCost[] {
  return blocks.map((block) => {
    const plan = plans[block.index];
    const weights = linearsOf(block).reduce((sum, { name, n, k }) => sum + (schemes.has(name) ? n * k : 0), 0);
    const products = passes ? blockProducts(block, plan) : weights;
    return { kind: kindOf(block, plan, schemes), products, quantized: weights > 0 };
  });
}

function kindOf(block: Block, plan: BlockPlan | undefined, schemes: ReadonlyMap<string, QuantScheme>): string {
  // Full names of weights have their block's number.
  const form = JSON.stringify(plan?.attention, (key, value: unknown) =>
    key === 'reads' ? typeof value : typeof value === 'string' && value.includes('.') ? '' : value,
  );
  const linears = linearsOf(block).map(({ name, n, k }) => {
    const scheme = schemes.get(name);
    return `${n}x${k} ${scheme ? printScheme(scheme) : ''}`;
  });
  return [form, plan?.mlp.kind, block.predicts, ...linears].join('\n');
}

/** Whether blocks compute without what a certain earlier block made. */
export function standAlone({ blocks }: Pick<ModelPlan, 'blocks'>): boolean {
  return blocks.every(
    ({ attention, shortcut }) => shortcut === undefined && !('reads' in attention && attention.reads !== undefined),
  );
}

/**
 * The blocks of a trial, in order: the first, one of each kind that matters behind it, one with something to quantize, and then further ones
 * up to `count`. `alone`: blocks may be left out in between.
 */
export function trialBlocks(costs: readonly BlockCost[], alone: boolean, count = LEAST_BLOCKS): number[] {
  const total = costs.reduce((sum, { products }) => sum + products, 0);
  const shares = new Map<string, number>();
  for (const { kind, products } of costs) shares.set(kind, (shares.get(kind) ?? 0) + products / Math.max(1, total));
  const kinds = [...shares].filter(([, share]) => share >= LEAST_SHARE).sort(([, a], [, b]) => b - a);
  const wanted = kinds.slice(0, MOST_KINDS).map(([kind]) => costs.findIndex((cost, i) => i > 0 && cost.kind === kind));
  const something = costs.findIndex(({ quantized }) => quantized);
  const chosen = new Set([0, ...[...wanted, something].filter((index) => index > 0)]);
  const last = Math.max(...chosen);
  if (last + 1 < costs.length) chosen.add(last + 1);
  if (!alone) {
    const reach = Math.min(costs.length, Math.max(count, Math.min(last + 2, MOST_IN_ORDER)));
    return Array.from({ length: reach }, (_, i) => i);
  }
  for (let i = 1; i < costs.length && chosen.size < count; i++) chosen.add(i);
  return [...chosen].sort((a, b) => a - b);
}
