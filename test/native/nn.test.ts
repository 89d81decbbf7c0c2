import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, decodeF16, expectClose, f32, i32, poisoned, Random, typed, U32, U64 } from './support.js';

const rt = createRuntime(2);

test('embedding copies rows, scaled, from f32, f16 and bf16 tables', async () => {
  const random = new Random(1);
  const [v, c, t] = [37, 45, 23];
  const ids = Array.from({ length: t }, () => random.integer(0, v - 1));
  const bits = Uint16Array.from({ length: v * c }, () => random.integer(0, 0x7bff));
  for (const [dtype, decode] of [
    ['f16', decodeF16],
    ['bf16', decodeBf16],
  ] as const)
    for (const scale of [1, 2.5]) {
      const y = poisoned('f32', [t, c]);
      ops.embedding(rt, i32(ids), fromTyped(dtype, [v, c], bits), y, { scale });
      await rt.sync();
      ids.forEach((id, row) => {
        for (let j = 0; j < c; j++)
          assert.equal(typed(y)[row * c + j], Math.fround(decode(bits[id * c + j]!) * scale), `${dtype} ${row} ${j}`);
      });
    }
  const table = random.normals(v * c);
  const y = poisoned('f32', [t, c]);
  ops.embedding(rt, i32(ids), f32([v, c], table), y);
  await rt.sync();
  ids.forEach((id, row) => {
    assert.deepEqual(typed(y).slice(row * c, row * c + c), table.slice(id * c, id * c + c));
  });
});

test('rmsnorm', async () => {
  const random = new Random(2);
  for (const [t, c, offset] of [
    [1, 1, 0],
    [3, 15, 1],
    [7, 64, 0],
    [33, 387, 1],
  ] as const) {
    const x = random.normals(t * c, 3);
    const w = random.normals(c);
    const y = poisoned('f32', [t, c]);
    const inPlace = f32([t, c], x);
    ops.rmsnorm(rt, f32([t, c], x), f32([c], w), y, { eps: 1e-5, offset });
    ops.rmsnorm(rt, inPlace, f32([c], w), inPlace, { eps: 1e-5, offset });
    await rt.sync();
    const want = Array.from(x, (value, i) => {
      const row = x.subarray(Math.floor(i / c) * c, Math.floor(i / c) * c + c);
      const mean = row.reduce((sum, v) => sum + v * v, 0) / c;
      return (value / Math.sqrt(mean + 1e-5)) * (w[i % c]! + offset);
    });
    // f32 roundings: 1/root, weight + offset, two products; the offset's is relative to |w| + 1.
    expectClose('rmsnorm', typed(y), want, (i) => {
      const gain = Math.abs(w[i % c]! + offset);
      return 4.1 * U32 * Math.abs(want[i]!) * (gain > 0 ? (gain + Math.abs(w[i % c]!) + offset) / gain : 1) + 1e-37;
    });
    assert.deepEqual(typed(inPlace), typed(y));
  }
});

test('rope, both styles, part of the head only', async () => {
  const random = new Random(3);
  const [t, heads, headDim, rotary, places] = [9, 3, 22, 14, 40];
  const half = rotary / 2;
  const angles = random.normals(places * half, 3);
  const [cos, sin] = [angles.map(Math.cos), angles.map(Math.sin)];
  const positions = Array.from({ length: t }, () => random.integer(0, places - 1));
  const x = random.normals(t * heads * headDim);
  for (const style of ['half', 'interleaved'] as const) {
    const y = f32([t, heads * headDim], x);
    ops.rope(rt, y, f32([places, half], cos), f32([places, half], sin), i32(positions), {
      heads,
      headDim,
      rotary,
      style,
    });
    await rt.sync();
    const want = Float64Array.from(x);
    const size = Float64Array.from(x, Math.abs);
    for (let row = 0; row < t; row++)
      for (let h = 0; h < heads; h++)
        for (let i = 0; i < half; i++) {
          const base = (row * heads + h) * headDim;
          const [p, q] = style === 'half' ? [base + i, base + i + half] : [base + 2 * i, base + 2 * i + 1];
          const [c, s] = [cos[positions[row]! * half + i]!, sin[positions[row]! * half + i]!];
          want[p] = x[p]! * c - x[q]! * s;
          want[q] = x[q]! * c + x[p]! * s;
          size[p] = size[q] = Math.abs(x[p]!) + Math.abs(x[q]!);
        }
    // Two products and one sum, each rounded once; what is not rotated is not touched.
    expectClose(style, typed(y), want, (i) => 2.1 * U32 * size[i]!);
    for (let i = 0; i < x.length; i++) if (i % headDim >= rotary) assert.equal(typed(y)[i], x[i]);
  }
});

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

