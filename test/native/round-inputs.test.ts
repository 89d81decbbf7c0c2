import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { INPUT_TYPE_NAMES, INPUT_TYPES, type InputTypeName, secondLevel } from '../../src/core/input-type.js';
import { typeParams } from '../../src/core/quant-type.js';
import { Random } from './support.js';

const f32 = Math.fround;

/** Magnitudes of floats with `mantissa` bits, smallest first; the last pattern of e4m3 is no number. */
function magnitudes(mantissa: number, bias: number, patterns: number): number[] {
  return Array.from({ length: patterns }, (_, code) => {
    const [e, m] = [code >> mantissa, code & ((1 << mantissa) - 1)];
    return e === 0 ? m * 2 ** (1 - bias - mantissa) : (1 + m / (1 << mantissa)) * 2 ** (e - bias);
  });
}

const FOUR = magnitudes(1, 1, 8);
const EIGHT = magnitudes(3, 7, 127);

/** The nearest of `points`, ties to the even pattern, beyond the largest the largest; with x's sign. */
function nearest(x: number, points: readonly number[]): number {
  let best = 0;
  for (const [i, point] of points.entries()) {
    const [now, before] = [Math.abs(point - Math.abs(x)), Math.abs((points[best] as number) - Math.abs(x))];
    if (now < before || (now === before && i % 2 === 0)) best = i;
  }
  return Math.sign(x) * (points[best] as number);
}

/** A block as the formats say: OCP MX 1.0, section 6.3; NVFP4: the scale is e4m3 of max / 6 over the second level. */
function rounded(block: readonly number[], type: InputTypeName, global: number): number[] {
  const points = type === 'mxfp8' ? EIGHT : FOUR;
  const most = Math.max(...block.map(Math.abs));
  if (most === 0) return block.map(() => 0);
  const emax = type === 'mxfp8' ? 8 : 2;
  const e4m3 = Math.max(nearest(f32(f32(most / 6) / global), EIGHT), 2 ** -9);
  const scale = type === 'nvfp4' ? f32(e4m3 * global) : 2 ** (Math.floor(Math.log2(most)) - emax);
  return block.map((x) => f32(nearest(f32(x / scale), points) * scale));
}

const [T, K] = [7, 192];
for (const type of INPUT_TYPE_NAMES)
  for (const threads of [1, 2])
    test(`${type}, ${threads} threads: inputs become what the format says, in place, too`, async () => {
      const rt = createRuntime(threads);
      const own = INPUT_TYPES[type];
      const values = new Random(type.length + threads).normals(T * K);
      // Ties, a block of zeros, an outlier, a block of small numbers.
      for (let i = 0; i < own.block; i++) {
        values[i] = (i % 16) / 4 - 2;
        values[own.block + i] = 0;
        values[2 * own.block + i]! *= 1e-6;
      }
      values[5 * own.block] = 300;
      const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
      // Beyond the calibrated range scales saturate.
      for (const global of own.calibrated ? [secondLevel(own, most), secondLevel(own, most / 4)] : [1]) {
        const x = fromTyped('f32', [T, K], values);
        const y = rt.allocate('f32', [T, K]);
        typed(y).fill(Number.NaN);
        const p = { groupSize: own.block, scaleDtype: own.scaleDtype, global };
        ops.roundInputs(rt, x, y, typeParams(own.type), p);
        ops.roundInputs(rt, x, x, typeParams(own.type), p);
        await rt.sync();
        for (let g = 0; g < T * K; g += own.block) {
          const want = rounded([...values.subarray(g, g + own.block)], type, global);
          for (const [i, value] of want.entries()) {
            assert.equal(typed(y)[g + i]! + 0, value + 0, `element ${g + i} of ${values[g + i]}`);
            assert.equal(typed(x)[g + i], typed(y)[g + i]);
          }
        }
      }
    });

test('numbers that are not finite, and blocks that do not divide the channels, are refused', async () => {
  const rt = createRuntime(1);
  const { type, block, scaleDtype } = INPUT_TYPES.mxfp4;
  const x = fromTyped('f32', [1, 64], new Float32Array(64).fill(1));
  typed(x)[40] = Number.NaN;
  ops.roundInputs(rt, x, x, typeParams(type), { groupSize: block, scaleDtype });
  await assert.rejects(() => rt.sync(), /NaN or infinity/);
  const odd = fromTyped('f32', [1, 48], new Float32Array(48));
  await assert.rejects(async () => {
    ops.roundInputs(rt, odd, odd, typeParams(type), { groupSize: block, scaleDtype });
    await rt.sync();
  }, /groups of 32 do not divide K = 48/);
});
