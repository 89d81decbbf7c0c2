import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, readTyped, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { bitsPerWeight } from '../../../src/quantize/grid.js';
import type { QuantizedModule } from '../../../src/quantize/result.js';
import { checkGroupSize, type SchemeOptions, schemeFromOptions } from '../../../src/quantize/scheme.js';
import { dequantizeResult } from '../../../src/quantize/stored.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { designed } from '../../formats/scratch.js';
import { fromF16, random } from './reference.js';

const rt = createRuntime(2);
const [n, k, groups] = [12, 384, 3];
const next = random(3);
/** Groups of sizes up to 1 : 8, a group and a row of zeros, and a group whose extreme is positive. */
const weights = Float32Array.from(
  { length: n * k },
  (_, i) => (next() + next() - 1) * 2 ** (((i >> 7) * 7) % 4) * 0.01,
);
weights.fill(0, k, k + 128).fill(0, 2 * k, 3 * k);
for (let i = 3 * k; i < 3 * k + 128; i++) weights[i] = Math.abs(weights[i]!);
const inputs = Array.from({ length: 2 * k }, () => Array.from({ length: k }, () => next() - 0.4));
const h = Float64Array.from({ length: k * k }, (_, i) =>
  inputs.reduce((sum, x) => sum + x[Math.floor(i / k)]! * x[i % k]!, 0),
);

async function solved(method: 'rtn' | 'gptq', options: SchemeOptions, bothSigns = true): Promise<QuantizedModule> {
  const quantizer = method === 'rtn' ? rtnQuantizer() : gptqQuantizer({ ...GPTQ_DEFAULTS, bothSigns });
  const feed = quantizer.feed(rt, { h: fromTyped('f64', [k, k], h), tokens: inputs.length });
  const scheme = schemeFromOptions({ bits: 4, groupScales: 'integer', ...options });
  const module = await feed.solve('m', fromTyped('f32', [n, k], weights), scheme);
  await rt.sync();
  feed.dispose();
  return module;
}

/** tr(D H Dᵀ), D = W - Wq. */
async function error(module: QuantizedModule): Promise<number> {
  const what = await readTyped<Float32Array>(rt, dequantizeResult(rt, module));
  const d = Float64Array.from(what, (value, i) => value - weights[i]!);
  let sum = 0;
  for (let row = 0; row < n; row++)
    for (let a = 0; a < k; a++) for (let b = 0; b < k; b++) sum += d[row * k + a]! * h[a * k + b]! * d[row * k + b]!;
  return sum;
}

const scalesOf = ({ scales }: { scales: Tensor }): number[] =>
  Array.from(typed<Uint16Array | Float32Array>(scales), (value) => (scales.dtype === 'f16' ? fromF16(value) : value));

/** Rows whose scales are not multiples, -15 to 16 and not 0, of any number. */
function odd(scales: readonly number[]): number[] {
  const rows = Array.from({ length: scales.length / groups }, (_, row) =>
    scales.slice(row * groups, (row + 1) * groups),
  );
  const units = Array.from({ length: 16 }, (_, i) => i + 1);
  return rows.flatMap((own, row) => {
    const largest = Math.max(...own.map(Math.abs));
    const fits = units.some((m) =>
      own.every((scale) => {
        const times = scale / (largest / m);
        return Number.isInteger(times) && times !== 0 && times >= -15 && times <= 16;
      }),
    );
    return fits ? [] : [row];
  });
}

test('scales of every row are whole multiples of one number, which their dtype holds exactly', async () => {
  for (const method of ['rtn', 'gptq'] as const)
    for (const scaleDtype of ['f16', 'f32']) {
      const scales = scalesOf(await solved(method, { scaleDtype }));
      assert.deepEqual(odd(scales), [], `${method} ${scaleDtype}`);
    }
  const free = scalesOf(await solved('gptq', { groupScales: 'free' }));
  assert.ok(odd(free).length > n / 2);
});

test('negative multiples where they help, none where scales must be positive', async () => {
  assert.ok(scalesOf(await solved('gptq', {})).some((scale) => scale < 0));
  assert.ok(scalesOf(await solved('gptq', {}, false)).every((scale) => scale > 0));
});

test('the grid costs little, and gptq solves for it', async () => {
  const [free, two] = [
    await error(await solved('gptq', { groupScales: 'free' })),
    await error(await solved('gptq', {})),
  ];
  assert.ok(two < 1.05 * free, `${two} against ${free}`);
  const rounded = await error(await solved('rtn', {}));
  const plain = await error(await solved('rtn', { groupScales: 'free' }));
  assert.ok(rounded < 1.1 * plain, `${rounded} against ${plain}`);
  assert.ok(two < 0.7 * rounded, `${two} against ${rounded}`);
});

