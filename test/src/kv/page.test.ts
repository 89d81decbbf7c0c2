import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { KvScheme } from '../../../formats/kv/scheme.js';
import { LpqError } from '../../../src/core/error.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { blockTokens, kvPage } from '../../../src/kv/page.js';
import { rowsOf } from '../../../src/kv/part.js';
import { residualBlock, valueTile } from '../../../src/kv/tiles.js';
import { bitPositions, extents } from '../../../src/layout/memory.js';

const scheme = (bits: 2 | 4 | 8, over: Partial<KvScheme['keys']> = {}): KvScheme => ({
  form: 'bitdecoding',
  keys: { bits, granularity: 'channel', group: 64, ...over },
  values: { bits, group: 32 },
  residual: 0,
});

test('the residual block is P_n W_n R of the tile of keys', () => {
  assert.deepEqual([8, 4, 2].map(residualBlock), [64, 128, 256]);
  assert.equal(blockTokens(scheme(8, { group: 128 })), 128);
  assert.equal(blockTokens(scheme(2, { granularity: 'token', group: 32 })), 256);
});

test('keys and values of 4 bits in 128 dims lie where BitDecoding has them', () => {
  // Word (p, c) of a block of keys holds tokens p + 32 j of channel c, word (t, p) of values dims p + 32 j.
  const { keys, values } = kvPage(scheme(4), { heads: 3, headDim: 128, tokens: 256 });
  for (const [token, head, dim] of [
    [0, 0, 0],
    [77, 2, 5],
    [128 + 33, 1, 127],
    [255, 2, 64],
  ] as const) {
    const row = Math.floor(token / 128) * 32 + (token % 32);
    const key = 16 * ((row * 3 + head) * 128 + dim) + 4 * Math.floor((token % 128) / 32);
    assert.equal(bitPositions(keys.codes.layout, token, head * 128 + dim)[0], key);
    const value = 16 * ((token * 3 + head) * 32 + (dim % 32)) + 4 * Math.floor(dim / 32);
    assert.equal(bitPositions(values.codes.layout, token, head * 128 + dim)[0], value);
  }
  // Scales of channels 2i and 2i + 1, then their zeros; of tokens 128 scales, then 128 zeros.
  assert.equal(bitPositions(keys.scales.layout, 1, 128 + 7)[0], 16 * ((1 * 3 + 1) * 256 + 3 * 4 + 1));
  assert.equal(bitPositions(keys.zeros.layout, 1, 128 + 7)[0], 16 * ((1 * 3 + 1) * 256 + 3 * 4 + 3));
  assert.equal(bitPositions(values.scales.layout, 130, 4 + 2)[0], 16 * ((2 * 3 + 1) * 512 + 256 + 2));
  assert.equal(bitPositions(values.zeros.layout, 130, 4 + 2)[0], 16 * ((2 * 3 + 1) * 512 + 256 + 128 + 2));
});

test('every element of every form has bits of its own, and together they fill the page', () => {
  const forms: [string, KvScheme, number, 'inner' | 'outer'][] = [];
  for (const bits of [2, 4, 8] as const)
    for (const [headDim, order, granularity] of [
      [64, 'inner', 'channel'],
      [128, 'outer', 'channel'],
      [64, 'outer', 'token'],
      [256, 'inner', 'token'],
    ] as const)
      forms.push([
        `${bits} ${headDim} ${order} ${granularity}`,
        scheme(bits, { granularity, group: 32 }),
        headDim,
        order,
      ]);
  for (const bits of [4, 8] as const)
    for (const headDim of [64, 128])
      forms.push([
        `turbomind ${bits} ${headDim}`,
        {
          form: 'turbomind',
          keys: { bits, granularity: 'token', group: headDim },
          values: { bits: 4, group: headDim },
          residual: 0,
        },
        headDim,
        'inner',
      ]);
  for (const [name, of, headDim, order] of forms) {
    const page = kvPage(of, { heads: 2, headDim, tokens: of.form === 'turbomind' ? 64 : blockTokens(of), order });
    const taken = page.tensors.map(({ bytes }) => new Uint8Array(bytes * 8));
    for (const side of [page.keys, page.values])
      for (const { tensor, layout } of [side.codes, side.scales, side.zeros]) {
        const [rows, columns] = extents(layout);
        for (let row = 0; row < rows; row++)
          for (let column = 0; column < columns; column++)
            for (const bit of bitPositions(layout, row, column)) (taken[tensor] as Uint8Array)[bit]!++;
      }
    assert.ok(
      taken.every((bits) => bits.every((times) => times === 1)),
      name,
    );
  }
});

