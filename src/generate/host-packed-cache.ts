import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { KvPool } from '../kv/cache.js';
import { blockTokens, type KvPage, kvPage } from '../kv/page.js';
import { KvSequence } from '../kv/sequence.js';
import { throughHalf } from '../model/cached-attention.js';
import type { AttentionTensors } from '../model/program.js';
import type { KvScheme } from '../model/source.js';
import { rotate } from '../model/turn.js';
import { alone } from './append.js';
import type { Cache, CacheShape } from './cache.js';
import type { Entry, Step } from './step.js';

/** Queries, keys and values, turned, and where the output goes. */
interface Parts {
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly y: Tensor;
}

interface Layer {
  readonly pool: KvPool;
  readonly sequences: readonly KvSequence[];
}

/** Tokens of a page, at least; whole blocks of the layout. */
const PAGE_TOKENS = 256;

/**
 * Keys and values of any scheme packed in few bits in host memory, read by the CPU's reference (docs/kv-cache.md). The tokens of
 * a prompt read each other as f16 holds them and are packed afterwards, whole blocks of them (BitDecoding, section V-A); later
 * tokens read what is packed, and the newest exactly.
 */
export class HostPackedCache implements Cache {
  readonly pieces = false;
  private readonly layers: (Layer | undefined)[];

  constructor(
    private readonly rt: NativeRuntime,
    private readonly scheme: KvScheme,
    private readonly shape: CacheShape,
  ) {
    this.layers = Array.from({ length: shape.blocks });
  }

  get form(): string {
    const { form, keys, values } = this.scheme;
    return `${keys.bits === values.bits ? `KV${keys.bits}` : `K${keys.bits}V${values.bits}`} (${form})`;
  }

  get bytes(): number {
    return this.tensors().reduce((sum, tensor) => sum + tensor.byteLength, 0);
  }

  tensors(): readonly Tensor[] {
    return this.layers.flatMap((layer) =>
      layer
        ? [...layer.pool.tensors, ...layer.sequences.flatMap(({ tailKeys, tailValues }) => [tailKeys, tailValues])]
        : [],
    );
  }

  begin(): void {}

  attend(block: number, step: Step, t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined): void {
    const layer = this.layerOf(block, p, sinks);
    const newer = step.entries.filter(({ past }) => past > 0);
    rotate(this.rt, t, p);
    const parts = { ...alone(this.rt, t, p), y: t.y };
    if (newer.length === step.entries.length) this.decode(layer, step, parts, p);
    else if (newer.length === 0) this.prefill(layer, step, parts, p);
    else throw new LpqError('LPQ_INTERNAL', 'prompts and later tokens come in steps of their own');
    for (const tensor of [parts.q, parts.k, parts.v]) tensor.dispose();
  }

  dispose(): void {
    for (const layer of this.layers) {
      layer?.pool.dispose();
      for (const sequence of layer?.sequences ?? []) sequence.dispose();
    }
    this.layers.fill(undefined);
  }

  /** Whole prompts. */
  private prefill(layer: Layer, step: Step, { q, k, v, y }: Parts, p: AttentionParams): void {
    const width = p.kvHeads * p.headDim;
    for (const x of [k, v]) throughHalf(this.rt, x, { first: 0, length: step.tokens }, width);
    ops.attention(this.rt, q, k, v, step.starts, y, p);
    let first = 0;
    for (const { slot, ids } of step.entries) {
      const [keys, values] = [k, v].map((x) => x.view([ids.length, width], first * width)) as [Tensor, Tensor];
      (layer.sequences[slot] as KvSequence).prefill(keys, values);
      for (const view of [keys, values]) view.dispose();
      first += ids.length;
    }
  }

  /** One token of each sequence. */
  private decode(layer: Layer, { entries, tokens }: Step, { q, k, v, y }: Parts, p: AttentionParams): void {
    if (tokens !== entries.length) throw new LpqError('LPQ_INTERNAL', 'a packed cache takes one token at a time');
    const width = p.kvHeads * p.headDim;
    const sequences = entries.map(({ slot }: Entry) => layer.sequences[slot] as KvSequence);
    for (const [i, sequence] of sequences.entries()) {
      const [key, value] = [k, v].map((x) => x.view([1, width], i * width)) as [Tensor, Tensor];
      sequence.append(key, value);
      // Without a residual a token is read as it is stored.
      if (this.scheme.residual === 0) sequence.flush();
      for (const view of [key, value]) view.dispose();
    }
    layer.pool.attend(sequences, q, y, { heads: p.heads, scale: p.scale });
    for (const sequence of sequences) sequence.flush();
  }

  private layerOf(block: number, p: AttentionParams, sinks: Tensor | undefined): Layer {
    const found = this.layers[block];
    if (found) return found;
    const { heads, kvHeads, headDim, valueDim = headDim, window = 0, softCap = 0 } = p;
    const odd = [
      ...(valueDim !== headDim ? [`values of ${valueDim} dims and keys of ${headDim}`] : []),
      ...(window > 0 && window < this.shape.most ? [`a window of ${window} tokens`] : []),
      ...(softCap > 0 ? ['capped scores'] : []),
      ...(sinks ? ['sinks'] : []),
    ];
    if (odd.length > 0)
      throw new LpqError('LPQ_USAGE', `block ${block} has attention that a packed cache cannot be read by`, {
        got: odd.join(', '),
        hint: 'Use --kv 16.',
      });
    if (heads % kvHeads !== 0) throw new LpqError('LPQ_INTERNAL', 'heads do not share kv heads evenly');
    const unit = blockTokens(this.scheme);
    const page: KvPage = kvPage(this.scheme, { heads: kvHeads, headDim, tokens: unit * Math.ceil(PAGE_TOKENS / unit) });
    const each = Math.ceil(this.shape.most / page.tokens);
    const pool = new KvPool(this.rt, page, each * this.shape.slots);
    const sequences = Array.from(
      { length: this.shape.slots },
      (_, slot) =>
        new KvSequence(
          pool,
          Array.from({ length: each }, (_, i) => slot * each + i),
        ),
    );
    const layer = { pool, sequences };
    this.layers[block] = layer;
    return layer;
  }
}
