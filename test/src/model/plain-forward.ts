import type { WeightSource } from '../../../src/model/source.js';
import { values } from './reference-runtime.js';

/**
 * Layers of transformers' classes over one sequence, in f64 and plain loops, for tests that spell out a model's forward
 * pass themselves. Shares nothing with src/model but the weights.
 */
export type Rows = number[][];

export class Layers {
  private constructor(
    private readonly weights: ReadonlyMap<string, { shape: readonly number[]; data: Float64Array }>,
  ) {}

  static async of(source: WeightSource): Promise<Layers> {
    const weights = new Map<string, { shape: readonly number[]; data: Float64Array }>();
    for (const name of source.names()) {
      const tensor = await source.tensor(name);
      weights.set(name, { shape: tensor.shape, data: values(tensor) });
    }
    return new Layers(weights);
  }

  private vector(name: string): Float64Array | undefined {
    return this.weights.get(name)?.data;
  }

  /** Rows of an embedding. */
  rows(name: string, ids: readonly number[]): Rows {
    const { shape, data } = this.weights.get(`${name}.weight`)!;
    return ids.map((id) => Array.from(data.subarray(id * shape[1]!, (id + 1) * shape[1]!)));
  }

  /** nn.Linear, its bias added where there is one. */
  linear(x: Rows, name: string): Rows {
    const { shape, data } = this.weights.get(`${name}.weight`)!;
    const [n, k] = shape as [number, number];
    const bias = this.vector(`${name}.bias`);
    return x.map((row) =>
      Array.from({ length: n }, (_, o) => row.reduce((sum, v, i) => sum + v * data[o * k + i]!, bias?.[o] ?? 0)),
    );
  }

  /** Conv1D: weight [K, N]. */
  conv1d(x: Rows, name: string): Rows {
    const { shape, data } = this.weights.get(`${name}.weight`)!;
    const n = shape[1]!;
    const bias = this.vector(`${name}.bias`)!;
    return x.map((row) =>
      Array.from({ length: n }, (_, o) => row.reduce((sum, v, i) => sum + v * data[i * n + o]!, bias[o]!)),
    );
  }

  layerNorm(x: Rows, name: string, eps = 1e-5): Rows {
    const [weight, bias] = [this.vector(`${name}.weight`), this.vector(`${name}.bias`)];
    return x.map((row) => normal(row, eps).map((v, i) => v * (weight?.[i] ?? 1) + (bias?.[i] ?? 0)));
  }

  /** LayerNorm of every head, with weights [heads, headDim]. */
  headLayerNorm(x: Rows, name: string, headDim: number, eps = 1e-5): Rows {
    const weight = this.vector(`${name}.weight`)!;
    return x.map((row) =>
      heads(row, headDim)
        .flatMap((head) => normal(head, eps))
        .map((v, i) => v * weight[i]!),
    );
  }

  /** over: elements normalised together (all of a row by default), with one weight for each such run. */
  rmsNorm(x: Rows, name: string, eps: number, offset = 0, over?: number): Rows {
    const weight = this.vector(`${name}.weight`)!;
    return x.map((row) =>
      heads(row, over ?? row.length).flatMap((part) => {
        const root = Math.sqrt(part.reduce((sum, v) => sum + v * v, 0) / part.length + eps);
        return part.map((v, i) => (v / root) * (weight[i]! + offset));
      }),
    );
  }
}

function normal(row: readonly number[], eps: number): number[] {
  const mean = row.reduce((a, b) => a + b, 0) / row.length;
  const variance = row.reduce((sum, v) => sum + (v - mean) ** 2, 0) / row.length;
  return row.map((v) => (v - mean) / Math.sqrt(variance + eps));
}

const heads = (row: readonly number[], size: number) =>
  Array.from({ length: row.length / size }, (_, h) => row.slice(h * size, (h + 1) * size));

export const add = (a: Rows, b: Rows, by = 1): Rows => a.map((row, t) => row.map((v, i) => v + by * b[t]![i]!));
export const times = (a: Rows, by: number): Rows => a.map((row) => row.map((v) => v * by));
export const map = (a: Rows, f: (v: number) => number): Rows => a.map((row) => row.map(f));
export const multiply = (a: Rows, b: Rows): Rows => a.map((row, t) => row.map((v, i) => v * b[t]![i]!));
export const columns = (a: Rows, first: number, width: number): Rows => a.map((row) => row.slice(first, first + width));
export const capped = (a: Rows, cap: number): Rows => map(a, (v) => cap * Math.tanh(v / cap));

export const silu = (v: number) => v / (1 + Math.exp(-v));
export const geluTanh = (v: number) => 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)));

/** x cos + rotate(x) sin on the first 2 * frequencies of each head; `factor` multiplies both. */
export function rotated(
  x: Rows,
  headDim: number,
  frequencies: readonly number[],
  interleaved: boolean,
  factor = 1,
): Rows {
  const half = frequencies.length;
  return x.map((row, position) =>
    heads(row, headDim).flatMap((head) => {
      const y = [...head];
      frequencies.forEach((frequency, i) => {
        const [a, b] = interleaved ? [2 * i, 2 * i + 1] : [i, i + half];
        const [cos, sin] = [Math.cos(position * frequency) * factor, Math.sin(position * frequency) * factor];
        y[a] = head[a]! * cos - head[b]! * sin;
        y[b] = head[b]! * cos + head[a]! * sin;
      });
      return y;
    }),
  );
}

/** theta^(-2i/d) for d rotated dimensions. */
export const turns = (theta: number, d: number) => Array.from({ length: d / 2 }, (_, i) => theta ** ((-2 * i) / d));

/** Causal attention, keys and values shared by runs of heads. */
export function attend(
  q: Rows,
  k: Rows,
  v: Rows,
  p: { headDim: number; scale: number; window?: number; cap?: number },
): Rows {
  const shared = q[0]!.length / k[0]!.length;
  return q.map((row, t) =>
    heads(row, p.headDim).flatMap((query, h) => {
      const at = Math.floor(h / shared) * p.headDim;
      const seen = k.map((_, s) => s).filter((s) => s <= t && (!p.window || s > t - p.window));
      const scores = seen.map((s) => {
        const dot = query.reduce((sum, value, i) => sum + value * k[s]![at + i]!, 0) * p.scale;
        return p.cap ? p.cap * Math.tanh(dot / p.cap) : dot;
      });
      const shares = scores.map((score) => Math.exp(score));
      const total = shares.reduce((a, b) => a + b, 0);
      return query.map((_, i) => seen.reduce((sum, s, j) => sum + (shares[j]! / total) * v[s]![at + i]!, 0));
    }),
  );
}
