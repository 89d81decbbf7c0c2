import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, typed } from '../../native/binding.js';
import type { KvPages } from '../../native/kv-ops.js';
import { ops } from '../../native/ops.js';
import { nearestHalf } from '../../src/verify/floats.js';
import { decodeBf16, decodeF16, poisoned, Random } from './support.js';

const random = new Random(12);

test('kv_quantize: asymmetric codes by f16 numbers, by channel and by token, the last group short', async () => {
  for (const [tokens, width, groupTokens, groupDims, bits] of [
    [70, 16, 32, 1, 4],
    [5, 64, 1, 32, 2],
    [33, 8, 8, 1, 8],
    [3, 8, 1, 8, 3],
  ] as const)
    for (const threads of [1, 3]) {
      const rt = createRuntime(threads);
      const x = random.normals(tokens * width, 3);
      x.fill(0.5, 0, groupDims); // a group of equal numbers, where it is one
      const groups = [Math.ceil(tokens / groupTokens), width / groupDims] as const;
      const out = {
        codes: poisoned('u8', [tokens, width]),
        scales: poisoned('f16', groups),
        zeros: poisoned('f16', groups),
      };
      const p = { bits, groupTokens, groupDims };
      ops.kvQuantize(rt, fromTyped('f32', [tokens, width], x), out, p);
      const y = poisoned('f32', [tokens, width]);
      ops.kvDequantize(rt, out, y, p);
      await rt.sync();
      const [codes, scales, zeros] = [
        typed<Uint8Array>(out.codes),
        typed<Uint16Array>(out.scales),
        typed<Uint16Array>(out.zeros),
      ];
      for (let t = 0; t < tokens; t++)
        for (let c = 0; c < width; c++) {
          const group = Math.floor(t / groupTokens) * groups[1] + Math.floor(c / groupDims);
          const [scale, zero] = [decodeF16(scales[group] as number), decodeF16(zeros[group] as number)];
          const value = typed(y)[t * width + c] as number;
          const code = codes[t * width + c] as number;
          assert.ok(code < 2 ** bits);
          assert.ok(Math.abs(value - (code * scale + zero)) <= 2 ** -23 * (Math.abs(zero) + scale * 255));
          // Half a step; f16 of x itself and of the scale (2^-11 of the range) beside it.
          const bound = scale / 2 + 2 ** -11 * (Math.abs(x[t * width + c] as number) + 2 ** bits * scale) + 2 ** -24;
          assert.ok(
            Math.abs(value - (x[t * width + c] as number)) <= bound,
            `${tokens} ${bits}: ${value}, ${x[t * width + c]}`,
          );
        }
    }
});

test('kv_quantize fits ends: no group errs more than between its smallest and largest, normal numbers a sixth less', async () => {
  const rt = createRuntime(3);
  const half = (value: number): number => Math.sign(value) * nearestHalf(Math.abs(value));
  for (const [tokens, width, groupTokens, groupDims, bits, gain] of [
    [70, 128, 32, 1, 4, 5 / 6],
    [64, 128, 1, 32, 4, 5 / 6],
    [66, 64, 64, 1, 2, 5 / 6],
    [40, 64, 1, 32, 8, 1],
  ] as const) {
    const x = random.normals(tokens * width, 3).map((value, i) => half(value + (i % width)));
    // Equal numbers; one far from the others; whole steps of f16, which no scale but the first keeps.
    for (let i = 0; i < groupTokens * groupDims; i++)
      for (const [n, value] of [0.5, i === 3 ? 6e4 : -i, 1024 + (i % 3)].entries()) {
        const first = groupTokens > 1 ? n : n * groupDims;
        x[first + Math.floor(i / groupDims) * width + (i % groupDims)] = value;
      }
    const groups = [Math.ceil(tokens / groupTokens), width / groupDims] as const;
    const errors = async (fit: boolean): Promise<Float64Array> => {
      const out = {
        codes: poisoned('u8', [tokens, width]),
        scales: poisoned('f16', groups),
        zeros: poisoned('f16', groups),
      };
      ops.kvQuantize(rt, fromTyped('f32', [tokens, width], x), out, { bits, groupTokens, groupDims, fit });
      await rt.sync();
      const [codes, scales, zeros] = [out.codes, out.scales, out.zeros].map((tensor) => typed(tensor)) as [
        Uint8Array,
        Uint16Array,
        Uint16Array,
      ];
      const found = new Float64Array(groups[0] * groups[1]);
      for (let t = 0; t < tokens; t++)
        for (let c = 0; c < width; c++) {
          const group = Math.floor(t / groupTokens) * groups[1] + Math.floor(c / groupDims);
          const code = codes[t * width + c] as number;
          assert.ok(code < 2 ** bits);
          const y = code * decodeF16(scales[group] as number) + decodeF16(zeros[group] as number);
          found[group]! += (y - (x[t * width + c] as number)) ** 2;
        }
      return found;
    };
    const [plain, fitted] = [await errors(false), await errors(true)];
    // The sums are fp64 of the same terms: 2^-52 a number.
    for (const [i, error] of fitted.entries()) assert.ok(error <= (plain[i] as number) * (1 + 2 ** -44), `group ${i}`);
    const total = (of: Float64Array) => of.slice(3).reduce((sum, error) => sum + error, 0);
    assert.ok(total(fitted) <= gain * total(plain), `${bits} bits: ${total(fitted)} of ${total(plain)}`);
  }
});

test('kv_quantize refuses what f16 does not hold', async () => {
  const rt = createRuntime(1);
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, 65520]) {
    const out = { codes: allocate('u8', [1, 4]), scales: allocate('f16', [1, 1]), zeros: allocate('f16', [1, 1]) };
    ops.kvQuantize(rt, fromTyped('f32', [1, 4], Float32Array.of(1, bad, 2, 3)), out, {
      bits: 4,
      groupTokens: 1,
      groupDims: 4,
    });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_NUMERICS' });
  }
});

