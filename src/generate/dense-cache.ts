import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import type { AttentionTensors } from '../model/program.js';
import { rotate } from '../model/turn.js';
import { appendTurned, firstColumns, turnedQueries } from './append.js';
import type { CacheShape, KeyValueCache } from './cache.js';
import type { Step } from './step.js';

/** Keys and values of one block, [slots, rows, width] each. */
export interface Rows {
  readonly keys: Tensor;
  readonly values: Tensor;
}

/** Rows that a cache begins with: most prompts are longer. */
const FIRST_ROWS = 64;

/** Keys and values as rows of floats, which grow by doubling. On CUDA their dtype is that of the activations. */
export class DenseCache implements KeyValueCache {
  readonly pieces = true;
  private readonly layers: (Rows | undefined)[];
  private rows = 0;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly dtype: DType,
    private readonly shape: CacheShape,
  ) {
    this.layers = Array.from({ length: shape.blocks });
  }

  get form(): string {
    return this.dtype;
  }

  get bytes(): number {
    return this.tensors().reduce((sum, tensor) => sum + tensor.byteLength, 0);
  }

  tensors(): readonly Tensor[] {
    return this.layers.flatMap((rows) => (rows ? [rows.keys, rows.values] : []));
  }

  begin({ longest }: Step): void {
    if (longest <= this.rows) return;
    const held = this.rows;
    this.rows = Math.max(longest, Math.min(this.shape.most, Math.max(FIRST_ROWS, 2 * held)));
    for (const [block, old] of this.layers.entries()) {
      if (!old) continue;
      const grown = this.make(old.keys.shape[2] as number, old.values.shape[2] as number);
      for (const side of ['keys', 'values'] as const) this.move(old[side], grown[side], held);
      for (const tensor of [old.keys, old.values]) tensor.dispose();
      this.layers[block] = grown;
    }
  }

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    const { rt } = this;
    // A prompt from its start on needs nothing of the cache, and the kernel for that is the faster one.
    if (rt.device !== 'cpu' && t.reads === undefined && step.entries.every(({ past }) => past === 0)) {
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
    ops.cachedAttention(rt, q, keys, values, step, t.y, { ...p, most: step.most, longest: step.longest }, sinks);
    q.dispose();
  }

  /** Enqueues keeping a step's keys and values: those of the block so far, and the queries, turned, which the caller disposes of. */
  keep(block: number, step: Step, t: AttentionTensors, p: AttentionParams): Rows & { readonly q: Tensor } {
    const { keys, values } = this.rowsOf(t.reads ?? block, p);
    if (t.reads !== undefined) return { keys, values, q: turnedQueries(this.rt, t, p) };
    return { keys, values, q: appendTurned(this.rt, t, p, step, { keys, values }) };
  }

  private rowsOf(block: number, { kvHeads, headDim, valueDim = headDim }: AttentionParams): Rows {
    this.layers[block] ??= this.make(kvHeads * headDim, kvHeads * valueDim);
    return this.layers[block];
  }

  dispose(): void {
    for (const tensor of this.tensors()) tensor.dispose();
    this.layers.fill(undefined);
    this.rows = 0;
  }

  private make(keyWidth: number, valueWidth: number): Rows {
    const of = (width: number): Tensor => this.rt.allocate(this.dtype, [this.shape.slots, this.rows, width]);
    return { keys: of(keyWidth), values: of(valueWidth) };
  }

  /** The first `rows` rows of every slot. */
  private move(from: Tensor, to: Tensor, rows: number): void {
    const width = from.shape[2] as number;
    for (let slot = 0; slot < this.shape.slots; slot++) {
      const [source, target] = [from, to].map((tensor) =>
        tensor.view([rows, width], slot * (tensor.shape[1] as number) * width),
      ) as [Tensor, Tensor];
      ops.copyHeads(this.rt, source, target, { heads: 1, width, fromDim: width, from: 0, toDim: width, to: 0 });
      for (const view of [source, target]) view.dispose();
    }
  }
}
