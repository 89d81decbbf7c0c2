import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import {
  allocate,
  createRuntime,
  type DType,
  fromTyped,
  type OpParams,
  type Tensor,
  typed,
} from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { QUANT_TYPES, quantType, typeParams } from '../../src/core/quant-type.js';
import { codeAt, f32, fromF16, nearest, rint, values } from '../src/quantize/reference.js';

const rt = createRuntime(2);

interface Result {
  codes: number[];
  scales: Tensor;
  zeros: Tensor | undefined;
  stats: Float64Array;
}
async function rtn(
  w: Tensor,
  type: string,
  p: OpParams & { groupSize: number },
  scaleDtype: DType,
  zeroDtype?: DType,
): Promise<Result> {
  const [n, k] = w.shape as [number, number];
  const quant = quantType(type);
  const codes = allocate('u8', [n, Math.ceil((k * quant.bits) / 8)]);
  const shape = [n, k / p.groupSize];
  const scales = allocate(scaleDtype, shape);
  const zeros = zeroDtype && allocate(zeroDtype, shape);
  const stats = allocate('f64', [9]);
  ops.rtn(rt, w, { codes, scales, stats, ...(zeros ? { zeros } : {}) }, typeParams(quant), p);
  await rt.sync();
  const stream = codes.bytes();
  return {
    codes: Array.from({ length: n * k }, (_, i) =>
      codeAt(stream, Math.floor(i / k) * codes.shape[1]!, quant.bits, i % k),
    ),
    scales,
    zeros,
    stats: typed<Float64Array>(stats).slice(),
  };
}

/** A sweep of [-top, top], with every midpoint between neighbouring numbers and the f32 next to it on either side. */
function sweep(numbers: number[], top: number): Float32Array {
  const sorted = [...new Set(numbers.filter((x) => !Number.isNaN(x)).map((x) => x + 0))].sort((a, b) => a - b);
  const points = [-top, top, 0, -0];
  const bits = new Int32Array(1);
  const float = new Float32Array(bits.buffer);
  for (let i = 0; i + 1 < sorted.length; i++) {
    float[0] = (sorted[i]! + sorted[i + 1]!) / 2;
    points.push(sorted[i]!, float[0]!);
    if (float[0] === 0) continue;
    for (const step of [1, -2]) {
      bits[0]! += step;
      points.push(float[0]!);
    }
  }
  for (let i = 0; i < 2000; i++) points.push(f32((i / 1000 - 1) * top), f32(top * 2 ** (-i / 100)));
  return Float32Array.from(points.filter((x) => Math.abs(x) <= top));
}

test('floats: with scale 1 every weight takes the nearest number, ties the even code', async () => {
  for (const type of QUANT_TYPES) {
    if (type.kind !== 'float') continue;
    const table = values(type.name);
    const top = Math.max(...table.filter((x) => !Number.isNaN(x)));
    // e8m0: the power of two of the largest weight, which is the type's largest number, over that of the type: 1.
    const w = sweep(table, top);
    const result = await rtn(fromTyped('f32', [1, w.length], w), type.name, { groupSize: w.length }, 'f8_e8m0');
    assert.equal(result.scales.bytes()[0], 127);
    for (let i = 0; i < w.length; i++) assert.equal(result.codes[i], nearest(table, w[i]!), `${type.name} of ${w[i]}`);
  }
});

test('symmetric integers: with scale 1 codes are clamp(rint(w) + zero)', async () => {
  for (const type of QUANT_TYPES) {
    if (type.kind !== 'int') continue;
    const levels = 2 ** type.bits - 1;
    const zero = type.signed ? 0 : type.bits === 1 ? 0.5 : 2 ** (type.bits - 1);
    const table = values(type.name);
    const w = sweep(
      table.map((x) => x - zero),
      levels / 2,
    );
    const result = await rtn(fromTyped('f32', [1, w.length], w), type.name, { groupSize: w.length, zero }, 'f32');
    assert.equal(typed(result.scales)[0], 1);
    const low = Math.min(...table);
    const high = Math.max(...table);
    for (let i = 0; i < w.length; i++) {
      const point: number = type.bits === 1 ? rint(f32(w[i]! + 0.5)) : rint(w[i]!) + zero;
      assert.equal(table[result.codes[i]!], Math.min(Math.max(point, low), high), `${type.name} of ${w[i]}`);
    }
  }
});

test('a signed type and an unsigned one with its middle as zero are the same grid', async () => {
  const w = Float32Array.from({ length: 256 }, (_, i) => Math.sin(i * i));
  const tensor = fromTyped('f32', [2, 128], w);
  for (let bits = 2; bits <= 8; bits++) {
    const signed = await rtn(tensor, `i${bits}`, { groupSize: 32 }, 'f16');
    const unsigned = await rtn(tensor, `u${bits}`, { groupSize: 32, zero: 2 ** (bits - 1) }, 'f16');
    assert.deepEqual(
      signed.codes.map((code) => code ^ (2 ** (bits - 1))),
      unsigned.codes,
    );
    assert.deepEqual(signed.scales.bytes(), unsigned.scales.bytes());
    assert.deepEqual(signed.stats, unsigned.stats);
  }
});

