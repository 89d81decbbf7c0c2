import { type NativeRuntime, readTyped } from '../../native/binding.js';
import type { BosMode } from '../calibrate/prefix.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { BATCH_TOKENS, batchSequences, disposeBatch, type TokenBatch } from '../model/batch.js';
import { disposeStates, loadOuter, runForward } from '../model/forward.js';
import { openModel } from '../model/graph.js';
import type { BlockState, BlockWeights, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights } from '../model/weights.js';
import { type Estimate, estimate } from './estimate.js';
import { LOGITS_BYTES, notNumbers, STATE_BYTES } from './pass.js';
import { type TextWindows, textWindows } from './windows.js';

export interface Divergence {
  readonly text: string;
  readonly sha256: string;
  readonly ctx: number;
  /** Ids that every window begins with. */
  readonly prefix: readonly number[];
  readonly windows: number;
  /** Scored tokens, as for perplexity. */
  readonly tokens: number;
  /** exp of the mean negative log-likelihood; of `reference` and of `model`. */
  readonly ppl: Estimate;
  readonly referencePpl: Estimate;
  /** What the model's negative log-likelihood is larger by, of the same tokens. */
  readonly excess: Estimate;
  /** KL(reference || model) in nats per token. */
  readonly kl: Estimate;
  /** How often both think the same token the likeliest. */
  readonly sameTop: Estimate;
  /** The largest difference of two logits, and the largest magnitude of one of the reference. */
  readonly largest: { readonly difference: number; readonly logit: number };
}

export interface DivergenceOptions {
  readonly ctx: number;
  /** The first so many windows; default all. */
  readonly windows?: number | undefined;
  /** Where `model` is computed; default where the reference is. */
  readonly runtime?: NativeRuntime | undefined;
  /** What windows begin with, default auto. */
  readonly bos?: BosMode | undefined;
  /** The windows are there, and nothing is computed yet. */
  readonly onWindows?: () => void;
  readonly onProgress?: (done: number, total: number) => void;
}

/**
 * How far `model` is from `reference` on a text: both see the windows that textPerplexity() scores. Sums run in f64 over
 * the vocabulary, in order. Throws what textPerplexity does, and LPQ_USAGE where the vocabularies differ.
 */
export async function textDivergence(
  rt: NativeRuntime,
  reference: WeightSource,
  model: WeightSource,
  file: string,
  options: DivergenceOptions,
): Promise<Divergence> {
  const { ctx, onProgress, runtime = rt } = options;
  const graphs = [openModel(reference), openModel(model)] as const;
  if (graphs[0].vocab !== graphs[1].vocab)
    throw new LpqError('LPQ_USAGE', `${reference.dir} and ${model.dir} have different vocabularies`, {
      got: graphs[0].vocab,
      expected: graphs[1].vocab,
      hint: 'Give the checkpoint that was quantized.',
    });
  const text = await textWindows(model.dir, file, { ctx, bos: options.bos, windows: options.windows });
  const { windows } = text;
  options.onWindows?.();
  const perPass = Math.max(1, Math.floor(STATE_BYTES / (8 * Math.max(graphs[0].hidden, graphs[1].hidden) * ctx)));
  const total = windows.length * (graphs[0].blocks.length + graphs[1].blocks.length + 1);
  let done = 0;
  const progress = (count: number) => {
    done += count;
    onProgress?.(done, total);
  };
  const scores: Scores[] = [];
  const largest = { difference: 0, logit: 0 };
  const runtimes = [rt, runtime] as const;
  for (let first = 0; first < windows.length; first += perPass) {
    const part = windows.slice(first, first + perPass);
    const batches = runtimes.map((each) => batchSequences(each, part, BATCH_TOKENS)) as [TokenBatch[], TokenBatch[]];
    const outers: BlockWeights[] = [];
    const states: BlockState[][] = [];
    try {
      for (const [i, source] of [reference, model].entries()) {
        const graph = graphs[i] as ModelGraph;
        const [own, its] = [runtimes[i] as NativeRuntime, batches[i] as TokenBatch[]];
        outers.push(await loadOuter(own, source, graph));
        const onBatch = (_block: number, at: number) => progress((its[at] as TokenBatch).tokens / ctx);
        states.push([...(await runForward(own, source, graph, outers[i] as BlockWeights, its, { onBatch }))]);
      }
      for (const [i, batch] of batches[0].entries()) {
        tell('comparing batch', i, batches[0].length);
        const pair = runtimes.map((own, m) => ({
          rt: own,
          graph: graphs[m] as ModelGraph,
          outer: outers[m]!,
          state: states[m]![i]!,
        }));
        scores.push(...(await scoreBatch(batch, text, pair, largest)));
        progress(batch.tokens / ctx);
      }
    } finally {
      states.forEach(disposeStates);
      outers.forEach(disposeWeights);
      batches.flat().forEach(disposeBatch);
    }
  }
  return { ...summary(text, scores, model.dir), largest };
}

