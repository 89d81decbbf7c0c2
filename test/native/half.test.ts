import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, decodeF16, poisoned, Random, typed } from './support.js';

const rt = createRuntime(2);
const all = Uint16Array.from({ length: 65536 }, (_, bits) => bits);

for (const [dtype, decode] of [
  ['f16', decodeF16],
  ['bf16', decodeBf16],
] as const) {
  test(`every ${dtype} pattern widens to its value and narrows to itself`, async () => {
    const x = fromTyped(dtype, [65536], all);
    const wide = poisoned('f32', [65536]);
    const wider = poisoned('f64', [65536]);
    const back = poisoned(dtype, [65536]);
    const back64 = poisoned(dtype, [65536]);
    ops.cast(rt, x, wide);
    ops.cast(rt, x, wider);
    ops.cast(rt, wide, back);
    ops.cast(rt, wider, back64);
    await rt.sync();
    const [f, d] = [typed(wide), typed<Float64Array>(wider)];
    const [b, b64] = [typed<Uint16Array>(back), typed<Uint16Array>(back64)];
    for (let bits = 0; bits < 65536; bits++) {
      const want = decode(bits);
      if (Number.isNaN(want)) {
        assert.ok(Number.isNaN(f[bits]) && Number.isNaN(d[bits]), `${bits}`);
        assert.ok(Number.isNaN(decode(b[bits]!)) && Number.isNaN(decode(b64[bits]!)), `${bits}`);
      } else {
        assert.ok(Object.is(f[bits], want) && Object.is(d[bits], want), `${bits}: ${f[bits]} for ${want}`);
        assert.ok(b[bits] === bits && b64[bits] === bits, `${bits}: ${b[bits]}`);
      }
    }
  });

  test(`f32 and f64 round to the nearest ${dtype}, ties to even, from just below, at and above every midpoint`, async () => {
    const finite = dtype === 'f16' ? 0x7c00 : 0x7f80;
    // The midpoint of patterns b and b+1; past the last finite one, what the next binade's first value would be.
    const inputs: number[] = [];
    const wants: number[] = [];
    const step = (value: number, by: number) => {
      const view = new DataView(new ArrayBuffer(8));
      view.setFloat64(0, value);
      view.setBigUint64(0, view.getBigUint64(0) + BigInt(by));
      return view.getFloat64(0);
    };
    for (let bits = 0; bits < finite; bits++) {
      const low = decode(bits);
      const high = bits + 1 < finite ? decode(bits + 1) : 2 * low - decode(bits - 1);
      const middle = (low + high) / 2;
      const even = bits % 2 === 0 ? bits : bits + 1;
      for (const sign of [0, 0x8000])
        for (const [value, want] of [
          [step(middle, -1), bits],
          [middle, even],
          [step(middle, 1), bits + 1],
        ] as const) {
          inputs.push(sign ? -value : value);
          wants.push(want | sign);
        }
    }
    const n = inputs.length;
    const y = poisoned(dtype, [n]);
    ops.cast(rt, fromTyped('f64', [n], Float64Array.from(inputs)), y);
    await rt.sync();
    let got = typed<Uint16Array>(y);
    for (let i = 0; i < n; i++) assert.equal(got[i], wants[i], `f64 ${inputs[i]}`);

    // The same through f32: inputs that f32 can hold (the midpoints), and f32 neighbours of the midpoints.
    const singles: number[] = [];
    const expected: number[] = [];
    const word = new DataView(new ArrayBuffer(4));
    for (let i = 1; i < n; i += 3) {
      const single = Math.fround(inputs[i]!);
      if (single !== inputs[i]) continue; // below the least f32: no such midpoint
      for (const by of [-1, 0, 1]) {
        word.setFloat32(0, single);
        word.setUint32(0, word.getUint32(0) + by);
        singles.push(word.getFloat32(0));
        expected.push(wants[i + by]!);
      }
    }
    assert.ok(singles.length > 180000);
    const z = poisoned(dtype, [singles.length]);
    ops.cast(rt, fromTyped('f32', [singles.length], Float32Array.from(singles)), z);
    await rt.sync();
    got = typed<Uint16Array>(z);
    for (let i = 0; i < singles.length; i++) assert.equal(got[i], expected[i], `f32 ${singles[i]}`);
  });
}

test('the other casts: f64 to f32 like Math.fround, i32 to f32, equal types copied', async () => {
  const random = new Random(7);
  const values = Float64Array.from({ length: 1003 }, () => random.normal() * 10 ** random.integer(-46, 40));
  values.set([Number.NaN, Number.POSITIVE_INFINITY, -0, 1e300, -1e-300]);
  const single = poisoned('f32', [1003]);
  const copy = poisoned('f64', [1003]);
  const x = fromTyped('f64', [1003], values);
  const whole = Int32Array.from({ length: 77 }, () => random.integer(-(2 ** 31), 2 ** 31 - 1));
  const floats = poisoned('f32', [77]);
  ops.cast(rt, x, single);
  ops.cast(rt, x, copy);
  ops.cast(rt, fromTyped('i32', [77], whole), floats);
  await rt.sync();
  assert.deepEqual(typed(single), Float32Array.from(values));
  assert.deepEqual(typed<Float64Array>(copy), values);
  assert.deepEqual(typed(floats), Float32Array.from(whole));
});
