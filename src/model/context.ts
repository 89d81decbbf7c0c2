import { architectureOf } from './architectures/index.js';
import { planSource } from './graph.js';
import { fixedReach } from './rope.js';
import { settingsOf } from './settings.js';
import type { WeightSource } from './source.js';

/** Tokens that a sequence of a model may have, and what bounds them. */
export interface ContextLength {
  /** Infinity where nothing says. */
  readonly tokens: number;
  readonly because: string;
}

/** The longest sequence that config.json says the model was made for; Infinity where it says nothing. Throws LPQ_CONFIG. */
export function statedContext(source: WeightSource): ContextLength {
  const table = architectureOf(source.config, source.dir);
  const keys = table.sizes?.positions ?? ['max_position_embeddings'];
  return {
    tokens: settingsOf(table, source.config, source.dir).number(keys) ?? Number.POSITIVE_INFINITY,
    because: `'${keys[0]}' of config.json`,
  };
}

/**
 * The longest sequence whose keys can be kept: what config.json says the model was made for, the positions that it has learned, and
 * where its rotary angles begin to depend on the length of the sequence, for keys that are kept were turned before. Throws
 * LPQ_CONFIG.
 */
export function contextLength(source: WeightSource): ContextLength {
  const plan = planSource(source);
  const bounds: ContextLength[] = [
    statedContext(source),
    {
      tokens: plan.embedding.positions?.count ?? Number.POSITIVE_INFINITY,
      because: 'the positions that the model has learned',
    },
    ...plan.blocks.map(({ attention }) => ({
      tokens: 'rope' in attention && attention.rope ? fixedReach(attention.rope) : Number.POSITIVE_INFINITY,
      because: 'the scaling of positions, which depends on the length of longer sequences',
    })),
  ];
  return bounds.reduce((least, bound) => (bound.tokens < least.tokens ? bound : least));
}
