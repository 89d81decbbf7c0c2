import { KV_FORMS } from '../../formats/kv/forms.js';
import { kvKernelForm, kvPageBytes, kvPages } from '../../formats/kv/kernels.js';
import { type KvModelScheme, kvSchemeAt, kvSchemesOf } from '../../formats/kv/scheme.js';
import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import type { CacheStep } from '../../native/cache-ops.js';
import type { KvPages } from '../../native/kv-ops.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { modelBlockTokens } from '../kv/choose.js';
import { apart, type Columns } from '../model/columns.js';
import type { AttentionTensors } from '../model/program.js';
import { rotate } from '../model/turn.js';
import { appendTurned, firstColumns } from './append.js';
import type { CacheShape } from './cache.js';
import { exactPrompts, MOST_PROMPT_DIMS } from './exact-prompts.js';
import { PackedCache } from './packed-cache.js';
import type { Entry, Step } from './step.js';

/** Whether there is a DevicePackedCache of a scheme. */
export function isPackedOnDevice(model: KvModelScheme): boolean {
  return kvSchemesOf(model).every((scheme) => {
    const { form, keys, values } = scheme;
    return (
      KV_FORMS[form].tail &&
      (keys.bits === values.bits || (keys.bits === 8 && values.bits === 4)) &&
      keys.granularity === 'channel' &&
      (keys.group === 128 ? values.group >= 64 : keys.group === 32 && values.group === 32)
    );
  });
}

/** R: tokens that are packed at once, and as many of a page, in every layer. */
export function pageTokens(scheme: KvModelScheme): number {
  return Math.max(scheme.residual, modelBlockTokens(scheme));
}

/** Pages of one block, and its newest tokens f16 [slots, R, kvHeads*headDim]. */
interface Layer {
  readonly pages: KvPages;
  readonly tailKeys: Tensor;
  readonly tailValues: Tensor;
  readonly form: Parameters<typeof ops.kvPack>[5];
}

/**
 * Keys and values of the schemes that kernels take, packed in few bits in a device's memory and read by its kernels
 * (docs/kv-cache.md). Of a sequence of L tokens the first L - L mod R are packed, the others exact; the step that fills the exact
 * ones still reads them so (BitDecoding, section V-B). Prompts are read exactly, and packed afterwards.
 */
export class DevicePackedCache extends PackedCache<Layer> {
  /** pageTokens(). */
  private readonly batch: number;
  private readonly each: number;
  /** I32 [P] of each slot. */
  private readonly tables: readonly Tensor[];

  constructor(rt: NativeRuntime, scheme: KvModelScheme, shape: CacheShape) {
    super(rt, scheme, shape);
    this.batch = pageTokens(scheme);
    this.each = Math.max(1, Math.ceil(shape.most / this.batch));
    this.tables = Array.from({ length: shape.slots }, (_, slot) =>
      uploadTyped(rt, 'i32', [this.each], this.pagesOf(slot)),
    );
  }

  protected tensorsOf({ pages, tailKeys, tailValues }: Layer): readonly Tensor[] {
    return [...pages, tailKeys, tailValues];
  }

  protected layer(block: number, p: AttentionParams): Layer {
    const { rt, shape, scheme, batch } = this;
    const { kvHeads, headDim, valueDim = headDim, window = 0, softCap = 0 } = p;
    const form = kvKernelForm(kvSchemeAt(scheme, block), { kvHeads, headDim, pageTokens: batch });
    if (typeof form === 'string' || valueDim !== headDim || (window > 0 && window < shape.most) || softCap > 0)
      throw new LpqError(
        'LPQ_USAGE',
        `block ${block} has attention that the kernel for packed caches does not support`,
        {
          got: `heads of ${headDim} dims${window > 0 ? `, a window of ${window}` : ''}${softCap > 0 ? ', capped scores' : ''}`,
          expected:
            'heads of 64 to 512 dims, a multiple of 8, that see all tokens, with keys and values of as many dims',
          hint: 'Use --kv 16, or --device cpu.',
        },
      );
    const pages = kvPages(kvPageBytes(form).map((bytes) => rt.allocate('u8', [this.each * shape.slots, bytes])));
    const tail = () => rt.allocate('f16', [shape.slots, batch, kvHeads * headDim]);
    return {
      pages,
      tailKeys: tail(),
      tailValues: tail(),
      form,
    };
  }

  override dispose(): void {
    super.dispose();
    for (const table of this.tables) table.dispose();
  }

  private pagesOf(slot: number): Int32Array {
    return Int32Array.from({ length: this.each }, (_, i) => slot * this.each + i);
  }

