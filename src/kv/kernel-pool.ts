import { KV_FORMS } from '../../formats/kv/forms.js';
import { kvKernelForm, kvPageBytes, kvPages } from '../../formats/kv/kernels.js';
import type { KvScheme } from '../../formats/kv/scheme.js';
import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { KvForm, KvPages } from '../../native/kv-ops.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { blockTokens, type KvPageShape } from './page.js';
import { batchOf, type KvQueries, KvSequence, type KvStore } from './sequence.js';

/** Pages that kernels fill and read, on any device: U8 [pages, bytes] of keys, their numbers, values and theirs, or of blocks. */
export class KernelPool implements KvStore {
  readonly tensors: readonly Tensor[];
  readonly pages: KvPages;
  readonly form: KvForm;
  /** The newest tokens may stay exact. */
  readonly tail: boolean;
  readonly width: number;
  readonly residual: number;
  readonly batch: number;

  /** Throws LPQ_LAYOUT for a scheme that no kernel reads. */
  constructor(
    readonly rt: NativeRuntime,
    scheme: KvScheme,
    { heads, headDim, tokens, order = 'inner' }: KvPageShape,
    pages: number,
  ) {
    const form = kvKernelForm(scheme, { kvHeads: heads, headDim, pageTokens: tokens, outer: order === 'outer' });
    if (typeof form === 'string') throw new LpqError('LPQ_LAYOUT', form);
    this.form = form;
    this.tail = KV_FORMS[scheme.form].tail;
    this.width = heads * headDim;
    this.residual = scheme.residual;
    this.batch = Math.max(scheme.residual, blockTokens(scheme));
    this.tensors = kvPageBytes(form).map((bytes) => {
      const tensor = rt.allocate('u8', [pages, bytes]);
      ops.zero(rt, tensor);
      return tensor;
    });
    this.pages = kvPages(this.tensors);
  }

  pack(table: readonly number[], first: number, k: Tensor, v: Tensor, count: number): void {
    const { rt, form, pages } = this;
    if (first + count > table.length * form.pageTokens)
      throw new LpqError('LPQ_INTERNAL', `a sequence of ${first} tokens has no page for the next token`);
    const [keys, values] = [this.half(k, count), this.half(v, count)];
    const places = uploadTyped(rt, 'i32', [table.length], Int32Array.from(table));
    ops.kvPack(rt, keys, values, places, pages, { ...form, first });
    for (const tensor of [keys, values, places]) tensor.dispose();
  }

  /** q is rounded to f16; y f16 or f32. */
  attend(sequences: readonly KvSequence[], q: Tensor, y: Tensor, { heads, scale, sinks }: KvQueries): void {
    const { rt, form, pages } = this;
    const query = this.half(q, q.shape[0] as number);
    const batch = batchOf(this, sequences);
    ops.kvDecode(rt, query, { pages, ...batch }, y, { ...form, heads, scale }, sinks);
    for (const tensor of [query, ...Object.values(batch)]) (tensor as Tensor).dispose();
  }

  dispose(): void {
    for (const tensor of this.tensors) tensor.dispose();
  }

  /** The first rows of x, as f16. */
  half(x: Tensor, rows: number): Tensor {
    const width = x.shape[1] as number;
    const from = x.view([rows, width]);
    const to = this.rt.allocate('f16', [rows, width]);
    ops.cast(this.rt, from, to);
    from.dispose();
    return to;
  }
}

/** A sequence whose tokens are appended by ops.kvAppend: a full tail is packed as the next token comes. */
export class KernelSequence extends KvSequence {
  private readonly places: Tensor;
  private state: { readonly lengths: Tensor; readonly tails: Tensor } | undefined;

  constructor(
    override readonly pool: KernelPool,
    table: readonly number[],
  ) {
    super(pool, table);
    this.places = uploadTyped(pool.rt, 'i32', [1, table.length], Int32Array.from(table));
  }

  /** Enqueues one token, k and v [1, width]; a tail that is full is packed first. */
  override append(k: Tensor, v: Tensor): void {
    const { pool } = this;
    // Whole blocks without a tail are packed before they are read, which is no decoder's order.
    if (!this.appends) {
      super.append(k, v);
      return;
    }
    const [key, value] = [pool.half(k, 1), pool.half(v, 1)];
    const { cache, dispose } = this.cache();
    ops.kvAppend(pool.rt, key, value, cache, pool.form);
    for (const tensor of [key, value]) tensor.dispose();
    dispose();
    if (!pool.tail) this.packed += 1;
    else {
      if (this.tail === pool.batch) [this.packed, this.tail] = [this.packed + pool.batch, 0];
      this.tail += 1;
    }
  }

  override step(k: Tensor, v: Tensor, q: Tensor, y: Tensor, queries: KvQueries): void {
    if (!this.appends) {
      super.step(k, v, q, y, queries);
      return;
    }
    const { pool } = this;
    this.append(k, v);
    const query = pool.half(q, 1);
    const { cache, dispose } = this.cache();
    ops.kvDecode(pool.rt, query, cache, y, { ...pool.form, ...queries });
    query.dispose();
    dispose();
  }

  private get appends(): boolean {
    return !this.pool.tail || this.pool.residual > 0;
  }

  /** This sequence alone, as the operations take it: lengths and tails stay on the device. */
  private cache() {
    const { rt, pages, batch, width } = this.pool;
    const int = (value: number): Tensor => uploadTyped(rt, 'i32', [1], Int32Array.of(value));
    this.state ??= { lengths: int(this.packed), tails: int(this.tail) };
    const [tailKeys, tailValues] = [this.tailKeys, this.tailValues].map((tail) => tail.view([1, batch, width])) as [
      Tensor,
      Tensor,
    ];
    const dispose = (): void => {
      for (const tensor of [tailKeys, tailValues]) tensor.dispose();
    };
    return { cache: { pages, table: this.places, tailKeys, tailValues, ...this.state }, dispose };
  }

  override dispose(): void {
    super.dispose();
    for (const tensor of [this.places, this.state?.lengths, this.state?.tails]) tensor?.dispose();
  }
}
