import { columnsOf, type FoldAxis, type FoldReader, normAxes, reader, rowsOf } from './fold-axes.js';
import { valueSites } from './folds.js';
import type { BlockPlan, LinearPlan, ModelPlan, NormPlan } from './plan.js';
import type { SharedExpertPlan } from './plan-experts.js';
import { besideExperts, keptOf, streamLinears } from './stream-linears.js';

/**
 * Channels that may be multiplied by anything, if what reads them divides by it: `raise` lists what is multiplied (vectors
 * and rows), `lower` the columns that are divided.
 */
export interface ScaleSite {
  readonly id: string;
  readonly size: number;
  readonly raise: readonly FoldAxis[];
  readonly lower: readonly FoldAxis[];
  readonly readers: readonly FoldReader[];
}

/**
 * Every such set: the output of a norm before a branch (no offset is added to its weight); what a gated MLP's up makes, which
 * only multiplies; the values of a kv head. Not: GPT-OSS's clamped gates, MLPs without a gate, a norm that idle experts read.
 */
export function scaleSites(plan: ModelPlan): ScaleSite[] {
  return plan.blocks.flatMap((block, index) => [...normSites(block, index), ...upSites(block, index)]);
}

/** Norms that two branches share count once, with the readers of both. */
function normSites(block: BlockPlan, index: number): ScaleSite[] {
  const { attention, mlp } = block;
  const { feeds } = streamLinears(block);
  const beside = mlp.kind === 'experts' ? besideExperts(mlp) : [];
  const mixers = (attention.kind === 'nothing' ? 0 : 1) + (block.beside ? 1 : 0);
  const [first, rest] = [feeds.slice(0, mixers), feeds.slice(mixers)];
  const kept = keptOf(attention);
  const branches: [NormPlan | undefined, LinearPlan[][], LinearPlan[]][] = [
    // LAuReL reads the same, and adds it.
    [block.altUp ? undefined : attention.norm, first, [...kept]],
    // Experts apart read other norms, which nothing scales.
    [mlp.kind === 'experts' && mlp.apart ? undefined : mlp.norm, rest, beside],
  ];
  const sites = new Map<string, ScaleSite>();
  for (const [norm, read, more] of branches) {
    if (norm?.weight === undefined || norm.offset !== 0) continue;
    // Idle experts hand on what the norm makes.
    if (norm === mlp.norm && mlp.kind === 'experts' && mlp.router.n > mlp.experts.length) continue;
    const before = sites.get(norm.weight);
    sites.set(norm.weight, {
      id: `blocks.${index}.${norm === attention.norm ? 'attention' : 'mlp'}.norm`,
      size: norm.size,
      raise: normAxes(norm),
      lower: [...(before?.lower ?? []), ...[...read.flat(), ...more].map((linear) => columnsOf(linear))],
      readers: [...(before?.readers ?? []), ...read.map((feed) => reader(feed))],
    });
  }
  return [...sites.values()];
}

function upSites({ attention, mlp }: BlockPlan, index: number): ScaleSite[] {
  const site = (name: string, up: LinearPlan, down: LinearPlan, start = 0): ScaleSite => ({
    id: `blocks.${index}.${name}`,
    size: down.k,
    raise: rowsOf(up, [start]),
    lower: [columnsOf(down)],
    readers: [reader([down])],
  });
  const values =
    attention.kind !== 'attention'
      ? []
      : valueSites(attention, index).map(({ id, size, axes, readers }): ScaleSite => {
          const last = axes.length - 1; // the columns of o
          return { id, size, raise: axes.slice(0, last), lower: axes.slice(last), readers };
        });
  if (mlp.kind === 'gated') return [...values, site('up', mlp.up, mlp.down)];
  if (mlp.kind === 'fused') return mlp.clamped ? values : [...values, site('up', mlp.gateUp, mlp.down, mlp.down.k)];
  if (mlp.kind !== 'experts' || mlp.gate.kind !== 'gated') return values;
  const shared = mlp.shared ? [sharedSite(mlp.shared, site)] : [];
  return [...values, ...mlp.experts.map(({ up, down }, e) => site(`experts.${e}.up`, up, down)), ...shared];
}

function sharedSite(
  { up, down, gateUp }: SharedExpertPlan,
  site: (name: string, up: LinearPlan, down: LinearPlan, start?: number) => ScaleSite,
): ScaleSite {
  return gateUp ? site('shared.up', gateUp, down, down.k) : site('shared.up', up, down);
}
