import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { copyState } from '../calibrate/streams.js';
import { tell } from '../core/activity.js';
import { batchSequences, disposeBatch } from '../model/batch.js';
import { disposeStates, embedBatches, loadOuter, runBlock } from '../model/forward.js';
import type { BlockState, BlockWeights, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { forActivations } from './blocks.js';
import { disposeModule } from './result.js';
import { roundWeight } from './round.js';
import type { QuantScheme } from './scheme.js';
import type { Unit } from './sensitivity.js';
import { dequantizeResult } from './stored.js';

/** Tokens that are taken through the model for each unit, and the positions of them whose predictions are compared. */
const SEQUENCES = 2;
const TOKENS = 256;
const STRIDE = 4;

/**
 * What rounding one unit alone does to the model's predictions: KL(original || model with that unit rounded to `scheme`), nats
 * a token, for every unit. All models advance block by block together, so that weights are read once; each holds a residual
 * stream of 512 tokens. A unit of the head is rounded behind the last block.
 */
export async function influenceOf(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  units: readonly Unit[],
  scheme: QuantScheme,
  sequences: readonly Int32Array[],
  onBlock: (done: number) => void = () => {},
): Promise<number[]> {
  const batches = batchSequences(
    rt,
    sequences.slice(0, SEQUENCES).map((ids) => ids.slice(0, TOKENS)),
    SEQUENCES * TOKENS,
  );
  const batch = batches[0]!;
  const outer = await loadOuter(rt, source, graph);
  let original = embedBatches(rt, graph, outer, batches.slice(0, 1))[0] as BlockState;
  const changed = new Map<Unit, BlockState>();
  try {
    for (const block of graph.blocks) {
      const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
      try {
        for (const [unit, state] of changed) {
          changed.set(unit, await runBlock(rt, block, weights, state));
          await rt.sync();
        }
        for (const unit of units.filter((each) => each.block === block.index)) {
          tell(`rounding ${unit.linears[0]?.name} alone`, changed.size, units.length);
          await withRounded(rt, weights, unit, scheme, async (replaced) => {
            changed.set(unit, await runBlock(rt, block, replaced, copyState(rt, original)));
            await rt.sync();
          });
        }
        original = await runBlock(rt, block, weights, original);
        await rt.sync();
      } finally {
        disposeWeights(weights);
      }
      onBlock(block.index + 1);
    }
    const positions: number[] = [];
    for (let at = 0; at < batch.tokens; at += STRIDE) positions.push(at);
    const reference = await predictions(rt, graph, outer, original, positions);
    const result: number[] = [];
    for (const unit of units) {
      const state = changed.get(unit);
      const seen = (weights: BlockWeights) => predictions(rt, graph, weights, state ?? original, positions);
      const other = await (state ? seen(outer) : withRounded(rt, outer, unit, scheme, seen));
      result.push(divergence(reference, other, graph.vocab));
    }
    return result;
  } finally {
    disposeStates([original, ...changed.values()]);
    disposeWeights(outer);
    batches.forEach(disposeBatch);
  }
}

/** Runs something with a block's weights, those of a unit rounded. */
async function withRounded<T>(
  rt: NativeRuntime,
  weights: BlockWeights,
  unit: Unit,
  scheme: QuantScheme,
  run: (replaced: BlockWeights) => Promise<T>,
): Promise<T> {
  const made: BlockWeights = new Map();
  try {
    for (const { name } of unit.linears) {
      const key = `${name}.weight`;
      const module = await roundWeight(rt, weights.get(key) as Tensor, scheme, name);
      made.set(key, forActivations(rt, dequantizeResult(rt, module)));
      disposeModule(module);
    }
    return await run(new Map([...weights, ...made]));
  } finally {
    disposeWeights(made);
  }
}

/** Logits at some positions, f32 [positions, V] in the CPU's memory. */
async function predictions(
  rt: NativeRuntime,
  graph: ModelGraph,
  outer: BlockWeights,
  state: BlockState,
  positions: readonly number[],
): Promise<Float32Array> {
  const all = new Float32Array(positions.length * graph.vocab);
  for (const [i, at] of positions.entries()) {
    const row = state.h.view([1, graph.hidden], at * graph.hidden);
    const logits = graph.logits(rt, outer, row);
    all.set(await readTyped(rt, logits), i * graph.vocab);
    logits.dispose();
    row.dispose();
  }
  return all;
}

function divergence(reference: Float32Array, other: Float32Array, vocab: number): number {
  let sum = 0;
  const rows = reference.length / vocab;
  for (let row = 0; row < rows; row++) {
    const p = reference.subarray(row * vocab, (row + 1) * vocab);
    const q = other.subarray(row * vocab, (row + 1) * vocab);
    const [peakP, peakQ] = [p, q].map((all) => all.reduce((a, b) => Math.max(a, b))) as [number, number];
    let [sumP, sumQ, cross] = [0, 0, 0];
    for (let i = 0; i < vocab; i++) {
      const weight = Math.exp((p[i] as number) - peakP);
      sumP += weight;
      sumQ += Math.exp((q[i] as number) - peakQ);
      cross += weight * ((p[i] as number) - (q[i] as number));
    }
    sum += Math.max(0, cross / sumP - (peakP + Math.log(sumP)) + peakQ + Math.log(sumQ));
  }
  return sum / rows;
}
