import type { KvScheme } from '../../formats/kv/scheme.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';

/** The cache that is examined: lpq's own (src/kv), handed in so that the verifier shares nothing with it. */
export interface CacheUnderTest {
  /** Pages U8 [pages, bytes]: codes of keys, their numbers, codes of values, theirs; or one block for all. */
  readonly tensors: readonly Tensor[];
  sequence(table: readonly number[]): SequenceUnderTest;
  attend(sequences: readonly SequenceUnderTest[], q: Tensor, y: Tensor, p: Queries): void;
  dispose(): void;
}

export interface SequenceUnderTest {
  readonly packed: number;
  readonly tail: number;
  readonly tailKeys: Tensor;
  readonly tailValues: Tensor;
  prefill(k: Tensor, v: Tensor): void;
  step(k: Tensor, v: Tensor, q: Tensor, y: Tensor, p: Queries): void;
  dispose(): void;
}

export interface Queries {
  readonly heads: number;
  readonly scale: number;
}

/** A page of a case. */
export interface PageShape {
  readonly heads: number;
  readonly headDim: number;
  readonly tokens: number;
  readonly order: 'inner' | 'outer';
}

/** Dims of a head in pages (formats/kv/spec.md): above 64 and up to 512, those that are stored. */
export const storedDims = ({ headDim }: PageShape): number => {
  for (const dims of [128, 256, 512]) if (headDim > 64 && headDim <= dims) return dims;
  return headDim;
};

/** x [.., heads*headDim] with zeros behind each head, as it is stored. */
export function asStored(x: Float32Array, page: PageShape): Float32Array<ArrayBuffer> {
  const [own, dims] = [page.headDim, storedDims(page)];
  const y = new Float32Array((x.length / own) * dims);
  for (let h = 0; h * own < x.length; h++) y.set(x.subarray(h * own, (h + 1) * own), h * dims);
  return y;
}

/** A way to keep and read a cache; tensors, k, v, q (f32) and y are of the runtime's device. */
export interface CacheMaker {
  /** fp: y in f32 and f64, computed so; tensor cores: y in f16 and f32, operands in f16. */
  readonly arithmetic: 'fp' | 'tensor cores';
  /** Tokens packed at once. */
  block(scheme: KvScheme): number;
  /** Why it takes no cache of this scheme and these heads. */
  obstacle(scheme: KvScheme, headDim: number, device: string): string | undefined;
  make(rt: NativeRuntime, scheme: KvScheme, page: PageShape, pages: number): CacheUnderTest;
}

/** A seeded generator (xorshift32) of numbers that f16 holds exactly: m 2^-8, |m| < 2^10, every 17th channel 8 times as large. */
export class Draw {
  #state: number;
  constructor(seed: number) {
    this.#state = (seed ^ 0x9e3779b9) >>> 0 || 1;
  }
  next(): number {
    this.#state ^= this.#state << 13;
    this.#state ^= this.#state >>> 17;
    this.#state ^= this.#state << 5;
    return this.#state >>> 0;
  }
  /** `by`: a power of two that all are multiplied by, 2^-6 or more. */
  rows(count: number, width: number, by = 1): Float32Array<ArrayBuffer> {
    return Float32Array.from({ length: count * width }, (_, i) => {
      const m = (this.next() % 2047) - 1023;
      return (m / 256) * by * ((i % width) % 17 === 3 ? 8 : 1);
    });
  }
}
