import assert from 'node:assert/strict';
import { test } from 'node:test';
import { typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { expectGradients } from './gradients.js';
import { rt, runtimeOf } from './runtime-under-test.js';
import { f32, i32, poisoned, Random } from './support.js';

const STARTS = [0, 5, 5, 9];
const TOKENS = 9;

const sequences = STARTS.slice(1).map((end, s) => ({ from: STARTS[s]!, end }));

for (const [act, biased, gated] of [
  ['silu', false, false],
  ['silu', true, false],
  ['none', true, true],
] as const)
  test(`short_conv: ${act}, ${biased ? 'a bias' : 'no bias'}, ${gated ? 'with factors' : 'plain'}`, async () => {
    const random = new Random(3);
    const [channels, taps] = [70, 4];
    const pitch = gated ? 3 * channels : channels;
    const x = random.normals(TOKENS * pitch);
    const [w, b, dy] = [random.normals(channels * taps), random.normals(channels), random.normals(TOKENS * channels)];
    const dx = poisoned('f32', [TOKENS, pitch]);
    const of = { x: f32([TOKENS, pitch], x), weight: f32([channels, taps], w), starts: i32(STARTS) };
    const columns = gated ? { first: 2 * channels, times: 0, gate: channels } : {};
    const bias = biased ? { bias: f32([channels], b) } : {};
    ops.shortConvBackward(rt, { ...of, ...bias, dy: f32([TOKENS, channels], dy) }, dx, { act, ...columns });
    await rt.sync();
    expectGradients({ x }, { x: dx }, dy, ({ x: at }) => {
      const y = new Float64Array(TOKENS * channels);
      for (const { from, end } of sequences)
        for (let t = from; t < end; t++)
          for (let c = 0; c < channels; c++) {
            let sum = biased ? b[c]! : 0;
            for (let j = 0; j < taps; j++) {
              const s = t - taps + 1 + j;
              if (s < from) continue;
              const factor = gated ? at![s * pitch + c]! : 1;
              sum += w[c * taps + j]! * at![s * pitch + (gated ? 2 * channels : 0) + c]! * factor;
            }
            const made = act === 'silu' ? sum / (1 + Math.exp(-sum)) : sum;
            y[t * channels + c] = made * (gated ? at![t * pitch + channels + c]! : 1);
          }
      return y;
    });
  });

interface Sizes {
  readonly heads: number;
  readonly keyHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  readonly strength: number;
}

/** The rule token by token, as native/ops/recurrent.h writes it. */
function delta(
  { q, k, v, decay, beta }: Record<string, Float64Array>,
  { rate, bias }: Record<'rate' | 'bias', Float32Array>,
  { heads, keyHeads, keyDim, valueDim, strength }: Sizes,
): Float64Array {
  const y = new Float64Array(TOKENS * heads * valueDim);
  const per = bias.length / heads;
  const unit = (x: Float64Array, from: number): number[] => {
    const part = Array.from(x.subarray(from, from + keyDim));
    const length = Math.sqrt(part.reduce((sum, value) => sum + value * value, 1e-6));
    return part.map((value) => value / length);
  };
  for (const { from, end } of sequences)
    for (let h = 0; h < heads; h++) {
      const state = Array.from({ length: keyDim }, () => new Float64Array(valueDim));
      for (let t = from; t < end; t++) {
        const key = (t * keyHeads + Math.floor(h / (heads / keyHeads))) * keyDim;
        const [query, unitKey] = [unit(q!, key).map((value) => value / Math.sqrt(keyDim)), unit(k!, key)];
        for (const [i, row] of state.entries()) {
          const at = h * per + (per > 1 ? i : 0);
          const x = decay![t * heads * per + at]! + bias[at]!;
          const by = Math.exp(-Math.exp(rate[h]!) * Math.log1p(Math.exp(x)));
          for (let c = 0; c < valueDim; c++) row[c] = row[c]! * by;
        }
        const share = strength / (1 + Math.exp(-beta![t * heads + h]!));
        for (let c = 0; c < valueDim; c++) {
          const place = (t * heads + h) * valueDim + c;
          const e = v![place]! - state.reduce((sum, row, i) => sum + unitKey[i]! * row[c]!, 0);
          for (const [i, row] of state.entries()) row[c] = row[c]! + share * unitKey[i]! * e;
          y[place] = state.reduce((sum, row, i) => sum + query[i]! * row[c]!, 0);
        }
      }
    }
  return y;
}

for (const [name, sizes, channels] of [
  ['a decay a head, keys of two heads each', { heads: 4, keyHeads: 2, keyDim: 5, valueDim: 7, strength: 1 }, false],
  ['more columns than a block has', { heads: 2, keyHeads: 1, keyDim: 4, valueDim: 36, strength: 1 }, false],
  ['a decay a channel, strengths up to 2', { heads: 2, keyHeads: 2, keyDim: 6, valueDim: 4, strength: 2 }, true],
] as const)
  test(`gated_delta: ${name}`, async () => {
    const random = new Random(4);
    const { heads, keyHeads, keyDim, valueDim } = sizes;
    const gates = heads * (channels ? keyDim : 1);
    const widths = { q: keyHeads * keyDim, k: keyHeads * keyDim, v: heads * valueDim, decay: gates, beta: heads };
    const given = Object.fromEntries(
      Object.entries(widths).map(([each, width]) => [each, random.normals(TOKENS * width)]),
    ) as Record<keyof typeof widths, Float32Array>;
    const [rate, bias, dy] = [random.normals(heads), random.normals(gates), random.normals(TOKENS * widths.v)];
    const tensor = (each: keyof typeof widths) => f32([TOKENS, widths[each]], given[each]);
    const out = (each: keyof typeof widths) => poisoned('f32', [TOKENS, widths[each]]);
    const got = { q: out('q'), k: out('k'), v: out('v'), decay: out('decay'), beta: out('beta') };
    ops.gatedDeltaBackward(
      rt,
      {
        ...{ q: tensor('q'), k: tensor('k'), v: tensor('v'), decay: tensor('decay'), beta: tensor('beta') },
        ...{ rate: f32([heads], rate), bias: f32([gates], bias), starts: i32(STARTS) },
        dy: f32([TOKENS, widths.v], dy),
      },
      { dq: got.q, dk: got.k, dv: got.v, ddecay: got.decay, dbeta: got.beta },
      sizes,
    );
    await rt.sync();
    expectGradients(given, got, dy, (at) => delta(at, { rate, bias }, sizes));
  });

test('gated_delta: sequences longer than the states that are held give the same gradients with any number of threads', async () => {
  const random = new Random(5);
  const [tokens, heads, dim] = [150, 3, 8];
  const widths = { q: heads * dim, k: heads * dim, v: heads * dim, decay: heads, beta: heads };
  const values = Object.fromEntries(
    Object.entries(widths).map(([name, width]) => [name, random.normals(tokens * width)]),
  );
  const [rate, bias, dy] = [random.normals(heads), random.normals(heads), random.normals(tokens * heads * dim)];
  const sizes = { heads, keyHeads: heads, keyDim: dim, valueDim: dim };
  const gradients = async (threads: number, from: number, count: number) => {
    const own = runtimeOf(threads);
    const of = (name: keyof typeof widths) =>
      f32([count, widths[name]], values[name]!.slice(from * widths[name], (from + count) * widths[name]));
    const out = (name: keyof typeof widths) => poisoned('f32', [count, widths[name]]);
    const made = { dq: out('q'), dk: out('k'), dv: out('v'), ddecay: out('decay'), dbeta: out('beta') };
    const inputs = { q: of('q'), k: of('k'), v: of('v'), decay: of('decay'), beta: of('beta') };
    const rest = { rate: f32([heads], rate), bias: f32([heads], bias), starts: i32([0, count]) };
    const last = f32([count, heads * dim], dy.slice(from * heads * dim, (from + count) * heads * dim));
    ops.gatedDeltaBackward(own, { ...inputs, ...rest, dy: last }, made, sizes);
    await own.sync();
    return Object.fromEntries(Object.entries(made).map(([name, tensor]) => [name, typed(tensor).slice()]));
  };
  assert.deepEqual(await gradients(1, 0, tokens), await gradients(3, 0, tokens));
  // What later tokens leave of the first: along v the loss is linear, so that one difference is its slope.
  const whole = (await gradients(2, 0, tokens)).dv!;
  const loss = async (v: Float32Array) => {
    const y = poisoned('f32', [tokens, heads * dim]);
    const t = (name: keyof typeof widths) => f32([tokens, widths[name]], values[name]!);
    const all = { q: t('q'), k: t('k'), v: f32([tokens, heads * dim], v), decay: t('decay'), beta: t('beta') };
    ops.gatedDelta(
      rt,
      { ...all, rate: f32([heads], rate), bias: f32([heads], bias) },
      y,
      { starts: i32([0, tokens]) },
      sizes,
    );
    await rt.sync();
    return typed<Float32Array>(y).reduce((sum, value, i) => sum + value * dy[i]!, 0);
  };
  const norm = Math.sqrt(whole.reduce((sum, g) => sum + g * g, 0));
  const moved = values.v!.map((value, i) => value + (10 * whole[i]!) / norm);
  // fp32 sums of 3600 products of size 1: 1e-4 of the change.
  assert.ok(Math.abs((await loss(moved)) - (await loss(values.v!)) - 10 * norm) <= 1e-3 * norm);
});
