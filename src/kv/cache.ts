import { allocate, fromTyped, type NativeRuntime, type OpParams, type Tensor } from '../../native/binding.js';
import { cropHeads, padHeads } from '../../native/kv-heads.js';
import type { KvTensors } from '../../native/kv-ops.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { pack } from '../layout/engine.js';
import { pageParams, sideParams } from './layout-params.js';
import type { KvPage, KvSide } from './page.js';
import { rowsOf } from './part.js';
import { batchOf, type KvQueries, type KvSequence, type KvStore } from './sequence.js';

/** Pages of any layout, on the CPU: U8 [pages, bytes] for each tensor of a page. */
export class KvPool implements KvStore {
  readonly tensors: readonly Tensor[];
  readonly width: number;
  readonly residual: number;
  readonly batch: number;
  private readonly params: OpParams;

  constructor(
    readonly rt: NativeRuntime,
    readonly page: KvPage,
    readonly pages: number,
  ) {
    const { scheme, block, heads, headDim } = page;
    this.width = heads * headDim;
    this.residual = scheme.residual;
    this.batch = Math.max(scheme.residual, block);
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
  write(side: KvSide, given: Tensor, page: number, first: number): void {
    const x = padHeads(this.rt, given, this.page);
    const [count, width] = x.shape as [number, number];
    const { bits, groupTokens, groupDims } = side;
    const groups = [count / groupTokens, width / groupDims];
    const parts = {
      codes: allocate('u8', [count, width]),
      scales: allocate('f16', groups),
      zeros: allocate('f16', groups),
    };
    ops.kvQuantize(this.rt, x, parts, { bits, groupTokens, groupDims, ...(this.page.scheme.fit && { fit: true }) });
    for (const part of ['codes', 'scales', 'zeros'] as const) {
      const { tensor, layout } = side[part];
      const per = part === 'codes' ? 1 : groupTokens;
      const bytes = this.tensors[tensor] as Tensor;
      const view = bytes.view([layout.bytes], page * layout.bytes);
      // Beside what is packed here lie other tokens, and in a block of one tensor the other parts.
      pack(this.rt, rowsOf(layout, first / per, count / per), parts[part], view, { keep: true });
      for (const each of [parts[part], view]) each.dispose();
    }
    x.dispose();
  }

  /** Enqueues y f32 [T, heads*headDim] = the first T tokens of the pages named, dequantized. */
  unpack(side: KvSide, table: readonly number[], y: Tensor): void {
    const pages = fromTyped('i32', [table.length], Int32Array.from(table));
    const { heads, dims } = this.page;
    const all = allocate('f32', [y.shape[0] as number, heads * dims]);
    ops.kvUnpack(this.rt, this.side(side), pages, all, sideParams(side));
    cropHeads(this.rt, all, y, this.page);
    for (const tensor of [pages, all]) tensor.dispose();
  }

  /** Page by page where tokens fill one, else block by block. */
  pack(table: readonly number[], first: number, k: Tensor, v: Tensor, count: number): void {
    const { page, width } = this;
    for (let done = 0; done < count; ) {
      const inPage = (first + done) % page.tokens;
      const here = inPage === 0 && count - done >= page.tokens ? page.tokens : page.block;
      const number = table[Math.floor((first + done) / page.tokens)];
      if (number === undefined)
        throw new LpqError('LPQ_INTERNAL', `a sequence of ${first + done} tokens has no page for the next token`);
      for (const [x, side] of [
        [k, page.keys],
        [v, page.values],
      ] as const) {
        const rows = x.view([here, width], done * width);
        this.write(side, rows, number, inPage);
        rows.dispose();
      }
      done += here;
    }
  }

  /** q f32; y f32 or f64. */
  attend(sequences: readonly KvSequence[], q: Tensor, y: Tensor, { heads, scale, sinks }: KvQueries): void {
    const { page, rt } = this;
    const batch = batchOf(this, sequences);
    const p = { heads, kvHeads: page.heads, headDim: page.headDim, scale };
    const sides = { keys: this.side(page.keys), values: this.side(page.values) };
    ops.kvAttention(rt, q, { ...sides, ...batch }, y, p, this.params, sinks);
    for (const tensor of Object.values(batch)) (tensor as Tensor).dispose();
  }

  dispose(): void {
    for (const tensor of this.tensors) tensor.dispose();
  }
}
