import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LpqError } from '../../../src/core/error.js';
import type { KvWish } from '../../../src/kv/choose.js';
import { latentPage, latentsOf } from '../../../src/kv/latent.js';
import { bitPositions } from '../../../src/layout/memory.js';

test('a page of latents, byte by byte', () => {
  const page = latentPage({ bits: 4, group: 128, latent: 512, rotary: 64, tokens: 64 });
  assert.equal(page.bytes, 64 * (256 + 16 + 128));
  // Dims 0 2 4 6 from the lowest bit of a word, 1 3 5 7 from its middle.
  const firsts = Array.from({ length: 10 }, (_, d) => bitPositions(page.codes, 1, d)[0]);
  assert.deepEqual(
    firsts,
    [0, 16, 4, 20, 8, 24, 12, 28, 32, 48].map((bit) => 2048 + bit),
  );
  assert.equal(bitPositions(page.scales!, 2, 1)[0], 8 * (64 * 256 + 2 * 16 + 4));
  assert.equal(bitPositions(page.zeros!, 2, 1)[0], 8 * (64 * 256 + 2 * 16 + 6));
  assert.equal(bitPositions(page.rotary, 3, 5)[0], 8 * (64 * 272 + 3 * 128 + 10));
  assert.equal(latentPage({ bits: 16, group: 128, latent: 256, rotary: 32, tokens: 32 }).scales, undefined);
  for (const shape of [
    { bits: 4, group: 128, latent: 448, rotary: 64, tokens: 32 },
    { bits: 2, group: 8, latent: 24, rotary: 16, tokens: 32 },
  ] as const)
    assert.throws(() => latentPage(shape), { code: 'LPQ_LAYOUT' });
});

test('what --kv and the options beside it ask of latents', () => {
  assert.deepEqual(latentsOf({ kv: '4' }, 512), { bits: 4, group: 128 });
  assert.deepEqual(latentsOf({ kv: '2' }, 512), { bits: 2, group: 32 });
  assert.deepEqual(latentsOf({ kv: '8', group: 64, granularity: 'token', residual: 0 }, 256), { bits: 8, group: 64 });
  assert.deepEqual(latentsOf({ kv: '8' }, 24), { bits: 8, group: 32 });
  const refused: [KvWish, number, RegExp][] = [
    [{ kv: 'k8v4' }, 512, /--kv k8v4.*both key and value/],
    [{ kv: '4', granularity: 'channel' }, 512, /--kv-granularity channel/],
    [{ kv: '4', residual: 128 }, 512, /--kv-residual/],
    [{ kv: '4', group: 48 }, 512, /--kv-group/],
    [{ kv: '4', group: 128 }, 448, /--kv-group does not divide.*448/],
  ];
  for (const [wish, dims, names] of refused)
    assert.throws(
      () => latentsOf(wish, dims),
      (error: LpqError) => error.code === 'LPQ_USAGE' && names.test(error.message),
    );
});