test('real zeros put the least weight at the least code', async () => {
  const w = Float32Array.from({ length: 64 }, (_, i) => Math.cos(i) * 3 - 0.3);
  for (const dtype of ['f16', 'f32'] as const)
    for (const type of ['u4', 'i4']) {
      const { codes, scales, zeros } = await rtn(fromTyped('f32', [2, 32], w), type, { groupSize: 32 }, 'f32', dtype);
      const table = values(type);
      const raw = typed(zeros!);
      for (let row = 0; row < 2; row++) {
        const part = Array.from(w.slice(row * 32, row * 32 + 32));
        const scale = typed(scales)[row]!;
        const zero = dtype === 'f16' ? fromF16(raw[row]!) : raw[row]!;
        assert.equal(scale, f32(f32(Math.max(...part) - Math.min(...part)) / 15));
        const exact = -Math.min(...part) / scale + Math.min(...table);
        // Two roundings to f32 (the sum's operands are below 16), then one to f16.
        assert.ok(Math.abs(zero - exact) <= 2 ** -19 + (dtype === 'f16' ? Math.abs(exact) * 2 ** -11 : 0));
        for (let i = 0; i < 32; i++) {
          // Not a tie here, so that the nearest grid point is the answer whatever the order of f32 operations.
          const at = table.map((q) => Math.abs((q - zero) * scale - part[i]!));
          assert.equal(codes[row * 32 + i], at.indexOf(Math.min(...at)));
        }
      }
    }
});

test('e8m0: the OCP rule may saturate, the covering one does not', async () => {
  const w = fromTyped('f32', [1, 4], Float32Array.of(7.5, 3, -1, 0.25));
  const ocp = await rtn(w, 'f4e2m1', { groupSize: 4 }, 'f8_e8m0');
  assert.deepEqual([ocp.scales.bytes()[0], ...ocp.codes], [127, 7, 5, 0b1010, 0]); // 6, 3, -1, 0
  const covering = await rtn(w, 'f4e2m1', { groupSize: 4, scaleCover: true }, 'f8_e8m0');
  assert.deepEqual([covering.scales.bytes()[0], ...covering.codes], [128, 6, 3, 0b1001, 0]); // 2*(4, 1.5, -0.5, 0)
  assert.equal(covering.stats[0], 0.5 ** 2 + 0.25 ** 2);
});

test('stats: squared error and norm of what a reader of the stored numbers sees', async () => {
  const [n, k] = [3, 80];
  const w = Float32Array.from({ length: n * k }, (_, i) => Math.sin(i * 1.7) * (1 + (i % 7)));
  for (const [type, scaleDtype, zeroDtype] of [
    ['i4', 'f16', undefined],
    ['u3', 'bf16', 'u8'],
    ['f6e3m2', 'f8_e8m0', undefined],
  ] as const) {
    const tensor = fromTyped('f32', [n, k], w);
    const { codes, scales, zeros, stats } = await rtn(tensor, type, { groupSize: 20 }, scaleDtype, zeroDtype);
    const back = allocate('f32', [n, k]);
    ops.dequantize(
      rt,
      { codes: fromTyped('u8', [n, k], Uint8Array.from(codes)), scales, ...(zeros ? { zeros } : {}) },
      back,
      typeParams(quantType(type)),
      { blockN: 1, blockK: 20 },
    );
    await rt.sync();
    const decoded = typed(back);
    let error = 0;
    let norm = 0;
    for (let i = 0; i < n * k; i++) {
      error += (w[i]! - decoded[i]!) ** 2;
      norm += w[i]! ** 2;
    }
    // The difference is rounded to f32 (2^-24 of it, twice that in the square); sums are in f64.
    assert.ok(Math.abs(stats[0]! - error) <= error * 2 ** -22, `${stats[0]} ${error}`);
    assert.ok(Math.abs(stats[1]! - norm) <= norm * 1e-13);
  }
});

const CHILD = `
const [binding, ops, types] = JSON.parse(process.env.LPQ_TEST_MODULES);
const { addon, allocate, createRuntime, fromTyped } = await import(binding);
const { ops: o } = await import(ops);
const { quantType, typeParams } = await import(types);
const { createHash } = await import('node:crypto');
const rt = createRuntime(Number(process.env.LPQ_TEST_THREADS));
const [n, k] = [70, 384];
let s = 1;
const next = () => ((s = (Math.imul(s, 1664525) + 1013904223) >>> 0) / 2 ** 32);
const w32 = Float32Array.from({ length: n * k }, () => (next() + next() - 1) * 2 ** -Math.floor(next() * 12));
const bits = new Uint32Array(w32.buffer);
const weights = [
  fromTyped('f32', [n, k], w32),
  fromTyped('bf16', [n, k], Uint16Array.from(bits, (b) => b >>> 16)),
  fromTyped('f16', [n, k], Uint16Array.from(bits, (b) => ((b >>> 16) & 0x8000) | (b % 0x7c00))),
];
const hash = createHash('sha256');
for (const w of weights)
  for (const type of ['u1', 'i3', 'i4', 'u8', 'f3e1m1', 'f4e2m1', 'f6e4m1', 'f8e4m3', 'f8e6m1'])
    for (const [groupSize, scales, zeros] of [[16, 'f32'], [24, 'bf16'], [384, 'f16'], [48, 'f8_e8m0'], [16, 'f8_e4m3'], [32, 'f16', 'i16']]) {
      const quant = quantType(type);
      if (zeros && quant.kind === 'float') continue;
      const out = {
        codes: allocate('u8', [n, (k * quant.bits) / 8]),
        scales: allocate(scales, [n, k / groupSize]),
        stats: allocate('f64', [9]),
        ...(zeros ? { zeros: allocate(zeros, [n, k / groupSize]) } : {}),
      };
      o.rtn(rt, w, out, typeParams(quant), { groupSize, global: scales === 'f8_e4m3', zero: type === 'u1' ? 0.5 : type === 'u8' ? 128 : 0 });
      await rt.sync();
      for (const tensor of Object.values(out)) hash.update(tensor.bytes());
    }
console.log(addon().isa(), hash.digest('hex'));
`;

