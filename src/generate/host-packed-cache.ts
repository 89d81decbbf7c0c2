import { kvSchemeAt } from '../../formats/kv/scheme.js';
import type { Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { KvPool } from '../kv/cache.js';
import { blockTokens, type KvPage, kvPage } from '../kv/page.js';
import { KvSequence } from '../kv/sequence.js';
import { throughHalf } from '../model/cached-attention.js';
import type { AttentionTensors } from '../model/program.js';
import { rotate } from '../model/turn.js';
import { alone } from './append.js';
import { PackedCache } from './packed-cache.js';
import type { Entry, Step } from './step.js';

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
export class HostPackedCache extends PackedCache<Layer> {
  protected tensorsOf({ pool, sequences }: Layer): readonly Tensor[] {
    return [...pool.tensors, ...sequences.flatMap(({ tailKeys, tailValues }) => [tailKeys, tailValues])];
  }

  protected prefill(layer: Layer, step: Step, t: AttentionTensors, p: AttentionParams, sinks?: Tensor): void {
    rotate(this.rt, t, p);
    const { q, k, v } = alone(this.rt, t, p);
    const width = p.kvHeads * p.headDim;
    for (const x of [k, v]) throughHalf(this.rt, x, { first: 0, length: step.tokens }, width);
    ops.attention(this.rt, q, k, v, step.starts, t.y, p, sinks);
    let first = 0;
    for (const { slot, ids } of step.entries) {
      const [keys, values] = [k, v].map((x) => x.view([ids.length, width], first * width)) as [Tensor, Tensor];
      (layer.sequences[slot] as KvSequence).prefill(keys, values);
      for (const view of [keys, values]) view.dispose();
      first += ids.length;
    }
    for (const tensor of [q, k, v]) tensor.dispose();
  }

  protected decode(layer: Layer, { entries }: Step, t: AttentionTensors, p: AttentionParams, sinks?: Tensor): void {
    rotate(this.rt, t, p);
    const { q, k, v } = alone(this.rt, t, p);
    const width = p.kvHeads * p.headDim;
    const sequences = entries.map(({ slot }: Entry) => layer.sequences[slot] as KvSequence);
    for (const [i, sequence] of sequences.entries()) {
      const [key, value] = [k, v].map((x) => x.view([1, width], i * width)) as [Tensor, Tensor];
      sequence.append(key, value);
      // Without a residual a token is read as it is stored.
      if (this.scheme.residual === 0) sequence.flush();
      for (const view of [key, value]) view.dispose();
    }
    layer.pool.attend(sequences, q, t.y, { heads: p.heads, scale: p.scale, ...(sinks && { sinks }) });
    for (const sequence of sequences) sequence.flush();
    for (const tensor of [q, k, v]) tensor.dispose();
  }

  protected layer(block: number, p: AttentionParams): Layer {
    const { heads, kvHeads, headDim, valueDim = headDim, window = 0, softCap = 0 } = p;
    const odd = [
      ...(valueDim !== headDim ? [`values of ${valueDim} dims and keys of ${headDim}`] : []),
      ...(window > 0 && window < this.shape.most ? [`a window of ${window} tokens`] : []),
      ...(softCap > 0 ? ['capped scores'] : []),
    ];
    if (odd.length > 0)
      throw new LpqError('LPQ_USAGE', `block ${block} has attention that cannot read a packed cache`, {
        got: odd.join(', '),
        hint: 'Use --kv 16.',
      });
    if (heads % kvHeads !== 0) throw new LpqError('LPQ_INTERNAL', 'heads do not share kv heads evenly');
    const scheme = kvSchemeAt(this.scheme, block);
    const unit = blockTokens(scheme);
    const page: KvPage = kvPage(scheme, { heads: kvHeads, headDim, tokens: unit * Math.ceil(PAGE_TOKENS / unit) });
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
    return { pool, sequences };
  }
}
