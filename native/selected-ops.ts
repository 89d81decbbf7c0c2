import type { NativeRuntime, Tensor } from './binding.js';
import type { CacheStep } from './cache-ops.js';
import type { Past } from './recurrent-ops.js';

/** Attention over keys that are chosen query by query, part of the operation table (ops.ts) (native/ops/selected.h). */
export const selectedOps = {
  /** For each token the best runs of `block` tokens: y I32 [T, choices*top], one choice with `weights`, else one a head. */
  indexKeys: (
    rt: NativeRuntime,
    t: { q: Tensor; k: Tensor; weights?: Tensor | undefined },
    y: Tensor,
    { starts, kept }: Past,
    p: { heads: number; top: number; block?: number; local?: number; rate?: number },
  ) =>
    rt.enqueue(
      'index_keys',
      [t.q, t.k, ...(t.weights ? [t.weights] : []), starts, ...(kept ? [kept.slots, kept.totals, kept.state] : [])],
      kept ? [y, kept.state] : [y],
      { ...p, weighted: t.weights ? 1 : 0 },
    ),

  /** Attention over those; with `step` k and v are [slots, rows, ...], the tokens' own included. */
  selectedAttention: (
    rt: NativeRuntime,
    t: { q: Tensor; k: Tensor; v: Tensor; selected: Tensor },
    y: Tensor,
    { starts, ...step }: Pick<CacheStep, 'starts'> & Partial<Pick<CacheStep, 'slots' | 'totals'>>,
    p: {
      heads: number;
      kvHeads: number;
      headDim: number;
      valueDim?: number;
      scale: number;
      choices?: number;
      block?: number;
    },
  ) =>
    rt.enqueue(
      'selected_attention',
      [t.q, t.k, t.v, t.selected, starts, ...(step.slots && step.totals ? [step.slots, step.totals] : [])],
      [y],
      p,
    ),

  /** Full runs of `rate` tokens, each an entry (native/ops/compressed.h). */
  compress: (
    rt: NativeRuntime,
    t: { x: Tensor; gate: Tensor; bias: Tensor },
    y: Tensor,
    { starts, kept }: Past,
    p: { rate: number },
  ) =>
    rt.enqueue(
      'compress',
      [t.x, t.gate, t.bias, starts, ...(kept ? [kept.slots, kept.totals, kept.state] : [])],
      kept ? [y, kept.state] : [y],
      p,
    ),

  /** Puts rows of a step's tokens to those of the tokens before. */
  appendRows: (rt: NativeRuntime, x: Tensor, { starts, kept }: Required<Past>) =>
    rt.enqueue('append_rows', [x, starts, kept.slots, kept.totals, kept.state], [kept.state], {}),

  /** Attention over a window of tokens and over entries; with slots and totals k and entries are [slots, rows, dim]. */
  compressedAttention: (
    rt: NativeRuntime,
    t: { q: Tensor; k: Tensor; entries: Tensor; sinks: Tensor; selected?: Tensor | undefined },
    y: Tensor,
    { starts, slots, totals }: Pick<CacheStep, 'starts'> & Partial<Pick<CacheStep, 'slots' | 'totals'>>,
    p: { heads: number; window: number; rate: number; scale: number },
  ) =>
    rt.enqueue(
      'compressed_attention',
      [
        ...[t.q, t.k, t.entries, t.sinks, starts],
        ...(t.selected ? [t.selected] : []),
        ...(slots && totals ? [slots, totals] : []),
      ],
      [y],
      { ...p, chosen: t.selected ? 1 : 0, kept: slots && totals ? 1 : 0 },
    ),
} as const;
