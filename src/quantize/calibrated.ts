import type { NativeRuntime } from '../../native/binding.js';
import type { Streams } from '../calibrate/statistics.js';
import { ActivationStream, copyState } from '../calibrate/streams.js';
import { batchSequences } from '../model/batch.js';
import { embedBatches } from '../model/forward.js';
import type { BlockState, BlockWeights, ModelGraph, Stage } from '../model/program.js';
import { DEVICE_BATCH_TOKENS } from './memory-plan.js';

/** Tokens of a batch on the CPU, whose caches are smaller. */
const CPU_BATCH_TOKENS = 4096;
/**
 * The share of the batches that also go through the original model. GPTAQ's correction is a quarter of what least squares
 * asks for and bears a noisier estimate: half of the data gives the same perplexity (docs/internals/numerics.md) for two thirds of
 * the forward passes.
 */
export const ORIGINAL_SHARE = 0.5;

export interface StreamOptions {
  /** The share of the sequences that also goes through the original model, of which the method wants to know. */
  readonly paired?: number;
  /** The least share of them that every expert sees. */
  readonly coverage?: number | undefined;
  /** Tokens of a batch on a device. */
  readonly batchTokens?: number | undefined;
}

/**
 * The calibration sequences as they enter block 0, shared out over the devices in runs of equal length. `outer`: one
 * map a device.
 */
export async function calibratedStreams(
  rts: readonly NativeRuntime[],
  graph: ModelGraph,
  outer: readonly BlockWeights[],
  sequences: readonly Int32Array[],
  { paired = 0, coverage = 0, batchTokens = DEVICE_BATCH_TOKENS }: StreamOptions = {},
): Promise<Streams[]> {
  const devices = Math.min(rts.length, sequences.length);
  const parts = Array.from({ length: rts.length }, (_, i) =>
    i < devices
      ? sequences.slice(
          Math.floor((i * sequences.length) / devices),
          Math.floor(((i + 1) * sequences.length) / devices),
        )
      : [],
  );
  const drafts = parts.map((part, i) => {
    const rt = rts[i] as NativeRuntime;
    const batches = batchSequences(rt, part, rt.device === 'cpu' ? CPU_BATCH_TOKENS : batchTokens);
    const states = embedBatches(rt, graph, outer[i] as BlockWeights, batches);
    const twins = states.slice(0, Math.ceil(states.length * paired)).map((state) => copyState(rt, state));
    return { rt, states, twins };
  });
  const tokens = (states: readonly BlockState[]) => states.reduce((sum, { batch }) => sum + batch.tokens, 0);
  const all = tokens(drafts.flatMap(({ states }) => states));
  const both = tokens(drafts.flatMap(({ twins }) => twins));
  const streams = drafts.map(({ rt, states, twins }) => ({
    quantized: new ActivationStream(rt, states, twins.length, undefined, coverage),
    original: paired > 0 ? new ActivationStream(rt, twins, states.length) : undefined,
    driftScale: both > 0 ? all / both : 1,
  }));
  for (const rt of rts) await rt.sync();
  return streams;
}

/** Lets go of all activations. */
export function disposeStreams(streams: readonly Streams[]): void {
  for (const { quantized, original } of streams) {
    quantized.dispose();
    original?.dispose();
  }
}

/** lm_head as a stage of its own, so that it is quantized like any other linear. */
export function headStage(graph: ModelGraph): Stage {
  return {
    id: 'lm_head',
    feeds: [{ id: 'lm_head', linears: [graph.head] }],
    capture: async (rt, weights, state) => new Map([['lm_head', graph.headInput(rt, weights, state.h)]]),
    advance: async (_rt, _weights, state) => state,
  };
}
