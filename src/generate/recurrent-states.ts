import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { AttentionParams } from '../../native/ops.js';
import type { Past } from '../../native/recurrent-ops.js';
import type { AttentionTensors, KeptLatents } from '../model/program.js';
import type { Cache, CacheShape, KeyValueCache } from './cache.js';
import { GrowingRows } from './growing-rows.js';
import type { Step } from './step.js';

/** Keys and values of blocks with attention in `kept`, the states of recurrent blocks, f32 [slots, ...] each, and what indexers keep of tokens. */
export class SequenceCache implements Cache {
  private readonly states = new Map<string, Tensor>();
  private readonly grown: GrowingRows;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly kept: KeyValueCache,
    private readonly shape: CacheShape,
  ) {
    this.grown = new GrowingRows(rt, 'f32', shape);
  }

  get form(): string {
    return this.kept.form;
  }

  get pieces(): boolean {
    return this.kept.pieces;
  }

  get bytes(): number {
    const own = [...this.states.values(), ...this.grown.tensors()];
    return own.reduce((sum, tensor) => sum + tensor.byteLength, this.kept.bytes);
  }

  get room(): number {
    return Math.min(this.kept.room, this.grown.room);
  }

  tensors(): readonly Tensor[] {
    return [...this.kept.tensors(), ...this.states.values(), ...this.grown.tensors()];
  }

  begin(step: Step): void {
    this.kept.begin(step);
    this.grown.grow(step.longest);
  }

  end(step: Step): void {
    this.kept.end?.(step);
  }

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    this.kept.attend(block, step, t, p, sinks);
  }

  latents(block: number, step: Step, stored: { latent: number; rotary: number }): KeptLatents | undefined {
    return this.kept.latents?.(block, step, stored);
  }

  recall(block: number, { starts, slots, totals }: Step, name: string, shape: readonly number[]): Past {
    const key = `${block} ${name}`;
    let state = this.states.get(key);
    if (!state) {
      // Sequences begin at zero whatever their slots hold.
      state = this.rt.allocate('f32', [this.shape.slots, ...shape]);
      this.states.set(key, state);
    }
    return { starts, kept: { slots, totals, state } };
  }

  rows(block: number, { starts, slots, totals }: Step, name: string, width: number, rate?: number): Past {
    return { starts, kept: { slots, totals, state: this.grown.of(`${block} ${name}`, width, rate) } };
  }

  dispose(): void {
    this.kept.dispose();
    this.grown.dispose();
    for (const state of this.states.values()) state.dispose();
    this.states.clear();
  }
}
