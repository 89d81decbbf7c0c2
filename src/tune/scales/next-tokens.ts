import { type NativeRuntime, type Tensor, uploadTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { TokenBatch } from '../../model/batch.js';

/** Of a distribution that is one token: the others are exp(-this) of it, which is 0. */
const CERTAIN = 1e4;

/** The tokens that follow those of a batch, as distributions; the last of a sequence has none. */
export class NextTokens {
  private readonly next: Int32Array;

  constructor({ hostIds, hostStarts, tokens }: TokenBatch) {
    this.next = Int32Array.from({ length: tokens }, (_, i) => hostIds[i + 1] ?? -1);
    for (const start of hostStarts) if (start > 0) this.next[start - 1] = -1;
  }

  /** f32 [count, vocab] behind tokens `first` on. The caller disposes of it. */
  logits(rt: NativeRuntime, first: number, count: number, vocab: number): Tensor {
    const values = new Float32Array(count * vocab);
    for (let i = 0; i < count; i++) {
      const token = this.next[first + i] as number;
      if (token >= 0) values[i * vocab + token] = CERTAIN;
    }
    return uploadTyped(rt, 'f32', [count, vocab], values);
  }

  /** Sets the rows of tokens that no token follows to 0. */
  leaveOut(rt: NativeRuntime, dlogits: Tensor, first: number): void {
    const count = dlogits.shape[0] as number;
    const kept = Float32Array.from({ length: count }, (_, i) => ((this.next[first + i] as number) < 0 ? 0 : 1));
    const factors = uploadTyped(rt, 'f32', [count, 1], kept);
    ops.scaleRows(rt, dlogits, factors, dlogits);
    factors.dispose();
  }
}
