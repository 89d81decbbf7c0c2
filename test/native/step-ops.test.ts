import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type DType, fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { f32, i32, poisoned, Random, typed } from './support.js';

const rt = createRuntime(2);
const random = new Random(77);
const matrix = (rows: number, columns: number) => f32([rows, columns], random.normals(rows * columns, 2));
const copy = (x: Tensor) => fromTyped(x.dtype, x.shape, typed<Uint8Array>(x).slice());
const bits = (x: Tensor) => Buffer.from(x.bytes()).toString('hex');
/** Columns of x as a matrix of their own. */
function part(x: Tensor, first: number, width: number): Tensor {
  const y = poisoned(x.dtype, [x.shape[0]!, width]);
  ops.sliceColumns(rt, x, y, { first });
  return y;
}
async function same(name: string, ...pairs: (readonly [got: Tensor, want: Tensor])[]): Promise<void> {
  await rt.sync();
  for (const [i, [got, want]] of pairs.entries()) assert.equal(bits(got), bits(want), `${name}, ${i}`);
}
async function fails(run: () => void, message: RegExp): Promise<void> {
  run();
  await assert.rejects(rt.sync(), (error: { code?: string; message?: string }) => {
    assert.equal(error.code, 'LPQ_NATIVE_ARGUMENT');
    assert.match(error.message ?? '', message);
    return true;
  });
}

test('add_norm is add, then the norm, bit by bit, of y in any dtype', async () => {
  for (const [t, c] of [
    [1, 1],
    [3, 64],
    [17, 387],
  ] as const)
    for (const dtype of ['f32', 'f16', 'bf16'] as const)
      for (const scale of [1, 0.37])
        for (const vectors of [0, 1, 2]) {
          const [h, wide, weight, bias] = [matrix(t, c), matrix(t, c), matrix(1, c).view([c]), matrix(1, c).view([c])];
          const y = poisoned(dtype, [t, c]);
          ops.cast(rt, wide, y);
          ops.cast(rt, y, wide);
          await rt.sync();
          const [sum, want, got] = [copy(h), poisoned('f32', [t, c]), poisoned('f32', [t, c])];
          const [gain, shift] = [vectors > 0 ? weight : undefined, vectors > 1 ? bias : undefined];
          ops.add(rt, sum, wide, sum, { scale });
          ops.layernorm(rt, sum, gain, shift, want, { eps: 1e-5 });
          const fused = copy(h);
          ops.addNorm(rt, fused, y, gain, shift, got, { kind: 'layer', eps: 1e-5, scale });
          await same(`layer ${t} ${c} ${dtype} ${vectors}`, [fused, sum], [got, want]);
          if (vectors !== 1) continue;
          const [rms, again] = [poisoned('f32', [t, c]), copy(h)];
          ops.rmsnorm(rt, sum, weight, want, { eps: 1e-6, offset: 1 });
          ops.addNorm(rt, again, y, weight, undefined, rms, { kind: 'rms', eps: 1e-6, offset: 1, scale });
          await same(`rms ${t} ${c} ${dtype}`, [again, sum], [rms, want]);
        }
  const x = matrix(2, 8);
  const w = matrix(1, 8).view([8]);
  const p = { kind: 'rms', eps: 1e-5 } as const;
  await fails(() => ops.addNorm(rt, x, x, w, w, matrix(2, 8), p), /an RMS norm has a weight and no bias/);
  await fails(() => ops.addNorm(rt, x, x, w, undefined, x, p), /x must not be h/);
  await fails(() => ops.addNorm(rt, x, x, matrix(1, 7).view([7]), undefined, matrix(2, 8), p), /weight has 7 elements/);
  await fails(
    () => ops.addNorm(rt, x, x, w, undefined, matrix(2, 8), { ...p, kind: 'batch' as never }),
    /kind is 'batch'/,
  );
});

