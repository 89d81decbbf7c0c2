import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { expectClose, f32, poisoned, Random, typed, U32 } from './support.js';

const rt = createRuntime(2);

/** The complementary error function by its own means: the Taylor series of erf below 3, a continued fraction above. */
function erfc(x: number): number {
  if (x < 0) return 2 - erfc(-x);
  if (x < 3) {
    let [term, sum] = [x, x];
    for (let n = 1; n < 200; n++) {
      term *= (-x * x) / n;
      sum += term / (2 * n + 1);
    }
    return 1 - (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = 0;
  for (let n = 200; n >= 1; n--) fraction = n / 2 / (x + fraction);
  return Math.exp(-x * x) / Math.sqrt(Math.PI) / (x + fraction);
}

test('gated activations', async () => {
  const random = new Random(4);
  const n = 5003;
  const gate = random.normals(n, 4);
  gate.set([0, -0, 1e-30, -100, 100, -88, 88, -3e38, 3e38, -17, -1e-3]);
  const up = random.normals(n);
  const reference = {
    silu: (x: number) => x / (1 + Math.exp(-x)),
    gelu: (x: number) => 0.5 * x * erfc(-x / Math.SQRT2),
    gelu_tanh: (x: number) => {
      const u = Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3);
      return x / (1 + Math.exp(-2 * u));
    },
  };
  for (const act of ['silu', 'gelu', 'gelu_tanh'] as const) {
    const y = poisoned('f32', [n]);
    ops.gatedActivation(rt, f32([n], gate), f32([n], up), y, { act });
    await rt.sync();
    const want = Array.from(gate, (x, i) => reference[act](x) * up[i]!);
    // exp_f32 is good to 3 units of U32 for an exact argument. silu rounds the sum, the quotient and the product besides.
    // In gelu_tanh the exponent -2u carries 5 roundings, which exp turns into 5 |2u| U32 of relative error. Where e^-x
    // overflows (88.73 and up) the result is 0 for something below 89 * 2^-128; the erfc above is good to 1e-15.
    expectClose(act, typed(y), want, (i) => {
      const x = Math.abs(gate[i]!);
      const twice = act === 'gelu_tanh' ? Math.min(1.6 * (x + 0.045 * x ** 3), 104) : 0;
      const floor = act === 'gelu' ? x * 1e-15 : 89 * 2 ** -128;
      return (8 + 5 * twice) * U32 * Math.abs(want[i]!) + (floor + 2 ** -148) * (1 + Math.abs(up[i]!));
    });
  }
});

test('activations without a gate are those with a gate of ones', async () => {
  const x = new Random(14).normals(3001, 4);
  x.set([0, -0, 1e-30, -100, 100, -88, 88, -3e38, 3e38]);
  const ones = f32([3001], new Float32Array(3001).fill(1));
  for (const act of ['silu', 'gelu', 'gelu_tanh', 'relu', 'relu2', 'quick_gelu', 'sigmoid'] as const) {
    const [alone, gated] = [poisoned('f32', [3001]), poisoned('f32', [3001])];
    ops.activation(rt, f32([3001], x), alone, { act });
    ops.gatedActivation(rt, f32([3001], x), ones, gated, { act });
    const inPlace = f32([3001], x);
    ops.activation(rt, inPlace, inPlace, { act });
    await rt.sync();
    assert.deepEqual(typed(alone), typed(gated), act);
    assert.deepEqual(typed(inPlace), typed(alone), act);
    if (act === 'relu')
      assert.deepEqual(
        typed(alone),
        x.map((v) => (v > 0 ? v : 0)),
      );
    if (act === 'relu2')
      assert.deepEqual(
        typed(alone),
        x.map((v) => (v > 0 ? v * v : 0)),
      );
    if (act !== 'quick_gelu' && act !== 'sigmoid') continue;
    const [slope, factor] = act === 'sigmoid' ? [1, () => 1] : [Math.fround(1.702), (v: number) => v];
    const want = Array.from(x, (v) => factor(v) / (1 + Math.exp(-slope * v)));
    // exp 3, sum, quotient, and the rounding of 1.702 x, which exp turns into up to |1.702 x| of them; underflow as above.
    expectClose(
      act,
      typed(alone),
      want,
      (i) => (8 + Math.min(1.702 * Math.abs(x[i]!), 104)) * U32 * Math.abs(want[i]!) + 120 * 2 ** -128,
    );
  }
});

test('soft caps: scaled, capped, odd, and exact at the ends', async () => {
  const n = 4003;
  const x = new Random(15).normals(n, 30);
  x.set([0, -0, 1e-30, 1e-3, -1e-3, 7.4999, 7.5, 7.5001, 1e4, -1e4, 3e38]);
  const scale = Math.fround(0.7);
  for (const cap of [0, 5, 30, 50]) {
    const y = poisoned('f32', [n]);
    ops.softCap(rt, f32([n], x), y, { scale, cap });
    const negated = poisoned('f32', [n]);
    ops.softCap(
      rt,
      f32(
        [n],
        x.map((v) => -v),
      ),
      negated,
      { scale, cap },
    );
    await rt.sync();
    const want = Array.from(x, (v) => (cap > 0 ? cap * Math.tanh((v * scale) / cap) : v * scale));
    // Where it is worst, at u = 1/4: exp 3 and two roundings make 4 units of 2 / (1 + e^2u) = 0.76, of which 1 - 0.76 is
    // left, hence 13 of tanh u; the arguments' two roundings and the product's one besides.
    expectClose(`cap ${cap}`, typed(y), want, (i) => (cap > 0 ? 18 : 1) * U32 * Math.abs(want[i]!));
    const [up, down] = [typed(y), typed(negated)];
    for (let i = 0; i < n; i++) assert.ok(up[i] === -down[i]!, `cap ${cap} is not odd at ${x[i]}`);
  }
});
