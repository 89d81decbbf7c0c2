import type { DType, NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { CacheShape } from './cache.js';

/** Rows that a cache begins with: most prompts are longer. */
const FIRST_ROWS = 64;

/** Numbers of every token of sequences, or of every so many of them, [slots, rows, width] a name; rows grow by doubling. */
export class GrowingRows {
  private readonly held = new Map<string, { readonly of: Tensor; readonly rate: number }>();
  private rows = 0;

  constructor(
    private readonly rt: NativeRuntime,
    private readonly dtype: DType,
    private readonly shape: Pick<CacheShape, 'slots' | 'most'>,
  ) {}

  /** Tokens of a sequence that there is room for. */
  get room(): number {
    return this.rows;
  }

  tensors(): readonly Tensor[] {
    return [...this.held.values()].map((each) => each.of);
  }

  /** Makes room for sequences of `longest` tokens. */
  grow(longest: number): void {
    if (longest <= this.rows) return;
    const before = this.rows;
    this.rows = Math.max(longest, Math.min(this.shape.most, Math.max(FIRST_ROWS, 2 * before)));
    for (const [name, { of: old, rate }] of this.held) {
      const grown = this.make(old.shape[2] as number, rate);
      this.move(old, grown, Math.ceil(before / rate));
      old.dispose();
      this.held.set(name, { of: grown, rate });
    }
  }

  /** What is kept under a name, a row for `rate` tokens. */
  of(name: string, width: number, rate = 1): Tensor {
    const found = this.held.get(name) ?? { of: this.make(width, rate), rate };
    this.held.set(name, found);
    return found.of;
  }

  dispose(): void {
    for (const tensor of this.tensors()) tensor.dispose();
    this.held.clear();
    this.rows = 0;
  }

  private make(width: number, rate: number): Tensor {
    return this.rt.allocate(this.dtype, [this.shape.slots, Math.ceil(this.rows / rate), width]);
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
