import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { makeBatch, type TokenBatch } from './batch.js';
import { branchInput } from './branch.js';
import type { PredictionPlan } from './plan-prediction.js';
import type { Batch, BlockState, BlockWeights, Stage } from './program.js';
import { applyLinear, applyNorm, linearTensors, normTensors, weightOf } from './weights.js';

export function predictionTensors(plan: PredictionPlan): [string, readonly number[]][] {
  const { embedding, vocab, embeddingNorm, hiddenNorm, projection, before } = plan;
  return [
    [embedding.weight, [vocab, embedding.width]],
    ...[embeddingNorm, hiddenNorm, before].flatMap(normTensors),
    ...linearTensors(projection),
  ];
}

/** The tokens that follow those of a batch, and which of its rows they follow: all but the last of each sequence. */
interface Following {
  readonly batch: TokenBatch;
  readonly rows: Tensor;
}

/** Batches live as long as a run, and so does what follows them. */
const followers = new WeakMap<Batch, Following>();

/** Sequences of one token less; both streams of a batch go on with the same. */
function following(rt: NativeRuntime, batch: TokenBatch): Following {
  const known = followers.get(batch);
  if (known) return known;
  const { hostIds, hostStarts, lengths } = batch;
  const sequences = lengths.map((length, s) => {
    const first = hostStarts[s] as number;
    return { ids: hostIds.subarray(first + 1, first + length), first };
  });
  const rows = Int32Array.from(sequences.flatMap(({ ids, first }) => [...ids.keys()].map((i) => first + i)));
  const made = {
    batch: makeBatch(
      rt,
      sequences.map(({ ids }) => ids),
    ),
    rows: uploadTyped(rt, 'i32', [rows.length], rows),
  };
  followers.set(batch, made);
  return made;
}

/** The state that enters the layer's block. `state` stays as it is. */
export function entered(rt: NativeRuntime, weights: BlockWeights, plan: PredictionPlan, state: BlockState): BlockState {
  const { embedding, embeddingNorm, hiddenNorm, projection, before } = plan;
  const { batch, rows } = following(rt, state.batch as TokenBatch);
  const { tokens } = batch;
  const width = state.h.shape[1] as number;
  const h = rt.allocate('f32', [tokens, width]);
  ops.embedding(rt, rows, state.h, h);
  if (before) applyNorm(rt, weights, before, h, true);
  applyNorm(rt, weights, hiddenNorm, h, true);
  const e = rt.allocate('f32', [tokens, embedding.width]);
  ops.embedding(rt, batch.ids, weightOf(weights, embedding.weight), e, { scale: embedding.scale });
  applyNorm(rt, weights, embeddingNorm, e, true);
  const both = rt.allocate('f32', [tokens, embedding.width + width]);
  ops.placeColumns(rt, e, both, { first: 0 });
  ops.placeColumns(rt, h, both, { first: embedding.width });
  const x = branchInput(rt, weights, undefined, { h: both });
  const y = applyLinear(rt, weights, projection, x);
  for (const tensor of [h, e, both, x]) tensor.dispose();
  return { batch, h: y, aux: {} };
}

/** The stages of a layer's block, the first of which reads what stands before it. */
export function predictionStages([first, ...rest]: readonly Stage[], plan: PredictionPlan): Stage[] {
  const stage = first as Stage;
  return [
    {
      ...stage,
      async capture(rt, weights, state, coverage) {
        const made = entered(rt, weights, plan, state);
        const captured = await stage.capture(rt, weights, made, coverage);
        made.h.dispose();
        return captured;
      },
      async advance(rt, weights, state) {
        const made = entered(rt, weights, plan, state);
        for (const tensor of [state.h, ...Object.values(state.aux)]) tensor.dispose();
        return stage.advance(rt, weights, made);
      },
    },
    ...rest,
  ];
}
