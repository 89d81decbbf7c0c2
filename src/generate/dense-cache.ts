import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import type { AttentionTensors } from '../model/program.js';
import { rotate } from '../model/turn.js';
import { appendTurned, attendKept, firstColumns, turnedQueries } from './append.js';
import type { CacheShape, KeyValueCache } from './cache.js';
import { GrowingRows } from './growing-rows.js';
import type { Step } from './step.js';

/** Keys and values of one block, [slots, rows, width] each. */
export interface Rows {
  readonly keys: Tensor;
  readonly values: Tensor;
}

/** Keys and values as rows of floats, which grow by doubling. On CUDA their dtype is that of the activations. */
export class DenseCache implements KeyValueCache {
  readonly pieces = true;
  private readonly rows: GrowingRows;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly dtype: DType,
    shape: CacheShape,
  ) {
    this.rows = new GrowingRows(rt, dtype, shape);
  }

  get form(): string {
    return this.dtype;
  }

  get bytes(): number {
    return this.tensors().reduce((sum, tensor) => sum + tensor.byteLength, 0);
  }

  get room(): number {
    return this.rows.room;
  }

  tensors(): readonly Tensor[] {
    return this.rows.tensors();
  }

  begin({ longest }: Step): void {
    this.rows.grow(longest);
  }

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    const { rt } = this;
    // A prompt from its start on needs nothing of the cache, and the kernel for that is the faster one.
    if (rt.device !== 'cpu' && t.reads === undefined && !t.selected && step.entries.every(({ past }) => past === 0)) {
      const { keys, values } = this.rowsOf(block, p);
      rotate(rt, t, p);
      const [qFirst, kFirst, vFirst] = firstColumns(t, p);
      const kept = { ...(kFirst !== undefined && { kFirst }), ...(vFirst !== undefined && { vFirst }) };
      ops.cacheAppend(rt, t.k.of, t.v.of, step, keys, values, kept);
      const firsts = { ...(qFirst !== undefined && { qFirst }), ...kept };
      ops.attention(rt, t.q.of, t.k.of, t.v.of, step.starts, t.y, { ...p, ...firsts }, sinks);
      return;
    }
    const { q, keys, values } = this.keep(block, step, t, p);
    attendKept(rt, { q, keys, values }, step, t, p, sinks);
    q.dispose();
  }

  /** Enqueues keeping a step's keys and values: those of the block so far, and the queries, turned, which the caller disposes of. */
  keep(block: number, step: Step, t: AttentionTensors, p: AttentionParams): Rows & { readonly q: Tensor } {
    const { keys, values } = this.rowsOf(t.reads ?? block, p);
    if (t.reads !== undefined) return { keys, values, q: turnedQueries(this.rt, t, p) };
    return { keys, values, q: appendTurned(this.rt, t, p, step, { keys, values }) };
  }

  private rowsOf(block: number, { kvHeads, headDim, valueDim = headDim }: AttentionParams): Rows {
    return {
      keys: this.rows.of(`${block} keys`, kvHeads * headDim),
      values: this.rows.of(`${block} values`, kvHeads * valueDim),
    };
  }

  dispose(): void {
    this.rows.dispose();
  }
}
