import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { makeBatch } from '../../../src/model/batch.js';
import { cachedAttention } from '../../../src/model/cached-attention.js';
import { decodedAttention, decodingObstacle } from '../../../src/model/decoded-attention.js';
import { poisoned, Random } from '../../native/support.js';

const rt = createRuntime(2);
const [heads, kvHeads, headDim] = [4, 2, 64];
const p = { heads, kvHeads, headDim, scale: 0.125 };

test('decoding through pages gives what the simulation gives, for sequences around whole blocks', async () => {
  const random = new Random(31);
  for (const [wish, lengths, headDim = 64, sunk = false] of [
    [{ kv: '8' }, [70, 0, 1, 64, 65]],
    [{ kv: '2' }, [257], 96],
    [{ kv: '4', group: 32 }, [130], 64, true],
    [{ kv: '4', group: 32, fit: true }, [130]],
    [{ kv: 'k8v4', granularity: 'token', group: 64 }, [131], 192],
    [{ kv: '4', granularity: 'token' }, [1, 70], 80, true],
  ] as const) {
    const p = { heads, kvHeads, headDim, scale: 0.125 };
    const sinks = sunk ? fromTyped('f32', [heads], Float32Array.from([-1, 0, 1, 2])) : undefined;
    const scheme = kvSchemeOf(wish, headDim);
    const total = lengths.reduce<number>((sum, each) => sum + each, 0);
    const batch = makeBatch(
      rt,
      lengths.map((length) => new Int32Array(length)),
    );
    // Numbers that f16 holds: a decoder's queries are f16, the simulation's are not.
    const rows = (width: number): Tensor =>
      fromTyped(
        'f32',
        [total, width],
        Float32Array.from(random.normals(total * width), (x) => Math.round(x * 256) / 256),
      );
    const [q, k, v] = [rows(heads * headDim), rows(kvHeads * headDim), rows(kvHeads * headDim)];
    const [keys, values] = [k, v].map((x) => fromTyped('f32', x.shape, typed(x).slice())) as [Tensor, Tensor];
    const [simulated, decoded] = [poisoned('f32', q.shape), poisoned('f32', q.shape)];
    decodedAttention(rt, scheme, { q, k, v, y: decoded }, batch, p, sinks);
    cachedAttention(rt, scheme, { q, k: keys, v: values, y: simulated }, batch, p, sinks);
    await rt.sync();
    const [want, got] = [typed<Float32Array>(simulated), typed<Float32Array>(decoded)];
    // The simulation sums up to 260 products of magnitude 5 in fp32: 260 * 2^-23 * 5, of numerator and denominator.
    want.forEach((value, i) => {
      assert.ok(
        Math.abs(value - (got[i] as number)) < 4e-4,
        `${JSON.stringify(wish)}, output ${i}: ${value}, ${got[i]}`,
      );
    });
  }
});

test('what kernels cannot read is refused with the reason', () => {
  const four = kvSchemeOf({ kv: '4' }, 64);
  for (const [scheme, params, why] of [
    [{ ...four, values: { bits: 2, group: 64 } }, p, /4 bits beside values of 2/],
    [{ ...four, values: { bits: 4, group: 32 } }, p, /groups of 128 beside values in groups of 32/],
    [kvSchemeOf({ kv: '4', residual: 0 }, 64), p, /only be simulated/],
    [kvSchemeOf({ kv: '4' }, 60), { ...p, headDim: 60 }, /heads of 60 dims, only of multiples of 8/],
    [four, { ...p, window: 100 }, /window/],
    [four, { ...p, softCap: 30 }, /caps scores/],
  ] as const)
    assert.match(decodingObstacle(scheme, params) ?? '', why);
  assert.equal(decodingObstacle(four, p), undefined);
  const x = rt.allocate('f32', [1, 256]);
  assert.throws(
    () =>
      decodedAttention(rt, four, { q: x, k: x, v: x, y: x }, makeBatch(rt, [new Int32Array(1)]), { ...p, softCap: 30 }),
    (error: unknown) => error instanceof LpqError && error.code === 'LPQ_DEVICE' && /caps/.test(error.message),
  );
});
