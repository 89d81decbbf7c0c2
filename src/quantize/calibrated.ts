import type { NativeRuntime } from '../../native/binding.js';
import type { Section, Streams } from '../calibrate/statistics.js';
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
 * Moments are summed up in so many sections of the sequences, whether one, two or four devices do it, and these are then
 * added in their order: the same bytes. More devices take a section each.
 */
const SECTIONS = 4;

/** Sections of the sequences for each device. One device of the CPU takes them as one: its moments are f64, and twice as large. */
function sectionsFor(rts: readonly NativeRuntime[], sequences: readonly Int32Array[]): Int32Array[][][] {
  const whole = rts.length === 1 && rts[0]?.device === 'cpu';
  const most = whole ? 1 : SECTIONS % rts.length === 0 ? SECTIONS : rts.length;
  const count = Math.max(1, Math.min(most, sequences.length));
  const cut = (i: number) => Math.floor((i * sequences.length) / count);
  const all = Array.from({ length: count }, (_, i) => sequences.slice(cut(i), cut(i + 1)));
  const devices = Math.min(rts.length, count);
  return rts.map((_, device) => all.filter((_, i) => Math.floor((i * devices) / count) === device));
}

/** The calibration sequences as they enter block 0, shared out over the devices. `outer`: one map a device. */
export async function calibratedStreams(
  rts: readonly NativeRuntime[],
  graph: ModelGraph,
  outer: readonly BlockWeights[],
  sequences: readonly Int32Array[],
  { paired = 0, coverage = 0, batchTokens = DEVICE_BATCH_TOKENS }: StreamOptions = {},
): Promise<Streams[]> {
  const drafts = sectionsFor(rts, sequences).map((own, i) => {
    const rt = rts[i] as NativeRuntime;
    const [states, twins, sections]: [BlockState[], BlockState[], Section[]] = [[], [], []];
    for (const section of own) {
      const batches = batchSequences(rt, section, rt.device === 'cpu' ? CPU_BATCH_TOKENS : batchTokens);
      const embedded = embedBatches(rt, graph, outer[i] as BlockWeights, batches);
      const both = embedded.slice(0, Math.ceil(embedded.length * paired));
      sections.push({ batches: embedded.length, paired: both.length });
      states.push(...embedded);
      twins.push(...both.map((state) => copyState(rt, state)));
    }
    return { rt, states, twins, sections };
  });
  const tokens = (states: readonly BlockState[]) => states.reduce((sum, { batch }) => sum + batch.tokens, 0);
  const all = tokens(drafts.flatMap(({ states }) => states));
  const both = tokens(drafts.flatMap(({ twins }) => twins));
  const streams = drafts.map(({ rt, states, twins, sections }, i) => ({
    quantized: new ActivationStream(rt, states, twins.length, undefined, coverage),
    original: paired > 0 ? new ActivationStream(rt, twins, states.length) : undefined,
    driftScale: both > 0 ? all / both : 1,
    sections,
    apart: i > 0,
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
