import { type OpParams, type Tensor, typed } from '../../../native/binding.js';

/** Layers with a state, a token and a number at a time, in double precision. */

type Numbers = ArrayLike<number>;
type Operation = (
  inputs: readonly Tensor[],
  outputs: readonly Tensor[],
  p: OpParams,
  values: (t: Tensor) => Float64Array,
) => void;

const at = (array: Numbers, i: number) => array[i] as number;
const number = (p: OpParams, key: string, otherwise = 0) => (p[key] as number | undefined) ?? otherwise;

interface Sequence {
  readonly first: number;
  readonly end: number;
  /** Its state, which begins at zero where it has no earlier tokens. */
  readonly state: Float64Array;
  keep(): void;
}

/** The sequences of `starts`, with what follows it (slots, totals, state) or states of zeros of `size`. */
function sequences([starts, slots, totals, kept]: readonly (Tensor | undefined)[], size: number): Sequence[] {
  const begin = typed<Int32Array>(starts!);
  return Array.from({ length: begin.length - 1 }, (_, s): Sequence => {
    const [first, end] = [at(begin, s), at(begin, s + 1)];
    if (!kept) return { first, end, state: new Float64Array(size), keep: () => {} };
    const slot = at(typed<Int32Array>(slots!), s);
    const all = typed<Float32Array>(kept).subarray(slot * size, (slot + 1) * size);
    const fresh = at(typed<Int32Array>(totals!), s) === end - first;
    const state = fresh ? new Float64Array(size) : Float64Array.from(all);
    return { first, end, state, keep: () => all.set(state) };
  });
}

export const RECURRENT: Record<string, Operation> = {
  short_conv(inputs, [y], p, values) {
    const rest = [...inputs];
    const [x, weight] = [rest.shift()!, rest.shift()!];
    const bias = p.biased ? values(rest.shift()!) : undefined;
    const [channels, taps] = weight.shape as [number, number];
    const [from, w, out, pitch] = [values(x), values(weight), typed(y!), x.shape[1]!];
    for (const { first, end, state, keep } of sequences(rest, (taps - 1) * channels)) {
      for (let t = first; t < end; t++)
        for (let c = 0; c < channels; c++) {
          const by = p.times === undefined ? 1 : at(from, t * pitch + number(p, 'times') + c);
          const token = by * at(from, t * pitch + number(p, 'first') + c);
          let sum = bias ? at(bias, c) : 0;
          for (let j = 0; j < taps - 1; j++) sum += at(w, c * taps + j) * at(state, j * channels + c);
          sum += at(w, c * taps + taps - 1) * token;
          for (let j = 0; j < taps - 2; j++) state[j * channels + c] = at(state, (j + 1) * channels + c);
          state[(taps - 2) * channels + c] = token;
          const made = p.act === 'silu' ? sum / (1 + Math.exp(-sum)) : sum;
          out[t * channels + c] = made * (p.gate === undefined ? 1 : at(from, t * pitch + number(p, 'gate') + c));
        }
      keep();
    }
  },
  gated_delta(inputs, [y], p, values) {
    const [q, k, v, decay, beta, rate, bias] = inputs.slice(0, 7).map(values) as Float64Array[];
    const [heads, shared, size, width] = ['heads', 'keyHeads', 'keyDim', 'valueDim'].map((key) => number(p, key)) as [
      number,
      number,
      number,
      number,
    ];
    const per = bias!.length / heads;
    const out = typed(y!);
    for (const { first, end, state, keep } of sequences(inputs.slice(7), heads * size * width)) {
      for (let t = first; t < end; t++)
        for (let h = 0; h < heads; h++) {
          const head = (t * shared + Math.floor((h * shared) / heads)) * size;
          const unit = (x: Float64Array) => {
            const part = x.subarray(head, head + size);
            const length = Math.sqrt(part.reduce((sum, value) => sum + value * value, 1e-6));
            return part.map((value) => value / length);
          };
          const [key, query] = [unit(k!), unit(q!)];
          const strength = number(p, 'strength', 1) / (1 + Math.exp(-at(beta!, t * heads + h)));
          const s = state.subarray(h * size * width, (h + 1) * size * width);
          for (let r = 0; r < size; r++) {
            const gate = h * per + (per === 1 ? 0 : r);
            const fast =
              Math.exp(at(rate!, h)) * Math.log1p(Math.exp(at(decay!, t * heads * per + gate) + at(bias!, gate)));
            for (let c = 0; c < width; c++) s[r * width + c] = at(s, r * width + c) * Math.exp(-fast);
          }
          for (let c = 0; c < width; c++) {
            let read = 0;
            for (let r = 0; r < size; r++) read += at(key, r) * at(s, r * width + c);
            const change = strength * (at(v!, (t * heads + h) * width + c) - read);
            let made = 0;
            for (let r = 0; r < size; r++) {
              s[r * width + c] = at(s, r * width + c) + at(key, r) * change;
              made += at(query, r) * at(s, r * width + c);
            }
            out[(t * heads + h) * width + c] = made / Math.sqrt(size);
          }
        }
      keep();
    }
  },
  selective_scan(inputs, [y], p, values) {
    const [x, b, c, step, rate, bias, skip] = inputs.slice(0, 7).map(values) as Float64Array[];
    const [heads, width, groups, size] = ['heads', 'headDim', 'groups', 'size'].map((key) => number(p, key)) as [
      number,
      number,
      number,
      number,
    ];
    const [channels, gates] = [heads * width, bias!.length];
    const [least, most] = [number(p, 'least'), number(p, 'most', Number.POSITIVE_INFINITY)];
    const out = typed(y!);
    for (const { first, end, state, keep } of sequences(inputs.slice(7), channels * size)) {
      for (let t = first; t < end; t++)
        for (let channel = 0; channel < channels; channel++) {
          const head = Math.floor(channel / width);
          const gate = gates === heads ? head : channel;
          const token = at(x!, t * channels + channel);
          const raw = Math.log1p(Math.exp(at(step!, t * gates + gate) + at(bias!, gate)));
          const delta = Math.min(Math.max(raw, least), most);
          let made = at(skip!, gate) * token;
          for (let n = 0; n < size; n++) {
            const group = (t * groups + Math.floor((head * groups) / heads)) * size + n;
            const fast = Math.exp(at(rate!, gates === heads ? head : channel * size + n));
            const place = (head * size + n) * width + (channel % width);
            state[place] = Math.exp(-fast * delta) * at(state, place) + delta * at(b!, group) * token;
            made += at(c!, group) * at(state, place);
          }
          out[t * channels + channel] = made;
        }
      keep();
    }
  },
};
