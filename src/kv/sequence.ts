import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';

/** Query heads that read the cache. */
export interface KvQueries {
  readonly heads: number;
  readonly scale: number;
  /** [heads]: a logit a head that takes part in the softmax and has no value. */
  readonly sinks?: Tensor;
}

/** Memory for packed pages of one layer, on a device. */
export interface KvStore {
  readonly rt: NativeRuntime;
  /** Elements of a token: of all kv heads. */
  readonly width: number;
  /** Newest tokens up to which stay exact; 0: none. */
  readonly residual: number;
  /** Tokens that are packed together: the residual, or without one a block of the layout. */
  readonly batch: number;
  /** Enqueues packing tokens first .. first + count of a sequence, whole blocks: the first rows of k and v, f32 or f16. */
  pack(table: readonly number[], first: number, k: Tensor, v: Tensor, count: number): void;
  /** Enqueues attention of one query token q [B, heads*headDim] for each sequence. */
  attend(sequences: readonly KvSequence[], q: Tensor, y: Tensor, queries: KvQueries): void;
}

/** One sequence: packed tokens in the pages of its table, in any order, and the newest, exact, in f16. */
export class KvSequence {
  /** f16 [batch, width]. */
  readonly tailKeys: Tensor;
  readonly tailValues: Tensor;
  packed = 0;
  tail = 0;

  constructor(
    readonly pool: KvStore,
    readonly table: readonly number[],
  ) {
    const { rt, batch, width } = pool;
    this.tailKeys = rt.allocate('f16', [batch, width]);
    this.tailValues = rt.allocate('f16', [batch, width]);
  }

  get length(): number {
    return this.packed + this.tail;
  }

  /** Enqueues the tokens of a prompt, k and v [T, width] f32 or f16, of an empty sequence: N_p = L - L mod N_r are packed. */
  prefill(k: Tensor, v: Tensor): void {
    const [tokens] = k.shape as [number, number];
    if (this.length > 0) throw new LpqError('LPQ_INTERNAL', 'a prompt comes first');
    const packed = tokens - (tokens % this.pool.batch);
    this.pack(k, v, packed);
    this.keep(k, v, packed, tokens - packed);
  }

  /** Enqueues one token, k and v [1, width]; it is exact until flush(). */
  append(k: Tensor, v: Tensor): void {
    if (this.tail === this.pool.batch) throw new LpqError('LPQ_INTERNAL', 'the tail is full: flush() comes first');
    this.keep(k, v, 0, 1);
  }

  /**
   * Enqueues one token and its attention, y [1, heads*headDim]. A tail that it fills is packed afterwards (BitDecoding, section V-B:
   * the step that fills it still reads it exactly); without a residual the token is read as it is stored.
   */
  step(k: Tensor, v: Tensor, q: Tensor, y: Tensor, queries: KvQueries): void {
    this.append(k, v);
    if (this.pool.residual === 0) this.flush();
    this.pool.attend([this], q, y, queries);
    this.flush();
  }

  /** Enqueues the packing of a full tail. */
  flush(): void {
    if (this.tail < this.pool.batch) return;
    this.pack(this.tailKeys, this.tailValues, this.tail);
    this.tail = 0;
  }

  dispose(): void {
    for (const tensor of [this.tailKeys, this.tailValues]) tensor.dispose();
  }

  private pack(k: Tensor, v: Tensor, count: number): void {
    if (count > 0) this.pool.pack(this.table, this.packed, k, v, count);
    this.packed += count;
  }

  /** Rows first .. first + count of k and v go to the tail. */
  private keep(k: Tensor, v: Tensor, first: number, count: number): void {
    const { rt, width } = this.pool;
    if (count > 0)
      for (const [x, to] of [
        [k, this.tailKeys],
        [v, this.tailValues],
      ] as const) {
        const from = x.view([count, width], first * width);
        const room = to.view([count, width], this.tail * width);
        ops.cast(rt, from, room);
        for (const view of [from, room]) view.dispose();
      }
    this.tail += count;
  }
}

/** What attention is told of sequences beside pages; the caller disposes of it. */
export interface KvBatch {
  readonly table: Tensor;
  readonly lengths: Tensor;
  readonly tailKeys: Tensor;
  readonly tailValues: Tensor;
  readonly tails: Tensor;
}

/** Page tables (-1 where there is no page), lengths and tails of sequences of one store. */
export function batchOf({ rt, width }: KvStore, sequences: readonly KvSequence[]): KvBatch {
  const count = sequences.length;
  const longest = Math.max(1, ...sequences.map(({ table }) => table.length));
  const room = Math.max(1, ...sequences.map(({ tail }) => tail));
  const table = new Int32Array(count * longest).fill(-1);
  const [tailKeys, tailValues] = [0, 1].map(() => rt.allocate('f16', [count, room, width])) as [Tensor, Tensor];
  for (const [b, sequence] of sequences.entries()) {
    table.set(sequence.table, b * longest);
    for (const [exact, all] of [
      [sequence.tailKeys, tailKeys],
      [sequence.tailValues, tailValues],
    ] as const) {
      if (sequence.tail === 0) continue;
      const from = exact.view([sequence.tail, width]);
      const to = all.view([sequence.tail, width], b * room * width);
      ops.cast(rt, from, to);
      for (const view of [from, to]) view.dispose();
    }
  }
  const ints = (values: readonly number[]): Tensor => uploadTyped(rt, 'i32', [count], Int32Array.from(values));
  return {
    table: uploadTyped(rt, 'i32', [count, longest], table),
    lengths: ints(sequences.map(({ packed }) => packed)),
    tailKeys,
    tailValues,
    tails: ints(sequences.map(({ tail }) => tail)),
  };
}