const [T, HEADS, KV, DIM, ROTARY] = [7, 6, 2, 18, 12] as const;
const WIDTH = (HEADS + 2 * KV) * DIM;
const FIRSTS = { qFirst: 0, kFirst: HEADS * DIM, vFirst: (HEADS + KV) * DIM } as const;
const shape = { heads: HEADS, kvHeads: KV, headDim: DIM };
const rotation = (style: 'half' | 'interleaved') => ({
  cos: matrix(30, ROTARY / 2),
  sin: matrix(30, ROTARY / 2),
  positions: i32(Array.from({ length: T }, () => random.integer(0, 29))),
  rotary: ROTARY,
  style,
});
const STEP = { starts: i32([0, 3, 3, 7]), slots: i32([2, 1, 0]), totals: i32([3, 5, 9]) };
const caches = (dtype: DType, width: number) => {
  const empty = fromTyped(
    'u8',
    [3 * 10 * width * (dtype === 'f32' ? 4 : 2)],
    new Uint8Array(3 * 10 * width * 4).slice(0, 3 * 10 * width * (dtype === 'f32' ? 4 : 2)),
  );
  return [0, 1].map(() => {
    const kept = poisoned(dtype, [3, 10, width]);
    kept.bytes().set(empty.bytes());
    return kept;
  }) as [Tensor, Tensor];
};

test('rope_append is rope, then cache_append, bit by bit, of matrices of their own and of columns of one', async () => {
  for (const style of ['half', 'interleaved'] as const)
    for (const dtype of ['f32', 'f16', 'bf16'] as const) {
      const whole = matrix(T, WIDTH);
      const by = rotation(style);
      const [q, k, v] = [
        part(whole, 0, HEADS * DIM),
        part(whole, FIRSTS.kFirst, KV * DIM),
        part(whole, FIRSTS.vFirst, KV * DIM),
      ];
      await rt.sync();
      const { cos, sin, positions, rotary } = by;
      const before = bits(whole);
      const alone = copy(q);
      const [keys, values] = caches(dtype, KV * DIM);
      const [keys2, values2] = caches(dtype, KV * DIM);
      const [keys3, values3] = caches(dtype, KV * DIM);
      const turnedK = copy(k);
      ops.rope(rt, q, cos, sin, positions, { heads: HEADS, headDim: DIM, rotary, style });
      ops.rope(rt, turnedK, cos, sin, positions, { heads: KV, headDim: DIM, rotary, style });
      ops.cacheAppend(rt, turnedK, v, STEP, keys, values);
      const y = poisoned('f32', q.shape);
      ops.ropeAppend(
        rt,
        { q: whole, k: whole, v: whole },
        STEP,
        { y, keys: keys2, values: values2 },
        { ...shape, ...FIRSTS },
        by,
      );
      ops.ropeAppend(rt, { q: alone, k, v }, STEP, { y: alone, keys: keys3, values: values3 }, shape, by);
      await same(
        `${style} ${dtype}`,
        [y, q],
        [keys2, keys],
        [values2, values],
        [alone, q],
        [keys3, keys],
        [values3, values],
      );
      assert.equal(bits(whole), before, 'what is read stays');
      // Rounded on its way where y is of 16 bits.
      const [narrow, want] = [poisoned('f16', q.shape), poisoned('f16', q.shape)];
      ops.ropeAppend(
        rt,
        { q: whole, k, v },
        STEP,
        { y: narrow, keys: keys2, values: values2 },
        { ...shape, qFirst: 0 },
        by,
      );
      ops.cast(rt, q, want);
      await same('f16', [narrow, want], [keys2, keys]);
    }
  // Norms of heads first.
  {
    const whole = matrix(T, WIDTH);
    const by = rotation('half');
    const { cos, sin, positions, rotary, style } = by;
    const [qNorm, kNorm] = [matrix(1, DIM).view([DIM]), matrix(1, DIM).view([DIM])];
    const [q, k] = [part(whole, 0, HEADS * DIM), part(whole, FIRSTS.kFirst, KV * DIM)];
    await rt.sync();
    const [keys] = caches('f16', KV * DIM);
    const [keys2, values] = caches('f16', KV * DIM);
    const norms = { q: qNorm, k: kNorm, eps: 1e-6, offset: 1 };
    for (const [x, count, weight] of [[q, HEADS, qNorm] as const, [k, KV, kNorm] as const]) {
      ops.rmsnorm(rt, x.view([T * count, DIM]), weight, x.view([T * count, DIM]), { eps: 1e-6, offset: 1 });
      ops.rope(rt, x, cos, sin, positions, { heads: count, headDim: DIM, rotary, style });
    }
    ops.cacheAppend(rt, k, k, STEP, keys, values);
    const y = poisoned('f32', q.shape);
    const from = { q: whole, k: whole, v: whole };
    ops.ropeAppend(rt, from, STEP, { y, keys: keys2, values }, { ...shape, ...FIRSTS }, by, norms);
    await same('normed', [y, q], [keys2, keys]);
    await fails(
      () => ops.ropeAppend(rt, from, STEP, { y, keys: keys2, values }, { ...shape, ...FIRSTS }, by, { ...norms, k: q }),
      /the norm of k has the shape/,
    );
  }
  // Without a rotation, and with other dims of values.
  const [q, k, v] = [matrix(T, HEADS * DIM), matrix(T, KV * DIM), matrix(T, KV * 5)];
  const y = poisoned('f32', q.shape);
  const [keys] = caches('f16', KV * DIM);
  const [values] = caches('f16', KV * 5);
  const [keys2] = caches('f16', KV * DIM);
  const [values2] = caches('f16', KV * 5);
  ops.cacheAppend(rt, k, v, STEP, keys, values);
  ops.ropeAppend(rt, { q, k, v }, STEP, { y, keys: keys2, values: values2 }, { ...shape, valueDim: 5 });
  await same('plain', [y, q], [keys2, keys], [values2, values]);
});

