import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { type AttentionParams, ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { apart, type Columns, firstOf } from '../model/columns.js';
import type { AttentionPlan } from '../model/plan.js';
import type { AttentionTensors, BlockState, CachedAttention, LinearRef } from '../model/program.js';
import { rotate, rotateOne } from '../model/turn.js';

/** The largest magnitude of matrices f32 [T, width]. */
export class Largest {
  private readonly channels: Tensor;
  private readonly moments: Tensor;

  constructor(
    private readonly rt: NativeRuntime,
    width: number,
  ) {
    this.channels = rt.allocate('f32', [width]);
    this.moments = rt.allocate('f64', [width]);
    for (const tensor of [this.channels, this.moments]) ops.zero(rt, tensor);
  }

  /** Enqueues a measurement of x. */
  see(x: Tensor): void {
    ops.channelStatistics(this.rt, x, this.channels, this.moments);
  }

  async most(): Promise<number> {
    return (await readTyped<Float32Array>(this.rt, this.channels)).reduce((a, b) => Math.max(a, b), 0);
  }

  /** The largest magnitude of x, the input of linears. Throws LPQ_MODULE_NUMERICS. */
  async of(x: Tensor, linears: readonly LinearRef[]): Promise<number> {
    this.see(x);
    try {
      return await this.most();
    } catch (cause) {
      if ((cause as { code?: string }).code !== 'LPQ_NATIVE_NUMERICS') throw cause;
      const names = linears.map(({ name }) => name).join(', ');
      throw new LpqError('LPQ_MODULE_NUMERICS', `the input of ${names} holds NaN or infinity`, {
        cause,
        hint: 'Look for NaN in the weights of this block and the previous one.',
      });
    }
  }

  dispose(): void {
    for (const tensor of [this.channels, this.moments]) tensor.dispose();
  }
}

/** Keys and values that later blocks read, by block and batch. */
export class KeptRows {
  private readonly rows = new Map<string, readonly [Tensor, Tensor]>();

  keep(block: number, batch: number, rows: readonly [Tensor, Tensor]): void {
    this.rows.set(`${block} ${batch}`, rows);
  }

  of(block: number, batch: number): readonly [Tensor, Tensor] {
    const rows = this.rows.get(`${block} ${batch}`);
    if (rows) return rows;
    throw new LpqError('LPQ_INTERNAL', `the keys of block ${block} were not kept`);
  }

  dispose(): void {
    for (const tensor of [...this.rows.values()].flat()) tensor.dispose();
    this.rows.clear();
  }
}

/** Attention of whole sequences that measures keys (after rotary positions and norms) and values. */
export class WatchedCache {
  keys: Largest | undefined;
  values: Largest | undefined;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly plan: AttentionPlan,
    private readonly kept: KeptRows,
  ) {}

  /** For the state of one batch. */
  attention(batch: number, { batch: { starts } }: BlockState): CachedAttention {
    return (t, p, sinks) => {
      const [k, v] = t.reads === undefined ? this.made(batch, t, p) : this.read(batch, t.reads, t, p);
      const { heads, kvHeads, headDim, valueDim = headDim } = p;
      const firsts = [
        ['qFirst', firstOf(t.q, heads * headDim)],
        ['kFirst', firstOf(k, kvHeads * headDim)],
        ['vFirst', firstOf(v, kvHeads * valueDim)],
      ] as const;
      const given = Object.fromEntries(firsts.filter(([, first]) => first !== undefined));
      ops.attention(this.rt, t.q.of, k.of, v.of, starts, t.y, { ...p, ...given }, sinks);
    };
  }

  dispose(): void {
    for (const seen of [this.keys, this.values]) seen?.dispose();
  }

  /** The block's own keys and values. */
  private made(batch: number, t: AttentionTensors, p: AttentionParams): readonly [Columns, Columns] {
    const { rt } = this;
    const { kvHeads, headDim, valueDim = headDim } = p;
    rotate(rt, t, p);
    const rows = [apart(rt, t.k, kvHeads * headDim), apart(rt, t.v, kvHeads * valueDim)] as const;
    this.keys ??= new Largest(rt, kvHeads * headDim);
    this.values ??= new Largest(rt, kvHeads * valueDim);
    this.keys.see(rows[0]);
    this.values.see(rows[1]);
    if (this.plan.kept === undefined) for (const tensor of rows) tensor.dispose();
    else this.kept.keep(this.plan.kept, batch, rows);
    return [t.k, t.v];
  }

  /** Those of another block; queries are turned. */
  private read(batch: number, block: number, t: AttentionTensors, p: AttentionParams): readonly [Columns, Columns] {
    rotateOne(this.rt, t.q, p.heads, p.headDim, t.rotation);
    const [keys, values] = this.kept.of(block, batch);
    return [
      { of: keys, first: 0 },
      { of: values, first: 0 },
    ];
  }
}
