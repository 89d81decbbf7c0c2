import { type NativeRuntime, readTyped, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { TokenBatch } from '../model/batch.js';
import { openModel } from '../model/graph.js';
import type { BlockState, BlockWeights, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { eachBatch, LOGITS_BYTES, notNumbers } from './pass.js';

/** Tokens, and how many of the last ones are asked about: at least one, and at least one less than there are. */
export interface Continuation {
  readonly ids: Int32Array;
  readonly asked: number;
}

export interface Likelihood {
  /** Sum of the log-likelihoods of the asked tokens, in nats. */
  readonly sum: number;
  /** Whether each of them is the likeliest where it stands, ties to the lower id; only where it was wanted. */
  readonly greedy?: boolean;
}

export interface LikelihoodOptions {
  readonly greedy?: boolean;
  /** Work done, in sequences times blocks. */
  readonly onProgress?: (done: number, total: number) => void;
}

/**
 * How likely a model finds the ends of sequences, each on its own. The same whatever else is asked about. Throws LPQ_MODULE_NUMERICS
 * where the model gives NaN, and what openModel throws.
 */
export async function likelihoods(
  rt: NativeRuntime,
  source: WeightSource,
  items: readonly Continuation[],
  { greedy = false, onProgress }: LikelihoodOptions = {},
): Promise<Likelihood[]> {
  const graph = openModel(source);
  const total = items.length * graph.blocks.length;
  const found: Likelihood[] = [];
  // Nothing comes after the last token: it is not read.
  const sequences = items.map(({ ids }) => ids.subarray(0, -1));
  const score = async (state: BlockState, outer: BlockWeights, { lengths }: TokenBatch): Promise<void> => {
    const part = items.slice(found.length, found.length + lengths.length);
    found.push(...(await ofBatch(rt, graph, outer, state, part, greedy)));
  };
  let done = 0;
  const onBlock = ({ lengths }: TokenBatch): void => {
    done += lengths.length;
    onProgress?.(done, total);
  };
  await eachBatch(rt, source, graph, sequences, score, { onBlock });
  if (found.every(({ sum }) => Number.isFinite(sum))) return found;
  throw notNumbers(source.dir);
}

async function ofBatch(
  rt: NativeRuntime,
  graph: ModelGraph,
  outer: BlockWeights,
  { h }: BlockState,
  items: readonly Continuation[],
  greedy: boolean,
): Promise<Likelihood[]> {
  // Of each asked token the row that predicts it, and its id.
  const rows: number[] = [];
  const wanted: number[] = [];
  let start = 0;
  for (const { ids, asked } of items) {
    for (let t = ids.length - asked; t < ids.length; t++) {
      rows.push(start + t - 1);
      wanted.push(ids[t] as number);
    }
    start += ids.length - 1;
  }
  const nll = new Float64Array(rows.length);
  const top = new Array<boolean>(rows.length).fill(true);
  const slice = Math.max(1, Math.floor(LOGITS_BYTES / (4 * graph.vocab)));
  for (let first = 0; first < rows.length; first += slice) {
    const count = Math.min(slice, rows.length - first);
    const index = uploadTyped(rt, 'i32', [count], Int32Array.from(rows.slice(first, first + count)));
    const targets = uploadTyped(rt, 'i32', [count], Int32Array.from(wanted.slice(first, first + count)));
    const picked = rt.allocate('f32', [count, graph.hidden]);
    ops.gatherRows(rt, h, index, picked);
    const logits = graph.logits(rt, outer, picked);
    const scores = rt.allocate('f64', [count]);
    ops.negLogLikelihood(rt, logits, targets, scores);
    nll.set(await readTyped<Float64Array>(rt, scores), first);
    if (greedy) {
      const values = await readTyped(rt, logits);
      for (let i = 0; i < count; i++)
        top[first + i] = isFirstLargest(
          values.subarray(i * graph.vocab, (i + 1) * graph.vocab),
          wanted[first + i] as number,
        );
    }
    for (const tensor of [index, targets, picked, logits, scores]) tensor.dispose();
  }
  let at = 0;
  return items.map(({ asked }) => {
    const [from, to] = [at, at + asked];
    at = to;
    const sum = -nll.subarray(from, to).reduce((all, each) => all + each, 0);
    return { sum, ...(greedy && { greedy: top.slice(from, to).every(Boolean) }) };
  });
}

function isFirstLargest(values: Float32Array, id: number): boolean {
  const own = values[id] as number;
  return values.every((value, i) => (i < id ? value < own : value <= own));
}
