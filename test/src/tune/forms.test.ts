import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { asRead } from '../../../src/model/activations.js';
import type { LinearPlan } from '../../../src/model/plan.js';
import type { BlockWeights } from '../../../src/model/program.js';
import type { ActivationForm } from '../../../src/model/source.js';
import { Tape } from '../../../src/tune/tape.js';
import { Random } from '../../native/support.js';

/** Gradients of a linear that reads another matrix than its input: [T,K] = x, [N,K] = w. */
const [T, N, K] = [9, 5, 256];
const rt = createRuntime(1);
const random = new Random(3);
const [x, w, slopes] = [T * K, N * K, T * N].map((size) => random.normals(size)) as [
  Float32Array,
  Float32Array,
  Float32Array,
];
const plan = { name: 'linear', n: N, k: K, bias: false } as unknown as LinearPlan;
const order = Int32Array.from({ length: K }, (_, j) => (j * 37 + 11) % K);

const FORMS: readonly (readonly [string, ActivationForm])[] = [
  ['another order', { order }],
  ['codes in another order', { order, blocks: { bits: Uint8Array.of(4, 8), clip: Float32Array.of(0.9, 1) } }],
  ['MXFP4', { rounded: { type: 'mxfp4' } }],
  ['NVFP4', { rounded: { type: 'nvfp4', most: 4 } }],
];

for (const [name, form] of FORMS)
  test(`a linear that reads ${name}: its product and both gradients`, async () => {
    const weights: BlockWeights = new Map([['linear.weight', fromTyped('f32', [N, K], w)]]);
    weights.activations = new Map([['linear', form]]);
    const gradient = rt.allocate('f32', [N, K]);
    typed(gradient).fill(0);
    const tape = new Tape(rt, weights, new Map([['linear', gradient]]), true);
    const given = tape.input(fromTyped('f32', [T, K], x));
    const y = tape.linear(given, plan);
    tape.backward(y, fromTyped('f32', [T, N], slopes));
    const read = asRead(rt, fromTyped('f32', [T, K], x), form);
    await rt.sync();
    const r = typed<Float32Array>(read);
    // Sums of up to 256 products in f32: 256 roundings of 2^-24 of the sum of magnitudes.
    const close = (tensor: Tensor, columns: number, terms: (row: number, column: number) => number[]): void =>
      typed(tensor).forEach((value, i) => {
        const each = terms(Math.floor(i / columns), i % columns);
        const want = each.reduce((a, b) => a + b, 0);
        const bound = each.reduce((a, b) => a + Math.abs(b), 0) * 256 * 2 ** -24;
        assert.ok(Math.abs(value - want) <= bound, `element ${i}: ${value}, not ${want}`);
      });
    const along = (count: number, of: (i: number) => number) => Array.from({ length: count }, (_, i) => of(i));
    close(y.tensor, N, (t, n) => along(K, (k) => r[t * K + k]! * w[n * K + k]!));
    close(gradient, K, (n, k) => along(T, (t) => slopes[t * N + n]! * r[t * K + k]!));
    // Column j of what is read is channel order[j]; rounding passes gradients on as they are.
    const column = (channel: number) => (form.order ? order.indexOf(channel) : channel);
    close(given.grad!, K, (t, k) => along(N, (n) => slopes[t * N + n]! * w[n * K + column(k)]!));
    tape.dispose();
  });
