import { allocate, fromTyped, type NativeRuntime, type OpParams, type Tensor } from '../../native/binding.js';
import type { KvTensors } from '../../native/kv-ops.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { pack } from '../layout/engine.js';
import { pageParams, sideParams } from './layout-params.js';
import type { KvPage, KvSide } from './page.js';
import { rowsOf } from './part.js';

/** Query heads that read the cache. */
export interface KvQueries {
  readonly heads: number;
  readonly scale: number;
}

/** Memory for packed pages of one layer, on the CPU: U8 [pages, bytes] for each tensor of a page. */
export class KvPool {
  readonly tensors: readonly Tensor[];
  private readonly params: OpParams;

  constructor(
    readonly rt: NativeRuntime,
    readonly page: KvPage,
    readonly pages: number,
  ) {
    this.params = pageParams(page);
    this.tensors = page.tensors.map(({ bytes }) => {
      const tensor = allocate('u8', [pages, bytes]);
      tensor.bytes().fill(0);
      return tensor;
    });
  }

  side(side: KvSide): KvTensors {
    const of = (i: number): Tensor => this.tensors[i] as Tensor;
    return { codes: of(side.codes.tensor), scales: of(side.scales.tensor), zeros: of(side.zeros.tensor) };
  }

  /**
   * Enqueues quantizing `count` tokens x [count, heads*headDim] (f32 or f16) and packing them at token `first` of a page. Tokens
   * come in whole blocks.
   */
  write(side: KvSide, x: Tensor, page: number, first: number): void {
    const [count, width] = x.shape as [number, number];
    const { bits, groupTokens, groupDims } = side;
    const groups = [count / groupTokens, width / groupDims];
    const parts = {
      codes: allocate('u8', [count, width]),
      scales: allocate('f16', groups),
      zeros: allocate('f16', groups),
    };
    ops.kvQuantize(this.rt, x, parts, { bits, groupTokens, groupDims });
    for (const part of ['codes', 'scales', 'zeros'] as const) {
      const { tensor, layout } = side[part];
      const per = part === 'codes' ? 1 : groupTokens;
      const bytes = this.tensors[tensor] as Tensor;
      const view = bytes.view([layout.bytes], page * layout.bytes);
      // Beside what is packed here lie other tokens, and in a block of one tensor the other parts.
      pack(this.rt, rowsOf(layout, first / per, count / per), parts[part], view, { keep: true });
      for (const each of [parts[part], view]) each.dispose();
    }
  }

  /** Enqueues y f32 [T, heads*headDim] = the first T tokens of the pages named, dequantized. */
  unpack(side: KvSide, table: readonly number[], y: Tensor): void {
    const pages = fromTyped('i32', [table.length], Int32Array.from(table));
    ops.kvUnpack(this.rt, this.side(side), pages, y, sideParams(side));
    pages.dispose();
  }

  /** Enqueues attention of one query token q f32 [B, heads*headDim] for each sequence; y f32 or f64. */
  attend(sequences: readonly KvSequence[], q: Tensor, y: Tensor, { heads, scale }: KvQueries): void {
    const { page, rt } = this;
    const width = page.heads * page.headDim;
    const count = sequences.length;
    const longest = Math.max(1, ...sequences.map(({ table }) => table.length));
    const room = Math.max(1, ...sequences.map(({ tail }) => tail));
    const table = new Int32Array(count * longest).fill(-1);
    sequences.forEach((sequence, b) => {
      table.set(sequence.table, b * longest);
    });
    const ints = (values: readonly number[]): Tensor => fromTyped('i32', [count], Int32Array.from(values));
    const tails = [0, 1].map(() => allocate('f16', [count, room, width]));
    sequences.forEach((sequence, b) => {
      for (const [i, all] of tails.entries()) {
        if (sequence.tail === 0) continue;
        const from = (i === 0 ? sequence.tailKeys : sequence.tailValues).view([sequence.tail, width]);
        const to = all.view([sequence.tail, width], b * room * width);
        ops.cast(rt, from, to);
        for (const view of [from, to]) view.dispose();
      }
    });
    const cache = {
      keys: this.side(page.keys),
      values: this.side(page.values),
      table: fromTyped('i32', [count, longest], table),
      lengths: ints(sequences.map(({ packed }) => packed)),
      tailKeys: tails[0] as Tensor,
      tailValues: tails[1] as Tensor,
      tails: ints(sequences.map(({ tail }) => tail)),
    };
    const p = { heads, kvHeads: page.heads, headDim: page.headDim, scale };
    ops.kvAttention(rt, q, cache, y, p, this.params);
    for (const tensor of [cache.table, cache.lengths, cache.tails, ...tails]) tensor.dispose();
  }