  protected prefill(layer: Layer, step: Step, t: AttentionTensors, p: AttentionParams, sinks?: Tensor): void {
    const { rt, batch } = this;
    const width = p.kvHeads * p.headDim;
    rotate(rt, t, p);
    const halves = [t.k, t.v].map((columns) => this.half(columns, width)) as [Tensor, Tensor];
    if (p.headDim > MOST_PROMPT_DIMS) {
      const [q, [k, v]] = [this.half(t.q, p.heads * p.headDim), halves];
      const counts = step.entries.map(({ ids }) => ids.length);
      exactPrompts(rt, { ...layer, table: this.tables[0] as Tensor }, { q, k, v, y: t.y }, counts, p, sinks);
      q.dispose();
    } else {
      const [qFirst, kFirst, vFirst] = firstColumns(t, p);
      const firsts = qFirst === undefined ? {} : { qFirst, kFirst: kFirst as number, vFirst: vFirst as number };
      ops.attention(rt, t.q.of, t.k.of, t.v.of, step.starts, t.y, { ...p, ...firsts }, sinks);
    }
    let first = 0;
    for (const { slot, ids } of step.entries) {
      const packed = ids.length - (ids.length % batch);
      const of = (x: Tensor, from: number, count: number) => x.view([count, width], (first + from) * width);
      if (packed > 0) {
        const [keys, values] = halves.map((half) => of(half, 0, packed)) as [Tensor, Tensor];
        ops.kvPack(rt, keys, values, this.tables[slot] as Tensor, layer.pages, layer.form);
        for (const view of [keys, values]) view.dispose();
      }
      const rest = ids.length - packed;
      if (rest > 0) {
        const [keys, values] = halves.map((half) => of(half, packed, rest)) as [Tensor, Tensor];
        this.placed([{ slot, tail: rest, count: rest }], (at) =>
          ops.cacheAppend(rt, keys, values, at, layer.tailKeys, layer.tailValues),
        );
        for (const view of [keys, values]) view.dispose();
      }
      first += ids.length;
    }
    for (const half of halves) half.dispose();
  }

  /** The columns, f16; the caller disposes of them. */
  private half(columns: Columns, width: number): Tensor {
    const { rt } = this;
    const x = apart(rt, columns, width);
    const half = rt.allocate('f16', x.shape);
    ops.cast(rt, x, half);
    x.dispose();
    return half;
  }

  protected decode(layer: Layer, { entries }: Step, t: AttentionTensors, p: AttentionParams, sinks?: Tensor): void {
    const { rt, batch } = this;
    const { y } = t;
    const tails = entries.map(({ slot, past }) => ({ slot, tail: (past % batch) + 1, count: 1 }));
    const { tailKeys: keys, tailValues: values } = layer;
    const half = this.placed(tails, (at) => appendTurned(rt, t, p, at, { keys, values }, 'f16'));
    const ints = (values: readonly number[]): Tensor =>
      uploadTyped(rt, 'i32', [values.length], Int32Array.from(values));
    const table = new Int32Array(entries.length * this.each);
    for (const [b, { slot }] of entries.entries()) table.set(this.pagesOf(slot), b * this.each);
    const own = [
      uploadTyped(rt, 'i32', [entries.length, this.each], table),
      ints(entries.map(({ past }) => past - (past % batch))),
      ints(tails.map(({ tail }) => tail)),
      this.tailsOf(layer.tailKeys, entries),
      this.tailsOf(layer.tailValues, entries),
    ] as const;
    ops.kvDecode(
      rt,
      half,
      { pages: layer.pages, table: own[0], lengths: own[1], tails: own[2], tailKeys: own[3], tailValues: own[4] },
      y,
      { ...layer.form, heads: p.heads, scale: p.scale },
      sinks,
    );
    for (const tensor of [...own, half]) tensor.dispose();
  }

  /** Packs what a step has filled, of all layers in a row: on a device they run side by side. */
  end({ entries }: Step): void {
    const { rt, batch, layers } = this;
    for (const { slot, past, ids } of entries) {
      if (past === 0 || (past + ids.length) % batch !== 0) continue;
      for (const layer of layers) {
        if (!layer) continue;
        const width = layer.tailKeys.shape[2] as number;
        const [keys, values] = [layer.tailKeys, layer.tailValues].map((all) =>
          all.view([batch, width], slot * batch * width),
        ) as [Tensor, Tensor];
        const first = past + ids.length - batch;
        ops.kvPack(rt, keys, values, this.tables[slot] as Tensor, layer.pages, { ...layer.form, first });
        for (const view of [keys, values]) view.dispose();
      }
    }
  }

  /** Enqueues what keeps tokens: the newest `count` of a slot's `tail` exact ones. */
  private placed<T>(
    places: readonly { readonly slot: number; readonly tail: number; readonly count: number }[],
    enqueue: (at: CacheStep) => T,
  ): T {
    const starts = Int32Array.from([
      0,
      ...places.map((_, i) => places.slice(0, i + 1).reduce((sum, { count }) => sum + count, 0)),
    ]);
    const [slots, totals] = [places.map(({ slot }) => slot), places.map(({ tail }) => tail)];
    const step = {
      starts: uploadTyped(this.rt, 'i32', [starts.length], starts),
      slots: uploadTyped(this.rt, 'i32', [places.length], Int32Array.from(slots)),
      totals: uploadTyped(this.rt, 'i32', [places.length], Int32Array.from(totals)),
    };
    const made = enqueue(step);
    for (const tensor of Object.values(step)) tensor.dispose();
    return made;
  }

  /** The exact tokens of a step's sequences, in its order: all slots as they are, or copies of some. */
  private tailsOf(tail: Tensor, entries: readonly Entry[]): Tensor {
    const [slots, rows, width] = tail.shape as [number, number, number];
    if (entries.length === slots && entries.every(({ slot }, b) => slot === b)) return tail.view(tail.shape);
    const some = this.rt.allocate('f16', [entries.length, rows, width]);
    for (const [b, { slot }] of entries.entries()) {
      const [from, to] = [tail.view([rows, width], slot * rows * width), some.view([rows, width], b * rows * width)];
      ops.copyHeads(this.rt, from, to, { heads: 1, width, fromDim: width, from: 0, toDim: width, to: 0 });
      for (const view of [from, to]) view.dispose();
    }
    return some;
  }
}
