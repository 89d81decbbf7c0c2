import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { BosMode } from '../calibrate/prefix.js';
import { tell } from '../core/activity.js';
import type { TokenBatch } from '../model/batch.js';
import { openModel } from '../model/graph.js';
import type { BlockState, BlockWeights, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { estimate } from './estimate.js';
import { eachBatch, LOGITS_BYTES, notNumbers, type PassOptions } from './pass.js';
import { checkCtx, type TextWindows, textWindows } from './windows.js';

export interface Perplexity {
  /** exp(nll). */
  readonly ppl: number;
  /** Mean negative log-likelihood of a scored token, in nats. */
  readonly nll: number;
  /** Of ppl: ppl times the standard error of the windows' mean nll. Null for a single window. */
  readonly standardError: number | null;
  /** Scored tokens: windows * (ctx - 1), less the prefix of each window. */
  readonly tokens: number;
  readonly windows: number;
  readonly ctx: number;
}

export interface PerplexityOptions extends Omit<PassOptions, 'onBlock'> {
  /** Tokens of a window. */
  readonly ctx: number;
  /** Tokens at the beginning of each window that are no part of the text; default 0. */
  readonly prefix?: number;
  /** Work done, in window-blocks. */
  readonly onProgress?: (done: number, total: number) => void;
}

export interface TextPerplexityOptions extends Omit<PerplexityOptions, 'prefix'> {
  /** What windows begin with, default auto. */
  readonly bos?: BosMode | undefined;
  /** The first so many windows; default all. */
  readonly windows?: number | undefined;
  /** The windows are there, and nothing is computed yet. */
  readonly onWindows?: () => void;
}

/**
 * Perplexity of a text: windows of `ctx` tokens without overlap, the last partial one left out, each scored on its own
 * from its second token of the text on. A window begins as the tokenizer begins a text, and what it puts there is among the `ctx`
 * tokens and not scored. Throws LPQ_CALIBRATION_TEXT when there is no window, LPQ_MODULE_NUMERICS when the model
 * gives NaN, and what openModel and openPrefix throw.
 */
export async function textPerplexity(
  rt: NativeRuntime,
  source: WeightSource,
  file: string,
  { bos, onWindows, windows: most, ...options }: TextPerplexityOptions,
): Promise<Perplexity & Pick<TextWindows, 'text' | 'sha256' | 'prefix'>> {
  const graph = openModel(source);
  const { text, sha256, prefix, windows } = await textWindows(source.dir, file, {
    ctx: options.ctx,
    bos,
    windows: most,
  });
  onWindows?.();
  const found = await perplexity(rt, source, graph, windows, { ...options, prefix: prefix.length });
  return { text, sha256, ...found, prefix };
}

/** Perplexity over given windows of `ctx` tokens each. */
export async function perplexity(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  windows: readonly Int32Array[],
  options: PerplexityOptions,
): Promise<Perplexity> {
  const ctx = checkCtx(options.ctx);
  const { prefix = 0 } = options;
  const scored = ctx - 1 - prefix;
  const total = windows.length * (graph.blocks.length + 1);
  let done = 0;
  const progress = ({ tokens }: TokenBatch) => {
    done += tokens / ctx;
    options.onProgress?.(done, total);
  };
  const means: number[] = [];
  const score = async ({ h }: BlockState, outer: BlockWeights, batch: TokenBatch): Promise<void> => {
    tell('scoring window', means.length, windows.length);
    const scores = await scoreBatch(rt, graph, outer, batch, h);
    for (let at = 0; at < batch.tokens; at += ctx)
      means.push(scores.subarray(at + prefix, at + ctx).reduce((sum, nll) => sum + nll, 0) / scored);
    progress(batch);
  };
  await eachBatch(rt, source, graph, windows, score, { ...options, onBlock: progress });
  // Tokens of a window depend on each other, windows hardly do: the spread of their means is what repeats.
  const { mean: nll, error } = estimate(means);
  if (!Number.isFinite(nll)) throw notNumbers(source.dir);
  const ppl = Math.exp(nll);
  return {
    ...{ ppl, nll, standardError: error === null ? null : ppl * error },
    ...{ tokens: windows.length * scored, windows: windows.length, ctx },
  };
}

/** f64 [T]: the negative log-likelihood of the token after each one, 0 for the last of each sequence. */
async function scoreBatch(
  rt: NativeRuntime,
  graph: ModelGraph,
  outer: BlockWeights,
  batch: TokenBatch,
  h: Tensor,
): Promise<Float64Array> {
  const { tokens } = batch;
  const next = new Int32Array(tokens).fill(-1);
  next.set(batch.hostIds.subarray(1));
  for (const end of batch.hostStarts.subarray(1)) next[end - 1] = -1;
  const targets = uploadTyped(rt, 'i32', [tokens], next);
  const nll = rt.allocate('f64', [tokens]);
  const slice = Math.max(1, Math.floor(LOGITS_BYTES / (graph.vocab * 4)));
  for (let first = 0; first < tokens; first += slice) {
    const count = Math.min(slice, tokens - first);
    const rows = h.view([count, graph.hidden], first * graph.hidden);
    const logits = graph.logits(rt, outer, rows);
    const [wanted, scores] = [targets.view([count], first), nll.view([count], first)];
    ops.negLogLikelihood(rt, logits, wanted, scores);
    for (const tensor of [rows, logits, wanted, scores]) tensor.dispose();
    await rt.sync();
  }
  const result = await readTyped<Float64Array>(rt, nll);
  nll.dispose();
  targets.dispose();
  return result;
}