test('part of a layout is the layout of those rows', () => {
  const { keys, values } = kvPage(scheme(4), { heads: 2, headDim: 64, tokens: 512 });
  for (const [layout, first, count] of [
    [keys.codes.layout, 256, 128],
    [keys.scales.layout, 4, 2],
    [values.codes.layout, 3, 1],
    [values.scales.layout, 128, 128],
  ] as const) {
    const part = rowsOf(layout, first, count);
    assert.equal(extents(part)[0], count);
    for (const [row, column] of [
      [0, 0],
      [count - 1, 1],
    ] as const)
      assert.deepEqual(bitPositions(part, row, column), bitPositions(layout, first + row, column));
  }
  for (const [first, count] of [
    [3, 2],
    [0, 96],
    [512, 128],
    [0, 0],
  ] as const)
    assert.throws(() => rowsOf(keys.codes.layout, first, count), LpqError);
});

test('what has no page is refused', () => {
  const refused = (of: KvScheme, shape: { headDim: number; tokens: number }, names: RegExp): void =>
    assert.throws(
      () => kvPage(of, { heads: 1, ...shape }),
      (error: LpqError) => error.code === 'LPQ_LAYOUT' && names.test(error.message),
    );
  refused(scheme(4), { headDim: 128, tokens: 100 }, /100 tokens/);
  refused(scheme(2), { headDim: 32, tokens: 256 }, /32 dims/);
  refused(scheme(4), { headDim: 48, tokens: 128 }, /32 dims do not divide heads of 48/);
  refused({ ...scheme(4), form: 'turbomind' }, { headDim: 128, tokens: 64 }, /one scale for each token/);
  assert.throws(() => valueTile(2, 32), LpqError);
});

test('an option means a scheme', () => {
  assert.deepEqual(kvSchemeOf({ kv: '4' }, 128), {
    form: 'bitdecoding',
    keys: { bits: 4, granularity: 'channel', group: 128 },
    values: { bits: 4, group: 128 },
    residual: 128,
  });
  assert.deepEqual(kvSchemeOf({ kv: 'k8v4', granularity: 'token' }, 64), {
    form: 'turbomind',
    keys: { bits: 8, granularity: 'token', group: 64 },
    values: { bits: 4, group: 64 },
    residual: 0,
  });
  assert.equal(kvSchemeOf({ kv: '4', fit: true }, 64).fit, true);
  assert.equal('fit' in kvSchemeOf({ kv: '4', fit: false }, 64), false);
  assert.equal(kvSchemeOf({ kv: '2' }, 64).residual, 256);
  assert.equal(kvSchemeOf({ kv: '2', granularity: 'token' }, 64).form, 'bitdecoding');
  assert.equal(kvSchemeOf({ kv: '4', residual: 512 }, 64).residual, 512);
  for (const [wish, names] of [
    [{ kv: '4', residual: 100 }, /100/],
    [{ kv: '4', residual: -128 }, /-128/],
    [{ kv: '4', group: 48 }, /48/],
    [{ kv: '8', granularity: 'token', residual: 128 }, /--kv-residual/],
  ] as const)
    assert.throws(
      () => kvSchemeOf(wish, 64),
      (error: LpqError) => error.code === 'LPQ_USAGE' && names.test(error.message),
    );
  assert.throws(() => kvSchemeOf({ kv: '4' }, 576), LpqError);
  assert.equal(kvSchemeOf({ kv: '4', granularity: 'token' }, 320).keys.group, 512);
  assert.equal(kvSchemeOf({ kv: '4' }, 96).values.group, 128);
  assert.equal(kvSchemeOf({ kv: '8', granularity: 'token' }, 192).keys.group, 256);
});
