import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { groupSizeOf } from '../../../src/core/granularity.js';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { disposeModule } from '../../../src/quantize/result.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { type QuantScheme, type SchemeOptions, schemeFromOptions } from '../../../src/quantize/scheme.js';
import { codeAt, f32, fromBf16, fromF16, idealScale, random, roundGroup, stored } from './reference.js';

const rt = createRuntime(2);

/** Weights with the spread of a real layer, a group of zeros, and one that has a single sign. */
function weights(
  seed: number,
  n: number,
  k: number,
  dtype: 'f32' | 'bf16' | 'f16',
): { tensor: Tensor; numbers: number[] } {
  const next = random(seed);
  const w = Float32Array.from({ length: n * k }, () => (next() + next() + next() - 1.5) * 0.08 * 2 ** (next() * 6 - 3));
  w.fill(0, 0, 48);
  for (let i = k; i < k + 48; i++) w[i] = Math.abs(w[i]!);
  if (dtype === 'f32') return { tensor: fromTyped('f32', [n, k], w), numbers: Array.from(w) };
  const bits = new Uint32Array(w.buffer);
  const raw =
    dtype === 'bf16'
      ? Uint16Array.from(bits, (b) => b >>> 16)
      : Uint16Array.from(bits, (b) => ((b >>> 16) & 0x8000) | (b % 0x3400 && 0x2400 + (b % 0x0c00)));
  return { tensor: fromTyped(dtype, [n, k], raw), numbers: Array.from(raw, dtype === 'bf16' ? fromBf16 : fromF16) };
}

async function compare(options: SchemeOptions, dtype: 'f32' | 'bf16' | 'f16', n = 5, k = 96): Promise<void> {
  const scheme = schemeFromOptions(options);
  const { tensor, numbers } = weights(n * k + scheme.type.bits, n, k, dtype);
  const result = await roundWeight(rt, tensor, scheme, 'm');
  const reference = {
    type: scheme.type.name,
    symmetric: scheme.symmetric,
    scaleDtype: scheme.scaleDtype,
    zero: scheme.type.signed || !scheme.symmetric ? 0 : scheme.type.bits === 1 ? 0.5 : 2 ** (scheme.type.bits - 1),
  };
  const length = groupSizeOf(scheme.granularity, k);
  const parts: number[][] = [];
  for (let i = 0; i < n * k; i += length) parts.push(numbers.slice(i, i + length));
  const global = scheme.globalScale ? f32(Math.max(...parts.map((part) => idealScale(part, reference))) / 448) : 1;
  assert.equal(result.globalScale, scheme.globalScale ? global : undefined);
  const stream = result.codes.bytes();
  const scales = typed<Float32Array>(result.scales);
  const zeros = result.zeros && typed<Float32Array>(result.zeros);
  const where = `${JSON.stringify(options)} of ${dtype}`;
  for (const [at, part] of parts.entries()) {
    const expected = roundGroup(part, reference, global);
    const row = Math.floor((at * length) / k);
    const codes = part.map((_, i) =>
      codeAt(stream, row * result.codes.shape[1]!, scheme.type.bits, ((at * length) % k) + i),
    );
    assert.deepEqual(codes, expected.codes, `${where}, group ${at}`);
    if (zeros) assert.equal(zeros[at], expected.zero, where);
    if (reference.zero !== 0.5 || part.some((x) => x !== 0))
      assert.equal(stored(scheme.scaleDtype, scales, at), expected.scale, where);
  }
  assert.equal(result.quality.method, 'rtn');
  disposeModule(result);
}

test('codes, scales and zeros equal the reference, all types', async () => {
  for (const type of QUANT_TYPES) {
    await compare({ dtype: type.name, groupSize: 24 }, 'bf16');
    await compare({ dtype: type.name, groupSize: 'channel', scaleDtype: 'bf16' }, 'f32');
    if (type.kind === 'int') await compare({ dtype: type.name, groupSize: 48, asym: true }, 'bf16');
  }
});

test('codes, scales and zeros equal the reference, all scale and weight dtypes', async () => {
  for (const dtype of ['f32', 'f16', 'bf16'] as const)
    for (const scaleDtype of ['f16', 'bf16', 'f32', 'e8m0', 'e4m3'])
      for (const name of ['i4', 'i8', 'u3', 'f4e2m1', 'f6e3m2', 'f8e4m3'])
        for (const groupSize of [16, 32]) await compare({ dtype: name, groupSize, scaleDtype }, dtype);
  for (const name of ['mxfp4', 'mxfp6', 'mxfp8', 'mxint8', 'nvfp4']) await compare({ dtype: name }, 'bf16', 7, 192);
});

test('a K whose codes do not fill bytes', async () => {
  for (const bits of [1, 2, 3, 5, 6, 7]) await compare({ bits, groupSize: 15, scaleDtype: 'f32' }, 'bf16', 3, 105);
});

