import { fromTyped, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import type { AttentionTensors } from '../model/program.js';
import type { KvChannels } from '../model/source.js';
import { attendKept } from './append.js';
import type { CacheShape, KeyValueCache } from './cache.js';
import { DenseCache } from './dense-cache.js';
import type { Step } from './step.js';

/**
 * Keys and values that FMPQ quantizes channel by channel over runs of tokens (docs/fmpq.md): kept exactly, and read as the
 * quantizer gives the whole sequence back, so that every step sees what an evaluation of the sequence so far sees. On the CPU.
 */
export class SimulatedCache implements KeyValueCache {
  readonly pieces = false;
  readonly room = 0;
  private readonly exact: DenseCache;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly channels: KvChannels,
    shape: CacheShape,
  ) {
    this.exact = new DenseCache(rt, 'f32', shape);
  }

  get form(): string {
    return `${this.channels.bits} bits a channel, simulated`;
  }

  get bytes(): number {
    return this.exact.bytes;
  }

  tensors(): readonly Tensor[] {
    return this.exact.tensors();
  }

  begin(step: Step): void {
    this.exact.begin(step);
  }

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    const { rt } = this;
    const rows = this.exact.keep(block, step, t, p);
    const read = [rows.keys, rows.values].map((tensor) => this.quantized(tensor, step)) as [Tensor, Tensor];
    attendKept(rt, { q: rows.q, keys: read[0], values: read[1] }, step, t, p, sinks);
    for (const tensor of [...read, rows.q]) tensor.dispose();
  }

  dispose(): void {
    this.exact.dispose();
  }

  /** A copy of kept rows, those of the step's sequences as the quantizer gives them back. */
  private quantized(kept: Tensor, { entries }: Step): Tensor {
    const { rt } = this;
    const [, rows, width] = kept.shape as [number, number, number];
    const copy = rt.allocate('f32', kept.shape);
    for (const { slot, past, ids } of entries) {
      const length = past + ids.length;
      const [from, to] = [kept, copy].map((tensor) => tensor.view([length, width], slot * rows * width)) as [
        Tensor,
        Tensor,
      ];
      const starts = fromTyped('i32', [2], Int32Array.of(0, length));
      ops.simulateKv(rt, from, starts, to, this.channels);
      for (const tensor of [from, to, starts]) tensor.dispose();
    }
    return copy;
  }
}
