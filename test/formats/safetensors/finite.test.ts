import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findNotFinite, requireFinite } from '../../../formats/safetensors/finite.js';
import { SafetensorsWriter } from '../../../formats/safetensors/write.js';
import { type DType, fromTyped } from '../../../native/binding.js';
import { designed, scratch } from '../scratch.js';

const F32 = new Float32Array(1);
const words: Readonly<Record<string, (bits: number) => Uint8Array>> = {
  f8_e4m3: (bits) => Uint8Array.of(bits),
  f8_e5m2: (bits) => Uint8Array.of(bits),
  f8_e8m0: (bits) => Uint8Array.of(bits),
  f16: (bits) => new Uint8Array(Uint16Array.of(bits).buffer),
  bf16: (bits) => new Uint8Array(Uint16Array.of(bits).buffer),
};

/** What a bit pattern means, by the definition of its format. */
function meaning(dtype: string, bits: number): 'nan' | 'infinite' | 'finite' {
  const of = (exponent: number, fraction: number, most: number) =>
    exponent !== most ? 'finite' : fraction === 0 ? 'infinite' : 'nan';
  if (dtype === 'f8_e4m3') return (bits & 127) === 127 ? 'nan' : 'finite';
  if (dtype === 'f8_e8m0') return bits === 255 ? 'nan' : 'finite';
  if (dtype === 'f8_e5m2') return of((bits >> 2) & 31, bits & 3, 31);
  if (dtype === 'f16') return of((bits >> 10) & 31, bits & 1023, 31);
  F32[0] = new Float32Array(Uint32Array.of(bits << 16).buffer)[0] as number;
  return Number.isNaN(F32[0]) ? 'nan' : Number.isFinite(F32[0]) ? 'finite' : 'infinite';
}

test('NaN and infinity: every bit pattern of every narrow float is told for what it is', async () => {
  for (const [dtype, bytesOf] of Object.entries(words))
    for (let bits = 0; bits < (dtype.startsWith('f8') ? 256 : 65536); bits++) {
      const found = await findNotFinite(bytesOf(bits), dtype as DType);
      const got = found === undefined ? 'finite' : found.nan === 1 ? 'nan' : 'infinite';
      assert.equal(got, meaning(dtype, bits), `${dtype} ${bits.toString(16)}`);
    }
});

test('NaN and infinity in wide floats, on the thread and beside it, at odd addresses, counted and placed', async () => {
  for (const count of [10, 40_000, 300_001]) {
    for (const [dtype, make] of [
      ['f32', Float32Array],
      ['f64', Float64Array],
    ] as const) {
      const values = new make(count).fill(1e30);
      assert.equal(await findNotFinite(values, dtype), undefined);
      values[count - 3] = Number.NEGATIVE_INFINITY;
      values[count - 1] = Number.NaN;
      const expected = { nan: 1, infinite: 1, first: count - 3 };
      assert.deepEqual(await findNotFinite(values, dtype), expected);
      const tensor = fromTyped(dtype, [count], values);
      const pending = findNotFinite(tensor, dtype);
      tensor.dispose(); // its bytes are kept
      assert.deepEqual(await pending, expected);
      const odd = new Uint8Array(values.byteLength + 1);
      odd.set(new Uint8Array(values.buffer), 1);
      assert.deepEqual(await findNotFinite(odd.subarray(1), dtype), expected);
    }
  }
  assert.equal(await findNotFinite(Int32Array.of(-1), 'i32'), undefined);
  await assert.rejects(
    requireFinite('t', Float32Array.of(0, 1, Number.NaN, 0, Number.NaN, 0), 'f32', [2, 3]),
    designed('LPQ_MODULE_NUMERICS', /'t' holds NaN or infinity .*2 NaN, the first at \[0, 2\]/),
  );
});

test('a writer that is told so refuses NaN and infinity, whole or by rows, and leaves nothing', async () => {
  for (const byRows of [false, true]) {
    const dir = scratch();
    const spec = { name: 'w', dtype: 'BF16', shape: [4, 2] } as const;
    const writer = await SafetensorsWriter.create(dir, [spec], { finite: true });
    const rows = Uint16Array.of(0x3f80, 0, 0, 0x7f80);
    const write = byRows ? writer.writeRows('w', 2, rows) : writer.write('w', Uint16Array.of(0, 0, 0, 0, ...rows));
    await assert.rejects(write, designed('LPQ_MODULE_NUMERICS', /'w' .*1 infinite, the first at \[3, 1\]/));
    await assert.rejects(writer.finish(), designed('LPQ_MODULE_NUMERICS', /'w'/));
  }
});
