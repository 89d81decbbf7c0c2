import {
  allocate,
  type DType,
  type NativeRuntime,
  type OpParams,
  type Tensor,
  typed,
} from '../../../native/binding.js';
import { RECURRENT } from './reference-recurrent.js';
import { SELECTED } from './reference-selected.js';
import { STREAMS } from './reference-streams.js';

/**
 * The operations of a decoder, a few lines each, in double precision: an oracle that shares no code with the native
 * ones. Operations run when enqueued.
 */
export class ReferenceRuntime implements NativeRuntime {
  readonly threads = 1;
  readonly device = 'cpu';
  readonly activationDtype = 'f32';
  readonly momentDtype = 'f64';
  /** Names of all operations that ran. */
  readonly log: string[] = [];

  enqueue(op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params: OpParams = {}): void {
    const run = OPERATIONS[op];
    const more = RECURRENT[op] ?? SELECTED[op] ?? STREAMS[op];
    if (!run && !more) throw new Error(`the reference runtime has no ${op}`);
    this.log.push(op);
    if (run) run(inputs, outputs, params);
    else more!(inputs, outputs, params, values);
  }
  async sync(): Promise<void> {}
  async mark(): Promise<void> {}
  allocate = allocate;
  upload(tensor: Tensor): Tensor {
    return tensor.view(tensor.shape);
  }
  park = this.upload;
  restore = this.upload;
  copyFrom = this.upload;
  async download(tensor: Tensor): Promise<Tensor> {
    return tensor.view(tensor.shape);
  }
  memory(): undefined {}
  lend(): boolean {
    return false;
  }
  resetPeak(): void {}
  record(): void {}

  recorded(): undefined {}

  replay(): void {
    throw new Error('there is no recording');
  }

  abort(): void {}
  progress() {
    return { done: 0, total: 0 };
  }
  profile() {
    return {};
  }
}

type Operation = (inputs: readonly Tensor[], outputs: readonly Tensor[], p: OpParams) => void;

/** Elements of any weight dtype as doubles. */
export function values(tensor: Tensor): Float64Array {
  const raw = typed<ArrayLike<number>>(tensor);
  return Float64Array.from({ length: raw.length }, (_, i) => decode(tensor.dtype, raw[i] as number));
}

function decode(dtype: DType, raw: number): number {
  if (dtype === 'bf16') return new Float32Array(Uint32Array.of(raw * 65536).buffer)[0] as number;
  if (dtype !== 'f16') return raw;
  const fraction = raw & 1023;
  const power = (raw >> 10) & 31;
  const size = power === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (power - 25);
  return raw >> 15 ? -size : size;
}

const dim = (tensor: Tensor, axis: number) => tensor.shape[axis] as number;
const at = (array: ArrayLike<number>, i: number) => array[i] as number;
const number = (p: OpParams, key: string, otherwise = 0) => (p[key] as number | undefined) ?? otherwise;

