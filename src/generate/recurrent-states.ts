import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import type { Past } from '../../native/recurrent-ops.js';
import type { AttentionTensors } from '../model/program.js';
import type { Cache, KeyValueCache } from './cache.js';
import type { Step } from './step.js';

/** Keys and values of blocks with attention in `kept`, and the states of recurrent blocks, f32 [slots, ...] each. */
export class SequenceCache implements Cache {
  private readonly states = new Map<string, Tensor>();

  constructor(
    private readonly rt: NativeRuntime,
    private readonly kept: KeyValueCache,
    private readonly slots: number,
  ) {}

  get form(): string {
    return this.kept.form;
  }

  get pieces(): boolean {
    return this.kept.pieces;
  }

  get bytes(): number {
    return [...this.states.values()].reduce((sum, tensor) => sum + tensor.byteLength, this.kept.bytes);
  }

  tensors(): readonly Tensor[] {
    return [...this.kept.tensors(), ...this.states.values()];
  }

  begin(step: Step): void {
    this.kept.begin(step);
  }

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    this.kept.attend(block, step, t, p, sinks);
  }

  recall(block: number, { starts, slots, totals }: Step, name: string, shape: readonly number[]): Past {
    const key = `${block} ${name}`;
    let state = this.states.get(key);
    if (!state) {
      state = this.rt.allocate('f32', [this.slots, ...shape]);
      ops.zero(this.rt, state);
      this.states.set(key, state);
    }
    return { starts, kept: { slots, totals, state } };
  }

  dispose(): void {
    this.kept.dispose();
    for (const state of this.states.values()) state.dispose();
    this.states.clear();
  }
}
