import assert from 'node:assert/strict';
import { test } from 'node:test';
import { kvKernelForm, kvPageBytes, kvPages } from '../../../formats/kv/kernels.js';
import { createRuntime, fromTyped, readTyped } from '../../../native/binding.js';
import type { KvForm } from '../../../native/kv-ops.js';
import { ops } from '../../../native/ops.js';
import { exactPrompts } from '../../../src/generate/exact-prompts.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { poisoned, Random } from '../../native/support.js';

test('prompts as exact tails are attention of the prompts themselves', async () => {
  const rt = createRuntime(2);
  const random = new Random(31);
  const p = { heads: 6, kvHeads: 2, headDim: 320, scale: 0.05 };
  const counts = [9, 1, 4];
  const tokens = 14;
  // Multiples of 1/64, which f16 holds.
  const made = [p.heads, p.kvHeads, p.kvHeads].map((heads) => {
    const columns = heads * p.headDim;
    const data = random.normals(tokens * columns).map((value) => Math.round(value * 64) / 64);
    const exact = fromTyped('f32', [tokens, columns], data);
    const half = rt.allocate('f16', exact.shape);
    ops.cast(rt, exact, half);
    return { exact, half };
  });
  const [q, k, v] = made as [(typeof made)[0], (typeof made)[0], (typeof made)[0]];
  const sinks = fromTyped('f32', [p.heads], random.normals(p.heads));
  const form = kvKernelForm(kvSchemeOf({ kv: '4' }, p.headDim), { ...p, pageTokens: 128 }) as KvForm;
  const pages = kvPages(kvPageBytes(form).map((bytes) => rt.allocate('u8', [1, bytes])));
  const table = fromTyped('i32', [1], Int32Array.of(0));
  const starts = fromTyped('i32', [4], Int32Array.of(0, 9, 10, 14));
  for (const given of [undefined, sinks]) {
    const [y, want] = [poisoned('f32', q.exact.shape), poisoned('f32', q.exact.shape)];
    exactPrompts(rt, { form, pages, table }, { q: q.half, k: k.half, v: v.half, y }, counts, p, given);
    ops.attention(rt, q.exact, k.exact, v.exact, starts, want, p, given);
    const [got, same] = [await readTyped<Float32Array>(rt, y), await readTyped<Float32Array>(rt, want)];
    // The one sums in f64, the other 320 products of a score in f32: weights err by some 2^-20 of themselves, of values below 8.
    got.forEach((value, i) => {
      assert.ok(Math.abs(value - (same[i] as number)) <= 2 ** -16, `${i}: ${value}, ${same[i]}`);
    });
  }
});