test('layernorm: with and without weight and bias, and with weights that take turns', async () => {
  const random = new Random(16);
  for (const [t, c, turns] of [
    [1, 1, 1],
    [6, 15, 3],
    [7, 64, 1],
    [33, 387, 1],
    [40, 20, 4],
  ] as const) {
    const x = random.normals(t * c, 3).map((v) => v + 50); // far from 0: the mean must not cancel badly
    const [w, b] = [random.normals(turns * c), random.normals(turns * c)];
    for (const [weight, bias] of [
      [w, b],
      [w, undefined],
      [undefined, undefined],
    ] as const) {
      const y = poisoned('f32', [t, c]);
      const shape = turns > 1 ? [turns, c] : [c];
      ops.layernorm(rt, f32([t, c], x), weight && f32(shape, weight), bias && f32(shape, bias), y, {
        eps: 1e-5,
        turns,
      });
      await rt.sync();
      const normal = Array.from(x, (value, i) => {
        const row = Array.from(x.subarray(Math.floor(i / c) * c, Math.floor(i / c) * c + c));
        const mean = row.reduce((sum, v) => sum + v, 0) / c;
        const variance = row.reduce((sum, v) => sum + (v - mean) ** 2, 0) / c;
        return (value - mean) / Math.sqrt(variance + 1e-5);
      });
      const part = (of: Float32Array | undefined, i: number, otherwise: number) =>
        of ? of[(Math.floor(i / c) % turns) * c + (i % c)]! : otherwise;
      const want = normal.map((v, i) => v * part(weight, i, 1) + part(bias, i, 0));
      // Statistics are f64: three f32 roundings, of the quotient, the product and the sum.
      expectClose('layernorm', typed(y), want, (i) => {
        const product = Math.abs(normal[i]! * part(weight, i, 1));
        return U32 * (2.01 * product + 1.01 * Math.abs(want[i]!)) + 1e-30;
      });
    }
  }
});

test('columns are cut out and matrices turned over, whatever their elements', async () => {
  const random = new Random(17);
  const made = {
    u8: (count: number) => Uint8Array.from({ length: count }, () => random.integer(0, 255)),
    bf16: (count: number) => Uint16Array.from({ length: count }, () => random.integer(0, 65_535)),
    f32: (count: number) => random.normals(count),
    f64: (count: number) => Float64Array.from(random.normals(count)),
  };
  for (const dtype of ['u8', 'bf16', 'f32', 'f64'] as const)
    for (const [rows, columns] of [
      [1, 1],
      [33, 70],
      [129, 31],
      [0, 5],
    ] as const) {
      const data = made[dtype](rows * columns);
      const x = fromTyped(dtype, [rows, columns], data);
      const turned = poisoned(dtype, [columns, rows]);
      ops.transpose(rt, x, turned);
      const [first, width] = [Math.floor(columns / 3), Math.ceil(columns / 2)];
      const cut = poisoned(dtype, [rows, width]);
      ops.sliceColumns(rt, x, cut, { first });
      await rt.sync();
      const [a, b] = [typed<ArrayLike<number>>(turned), typed<ArrayLike<number>>(cut)];
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < columns; c++) {
          assert.equal(a[c * rows + r], data[r * columns + c]);
          if (c >= first && c < first + width) assert.equal(b[r * width + c - first], data[r * columns + c]);
        }
    }
});

test('new operations name what is wrong with their tensors', async () => {
  const x = f32([2, 4], new Float32Array(8));
  const rejects = async (enqueue: () => void, message: RegExp) => {
    enqueue();
    await assert.rejects(rt.sync(), message);
  };
  await rejects(() => ops.activation(rt, x, x, { act: 'tanh' as 'relu' }), /act is 'tanh'/);
  await rejects(() => ops.softCap(rt, x, x, { cap: -1 }), /cap is -1/);
  await rejects(() => ops.sliceColumns(rt, x, poisoned('f32', [2, 3]), { first: 2 }), /columns 2 to 5/);
  await rejects(() => ops.sliceColumns(rt, x, poisoned('f64', [2, 3]), { first: 0 }), /another dtype/);
  await rejects(() => ops.transpose(rt, x, poisoned('f32', [2, 4])), /shape/);
  await rejects(() => ops.layernorm(rt, x, f32([3], new Float32Array(3)), undefined, x, { eps: 0 }), /weight has 3/);
  await rejects(() => ops.layernorm(rt, x, undefined, undefined, x, { eps: 0, turns: 3 }), /turns is 3/);
});

test('add, with a scale, in place', async () => {
  const random = new Random(5);
  const [a, b] = [random.normals(1009), random.normals(1009)];
  const y = f32([1009], a);
  const plain = poisoned('f32', [1009]);
  ops.add(rt, y, f32([1009], b), y, { scale: 0.3 });
  ops.add(rt, f32([1009], a), f32([1009], b), plain);
  await rt.sync();
  const scale = Math.fround(0.3);
  assert.deepEqual(
    typed(y),
    a.map((v, i) => v + Math.fround(b[i]! * scale)),
  );
  assert.deepEqual(
    typed(plain),
    a.map((v, i) => v + b[i]!),
  );
});

