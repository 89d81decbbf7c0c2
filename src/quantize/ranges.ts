import type { KvMost } from '../../formats/canonical/schema.js';
import type { NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { batchSequences, disposeBatch, type TokenBatch } from '../model/batch.js';
import { settle } from '../model/branch.js';
import { disposeStates, embedBatches, loadOuter } from '../model/forward.js';
import { planSource } from '../model/graph.js';
import type { AttentionPlan } from '../model/plan.js';
import type { BlockState, BlockWeights, ModelGraph, Stage } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { headStage } from './calibrated.js';
import { KeptRows, Largest, WatchedCache } from './watched-cache.js';

/** Largest magnitudes over a calibration text in the unquantized model, as far as requested. */
export interface Ranges {
  /** Of the input of each linear, by its name. */
  readonly inputs?: ReadonlyMap<string, number>;
  /** Of the keys and values of each attention, by its path. */
  readonly cache?: KvMost;
}

export interface RangesRequest {
  readonly sequences: readonly Int32Array[];
  /** Linears whose inputs to measure. */
  readonly inputs?: ReadonlySet<string>;
  /** Whether to measure keys and values. */
  readonly cache: boolean;
  readonly onBlock?: (block: number) => void;
}

const BATCH_TOKENS = 4096;

/** If an input was always zero, any scale fits. */
const OF_ZEROS = 1;

type MostOfCache = KvMost[string];

/**
 * One forward pass on the CPU. An expert that saw no token gets the range of the other experts. Throws LPQ_MODULE_NUMERICS if an
 * input is not finite, LPQ_USAGE for caches that hold no keys and values.
 */
export async function observeRanges(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  { sequences, inputs = new Set(), cache, onBlock = () => {} }: RangesRequest,
): Promise<Ranges> {
  const plans = cache ? attentionPlans(source) : new Map<number, AttentionPlan>();
  const outer = await loadOuter(rt, source, graph);
  const batches = batchSequences(rt, sequences, BATCH_TOKENS);
  const states: BlockState[] = [];
  const most = new Map<string, number>();
  const found = new Map<number, MostOfCache>();
  const kept = new KeptRows();
  try {
    states.push(...embedBatches(rt, graph, outer, batches));
    for (const block of graph.blocks.filter(({ predicts }) => !predicts)) {
      onBlock(block.index);
      const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
      const plan = plans.get(block.index);
      const watched = plan && new WatchedCache(rt, plan, kept);
      try {
        for (let i = 0; i < states.length; i++) {
          tell(`ranges of block ${block.index + 1} of ${graph.blocks.length}, batch`, i, states.length);
          let state = states[i] as BlockState;
          const attend = watched?.attention(i, state);
          for (const stage of block.stages) {
            await look(rt, stage, weights, state, inputs, most);
            // Only attention is asked to hand its keys over.
            const next = await stage.advance(rt, weights, attend ? { ...state, attend } : state);
            const { attend: _, ...rest } = next;
            state = rest;
          }
          settle(rt, state);
          states[i] = state;
          await rt.sync();
        }
        if (watched) found.set(block.index, found.get(plan?.reads ?? -1) ?? (await seenBy(watched)));
      } finally {
        watched?.dispose();
        disposeWeights(weights);
      }
    }
    if (inputs.has(graph.head.name))
      for (const state of states) await look(rt, headStage(graph), outer, state, inputs, most);
    return {
      ...(inputs.size > 0 && { inputs: withIdle(graph, inputs, most) }),
      ...(cache && { cache: Object.fromEntries([...found].map(([block, seen]) => [pathOf(plans.get(block)), seen])) }),
    };
  } finally {
    kept.dispose();
    disposeStates(states);
    disposeWeights(outer);
    for (const batch of batches) disposeBatch(batch as TokenBatch);
  }
}

/** Blocks with keys and values. Throws LPQ_USAGE if a block caches other tensors. */
function attentionPlans(source: WeightSource): Map<number, AttentionPlan> {
  const plans = new Map<number, AttentionPlan>();
  for (const [block, { attention }] of planSource(source).blocks.entries()) {
    if (attention.kind === 'recurrent' || attention.kind === 'nothing') continue;
    if (attention.kind !== 'attention' || attention.indexer)
      throw new LpqError('LPQ_USAGE', `--kv-scales is for keys and values; block ${block} caches other tensors`, {
        hint: 'Leave --kv-scales out for this model.',
      });
    plans.set(block, attention);
  }
  return plans;
}

/** Raises the ranges of the inputs of a stage's wanted linears. */
async function look(
  rt: NativeRuntime,
  stage: Stage,
  weights: BlockWeights,
  state: BlockState,
  wanted: ReadonlySet<string>,
  most: Map<string, number>,
): Promise<void> {
  const feeds = stage.feeds.filter(({ linears }) => linears.some(({ name }) => wanted.has(name)));
  if (feeds.length === 0) return;
  const captured = await stage.capture(rt, weights, state);
  try {
    for (const { id, linears } of feeds) {
      const x = captured.get(id);
      if (!x || x.shape[0] === 0) continue;
      const seen = new Largest(rt, x.shape[1] as number);
      const value = await seen.of(x, linears).finally(() => seen.dispose());
      for (const { name } of linears) most.set(name, Math.max(most.get(name) ?? 0, value));
    }
  } finally {
    for (const x of captured.values()) x.dispose();
  }
}

/** The range of a block's cache; a block that reads another block's cache has that block's range. */
async function seenBy({ keys, values }: WatchedCache): Promise<MostOfCache> {
  return { keys: ((await keys?.most()) ?? 0) || OF_ZEROS, values: ((await values?.most()) ?? 0) || OF_ZEROS };
}

/** Where loaders look for the scales of an attention: its module, of which o is a part. */
function pathOf(plan: AttentionPlan | undefined): string {
  const { name } = (plan as AttentionPlan).o;
  return name.slice(0, name.lastIndexOf('.'));
}

/** Every wanted linear with a range above 0: experts without tokens take that of their neighbours. */
function withIdle(
  graph: ModelGraph,
  wanted: ReadonlySet<string>,
  most: ReadonlyMap<string, number>,
): Map<string, number> {
  const all = new Map<string, number>();
  for (const { stages } of graph.blocks)
    for (const { feeds } of stages) {
      const linears = feeds.flatMap((feed) => feed.linears);
      for (const { name, expert } of linears) {
        if (!wanted.has(name)) continue;
        const role = (each: string): string => each.slice(each.lastIndexOf('.') + 1);
        const beside = linears.filter((each) => each.expert !== undefined && role(each.name) === role(name));
        const own = most.get(name) ?? 0;
        const theirs = expert === undefined ? 0 : Math.max(0, ...beside.map((each) => most.get(each.name) ?? 0));
        all.set(name, own || theirs || OF_ZEROS);
      }
    }
  const { name } = graph.head;
  if (wanted.has(name)) all.set(name, most.get(name) || OF_ZEROS);
  return all;
}