  dispose(): void {
    for (const tensor of this.tensors) tensor.dispose();
  }
}

/** One sequence: packed tokens in the pages of its table, in any order, and the newest, exact, in f16. */
export class KvSequence {
  /** f16 [residual, heads*headDim]. */
  readonly tailKeys: Tensor;
  readonly tailValues: Tensor;
  packed = 0;
  tail = 0;

  constructor(
    readonly pool: KvPool,
    readonly table: readonly number[],
  ) {
    const { page } = pool;
    const room = Math.max(this.batch, 1);
    const width = page.heads * page.headDim;
    this.tailKeys = allocate('f16', [room, width]);
    this.tailValues = allocate('f16', [room, width]);
  }

  get length(): number {
    return this.packed + this.tail;
  }

  /** Tokens that are packed together: the residual of the scheme, whole blocks of its layout. */
  get batch(): number {
    const { scheme, block } = this.pool.page;
    return Math.max(scheme.residual, block);
  }

  /** Enqueues the tokens of a prompt, k and v [T, heads*headDim] f32 or f16, of an empty sequence: N_p = L - L mod N_r are packed. */
  prefill(k: Tensor, v: Tensor): void {
    const [tokens] = k.shape as [number, number];
    if (this.length > 0) throw new LpqError('LPQ_INTERNAL', 'a prompt comes first');
    const packed = tokens - (tokens % this.batch);
    this.pack(k, v, packed);
    this.keep(k, v, packed, tokens - packed);
  }

  /** Enqueues one token, k and v [1, heads*headDim]; it is exact until flush(). */
  append(k: Tensor, v: Tensor): void {
    if (this.tail === this.batch) throw new LpqError('LPQ_INTERNAL', 'the tail is full: flush() comes first');
    this.keep(k, v, 0, 1);
  }

  /**
   * Enqueues one token and its attention, y [1, heads*headDim]. A tail that it fills is packed afterwards (BitDecoding, section V-B:
   * the step that fills it still reads it exactly); without a residual the token is read as it is stored.
   */
  step(k: Tensor, v: Tensor, q: Tensor, y: Tensor, queries: KvQueries): void {
    this.append(k, v);
    if (this.pool.page.scheme.residual === 0) this.flush();
    this.pool.attend([this], q, y, queries);
    this.flush();
  }

  /** Enqueues the packing of a full tail. */
  flush(): void {
    if (this.tail < this.batch) return;
    this.pack(this.tailKeys, this.tailValues, this.batch);
    this.tail = 0;
  }

  dispose(): void {
    for (const tensor of [this.tailKeys, this.tailValues]) tensor.dispose();
  }

  /** The first `count` tokens go to the pages: page by page where they fill one, else block by block. */
  private pack(k: Tensor, v: Tensor, count: number): void {
    const { page } = this.pool;
    const width = page.heads * page.headDim;
    for (let done = 0; done < count; ) {
      const inPage = this.packed % page.tokens;
      const here = inPage === 0 && count - done >= page.tokens ? page.tokens : page.block;
      const number = this.table[Math.floor(this.packed / page.tokens)];
      if (number === undefined)
        throw new LpqError('LPQ_INTERNAL', `a sequence of ${this.packed} tokens has no page for the next`);
      for (const [x, side] of [
        [k, page.keys],
        [v, page.values],
      ] as const) {
        const rows = x.view([here, width], done * width);
        this.pool.write(side, rows, number, inPage);
        rows.dispose();
      }
      this.packed += here;
      done += here;
    }
  }

  /** Rows first .. first + count of k and v go to the tail. */
  private keep(k: Tensor, v: Tensor, first: number, count: number): void {
    const { page, rt } = this.pool;
    const width = page.heads * page.headDim;
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
