import { type OpParams, type Tensor, typed } from '../../../native/binding.js';

/** Attention over chosen keys, by its definition: all scores, all of them sorted, a mask. In double precision. */

export type Operation = (
  inputs: readonly Tensor[],
  outputs: readonly Tensor[],
  p: OpParams,
  values: (t: Tensor) => Float64Array,
) => void;

const at = (array: ArrayLike<number>, i: number) => array[i] as number;
const number = (p: OpParams, key: string, otherwise: number) => (p[key] as number | undefined) ?? otherwise;
const ints = (tensor: Tensor) => typed<Int32Array>(tensor);

/** Calls `each` with every token, the row of its sequence's first key, and its index in the sequence. */
function everyToken(
  [starts, slots, totals]: readonly (Tensor | undefined)[],
  rows: number,
  each: (token: number, row: number, index: number) => void,
  rate = 1,
): void {
  const begin = ints(starts!);
  if (rate > 1) {
    let row = 0;
    for (let s = 0; s + 1 < begin.length; s++) {
      const count = at(begin, s + 1) - at(begin, s);
      for (let i = 0; i < count; i++) each(at(begin, s) + i, row, Math.floor((i + 1) / rate) - 1);
      row += Math.floor(count / rate);
    }
    return;
  }
  for (let s = 0; s + 1 < begin.length; s++)
    for (let t = at(begin, s); t < at(begin, s + 1); t++) {
      const earlier = totals ? at(ints(totals), s) - (at(begin, s + 1) - at(begin, s)) : 0;
      each(t, slots ? at(ints(slots), s) * rows : at(begin, s), earlier + t - at(begin, s));
    }
}

export const SELECTED: Record<string, Operation> = {
  index_keys(inputs, [y], p, values) {
    const rest = [...inputs];
    const [q, k] = [rest.shift()!, rest.shift()!];
    const weights = p.weighted ? values(rest.shift()!) : undefined;
    const kept = rest[3];
    const [heads, top, block] = [number(p, 'heads', 1), number(p, 'top', 1), number(p, 'block', 1)];
    const dim = k.shape[1]!;
    const [queries, newest, out] = [values(q), values(k), ints(y!)];
    const rows = kept?.shape[1] ?? 0;
    if (kept)
      everyToken(rest, rows, (t, row, index) =>
        typed<Float32Array>(kept).set(newest.subarray(t * dim, (t + 1) * dim), (row + index) * dim),
      );
    const keys = kept ? values(kept) : newest;
    const choices = weights ? 1 : heads;
    everyToken(
      rest,
      rows,
      (t, row, index) => {
        const product = (head: number, s: number) => {
          let sum = 0;
          for (let d = 0; d < dim; d++)
            sum += at(queries, (t * heads + head) * dim + d) * at(keys, (row + s) * dim + d);
          return sum;
        };
        const scoreOf = (choice: number, s: number) => {
          if (!weights) return product(choice, s);
          let sum = 0;
          for (let h = 0; h < heads; h++) sum += at(weights, t * heads + h) * Math.max(0, product(h, s));
          return sum;
        };
        for (let choice = 0; choice < choices; choice++) {
          const runs = Array.from({ length: Math.floor(index / block) + 1 }, (_, run) => {
            const near = Math.floor(index / block) - run < number(p, 'local', 0);
            let best = near ? Number.POSITIVE_INFINITY : Number.NEGATIVE_INFINITY;
            for (let s = run * block; s <= Math.min(index, run * block + block - 1); s++)
              best = Math.max(best, scoreOf(choice, s));
            return { run, best };
          });
          runs.sort((a, b) => (a.best === b.best ? a.run - b.run : a.best > b.best ? -1 : 1));
          const chosen = runs.slice(0, top).map(({ run }) => run);
          chosen.sort((a, b) => a - b);
          for (let i = 0; i < top; i++) out[(t * choices + choice) * top + i] = chosen[i] ?? -1;
        }
      },
      number(p, 'rate', 1),
    );
  },
  selected_attention([q, k, v, selected, ...past], [y], p, values) {
    const [heads, kv, size] = [number(p, 'heads', 1), number(p, 'kvHeads', 1), number(p, 'headDim', 1)];
    const [width, choices, block] = [number(p, 'valueDim', size), number(p, 'choices', 1), number(p, 'block', 1)];
    const [queries, keys, vs, out] = [values(q!), values(k!), values(v!), typed<Float32Array>(y!)];
    const top = selected!.shape[1]! / choices;
    everyToken(past, k!.shape.length === 3 ? k!.shape[1]! : 0, (t, row, index) => {
      for (let head = 0; head < heads; head++) {
        const choice = Math.floor((head * choices) / heads);
        const first = (t * choices + choice) * top;
        const chosen = new Set(ints(selected!).subarray(first, first + top));
        const shared = Math.floor((head * kv) / heads);
        let total = 0;
        const mean = new Float64Array(width);
        for (let s = 0; s <= index; s++) {
          if (!chosen.has(Math.floor(s / block))) continue;
          let score = 0;
          for (let d = 0; d < size; d++)
            score += at(queries, (t * heads + head) * size + d) * at(keys, ((row + s) * kv + shared) * size + d);
          const weight = Math.exp(score * number(p, 'scale', 1));
          total += weight;
          for (let d = 0; d < width; d++)
            mean[d] = at(mean, d) + weight * at(vs, ((row + s) * kv + shared) * width + d);
        }
        for (let d = 0; d < width; d++) out[(t * heads + head) * width + d] = at(mean, d) / total;
      }
    });
  },
};