test('rope, the norms, attention, cache_append and gated_activation read columns as they read matrices', async () => {
  const whole = matrix(T, WIDTH);
  const by = rotation('half');
  const { cos, sin, positions, rotary, style } = by;
  const [q, k, v] = [
    part(whole, 0, HEADS * DIM),
    part(whole, FIRSTS.kFirst, KV * DIM),
    part(whole, FIRSTS.vFirst, KV * DIM),
  ];
  await rt.sync();
  const weight = matrix(1, DIM).view([DIM]);
  const turns = matrix(HEADS, DIM);
  const rows = (x: Tensor, count: number) => x.view([T * count, DIM]);
  ops.rmsnorm(rt, rows(k, KV), weight, rows(k, KV), { eps: 1e-5, offset: 0.5 });
  ops.rmsnorm(rt, whole, weight, whole, { eps: 1e-5, offset: 0.5, first: FIRSTS.kFirst, runs: KV });
  ops.layernorm(rt, rows(q, HEADS), turns, undefined, rows(q, HEADS), { eps: 1e-5, turns: HEADS });
  ops.layernorm(rt, whole, turns, undefined, whole, { eps: 1e-5, turns: HEADS, first: 0, runs: HEADS, width: DIM });
  ops.rope(rt, q, cos, sin, positions, { heads: HEADS, headDim: DIM, rotary, style });
  ops.rope(rt, whole, cos, sin, positions, { heads: HEADS, headDim: DIM, rotary, style, first: 0 });
  const starts = i32([0, 3, 7]);
  const [want, got] = [poisoned('f32', q.shape), poisoned('f32', q.shape)];
  const p = { ...shape, scale: 0.3 };
  ops.attention(rt, q, k, v, starts, want, p);
  ops.attention(rt, whole, whole, whole, starts, got, { ...p, ...FIRSTS });
  const [keys, values] = caches('bf16', KV * DIM);
  const [keys2, values2] = caches('bf16', KV * DIM);
  const { kFirst, vFirst } = FIRSTS;
  ops.cacheAppend(rt, k, v, STEP, keys, values);
  ops.cacheAppend(rt, whole, whole, STEP, keys2, values2, { kFirst, vFirst });
  await same(
    'qkv',
    [part(whole, 0, HEADS * DIM), q],
    [part(whole, kFirst, KV * DIM), k],
    [got, want],
    [keys2, keys],
    [values2, values],
  );

  for (const act of ['silu', 'gelu', 'relu2'] as const) {
    const both = matrix(T, 2 * 77);
    const [gate, up, y] = [part(both, 0, 77), part(both, 77, 77), poisoned('f32', [T, 77])];
    ops.gatedActivation(rt, gate, up, gate, { act });
    ops.gatedActivation(rt, both, both, y, { act, first: 0, upFirst: 77 });
    await same(act, [y, gate]);
  }
  await fails(
    () => ops.rope(rt, whole, cos, sin, positions, { heads: HEADS, headDim: DIM, rotary, style }),
    /x has the shape/,
  );
  await fails(
    () => ops.rope(rt, whole, cos, sin, positions, { heads: HEADS, headDim: DIM, rotary, style, first: 80 }),
    /x has 180 columns, not 108 from column 80 on/,
  );
  await fails(
    () => ops.attention(rt, whole, k, v, starts, got, { ...p, qFirst: -2 }),
    /q has 180 columns, not 108 from column -2 on/,
  );
  await fails(
    () => ops.rmsnorm(rt, whole, weight, matrix(T, WIDTH), { eps: 1e-5, first: 0, runs: 2 }),
    /normalised in place only/,
  );
  await fails(
    () => ops.gatedActivation(rt, whole, whole, whole, { act: 'silu', first: 0, upFirst: 0 }),
    /y must be neither gate nor up/,
  );
  await fails(
    () =>
      ops.ropeAppend(
        rt,
        { q: whole, k, v },
        STEP,
        { y: part(whole, 0, HEADS * DIM), keys, values },
        { ...shape, qFirst: 90 },
        by,
      ),
    /q has 180 columns/,
  );
  const far = { ...by, positions: i32([0, 1, 2, 3, 4, 5, 30]) };
  await fails(
    () => ops.ropeAppend(rt, { q, k, v }, STEP, { y: q, keys, values }, shape, far),
    /token 6 has the position 30/,
  );
});

