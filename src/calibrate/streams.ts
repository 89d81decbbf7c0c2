import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { BlockState, BlockWeights, Stage } from '../model/program.js';

/** Bytes of stage-to-stage activations kept for all batches; above it they are computed again when needed. */
const KEEP_BYTES = 4 * 2 ** 30;

/** On a device: a quarter of what is left, for there may be two streams, and solvers need room too. */
function roomToKeep(rt: NativeRuntime): number {
  const memory = rt.memory();
  return memory ? (memory.limit - memory.used) / 4 : KEEP_BYTES;
}

/**
 * The calibration data on its way through one model (the quantized one, or the original beside it). Between stages every
 * batch holds the state that enters stage `at`. A stage whose result is too large to keep is not advanced past: later
 * stages then recompute it from a copy.
 */
export class ActivationStream {
  private at = 0;
  private stages: readonly Stage[] = [];
  private weights: BlockWeights = new Map();

  constructor(
    private readonly rt: NativeRuntime,
    readonly states: BlockState[],
    private readonly keepBytes?: number,
  ) {}

  /** Enters a block. `weights` may change while the block is worked on. */
  enter(stages: readonly Stage[], weights: BlockWeights): void {
    this.stages = stages;
    this.weights = weights;
    this.at = 0;
  }

  /** The inputs of stage `index`'s feeds for one batch. The caller disposes of the tensors. */
  async capture(index: number, batch: number): Promise<Map<string, Tensor>> {
    const state = this.states[batch] as BlockState;
    if (index === this.at) return (this.stages[index] as Stage).capture(this.rt, this.weights, state);
    const ahead = await this.run(this.copy(state), index);
    try {
      return await (this.stages[index] as Stage).capture(this.rt, this.weights, ahead);
    } finally {
      disposeState(ahead);
    }
  }

  /** Takes every batch past stage `index`, if what that leaves to keep is small enough or the block ends there. */
  async pass(index: number): Promise<void> {
    const last = index === this.stages.length - 1;
    for (let i = 0; i < this.states.length; i++) {
      const state = this.states[i] as BlockState;
      const next = await this.run(i === 0 && !last ? this.copy(state) : state, index + 1);
      if (i === 0 && !last) {
        const bytes = Object.values(next.aux).reduce((sum, tensor) => sum + tensor.byteLength, 0);
        if (bytes * this.states.length > (this.keepBytes ?? roomToKeep(this.rt))) {
          disposeState(next);
          return;
        }
        disposeState(state);
      }
      this.states[i] = next;
      await this.rt.sync(); // bounds memory: tensors are allocated when enqueued
    }
    this.at = index + 1;
  }

  dispose(): void {
    for (const state of this.states) disposeState(state);
  }

  private async run(state: BlockState, until: number): Promise<BlockState> {
    let next = state;
    for (let s = this.at; s < until; s++) next = await (this.stages[s] as Stage).advance(this.rt, this.weights, next);
    return next;
  }

  private copy(state: BlockState): BlockState {
    return copyState(this.rt, state);
  }
}

/** A second state with the same contents. */
export function copyState(rt: NativeRuntime, state: BlockState): BlockState {
  const twin = (tensor: Tensor) => {
    if (tensor.dtype === 'i32') return tensor.view(tensor.shape); // routing tables are never written again
    const copy = rt.allocate(tensor.dtype, tensor.shape);
    ops.cast(rt, tensor, copy);
    return copy;
  };
  const aux = Object.fromEntries(Object.entries(state.aux).map(([key, tensor]) => [key, twin(tensor)]));
  return { batch: state.batch, h: twin(state.h), aux };
}

export function disposeState(state: BlockState): void {
  state.h.dispose();
  for (const tensor of Object.values(state.aux)) tensor.dispose();
}