const ACTIVATIONS: Record<string, (x: number) => number> = {
  silu: (x) => x / (1 + Math.exp(-x)),
  // erf by its power series: every |x| below 5 converges in 100 terms with some 1e-7 lost at the far end.
  gelu: (x) => {
    const z = x / Math.SQRT2;
    if (Math.abs(z) > 4) return x > 0 ? x : 0;
    let [term, sum] = [z, z];
    for (let n = 1; n < 120; n++) {
      term *= (-z * z) / n;
      sum += term / (2 * n + 1);
    }
    return 0.5 * x * (1 + (2 / Math.sqrt(Math.PI)) * sum);
  },
  relu: (x) => Math.max(x, 0),
  relu2: (x) => Math.max(x, 0) ** 2,
  quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

const OPERATIONS: Record<string, Operation> = {
  cast([x], [y]) {
    typed(y!).set(values(x!));
  },
  embedding([ids, table], [y], p) {
    const width = dim(table!, 1);
    const weights = values(table!);
    const out = typed(y!);
    typed<Int32Array>(ids!).forEach((id, t) => {
      for (let c = 0; c < width; c++) out[t * width + c] = at(weights, id * width + c) * number(p, 'scale', 1);
    });
  },
  rmsnorm([x, weight], [y], p) {
    const width = weight ? dim(weight, 0) : number(p, 'width', dim(x!, 1));
    const [w, input, out] = [weight && values(weight), values(x!), typed(y!)];
    // All rows, or where `first` is given the columns of each row from there on.
    const some = p.first === undefined ? 0 : dim(x!, 1);
    for (let first = number(p, 'first'); first < input.length; first += some || width) {
      let square = 0;
      for (let c = 0; c < width; c++) square += at(input, first + c) ** 2;
      const by = 1 / Math.sqrt(square / width + number(p, 'eps'));
      for (let c = 0; c < width; c++)
        out[first + c] = at(input, first + c) * by * (w ? at(w, c) + number(p, 'offset') : 1);
    }
  },
  layernorm([x, weight, bias], [y], p) {
    const [width, turns] = [number(p, 'width', dim(x!, 1)), number(p, 'turns', 1)];
    const [input, w, b, out] = [values(x!), weight && values(weight), bias && values(bias), typed(y!)];
    // All rows, or where `first` is given the columns of each row from there on.
    const some = p.first === undefined ? 0 : dim(x!, 1);
    for (let first = number(p, 'first'); first < input.length; first += some || width) {
      const row = input.subarray(first, first + width);
      const mean = row.reduce((sum, value) => sum + value, 0) / width;
      const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width;
      const at0 = ((first / width) % turns) * width;
      for (let c = 0; c < width; c++)
        out[first + c] =
          ((at(row, c) - mean) / Math.sqrt(variance + number(p, 'eps'))) *
            (w ? at(w, at0 + c) + number(p, 'offset') : 1) +
          (b ? at(b, at0 + c) : 0);
    }
  },
  activation([x], [y], p) {
    typed(y!).set(values(x!).map(ACTIVATIONS[p.act as string]!));
  },
  xielu([x, positive, negative, beta, eps], [y]) {
    const [p, n, b, e] = [positive, negative, beta, eps].map((tensor) => at(values(tensor!), 0)) as [
      number,
      number,
      number,
      number,
    ];
    const [above, below] = [Math.log1p(Math.exp(p)), b + Math.log1p(Math.exp(n))];
    typed(y!).set(values(x!).map((v) => b * v + (v > 0 ? above * v * v : below * (Math.expm1(Math.min(v, e)) - v))));
  },
  match_rms([x, like], [y], p) {
    const [from, model, c] = [values(x!), values(like!), dim(x!, 1)];
    const square = (all: Float64Array, i: number) => {
      const row = Math.floor(i / c) * c;
      return all.subarray(row, row + c).reduce((sum, v) => sum + v * v, 0) / c;
    };
    typed(y!).set(
      from.map((v, i) => (v * Math.sqrt(square(model, i))) / Math.sqrt(Math.max(square(from, i), number(p, 'floor')))),
    );
  },
  scale_columns([x, scales], [y]) {
    const by = values(scales!);
    typed(y!).set(values(x!).map((v, i) => v * at(by, i % by.length)));
  },
  gaussian_top_k([x], [y], p) {
    const [all, c] = [values(x!), dim(x!, 1)];
    typed(y!).set(
      all.map((v, i) => {
        const row = all.subarray(i - (i % c), i - (i % c) + c);
        const mean = row.reduce((sum, each) => sum + each, 0) / c;
        const variance = row.reduce((sum, each) => sum + (each - mean) ** 2, 0) / c;
        return Math.max(0, v - mean - number(p, 'deviations') * Math.sqrt(variance));
      }),
    );
  },
  scale_rows([x, scales], [y], p) {
    const [input, out, by, pitch] = [values(x!), typed(y!), scales && values(scales), dim(x!, 1)];
    const [first, width] = [number(p, 'first'), number(p, 'width', pitch)];
    for (let t = 0; t < dim(x!, 0); t++)
      for (let c = t * pitch + first; c < t * pitch + first + width; c++)
        out[c] = at(input, c) * number(p, 'factor', 1) * (by ? at(by, by.length === 1 ? 0 : t) : 1);
  },
  soft_cap([x], [y], p) {
    const [scale, cap] = [number(p, 'scale', 1), number(p, 'cap')];
    typed(y!).set(values(x!).map((value) => (cap > 0 ? cap * Math.tanh((value * scale) / cap) : value * scale)));
  },
  add([a, b], [y], p) {
    const [left, right] = [values(a!), values(b!)];
    typed(y!).set(left.map((value, i) => value + at(right, i) * number(p, 'scale', 1)));
  },
  slice_columns([x], [y], p) {
    const [input, width, out] = [values(x!), dim(y!, 1), typed(y!)];
    for (let r = 0; r < dim(y!, 0); r++)
      for (let c = 0; c < width; c++) out[r * width + c] = at(input, r * dim(x!, 1) + number(p, 'first') + c);
  },
  transpose([x], [y]) {
    const [rows, columns] = [dim(x!, 0), dim(x!, 1)];
    const [from, to] = [typed<Uint16Array>(x!), typed<Uint16Array>(y!)];
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) to[c * rows + r] = at(from, r * columns + c);
  },
  linear([x, weight, bias], [y], p) {
    const [n, k] = [dim(weight!, 0), dim(weight!, 1)];
    const [input, w, b, out] = [values(x!), values(weight!), bias && values(bias), typed(y!)];
    for (let t = 0; t < dim(x!, 0); t++)
      for (let row = 0; row < n; row++) {
        let sum = b ? at(b, row) : 0;
        for (let i = 0; i < k; i++) sum += at(input, t * k + i) * at(w, row * k + i);
        out[t * n + row] = sum + (p.accumulate ? at(out, t * n + row) : 0);
      }
  },
  rope([x, cos, sin, positions], _out, p) {
    const [c, s, place, data] = [values(cos!), values(sin!), typed<Int32Array>(positions!), typed(x!)];
    const [heads, size, rotary] = [number(p, 'heads'), number(p, 'headDim'), number(p, 'rotary')];
    place.forEach((position, t) => {
      for (let head = 0; head < heads; head++)
        for (let i = 0; i < rotary / 2; i++) {
          const base = t * dim(x!, 1) + number(p, 'first') + head * size;
          const [a, b] = p.style === 'half' ? [base + i, base + i + rotary / 2] : [base + 2 * i, base + 2 * i + 1];
          const [u, v] = [at(data, a), at(data, b)];
          const [cosine, sine] = [at(c, (position * rotary) / 2 + i), at(s, (position * rotary) / 2 + i)];
          data[a] = u * cosine - v * sine;
          data[b] = v * cosine + u * sine;
        }
    });
  },
  attention([q, k, v, starts, sinks], [y], p) {
    const [heads, kv, size] = [number(p, 'heads'), number(p, 'kvHeads'), number(p, 'headDim')];
    const width = number(p, 'valueDim', size);
    const sink = sinks && values(sinks);
    const window = number(p, 'window');
    const [qs, ks, vs, out, begin] = [values(q!), values(k!), values(v!), typed(y!), typed<Int32Array>(starts!)];
    for (let s = 0; s + 1 < begin.length; s++)
      for (let t = at(begin, s); t < at(begin, s + 1); t++)
        for (let head = 0; head < heads; head++) {
          const shared = Math.floor((head * kv) / heads);
          const first = window > 0 ? Math.max(at(begin, s), t - window + 1) : at(begin, s);
          const scores: number[] = [];
          for (let u = first; u <= t; u++) {
            let dot = 0;
            for (let d = 0; d < size; d++)
              dot +=
                at(qs, t * dim(q!, 1) + number(p, 'qFirst') + head * size + d) *
                at(ks, u * dim(k!, 1) + number(p, 'kFirst') + shared * size + d);
            const [score, cap] = [dot * number(p, 'scale'), number(p, 'softCap')];
            scores.push(cap > 0 ? cap * Math.tanh(score / cap) : score);
          }
          const top = Math.max(...scores);
          const shares = scores.map((score) => Math.exp(score - top));
          const none = sink ? Math.exp(at(sink, head) - top) : 0;
          const sum = shares.reduce((total, share) => total + share, none);
          for (let d = 0; d < width; d++) {
            let mean = 0;
            shares.forEach((share, i) => {
              mean += share * at(vs, (first + i) * dim(v!, 1) + number(p, 'vFirst') + shared * width + d);
            });
            out[(t * heads + head) * width + d] = mean / sum;
          }
        }
  },
  gated_activation([gate, up], [y], p) {
    const act = ACTIVATIONS[p.act as string]!;
    const [g, u, out, width] = [values(gate!), values(up!), typed(y!), dim(y!, 1)];
    const column = (x: Tensor, i: number, first: string) =>
      Math.floor(i / width) * dim(x, 1) + number(p, first) + (i % width);
    for (let i = 0; i < out.length; i++)
      out[i] = act(at(g, column(gate!, i, 'first'))) * at(u, column(up!, i, 'upFirst'));
  },
  clamped_swiglu([gate, up], [y], p) {
    const [g, u, out] = [values(gate!), values(up!), typed(y!)];
    const limit = number(p, 'limit');
    for (let i = 0; i < g.length; i++) {
      const clamped = Math.min(at(g, i), limit);
      const line = Math.max(-limit, Math.min(at(u, i), limit)) + 1;
      out[i] = (line * clamped) / (1 + Math.exp(-number(p, 'alpha') * clamped));
    }
  },
  copy_heads([x], [y], p) {
    const [input, out] = [values(x!), typed(y!)];
    const [heads, width, fromDim, toDim] = ['heads', 'width', 'fromDim', 'toDim'].map((key) => number(p, key)) as [
      number,
      number,
      number,
      number,
    ];
    for (let t = 0; t < dim(x!, 0); t++)
      for (let h = 0; h < heads; h++)
        for (let c = 0; c < width; c++) {
          const source = p.shared ? t : t * heads + h;
          out[(t * heads + h) * toDim + number(p, 'to') + c] = at(input, source * fromDim + number(p, 'from') + c);
        }
  },
  route_top_k([logits, bias], [indices, weights], p) {
    const experts = dim(logits!, 1);
    const [scores, chosen, shares] = [values(logits!), typed<Int32Array>(indices!), typed(weights!)];
    const [groups, k] = [number(p, 'groups', 1), number(p, 'k')];
    const more = bias ? values(bias) : new Float64Array(experts);
    const jitter = number(p, 'jitter');
    for (let t = 0; jitter > 0 && t < dim(logits!, 0); t++) {
      const left = new Map(scores.subarray(t * experts, (t + 1) * experts).entries());
      for (let j = 0; j < k; j++) {
        const [best, most] = [...left].reduce((a, b) => (b[1] > a[1] ? b : a));
        const near = [...left.values()].filter((s) => (most - s) / Math.max(Math.abs(s), most) <= 2 * jitter);
        chosen[t * k + j] = best;
        shares[t * k + j] = 1 / near.reduce((sum, s) => sum + Math.exp(s - most), 0);
        left.delete(best);
      }
    }
    if (jitter > 0) return;
    for (let t = 0; t < dim(logits!, 0); t++) {
      const row = Array.from(scores.subarray(t * experts, (t + 1) * experts));
      const top = Math.max(...row);
      const total = row.reduce((sum, score) => sum + Math.exp(score - top), 0);
      const share = row.map((score) => (p.sigmoid ? 1 / (1 + Math.exp(-score)) : Math.exp(score - top) / total));
      const wish = share.map((value, e) => value + at(more, e));
      const group = (e: number) => Math.floor((e * groups) / experts);
      const ranked = Array.from({ length: groups }, (_, g) => {
        const members = wish.filter((_, e) => group(e) === g).sort((a, b) => b - a);
        return { g, score: p.topTwo ? at(members, 0) + at(members, 1) : at(members, 0) };
      }).sort((a, b) => b.score - a.score || a.g - b.g);
      const open = new Set(ranked.slice(0, number(p, 'topGroups', 1)).map(({ g }) => g));
      const order = wish.map((_, e) => e).filter((e) => open.has(group(e)));
      const best = order.sort((a, b) => at(wish, b) - at(wish, a) || a - b).slice(0, k);
      const sum = p.normalize ? best.reduce((all, e) => all + at(share, e), 0) : 1;
      best.forEach((e, j) => {
        chosen[t * k + j] = e;
        shares[t * k + j] = (at(share, e) / sum) * number(p, 'scale', 1);
      });
    }
  },
  group_by_expert([indices], [rows, offsets], p) {
    const [chosen, out, bounds] = [typed<Int32Array>(indices!), typed<Int32Array>(rows!), typed<Int32Array>(offsets!)];
    let next = 0;
    for (let e = 0; e < number(p, 'experts'); e++) {
      bounds[e] = next;
      chosen.forEach((expert, flat) => {
        if (expert === e) out[next++] = flat;
      });
    }
    bounds[number(p, 'experts')] = next;
  },
  gather_rows([x, rows], [y], p) {
    const [width, input, out] = [dim(x!, 1), values(x!), typed(y!)];
    typed<Int32Array>(rows!).forEach((row, m) => {
      const from = Math.floor(row / number(p, 'divide', 1)) * width;
      out.set(input.subarray(from, from + width), m * width);
    });
  },
  scatter_add_rows([x, rows, weights, y], _out, p) {
    const [width, input, shares, out] = [dim(x!, 1), values(x!), values(weights!), typed(y!)];
    typed<Int32Array>(rows!).forEach((row, m) => {
      const to = Math.floor(row / number(p, 'divide')) * width;
      for (let c = 0; c < width; c++) out[to + c] = at(out, to + c) + at(shares, row) * at(input, m * width + c);
    });
  },
  neg_log_likelihood([logits, targets], [nll]) {
    const [width, scores, out] = [dim(logits!, 1), values(logits!), typed<Float64Array>(nll!)];
    typed<Int32Array>(targets!).forEach((target, t) => {
      const row = scores.subarray(t * width, (t + 1) * width);
      const top = Math.max(...row);
      const sum = row.reduce((total, score) => total + Math.exp(score - top), 0);
      out[t] = target < 0 ? 0 : top + Math.log(sum) - at(row, target);
    });
  },
  gram_accumulate([x, h], _out, p) {
    const [k, input, out] = [dim(x!, 1), values(x!), typed<Float64Array>(h!)];
    for (let t = 0; t < dim(x!, 0); t++)
      for (let i = 0; i < k; i++)
        for (let j = 0; j < k; j++)
          out[i * k + j] = at(out, i * k + j) + number(p, 'weight', 1) * at(input, t * k + i) * at(input, t * k + j);
  },
  cross_accumulate([a, b, c], _out, p) {
    const [k, left, right, out] = [dim(a!, 1), values(a!), values(b!), typed<Float64Array>(c!)];
    for (let t = 0; t < dim(a!, 0); t++)
      for (let i = 0; i < k; i++)
        for (let j = 0; j < k; j++)
          out[i * k + j] = at(out, i * k + j) + number(p, 'weight', 1) * at(left, t * k + i) * at(right, t * k + j);
  },
  cross_drift([h], [c], p) {
    const [k, sum, out] = [dim(h!, 0), values(h!), typed<Float64Array>(c!)];
    for (let i = 0; i < k; i++)
      for (let j = 0; j < k; j++)
        out[i * k + j] = (at(out, i * k + j) - at(sum, Math.max(i, j) * k + Math.min(i, j))) * number(p, 'scale', 1);
  },
  gram_finish() {},
  zero(_inputs, [y]) {
    y!.bytes().fill(0);
  },
};