test('routing: the k largest shares, ties to the lower index', async () => {
  const random = new Random(6);
  for (const normalize of [true, false]) {
    const [t, experts, k] = [50, 37, 5];
    // Few distinct values, so that ties abound.
    const logits = Float32Array.from({ length: t * experts }, () => random.integer(-6, 6) / 2);
    const indices = poisoned('i32', [t, k]);
    const weights = poisoned('f32', [t, k]);
    ops.routeTopK(rt, f32([t, experts], logits), indices, weights, { k, normalize });
    await rt.sync();
    for (let row = 0; row < t; row++) {
      const values = [...logits.subarray(row * experts, (row + 1) * experts)];
      const order = values.map((_, e) => e).sort((p, q) => values[q]! - values[p]! || p - q);
      const exps = values.map((v) => Math.exp(v));
      const chosen = order.slice(0, k);
      const total = (normalize ? chosen.map((e) => exps[e]!) : exps).reduce((p, q) => p + q, 0);
      assert.deepEqual([...typed<Int32Array>(indices).slice(row * k, row * k + k)], chosen);
      const want = chosen.map((e) => exps[e]! / total);
      // exp 3 units, at most 7 additions in a chain of the sum, quotient; twice for the normalisation.
      expectClose('weights', typed(weights).slice(row * k, row * k + k), want, (i) => 24 * U32 * want[i]!);
    }
  }
});

test('grouping, gathering and scattering by expert undo each other', async () => {
  const random = new Random(7);
  const [t, k, experts, c] = [61, 3, 9, 130];
  const choice = Array.from({ length: t * k }, () => random.integer(0, experts - 2)); // the last expert gets nothing
  const rows = poisoned('i32', [t * k]);
  const offsets = poisoned('i32', [experts + 1]);
  ops.groupByExpert(rt, i32(choice, [t, k]), rows, offsets, { experts });
  const x = random.normals(t * c);
  const gathered = poisoned('f32', [t * k, c]);
  ops.gatherRows(rt, f32([t, c], x), rows, gathered, { divide: k });
  const weights = random.normals(t * k);
  const y = f32([t, c], random.normals(t * c));
  const want = typed(y).slice();
  ops.scatterAddRows(rt, gathered, rows, f32([t, k], weights), y, { divide: k });
  await rt.sync();
  const wantRows = choice.map((_, i) => i).sort((p, q) => choice[p]! - choice[q]! || p - q);
  assert.deepEqual([...typed<Int32Array>(rows)], wantRows);
  const wantOffsets = Array.from({ length: experts + 1 }, (_, e) => choice.filter((v) => v < e).length);
  assert.deepEqual([...typed<Int32Array>(offsets)], wantOffsets);
  wantRows.forEach((row, m) => {
    const token = Math.floor(row / k);
    for (let j = 0; j < c; j++) {
      assert.equal(typed(gathered)[m * c + j], x[token * c + j]);
      want[token * c + j] = want[token * c + j]! + Math.fround(x[token * c + j]! * weights[row]!);
    }
  });
  assert.deepEqual(typed(y), want); // two roundings in a stated order: exact
});

test('negative log-likelihood in f64, 0 where there is no target', async () => {
  const random = new Random(8);
  for (const [t, v] of [
    [5, 1],
    [40, 17],
    [9, 3001],
  ] as const) {
    const logits = random.normals(t * v, 6);
    logits[0] = -2000; // its exponential is 0
    const targets = Array.from({ length: t }, (_, i) => (i === 3 ? -1 : random.integer(0, v - 1)));
    const nll = poisoned('f64', [t]);
    ops.negLogLikelihood(rt, f32([t, v], logits), i32(targets), nll);
    await rt.sync();
    const want = targets.map((target, row) => {
      if (target < 0) return 0;
      const values = logits.subarray(row * v, (row + 1) * v);
      const most = values.reduce((p, q) => Math.max(p, q));
      return Math.log(values.reduce((sum, x) => sum + Math.exp(x - most), 0)) - (values[target]! - most);
    });
    // exp 4 units a term, the sum at most v/16 + 4 units here and v in the reference, logarithm and difference 2 more.
    expectClose('nll', typed<Float64Array>(nll), want, (i) => (2 * v + 20) * U64 * (1 + Math.abs(want[i]!)));
  }
});

test('zero', async () => {
  for (const dtype of ['f64', 'f16', 'u8', 'i32'] as const) {
    const y = poisoned(dtype, [1237]);
    ops.zero(rt, y);
    await rt.sync();
    assert.ok(y.bytes().every((byte) => byte === 0));
  }
});