test('the same bytes for any number of threads and any instruction set', () => {
  const root = path.resolve(import.meta.dirname, '..', '..');
  const modules = ['native/binding.js', 'native/ops.js', 'src/core/quant-type.js'].map(
    (file) => pathToFileURL(path.join(root, file)).href,
  );
  const seen = new Map<string, string>();
  for (const [isa, threads] of [
    ['generic', 1],
    ['generic', 3],
    ['avx2', 2],
    ['avx512', 1],
    ['avx512', 5],
  ] as const) {
    const output = execFileSync(process.execPath, ['--input-type=module', '-e', CHILD], {
      encoding: 'utf8',
      env: {
        ...process.env,
        LPQ_ISA: isa,
        LPQ_TEST_THREADS: String(threads),
        LPQ_TEST_MODULES: JSON.stringify(modules),
      },
    });
    const [ran, hash] = output.trim().split(' ') as [string, string];
    seen.set(`${ran} x${threads}`, hash);
  }
  assert.equal(new Set(seen.values()).size, 1, JSON.stringify([...seen]));
});

test('a mapped weight may start at an odd byte', async () => {
  const { mkdtempSync, writeFileSync, rmSync } = await import('node:fs');
  const { tmpdir } = await import('node:os');
  const { mapFile } = await import('../../native/binding.js');
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-rtn-'));
  try {
    const bits = Uint16Array.from({ length: 96 }, (_, i) => 0x3c00 + ((i * 37) % 0x300) + (i % 2) * 0x8000);
    const file = path.join(folder, 'w');
    writeFileSync(file, Buffer.concat([Buffer.from([9]), Buffer.from(bits.buffer)]));
    for (const dtype of ['f16', 'bf16'] as const) {
      const a = await rtn(mapFile(file).tensor(dtype, [2, 48], 1), 'i4', { groupSize: 16 }, 'f32');
      const b = await rtn(fromTyped(dtype, [2, 48], bits), 'i4', { groupSize: 16 }, 'f32');
      assert.deepEqual(a.codes, b.codes);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('wrong shapes, dtypes and combinations are refused', async () => {
  const w = allocate('f32', [4, 32]);
  w.bytes().fill(0);
  const refused = { code: 'LPQ_NATIVE_ARGUMENT' };
  await assert.rejects(rtn(w, 'i4', { groupSize: 12 }, 'f16'), refused);
  await assert.rejects(rtn(w, 'f4e2m1', { groupSize: 16 }, 'f16', 'i16'), refused);
  await assert.rejects(rtn(w, 'i4', { groupSize: 16 }, 'f16', 'u8'), refused);
  await assert.rejects(rtn(w, 'i4', { groupSize: 16, global: true }, 'f16'), refused);
  await assert.rejects(rtn(allocate('i32', [4, 32]), 'i4', { groupSize: 16 }, 'f16'), refused);
  await assert.rejects(rtn(w, 'i4', { groupSize: 16 }, 'i16'), { code: 'LPQ_NATIVE_ARGUMENT' });
});

test('floats saturate, at the top of their range', async () => {
  // OCP e8m0 scales are the only ones that leave weights beyond the largest value: 1.99 * 2^emax becomes the largest.
  for (const type of QUANT_TYPES) {
    if (type.kind !== 'float') continue;
    const table = values(type.name);
    const numbers = table.filter((x) => !Number.isNaN(x));
    const top = Math.max(...numbers);
    const power = 2 ** Math.floor(Math.log2(top));
    const w = Float32Array.from([1.99, -1.99, 1.5, -1.8, 1.76, 1, 0.9, 0.01], (x) => x * power);
    const result = await rtn(fromTyped('f32', [1, 8], w), type.name, { groupSize: 8 }, 'f8_e8m0');
    assert.equal(result.scales.bytes()[0], 127);
    for (let i = 0; i < 8; i++) assert.equal(result.codes[i], nearest(table, w[i]!), `${type.name} of ${w[i]}`);
    assert.deepEqual([table[result.codes[0]!], table[result.codes[1]!]], [top, -top]);
  }
});
