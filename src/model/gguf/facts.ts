import type { GgufArchitecture } from '../../../formats/gguf/architectures/architecture.js';
import type { RecurrentPlan } from '../mixers/plan.js';
import type { AttentionPlan, ModelPlan } from '../plan.js';
import type { ExpertsPlan } from '../plan-experts.js';
import type { MlaPlan } from '../plan-mla.js';
import type { RopeSpec } from '../rope.js';
import type { Computes, Reads } from './computes.js';

/** A model as it goes into GGUF: what it is, its names there, and what llama.cpp computes of it. */
export interface GgufSubject {
  readonly modelType: string;
  readonly plan: ModelPlan;
  readonly names: GgufArchitecture;
  readonly computes: Computes;
  /** mrope_section of config.json: what of a head turns by time, height and width. */
  readonly sections: readonly number[];
}

export const reads = ({ computes }: GgufSubject, what: Reads): boolean => computes.reads?.includes(what) ?? false;

/** Attention of the blocks that have it, with their indices. */
export function attentions({ blocks }: ModelPlan): readonly (readonly [index: number, AttentionPlan])[] {
  return blocks.flatMap(({ attention }, index) =>
    attention.kind === 'attention' ? [[index, attention] as const] : [],
  );
}

export function latents({ blocks }: ModelPlan): readonly MlaPlan[] {
  return blocks.flatMap(({ attention }) => (attention.kind === 'mla' ? [attention] : []));
}

export function mixtures({ blocks }: ModelPlan): readonly ExpertsPlan[] {
  return blocks.flatMap(({ mlp }) => (mlp.kind === 'experts' ? [mlp] : []));
}

/** Rotation of blocks with a window, and of those without. */
export function ropes(plan: ModelPlan): { readonly whole: RopeSpec | undefined; readonly local: RopeSpec | undefined } {
  const all = attentions(plan).map(([, attention]) => attention);
  const latent = latents(plan).map(({ rope }) => rope);
  const whole = all.filter(({ window }) => window === 0).map(({ rope }) => rope);
  const local = all.filter(({ window }) => window > 0).map(({ rope }) => rope);
  const first = (list: readonly (RopeSpec | undefined)[]) => list.find((rope) => rope !== undefined);
  return { whole: first([...whole, ...latent]), local: first(local) };
}

/** Recurrent layers of the blocks that have one, with their indices. */
export function mixers({ blocks }: ModelPlan): readonly (readonly [index: number, RecurrentPlan])[] {
  return blocks.flatMap(({ attention, beside }, index) => {
    const own = beside ?? (attention.kind === 'recurrent' ? attention : undefined);
    return own ? [[index, own] as const] : [];
  });
}

/** In how many groups the channels of states are normed. */
export function stateGroups(plan: ModelPlan): number {
  const core = mixers(plan)[0]?.[1].core;
  return core && 'groups' in core ? core.groups : 1;
}

/** How many experts a block has, or 0. */
export const expertCount = (plan: ModelPlan): number => mixtures(plan)[0]?.experts.length ?? 0;