test('twoLevelScales finds what a search over every number of its precision finds', async () => {
  const scale = Float32Array.from({ length: 6 * groups }, () => (0.2 + next()) * 0.003 * (next() < 0.3 ? -1 : 1));
  const energy = Float32Array.from(scale, () => next());
  energy[4] = 0;
  const w = Float32Array.from({ length: 6 * groups }, (_, i) => Math.sqrt(energy[i]!));
  const to = fromTyped('f32', [6, groups], scale.slice());
  const group = fromTyped(
    'i32',
    [groups],
    Int32Array.from({ length: groups }, (_, g) => g),
  );
  ops.twoLevelScales(rt, { w: fromTyped('f32', [6, groups], w), group }, to, { scaleDtype: 'f16' });
  await rt.sync();
  const price = (row: number, at: (i: number) => number): number =>
    [0, 1, 2].reduce(
      (sum, g) => sum + w[row * groups + g]! ** 2 * (at(row * groups + g) / scale[row * groups + g]! - 1) ** 2,
      0,
    );
  for (let row = 0; row < 6; row++) {
    let best = Number.POSITIVE_INFINITY;
    const largest = Math.max(...[0, 1, 2].map((g) => Math.abs(scale[row * groups + g]!)));
    for (let m = 64; m < 128; m++)
      for (let power = -24; power < -8; power++) {
        const c = m * 2 ** power;
        if (c < largest / 30 || c > largest / 5) continue;
        const factor = (i: number) =>
          scale[i]! < 0
            ? Math.min(-1, Math.max(-15, Math.round(scale[i]! / c)))
            : Math.min(16, Math.max(1, Math.round(scale[i]! / c)));
        best = Math.min(
          best,
          price(row, (i) => c * factor(i)),
        );
      }
    const got = price(row, (i) => typed<Float32Array>(to)[i]!);
    // The search tries 145 numbers, and moves each once.
    assert.ok(got <= 4 * best + 1e-4, `row ${row}: ${got} against ${best}`);
    assert.ok(got >= best - 1e-12);
  }
});

test('a refit keeps the grid and lowers the error, or changes nothing', async () => {
  const width = 6;
  const t = Float32Array.from({ length: 2 * width }, () => next() - 0.5);
  const level = t.map((value) => Math.round(value / 0.06));
  const m = Float32Array.from({ length: width * width }, (_, i) => (i % (width + 1) === 0 ? 2 : 0.5));
  const group = Int32Array.of(0, 0, 1, 1, 2, 2);
  const start = Float32Array.of(1, 3, 2, 4, 4, 4).map((factor) => factor * 2 ** -5);
  const scale = fromTyped('f32', [2, 3], start.slice());
  const tensors = [
    fromTyped('f32', [2, width], t),
    fromTyped('f32', [width, width], m),
    fromTyped('f32', [2, width], level),
    allocate('f32', [2, 3]),
    fromTyped('i32', [width], group),
  ];
  typed<Float32Array>(tensors[3]!).fill(0);
  const cost = (row: number, s: Float32Array): number => {
    const e = Array.from(
      { length: width },
      (_, j) => level[row * width + j]! * s[row * 3 + group[j]!]! - t[row * width + j]!,
    );
    return e.reduce((sum, x, a) => sum + e.reduce((line, y, b) => line + x * y * m[a * width + b]!, 0), 0);
  };
  rt.enqueue('gptq_refit', tensors, [scale, allocate('f64', [1])], { twoLevel: 'f16' });
  await rt.sync();
  const now = typed<Float32Array>(scale);
  assert.deepEqual(odd([...now]), []);
  for (let row = 0; row < 2; row++) assert.ok(cost(row, now) <= cost(row, start));
});

test('what the grid needs of a scheme', () => {
  const scheme = (options: SchemeOptions) => schemeFromOptions({ groupScales: 'integer', ...options });
  assert.equal(scheme({ bits: 4 }).twoLevel, true);
  assert.equal(schemeFromOptions({ bits: 4, groupScales: 'free' }).twoLevel, undefined);
  assert.equal(bitsPerWeight(scheme({ bits: 4 }), 256, 1024), 4 + 8 / 128 + 32 / 1024);
  const refused: [SchemeOptions, RegExp][] = [
    [{ bits: 8 }, /the type i8/],
    [{ bits: 4, asym: true }, /the type u4, asymmetric/],
    [{ dtype: 'f4e2m1' }, /the type f4e2m1/],
    [{ dtype: 'u4' }, /the type u4/],
    [{ bits: 4, groupSize: 64 }, /--group-size 64/],
    [{ bits: 4, groupSize: 'channel' }, /--group-size channel/],
    [{ bits: 4, scaleDtype: 'bf16' }, /--scale-dtype bf16/],
    [{ bits: 4, sparsity: '2:4' }, /--sparsity 2:4/],
  ];
  for (const [options, says] of refused)
    assert.throws(() => scheme(options), designed('LPQ_USAGE', says), JSON.stringify(options));
  const odd = { name: 'm', k: 576 };
  assert.throws(
    () => checkGroupSize(scheme({ bits: 4 }), odd.name, odd.k),
    designed('LPQ_GROUP_SIZE', /groups of 128 do not divide the 576 input features of m.*Leave --group-scales out/s),
  );
});
