import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { CacheStep } from '../../native/cache-ops.js';
import { ops } from '../../native/ops.js';
import { disposeBatch, type TokenBatch } from '../model/batch.js';
import { settle } from '../model/branch.js';
import { embedBatches, runBlock } from '../model/forward.js';
import type { BlockState } from '../model/program.js';
import type { Cache } from './cache.js';
import type { ResidentModel } from './resident.js';

/** The newest tokens of a sequence. */
export interface Entry {
  /** Where its earlier tokens are kept. */
  readonly slot: number;
  /** How many those are. */
  readonly past: number;
  /** At least one. */
  readonly ids: Int32Array;
}

/** A batch of the newest tokens of some sequences; `longest` counts their earlier ones too, `lengths` does not. */
export interface Step extends TokenBatch, CacheStep {
  readonly entries: readonly Entry[];
  /** The most new tokens of a sequence. */
  readonly most: number;
}

/** Positions go on where the sequences' earlier tokens end. */
export function makeStep(rt: NativeRuntime, entries: readonly Entry[]): Step {
  const tokens = entries.reduce((sum, { ids }) => sum + ids.length, 0);
  const hostIds = new Int32Array(tokens);
  const positions = new Int32Array(tokens);
  const hostStarts = new Int32Array(entries.length + 1);
  const totals = new Int32Array(entries.length);
  let at = 0;
  for (const [s, { past, ids }] of entries.entries()) {
    hostIds.set(ids, at);
    for (let i = 0; i < ids.length; i++) positions[at + i] = past + i;
    at += ids.length;
    hostStarts[s + 1] = at;
    totals[s] = past + ids.length;
  }
  const ints = (values: Int32Array): Tensor => uploadTyped(rt, 'i32', [values.length], values);
  return {
    entries,
    tokens,
    longest: totals.reduce((most, total) => Math.max(most, total), 0),
    most: Math.max(...entries.map(({ ids }) => ids.length)),
    lengths: Array.from(entries, ({ ids }) => ids.length),
    earlier: Array.from(entries, ({ past }) => past),
    ids: ints(hostIds),
    positions: ints(positions),
    starts: ints(hostStarts),
    slots: ints(Int32Array.from(entries, ({ slot }) => slot)),
    totals: ints(totals),
    hostIds,
    hostStarts,
  };
}

export function disposeStep(step: Step): void {
  disposeBatch(step);
  for (const tensor of [step.slots, step.totals]) tensor.dispose();
}

/**
 * Takes a step through the model: its tokens' keys and values are kept in `cache`, and what comes back is f32 [B,V], the logits
 * after the last token of each entry, or [T,V] after all of them. Enqueued, not waited for; the caller disposes of the logits. Throws
 * LPQ_CONFIG for tokens outside the vocabulary.
 */
export async function runStep(
  rt: NativeRuntime,
  { graph, outer, blocks }: ResidentModel,
  cache: Cache,
  step: Step,
  all = false,
): Promise<Tensor> {
  cache.begin(step);
  let [state] = embedBatches(rt, graph, outer, [step]) as [BlockState];
  for (const [i, block] of graph.blocks.entries())
    state = await runBlock(rt, block, blocks[i]!, {
      ...state,
      attend: (t, p, sinks) => cache.attend(i, step, t, p, sinks),
      latents: (stored) => cache.latents(i, step, stored),
      recall: (name, shape) => cache.recall(i, step, name, shape),
      rows: (name, width, rate) => cache.rows(i, step, name, width, rate),
    });
  cache.end?.(step);
  const { h, aux, carried = {} } = state;
  for (const held of [aux, carried]) for (const tensor of Object.values(held)) tensor.dispose();
  if (all || step.tokens === step.entries.length) {
    const logits = graph.logits(rt, outer, h, state.pending);
    h.dispose();
    return logits;
  }
  settle(rt, state);
  const rows = uploadTyped(
    rt,
    'i32',
    [step.entries.length],
    step.hostStarts.subarray(1).map((end) => end - 1),
  );
  const last = rt.allocate('f32', [step.entries.length, graph.hidden]);
  ops.gatherRows(rt, h, rows, last);
  const logits = graph.logits(rt, outer, last);
  for (const tensor of [h, rows, last]) tensor.dispose();
  return logits;
}