test('a group of zeros has scale 1 and decodes to zeros; with u1 to the least magnitude', async () => {
  const w = allocate('bf16', [2, 32]);
  w.bytes().fill(0);
  for (const [options, scale, code] of [
    [{ bits: 4 }, 0x3c00, 0],
    [{ dtype: 'u4' }, 0x3c00, 8],
    [{ bits: 4, asym: true }, 0x3c00, 0],
    [{ dtype: 'f6e3m2' }, 0x3c00, 0],
    [{ dtype: 'nvfp4' }, 0x38, 0],
    [{ dtype: 'mxfp4' }, 127, 0],
    [{ bits: 1 }, 0x0400, 0],
  ] as const) {
    const scheme: QuantScheme = schemeFromOptions({
      groupSize: 'dtype' in options && /x|nv/.test(options.dtype) ? undefined : 16,
      ...options,
    });
    const result = await roundWeight(rt, w, scheme, 'm');
    assert.equal(typed<Uint16Array>(result.scales)[0], scale);
    assert.equal(codeAt(result.codes.bytes(), 0, scheme.type.bits, 3), code);
    assert.deepEqual([result.stats.smallestScale, result.stats.largestScale], [0, 0]);
    if (scheme.globalScale) assert.equal(result.globalScale, 1);
  }
});

async function refused(tensor: Tensor, options: SchemeOptions, code: string): Promise<LpqError> {
  try {
    await roundWeight(rt, tensor, schemeFromOptions(options), 'model.layers.7.mlp.up_proj');
  } catch (error) {
    assert.ok(error instanceof LpqError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, /model\.layers\.7\.mlp\.up_proj/);
    return error;
  }
  assert.fail(`not refused: ${JSON.stringify(options)}`);
}
function constant(value: number, ...changes: [number, number][]): Tensor {
  const w = new Float32Array(4 * 128).fill(value);
  for (const [at, x] of changes) w[at] = x;
  return fromTyped('f32', [4, 128], w);
}

test('NaN and infinity name the module and the first place', async () => {
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])
    for (const options of [
      { bits: 4 },
      { bits: 4, asym: true },
      { dtype: 'nvfp4' },
      { dtype: 'f6e3m2', groupSize: 'channel' },
    ]) {
      const one = await refused(constant(0.1, [2 * 128 + 77, bad]), options, 'LPQ_MODULE_NUMERICS');
      assert.equal(one.got, 'the first one is at row 2, column 77');
      const two = await refused(constant(0.1, [5, bad], [500, bad]), options, 'LPQ_MODULE_NUMERICS');
      assert.match(two.message, /2 values/);
      assert.equal(two.got, 'the first one is at row 0, column 5');
    }
  // -NaN, a signalling NaN, and bf16.
  const raw = new Uint16Array(4 * 128).fill(0x3f80);
  raw[3] = 0xff81;
  await refused(fromTyped('bf16', [4, 128], raw), { bits: 8 }, 'LPQ_MODULE_NUMERICS');
});

test('scales beyond their dtype name the module and the way out', async () => {
  const large = await refused(constant(1e6), { bits: 4 }, 'LPQ_SCALE_RANGE');
  assert.match(large.hint!, /--scale-dtype bf16/);
  assert.match(String(large.got), /1\.33e\+5/);
  await refused(constant(1e-7), { bits: 4 }, 'LPQ_SCALE_RANGE');
  await refused(constant(1e-7), { bits: 4, asym: true }, 'LPQ_SCALE_RANGE');
  await refused(constant(0.1, [0, 1e6]), { dtype: 'f4e2m1' }, 'LPQ_SCALE_RANGE');
  await refused(constant(3e38, [1, -3e38]), { bits: 4, asym: true, scaleDtype: 'f32' }, 'LPQ_SCALE_RANGE');
  for (const value of [1e6, 1e-7, 3.3e38, 1e-40])
    for (const scaleDtype of ['bf16', 'e8m0', 'e4m3', 'f32'])
      disposeModule(
        await roundWeight(rt, constant(value, [9, -value]), schemeFromOptions({ bits: 4, scaleDtype }), 'm'),
      );
  // 2^-17, the least f16 scale that is taken, and the next below it.
  disposeModule(await roundWeight(rt, constant(7.5 * 2 ** -17), schemeFromOptions({ bits: 4 }), 'm'));
  await refused(constant(7.4 * 2 ** -17), { bits: 4 }, 'LPQ_SCALE_RANGE');
});

test('a nearly empty group among ordinary ones is noted, and its scale is never 0', async () => {
  const values = new Float32Array(4 * 256).fill(0.1);
  for (let i = 0; i < 128; i++) {
    values[i] = 1e-9; // scale 1.3e-10, far below 2^-24
    values[256 + i] = 7.4 * 2 ** -17;
  }
  const result = await roundWeight(rt, fromTyped('f32', [4, 256], values), schemeFromOptions({ bits: 4 }), 'm');
  assert.match(result.quality.note ?? '', /^2 scales of nearly empty groups are below the precise range of f16$/);
  const scales = typed<Uint16Array>(result.scales);
  assert.equal(scales[0], 1); // 2^-24
  assert.ok(scales.every((bits) => bits > 0));
  disposeModule(result);
});

test('shapes, dtypes and group sizes are checked before any work', async () => {
  await refused(allocate('f32', [4, 100]), { bits: 4 }, 'LPQ_GROUP_SIZE');
  await refused(allocate('i32', [4, 128]), { bits: 4 }, 'LPQ_DTYPE');
  await refused(allocate('f32', [128]), { bits: 4 }, 'LPQ_TENSOR_SHAPE');
  await refused(allocate('f32', [0, 128]), { bits: 4 }, 'LPQ_TENSOR_SHAPE');
});
