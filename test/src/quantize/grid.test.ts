import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bitsPerWeight, constantZero, streamBytes, zerosOf } from '../../../src/quantize/grid.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';

test('zeros by scheme', () => {
  assert.deepEqual(zerosOf(schemeFromOptions({ bits: 4 })), { kind: 'none' });
  assert.deepEqual(zerosOf(schemeFromOptions({ dtype: 'f6e3m2' })), { kind: 'none' });
  assert.deepEqual(zerosOf(schemeFromOptions({ dtype: 'u4' })), { kind: 'const', value: 8 });
  assert.deepEqual(zerosOf(schemeFromOptions({ bits: 1 })), { kind: 'const', value: 0.5 });
  assert.deepEqual(zerosOf(schemeFromOptions({ bits: 4, asym: true })), { kind: 'int', dtype: 'u8' });
  assert.deepEqual(zerosOf(schemeFromOptions({ dtype: 'i4', asym: true })), { kind: 'int', dtype: 'i16' });
  assert.equal(constantZero(schemeFromOptions({ dtype: 'u8' })), 128);
  assert.equal(constantZero(schemeFromOptions({ dtype: 'u8', asym: true })), 0);
});

test('bits per weight count codes, scales, zeros and the second level', () => {
  assert.equal(bitsPerWeight(schemeFromOptions({ bits: 4 }), 64, 256), 4 + 16 / 128);
  assert.equal(bitsPerWeight(schemeFromOptions({ bits: 3, asym: true, groupSize: 32 }), 64, 256), 3 + 19 / 32);
  assert.equal(bitsPerWeight(schemeFromOptions({ bits: 8, groupSize: 'channel', scaleDtype: 'f32' }), 64, 256), 8.125);
  assert.equal(bitsPerWeight(schemeFromOptions({ dtype: 'mxfp4' }), 64, 256), 4.25);
  assert.equal(bitsPerWeight(schemeFromOptions({ dtype: 'nvfp4' }), 64, 256), 4.5 + 32 / (64 * 256));
});

test('a row of codes is whole bytes', () => {
  assert.deepEqual([streamBytes(3, 8), streamBytes(3, 9), streamBytes(1, 1), streamBytes(8, 5)], [3, 4, 1, 5]);
});
