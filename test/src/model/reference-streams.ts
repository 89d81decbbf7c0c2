import { type OpParams, type Tensor, typed } from '../../../native/binding.js';
import type { Operation } from './reference-selected.js';

/** Compressed attention, hyper-connections and routing by roots, by their definitions, in double precision. */

const at = (array: ArrayLike<number>, i: number) => array[i] as number;
const number = (p: OpParams, key: string, otherwise = 0) => (p[key] as number | undefined) ?? otherwise;
const ints = (tensor: Tensor) => typed<Int32Array>(tensor);
const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
const total = (row: readonly number[]) => row.reduce((sum, value) => sum + value, 0);

/** Calls `each` with every token, its index in its sequence, and the first token and entry of that. */
function everyToken(
  starts: Tensor,
  rate: number,
  each: (token: number, index: number, first: number, entry: number) => void,
): void {
  const begin = ints(starts);
  let entry = 0;
  for (let s = 0; s + 1 < begin.length; s++) {
    const [first, end] = [at(begin, s), at(begin, s + 1)];
    for (let t = first; t < end; t++) each(t, t - first, first, entry);
    entry += rate > 0 ? Math.floor((end - first) / rate) : 0;
  }
}

export const STREAMS: Record<string, Operation> = {
  place_columns([x], [y], p, values) {
    const [from, out, width] = [values(x!), typed(y!), x!.shape[1]!];
    for (let i = 0; i < from.length; i++)
      out[Math.floor(i / width) * y!.shape[1]! + number(p, 'first') + (i % width)] = at(from, i);
  },
  rope_backward([, cos, sin, positions], [dx], p, values) {
    const [c, s, data] = [values(cos!), values(sin!), typed(dx!)];
    const [rotary, heads, size] = [number(p, 'rotary'), number(p, 'heads'), number(p, 'headDim')];
    // Neighbouring pairs, turned back.
    ints(positions!).forEach((position, t) => {
      for (let i = 0; i < (heads * rotary) / 2; i++) {
        const [head, pair] = [Math.floor((2 * i) / rotary), i % (rotary / 2)];
        const first = (t * heads + head) * size + 2 * pair;
        const [u, v] = [at(data, first), at(data, first + 1)];
        const [cosine, sine] = [at(c, (position * rotary) / 2 + pair), at(s, (position * rotary) / 2 + pair)];
        data[first] = u * cosine + v * sine;
        data[first + 1] = v * cosine - u * sine;
      }
    });
  },
  compress([x, gate, bias, starts], [y], p, values) {
    const [from, gates, add, out] = [values(x!), values(gate!), values(bias!), typed<Float32Array>(y!)];
    const [rate, width, dim] = [number(p, 'rate'), x!.shape[1]!, y!.shape[1]!];
    const double = width === 2 * dim;
    everyToken(starts!, rate, (t, index, first, entry) => {
      // The run ends with this token.
      if ((index + 1) % rate !== 0) return;
      const run = (index + 1) / rate - 1;
      for (let c = 0; c < dim; c++) {
        const terms: [share: number, value: number][] = [];
        for (let u = first; u <= t; u++) {
          const own = Math.floor((u - first) / rate);
          if (own !== run && !(double && own === run - 1)) continue;
          const column = double && own === run ? dim + c : c;
          const logit = at(gates, u * width + column) + at(add, ((u - first) % rate) * width + column);
          terms.push([Math.exp(logit), at(from, u * width + column)]);
        }
        out[(entry + run) * dim + c] =
          total(terms.map(([share, value]) => share * value)) / total(terms.map(([share]) => share));
      }
    });
  },
  compressed_attention([q, k, entries, sinks, starts, selected], [y], p, values) {
    const [queries, keys, older, sink, out] = [
      ...[q, k, entries, sinks].map((tensor) => values(tensor!)),
      typed<Float32Array>(y!),
    ] as [Float64Array, Float64Array, Float64Array, Float64Array, Float32Array];
    const [heads, rate, dim] = [number(p, 'heads'), number(p, 'rate'), k!.shape[1]!];
    everyToken(starts!, rate, (t, index, first, entry) => {
      const rows: Float64Array[] = [];
      for (let u = first; u <= t; u++)
        if (t - u < number(p, 'window')) rows.push(keys.subarray(u * dim, u * dim + dim));
      const chosen = selected && ints(selected).subarray(t * selected.shape[1]!, (t + 1) * selected.shape[1]!);
      for (let e = 0; rate > 0 && (e + 1) * rate <= index + 1; e++)
        if (!chosen || chosen.includes(e)) rows.push(older.subarray((entry + e) * dim, (entry + e + 1) * dim));
      for (let h = 0; h < heads; h++) {
        const shares = rows.map((row) =>
          Math.exp(number(p, 'scale') * row.reduce((sum, v, d) => sum + v * at(queries, (t * heads + h) * dim + d), 0)),
        );
        const sum = total(shares) + Math.exp(at(sink, h));
        for (let d = 0; d < dim; d++)
          out[(t * heads + h) * dim + d] = total(shares.map((share, i) => share * at(rows[i]!, d))) / sum;
      }
    });
  },
  hyper_weights([w, base, scale], [pre, post, mix], p, values) {
    const [from, add, by] = [values(w!), values(base!), values(scale!)];
    const [n, eps, width] = [number(p, 'streams'), number(p, 'eps'), w!.shape[1]!];
    for (let t = 0; t < w!.shape[0]!; t++) {
      const made = (i: number, part: number) => at(from, t * width + i) * at(by, part) + at(add, i);
      for (let i = 0; i < n; i++) typed(pre!)[t * n + i] = sigmoid(made(i, 0)) + eps;
      if (!post || !mix) continue;
      for (let i = 0; i < n; i++) typed(post)[t * n + i] = 2 * sigmoid(made(n + i, 1));
      let rows = Array.from({ length: n }, (_, i) => {
        const shares = Array.from({ length: n }, (_, j) => Math.exp(made(2 * n + i * n + j, 2)));
        return shares.map((share) => share / total(shares) + eps);
      });
      const byColumns = () => {
        const sums = rows[0]!.map((_, j) => total(rows.map((row) => at(row, j))) + eps);
        rows = rows.map((row) => row.map((value, j) => value / at(sums, j)));
      };
      byColumns();
      for (let i = 1; i < number(p, 'iterations', 1); i++) {
        rows = rows.map((row) => row.map((value) => value / (total(row) + eps)));
        byColumns();
      }
      typed(mix).set(rows.flat(), t * n * n);
    }
  },
  hyper_collapse([x, pre], [y], _p, values) {
    const [from, by, out] = [values(x!), values(pre!), typed(y!)];
    const [n, c] = [pre!.shape[1]!, y!.shape[1]!];
    for (let i = 0; i < out.length; i++) {
      const [t, d] = [Math.floor(i / c), i % c];
      out[i] = total(Array.from({ length: n }, (_, s) => at(by, t * n + s) * at(from, (t * n + s) * c + d)));
    }
  },
  hyper_expand([x, made, post, mix], [y], _p, values) {
    const [from, own, by, all, out] = [...[x, made, post, mix].map((tensor) => values(tensor!)), typed(y!)] as [
      Float64Array,
      Float64Array,
      Float64Array,
      Float64Array,
      Float32Array,
    ];
    const [n, c] = [post!.shape[1]!, made!.shape[1]!];
    for (let i = 0; i < out.length; i++) {
      const [t, s, d] = [Math.floor(i / (n * c)), Math.floor(i / c) % n, i % c];
      const old = Array.from({ length: n }, (_, j) => at(all, (t * n + j) * n + s) * at(from, (t * n + j) * c + d));
      out[i] = at(by, t * n + s) * at(own, t * c + d) + total(old);
    }
  },
  limited_gate([gate, up], [y], p, values) {
    const [ups, limit] = [values(up!), number(p, 'limit')];
    typed(y!).set(
      values(gate!).map((g, i) => {
        const low = Math.min(g, limit);
        return low * sigmoid(low) * Math.max(-limit, Math.min(limit, at(ups, i)));
      }),
    );
  },
  route_root(inputs, [indices, weights], p, values) {
    const rest = [...inputs];
    const logits = rest.shift()!;
    const bias = p.biased ? values(rest.shift()!) : undefined;
    const [ids, table] = p.hashed ? rest : [];
    const [k, experts] = [number(p, 'k'), logits.shape[1]!];
    for (let t = 0; t < logits.shape[0]!; t++) {
      const shares = [...values(logits).subarray(t * experts, (t + 1) * experts)].map((x) =>
        Math.sqrt(Math.log1p(Math.exp(x))),
      );
      const order = shares.map((share, e) => ({ e, by: share + (bias ? at(bias, e) : 0) }));
      order.sort((a, b) => b.by - a.by || a.e - b.e);
      const chosen = Array.from({ length: k }, (_, j) =>
        ids && table ? Number(typed<BigInt64Array>(table)[at(ints(ids), t) * k + j]) : order[j]!.e,
      );
      const sum = total(chosen.map((e) => at(shares, e)));
      for (const [j, e] of chosen.entries()) {
        ints(indices!)[t * k + j] = e;
        typed(weights!)[t * k + j] = (at(shares, e) / sum) * number(p, 'scale', 1);
      }
    }
  },
};
