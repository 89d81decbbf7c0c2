import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { searchBlocks } from '../../../src/pack/gguf/encode.js';
import { ggufNearest, nearRows } from '../../../src/verify/native.js';

const runtime = createRuntime(2);
const TYPES = ['q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_0'] as const;
const [N, K] = [4, 512];

/** Weights of shapes that encoders find hard: noise, few values, grids, outliers, ramps, an offset, many zeros, f16's end. */
const SHAPES: readonly ((draw: () => number, i: number) => number)[] = [
  (draw) => draw() + draw() + draw(),
  (draw) => Math.round(draw() * 2),
  (draw) => Math.round(draw() * 8) / 15,
  (draw, i) => (i % 97 === 5 ? 40 : 1) * draw(),
  (_, i) => (i % 61) - 30,
  (draw) => 10 + draw() * 1e-4,
  (draw) => -3 + draw() / 50,
  (draw) => (draw() > 0.95 ? draw() : 0),
  (draw) => draw() ** 9,
  (draw, i) => (i % 32 < 16 ? draw() : draw() * 1e-3),
  () => -0.25,
  (draw, i) => (Math.floor(i / 16) % 3 === 0 ? Math.sign(draw()) : Math.round(draw() * 15)),
];

function weights(seed: number, shape: number, size: number): Float32Array {
  let state = seed >>> 0 || 1;
  const draw = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  return Float32Array.from({ length: N * K }, (_, i) => SHAPES[shape]!(draw, i) * size);
}

const rows = Int32Array.from({ length: N }, (_, i) => i);
const order = fromTyped('i32', [N], rows);

test('whatever a search makes of weights is taken for them, and for no others', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1 }),
      fc.nat(SHAPES.length - 1),
      fc.constantFrom(1e-7, 1e-5, 1e-3, 0.05, 1, 300),
      fc.constantFrom(...TYPES),
      async (seed, shape, size, type) => {
        const values = weights(seed, shape, size);
        const weight = fromTyped('f32', [N, K], values);
        const { blocks } = await searchBlocks(runtime, 'w', weight, type, rows);
        const own = await ggufNearest(runtime, blocks, order, weight, type);
        assert.deepEqual([own.codes.count, own.blocks.count], [0, 0], JSON.stringify(own));
      },
    ),
    { numRuns: Number(process.env.LPQ_FORGERIES ?? 400), seed: Number(process.env.LPQ_SEED ?? 3) },
  );
});

test('blocks of zeros, of other rows, of twice the weights and of half of them are found in every type', async () => {
  const weight = fromTyped('f32', [N, K], weights(9, 0, 0.02));
  for (const type of TYPES) {
    const { blocks } = await searchBlocks(runtime, 'w', weight, type, rows);
    const wrongs: [string, Float32Array][] = [
      ['another row', weights(11, 0, 0.02)],
      ['twice', weights(9, 0, 0.04)],
      ['half', weights(9, 0, 0.01)],
      ['negated', weights(9, 0, -0.02)],
    ];
    for (const [what, values] of wrongs) {
      const found = await ggufNearest(runtime, blocks, order, fromTyped('f32', [N, K], values), type);
      assert.ok(found.codes.count > N * K * 0.02, `${type} ${what}: ${JSON.stringify(found)}`);
    }
    const zeros = fromTyped('u8', blocks.shape, new Uint8Array(blocks.byteLength));
    const none = await ggufNearest(runtime, zeros, order, weight, type);
    assert.ok(none.codes.count > N * K * 0.1, `${type} zeros: ${none.codes.count}`);
  }
});

test('two roundings of one weight are near each other, row by row and run by run; others are not', async () => {
  const values = weights(5, 0, 1);
  const step = (width: number) =>
    fromTyped(
      'f32',
      [N, K],
      values.map((value) => Math.round(value / width) * width),
    );
  const coarse = step(1);
  assert.equal((await nearRows(runtime, step(0.2), coarse)).count, 0);
  const changed = (change: (to: Float32Array) => void) => {
    const other = step(0.2);
    change(typed<Float32Array>(other));
    return nearRows(runtime, other, coarse);
  };
  const zeroed = await changed((to) => to.fill(0, K, 2 * K));
  assert.deepEqual([zeroed.count, zeroed.row], [3, 1]);
  const moved = await changed((to) => to.copyWithin(2 * K, 3 * K, 3 * K + 256));
  assert.ok(moved.count > 0 && moved.row === 2);
});
