import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { asRead } from '../model/activations.js';
import { disposeStates } from '../model/forward.js';
import type { BlockState, BlockWeights, Stage } from '../model/program.js';
import { SHORTCUT } from '../model/shortcut.js';
import type { Room } from './room.js';
import { ShelvedState } from './shelf.js';

/** Bytes of stage-to-stage activations that the CPU keeps for all batches; above it they are computed again. */
const KEEP_BYTES = 4 * 2 ** 30;
/** What a stage hands to the next is parked on the host up to this multiple of the residual stream, else computed again. */
const PARK_RATIO = 2;

/** A stage with the weights it runs with; they must stay until the stream has passed it. */
export interface Step {
  readonly stage: Stage;
  readonly weights: BlockWeights;
}

/**
 * Calibration data on its way through one model (the quantized one, or the original beside it) on one device. It moves
 * lazily: follow() says which stages come next, and the next sweep, a visit of every batch in order, takes them there and
 * captures what the following stage reads. What a stage leaves that is too large to keep is computed again in the sweep
 * after.
 */
export class ActivationStream {
  private readonly shelf: readonly ShelvedState[];
  private pending: Step[] = [];
  private keep = false;

  /**
   * Takes the states over. `company`: batches of other streams that wait on the same device. `coverage`: the share of a batch's
   * tokens that statistics of every expert are of (Stage.capture).
   */
  constructor(
    private readonly rt: NativeRuntime,
    states: readonly (BlockState | ShelvedState)[],
    private readonly company = 0,
    private readonly keepBytes = KEEP_BYTES,
    private readonly coverage = 0,
  ) {
    this.shelf = states.map((state) => (state instanceof ShelvedState ? state : new ShelvedState(rt, state)));
  }

  get batches(): number {
    return this.shelf.length;
  }

  get tokens(): number {
    return this.shelf.reduce((sum, { tokens }) => sum + tokens, 0);
  }

  /** Bytes of what waits on the device. */
  get residentBytes(): number {
    return this.shelf.reduce((sum, slot) => sum + slot.residentBytes, 0);
  }

  /** A batch's state where it waits, between two blocks; the caller disposes of it. */
  peek(batch: number): BlockState {
    return (this.shelf[batch] as ShelvedState).copy();
  }

  /** A second stream from where this one waits, between two blocks. */
  copy(): ActivationStream {
    return new ActivationStream(
      this.rt,
      this.shelf.map((slot) => slot.twin()),
      this.batches,
      this.keepBytes,
      this.coverage,
    );
  }

  /** The next sweep passes this stage, after those named before. */
  follow(step: Step): void {
    this.pending.push(step);
  }

  /** Begins to bring a batch back from the host; none: nothing. */
  prefetch(batch: number): void {
    this.shelf[batch]?.prefetch();
  }

  /**
   * Takes one batch of a sweep past the pending stages; `room`: what may stay on the device. Returns the inputs of
   * `capture`'s feeds by feed id, which the caller disposes of.
   */
  async visit(batch: number, room: Room, capture?: Step): Promise<Map<string, Tensor>> {
    const slot = this.shelf[batch] as ShelvedState;
    const first = batch === 0;
    let state = slot.open(this.pending.length === 0 || (!first && this.keep));
    try {
      for (const { stage, weights } of this.pending) state = await stage.advance(this.rt, weights, state);
      const captured = capture ? await this.capture(capture, state) : new Map();
      if (first) this.keep = this.pending.length > 0 && this.worthKeeping(slot, state, room);
      if (this.keep) slot.replace(state);
      else disposeState(state);
      slot.settle(room.take(slot.bytes));
      return captured;
    } catch (error) {
      disposeState(state);
      throw error;
    }
  }

  /** Ends a sweep that visited every batch. Returns true when the pending stages are behind the stream. */
  finish(): boolean {
    if (this.keep || this.shelf.length === 0) this.pending = [];
    this.keep = false;
    return this.pending.length === 0;
  }

  dispose(): void {
    for (const slot of this.shelf) slot.dispose();
  }

  /** The inputs of a stage's feeds as their linears read them. */
  private async capture({ stage, weights }: Step, state: BlockState): Promise<Map<string, Tensor>> {
    const captured = await stage.capture(this.rt, weights, state, this.coverage);
    const forms = weights.activations;
    if (!forms) return captured;
    for (const { id, linears } of stage.feeds) {
      const form = linears.map(({ name }) => forms.get(name)).find((found) => found !== undefined);
      const x = captured.get(id);
      if (!form || !x) continue;
      captured.set(id, asRead(this.rt, x, form));
      x.dispose();
    }
    return captured;
  }

  private worthKeeping(slot: ShelvedState, state: BlockState, room: Room): boolean {
    // What experts made for a later block is part of the stream: it cannot be computed again once the block is over.
    const made = Object.entries(state.aux).filter(([name]) => name !== SHORTCUT);
    const aux = made.reduce((sum, [, tensor]) => sum + tensor.byteLength, 0);
    if (aux === 0) return true;
    if (this.rt.device === 'cpu') return aux * this.batches <= this.keepBytes;
    const all = (aux + slot.streamBytes) * (this.batches + this.company);
    return room.fits(all) || aux <= PARK_RATIO * slot.streamBytes;
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
  // Never changed in place.
  const carried = Object.entries(state.carried ?? {}).map(([key, tensor]) => [key, tensor.view(tensor.shape)] as const);
  return { batch: state.batch, h: twin(state.h), aux, ...(state.carried && { carried: Object.fromEntries(carried) }) };
}

export function disposeState(state: BlockState): void {
  disposeStates([state]);
}