test('kv_decode: sinks take part in the softmax, queries of bf16 are read as f16', async () => {
  const rt = createRuntime(2);
  const [heads, kvHeads, dims, room] = [6, 2, 64, 9];
  const tails = [9, 0, 4];
  const halves = (count: number, decode: (bits: number) => number, any: () => number) => {
    const bits = Uint16Array.from({ length: count }, any);
    return { bits, values: Array.from(bits, decode) };
  };
  // Numbers between 0.5 and 2 of either sign, in both types.
  const f16 = () => (random.integer(0, 1) << 15) | random.integer(0x3800, 0x3fff);
  const bf16 = () => (random.integer(0, 1) << 15) | random.integer(0x3f00, 0x3fff);
  const [k, v] = [0, 1].map(() => halves(3 * room * kvHeads * dims, decodeF16, f16)) as [
    ReturnType<typeof halves>,
    ReturnType<typeof halves>,
  ];
  const form = { bits: 4, headDim: dims, kvHeads, keyGroup: 128, valueGroup: 64, pageTokens: 128 };
  const pages = [4096, 256, 4096, 512].map((bytes) => allocate('u8', [1, bytes * kvHeads])) as unknown as KvPages;
  const cache = {
    pages,
    table: fromTyped('i32', [3, 1], Int32Array.of(0, 0, 0)),
    lengths: fromTyped('i32', [3], Int32Array.of(0, 0, 0)),
    tails: fromTyped('i32', [3], Int32Array.from(tails)),
    tailKeys: fromTyped('f16', [3, room, kvHeads * dims], k.bits),
    tailValues: fromTyped('f16', [3, room, kvHeads * dims], v.bits),
  };
  const scale = 0.125;
  const logits = Float32Array.from({ length: heads }, (_, h) => h - 3);
  for (const [dtype, queries, sinks] of [
    ['f16', 1, undefined],
    ['f16', 1, logits],
    ['bf16', 1, undefined],
    ['bf16', 3, logits],
  ] as const) {
    const [decode, any] = dtype === 'f16' ? [decodeF16, f16] : [decodeBf16, bf16];
    const shape = [3 * queries, heads * dims];
    const q = halves(3 * queries * heads * dims, decode, any);
    const y = poisoned('f32', shape);
    const given = sinks && fromTyped('f32', [heads], sinks);
    ops.kvDecode(rt, fromTyped(dtype, shape, q.bits), cache, y, { ...form, heads, scale, queries }, given);
    await rt.sync();
    for (const [b, tail] of tails.entries())
      for (let query = 0; query < queries; query++)
        for (let h = 0; h < heads; h++) {
          const seen = Math.max(0, tail - queries + query + 1);
          const kv = Math.floor(h / (heads / kvHeads));
          const row = (t: number) => ((b * room + t) * kvHeads + kv) * dims;
          const own = ((b * queries + query) * heads + h) * dims;
          const weights = Array.from({ length: seen }, (_, t) => {
            let sum = 0;
            for (let d = 0; d < dims; d++) sum += (q.values[own + d] as number) * (k.values[row(t) + d] as number);
            return Math.exp(sum * scale);
          });
          const total = weights.reduce((sum, w) => sum + w, sinks && seen ? Math.exp(sinks[h] as number) : 0);
          for (let d = 0; d < dims; d++) {
            const want = weights.reduce((sum, w, t) => sum + w * (v.values[row(t) + d] as number), 0) / (total || 1);
            // Summed in fp64 in another order, rounded once to f32.
            assert.ok(Math.abs((typed(y)[own + d] as number) - want) <= 2 ** -24 * Math.abs(want) + 1e-12);
          }
        }
  }
});

test('kv_pack and kv_decode refuse heads that no cache has', async () => {
  const rt = createRuntime(1);
  for (const headDim of [32, 100, 520]) {
    const width = 2 * headDim;
    const form = { bits: 4, headDim, kvHeads: 2, keyGroup: 128, valueGroup: 128, pageTokens: 128 };
    const pages = [4096, 256, 4096, 512].map((bytes) => allocate('u8', [1, bytes])) as unknown as KvPages;
    const x = allocate('f16', [128, width]);
    ops.kvPack(rt, x, x, fromTyped('i32', [1], Int32Array.of(0)), pages, form);
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /a multiple of 8 from 64 to 512/ });
  }
});

test("the verifier's decoder refuses pages that are smaller than their form", async () => {
  const rt = createRuntime(1);
  const form = { form: 'bitdecoding', outer: 1, values: 0, channel: 1, heads: 1, headDim: 64, bits: 4, otherBits: 4 };
  // 128 tokens of 64 dims are 4096 bytes of codes, 256 of scales and zeros.
  const decode = (bytes: number, sizes: { group: number; pageTokens: number }) => {
    rt.enqueue(
      'verify_kv_decode',
      [allocate('u8', [1, bytes]), allocate('u8', [1, 256]), fromTyped('i32', [1], Int32Array.of(0))],
      [allocate('u8', [128, 64]), allocate('f16', [1, 64]), allocate('f16', [1, 64])],
      { ...form, run: 128, ...sizes },
    );
    return rt.sync();
  };
  await decode(4096, { group: 128, pageTokens: 128 });
  const refused = { code: 'LPQ_NATIVE_ARGUMENT' };
  await assert.rejects(decode(4095, { group: 128, pageTokens: 128 }), refused);
  await assert.rejects(decode(4096, { group: 128, pageTokens: 0 }), refused);
  await assert.rejects(decode(4096, { group: 0, pageTokens: 128 }), refused);
});