test('place_columns puts matrices beside one another, of any dtype', async () => {
  for (const dtype of ['u8', 'f16', 'i32', 'f64'] as const) {
    const [a, b] = [3, 5].map((width) => {
      const x = poisoned(dtype, [4, width]);
      x.bytes().set(x.bytes().map(() => random.integer(0, 255)));
      return x;
    }) as [Tensor, Tensor];
    const y = poisoned(dtype, [4, 8]);
    ops.placeColumns(rt, b, y, { first: 3 });
    ops.placeColumns(rt, a, y, { first: 0 });
    await rt.sync();
    await same(dtype, [part(y, 0, 3), a], [part(y, 3, 5), b]);
  }
  await fails(
    () => ops.placeColumns(rt, matrix(2, 5), matrix(2, 8), { first: 4 }),
    /columns 4 to 9 are not among the 8 of y/,
  );
});

test('codes beside a norm and beside a gate are those of quantize_tokens, bit by bit', async () => {
  for (const [t, c] of [
    [1, 4],
    [5, 64],
    [17, 387],
  ] as const)
    for (const dtype of ['i8', 'f8_e4m3'] as const) {
      const room = () => ({ codes: poisoned(dtype, [t, c]), scales: poisoned('f32', [t]) });
      const [h, y, weight] = [matrix(t, c), matrix(t, c), matrix(1, c).view([c])];
      const [x, beside, alone] = [poisoned('f32', [t, c]), room(), room()];
      ops.addNorm(rt, h, y, weight, undefined, x, { kind: 'rms', eps: 1e-6 }, beside);
      ops.quantizeTokens(rt, x, alone);
      await same(`norm ${t} ${c} ${dtype}`, [beside.codes, alone.codes], [beside.scales, alone.scales]);
      const whole = matrix(t, 2 * c);
      const [gated, beside2, alone2] = [poisoned('f32', [t, c]), room(), room()];
      ops.gatedActivation(rt, whole, whole, gated, { act: 'silu', first: 0, upFirst: c }, beside2);
      ops.quantizeTokens(rt, gated, alone2);
      await same(`gate ${t} ${c} ${dtype}`, [beside2.codes, alone2.codes], [beside2.scales, alone2.scales]);
    }
  const p = { kind: 'rms', eps: 1e-6 } as const;
  const gain = matrix(1, 8).view([8]);
  await fails(
    () =>
      ops.addNorm(rt, matrix(2, 8), matrix(2, 8), gain, undefined, matrix(2, 8), p, {
        codes: poisoned('i8', [2, 7]),
        scales: poisoned('f32', [2]),
      }),
    /codes/,
  );
});