/** Means of one window. */
interface Scores {
  readonly nll: number;
  readonly referenceNll: number;
  readonly kl: number;
  readonly same: number;
}

interface Side {
  readonly rt: NativeRuntime;
  readonly graph: ModelGraph;
  readonly outer: BlockWeights;
  readonly state: BlockState;
}

async function scoreBatch(
  batch: TokenBatch,
  { ctx, prefix }: Pick<TextWindows, 'ctx' | 'prefix'>,
  sides: readonly Side[],
  largest: { difference: number; logit: number },
): Promise<Scores[]> {
  const { vocab } = (sides[0] as Side).graph;
  const slice = Math.max(1, Math.floor(LOGITS_BYTES / (4 * vocab)));
  const perWindow: Scores[] = [];
  let window: Scores[] = [];
  for (let first = 0; first < batch.tokens; first += slice) {
    const count = Math.min(slice, batch.tokens - first);
    const logits: Float32Array[] = [];
    for (const { rt, graph, outer, state } of sides) {
      const rows = state.h.view([count, graph.hidden], first * graph.hidden);
      const tensor = graph.logits(rt, outer, rows);
      logits.push(await readTyped(rt, tensor));
      tensor.dispose();
      rows.dispose();
    }
    const [own, other] = logits as [Float32Array, Float32Array];
    for (let i = 0; i < own.length; i++) {
      // NaN stays: what comes after is compared with it in vain.
      largest.difference = Math.max(largest.difference, Math.abs((own[i] as number) - (other[i] as number)));
      largest.logit = Math.max(largest.logit, Math.abs(own[i] as number));
    }
    for (let row = 0; row < count; row++) {
      const at = first + row;
      // The last token of a window has no next one to be scored by, and what stands before the text is no prediction of it.
      if (at % ctx < prefix.length) continue;
      if (at % ctx < ctx - 1) {
        const [p, q] = logits.map((all) => all.subarray(row * vocab, (row + 1) * vocab)) as [
          Float32Array,
          Float32Array,
        ];
        window.push(compareRow(p, q, batch.hostIds[at + 1] as number));
      } else {
        perWindow.push(meanOf(window));
        window = [];
      }
    }
  }
  return perWindow;
}

function meanOf(scores: readonly Scores[]): Scores {
  const over = (pick: (score: Scores) => number) => scores.reduce((sum, score) => sum + pick(score), 0) / scores.length;
  return {
    nll: over((s) => s.nll),
    referenceNll: over((s) => s.referenceNll),
    kl: over((s) => s.kl),
    same: over((s) => s.same),
  };
}

/** One position: logits of the reference (p) and of the model (q), and the token that comes next. */
function compareRow(p: Float32Array, q: Float32Array, next: number): Scores {
  const [topP, topQ] = [argmax(p), argmax(q)];
  const [peakP, peakQ] = [p[topP] as number, q[topQ] as number];
  let [sumP, sumQ, cross] = [0, 0, 0];
  for (let i = 0; i < p.length; i++) {
    const weight = Math.exp((p[i] as number) - peakP);
    sumP += weight;
    sumQ += Math.exp((q[i] as number) - peakQ);
    cross += weight * ((p[i] as number) - (q[i] as number));
  }
  const [logP, logQ] = [peakP + Math.log(sumP), peakQ + Math.log(sumQ)];
  return {
    nll: logQ - (q[next] as number),
    referenceNll: logP - (p[next] as number),
    // sum p (log p - log q), never below 0 but for rounding.
    kl: Math.max(0, cross / sumP - logP + logQ),
    same: topP === topQ ? 1 : 0,
  };
}

function argmax(values: Float32Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if ((values[i] as number) > (values[best] as number)) best = i;
  return best;
}

function summary(
  { text, sha256, ctx, prefix }: TextWindows,
  scores: readonly Scores[],
  dir: string,
): Omit<Divergence, 'largest'> {
  const windows = scores.length;
  // Of the windows' means: tokens of a window depend on each other, windows hardly do.
  const over = (pick: (score: Scores) => number): Estimate => estimate(scores.map(pick));
  const perplexity = ({ mean, error }: Estimate): Estimate => {
    const ppl = Math.exp(mean);
    return { mean: ppl, error: error === null ? null : ppl * error };
  };
  const kl = over((score) => score.kl);
  const nll = over((score) => score.nll);
  if (!Number.isFinite(kl.mean + nll.mean)) throw notNumbers(`${dir} or of its source`);
  return {
    ...{ text, sha256, ctx, prefix, windows, tokens: windows * (ctx - 1 - prefix.length) },
    ppl: perplexity(nll),
    referencePpl: perplexity(over((score) => score.referenceNll)),
    excess: over((score) => score.nll - score.referenceNll),
    kl,
    sameTop: over((score) => score.same),
  };
}
