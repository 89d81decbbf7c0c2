import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LpqError } from '../../../src/core/error.js';
import {
  checkGroupSize,
  PRESETS,
  printScheme,
  type SchemeOptions,
  schemeFromOptions,
} from '../../../src/quantize/scheme.js';

const print = (options: SchemeOptions) => printScheme(schemeFromOptions(options));

function fails(code: string, act: () => unknown): LpqError {
  let caught: unknown;
  assert.throws(act, (error: unknown) => {
    caught = error;
    return error instanceof LpqError && error.code === code && error.hint !== undefined;
  });
  return caught as LpqError;
}

test('options to schemes', () => {
  assert.deepEqual(schemeFromOptions({ bits: 4 }), {
    type: schemeFromOptions({ dtype: 'i4' }).type,
    granularity: { kind: 'group', size: 128 },
    symmetric: true,
    scaleDtype: 'f16',
    globalScale: false,
  });
  assert.equal(print({ bits: 4, sym: true }), 'i4 g128');
  assert.equal(print({ bits: '4', asym: true }), 'u4 asym g128');
  assert.equal(print({ bits: 1 }), 'u1 g128');
  assert.equal(print({ bits: 1, asym: true }), 'u1 asym g128');
  assert.equal(print({ bits: 3, groupSize: 'channel', scaleDtype: 'bf16' }), 'i3 channel bf16');
  assert.equal(print({ dtype: 'f6e3m2', groupSize: '32' }), 'f6e3m2 g32');
  assert.equal(print({ dtype: 'i4', asym: true }), 'i4 asym g128');
  assert.equal(print({ dtype: 'u4' }), 'u4 g128');
  assert.equal(print({ dtype: 'f8e4m3' }), 'f8e4m3 channel');
  assert.equal(print({ dtype: 'f8e4m3', groupSize: 64 }), 'f8e4m3 g64');
  assert.equal(print({ dtype: 'f8e5m2' }), 'f8e5m2 g128');
});

test('what other tools call types', () => {
  assert.equal(print({ dtype: 'int4' }), 'i4 g128');
  assert.equal(print({ dtype: 'w4a16' }), 'i4 g128');
  assert.equal(print({ dtype: 'w4a16', asym: true }), 'u4 asym g128');
  assert.equal(print({ dtype: 'W8A8' }), 'i8 channel');
  assert.equal(print({ dtype: 'INT4', asym: true }), 'u4 asym g128');
  assert.equal(print({ dtype: 'uint3' }), 'u3 g128');
  assert.equal(print({ dtype: 'int1' }), 'u1 g128');
  assert.equal(print({ dtype: 'fp8' }), 'f8e4m3 channel');
  assert.equal(print({ dtype: 'float8_e5m2' }), 'f8e5m2 g128');
  assert.match(fails('LPQ_TYPE', () => print({ dtype: 'int9' })).message, /'int9'/);
});

test('presets', () => {
  assert.equal(print({ dtype: 'mxfp4' }), 'f4e2m1 g32 f8_e8m0');
  assert.equal(print({ dtype: 'MXFP8' }), 'f8e4m3 g32 f8_e8m0');
  assert.equal(print({ dtype: 'mxfp6-e3m2' }), 'f6e3m2 g32 f8_e8m0');
  assert.equal(print({ dtype: 'nvfp4' }), 'f4e2m1 g16 f8_e4m3');
  assert.equal(schemeFromOptions({ dtype: 'nvfp4' }).globalScale, true);
  assert.equal(schemeFromOptions({ dtype: 'f4e2m1', scaleDtype: 'e4m3', groupSize: 32 }).globalScale, true);
  for (const [name, preset] of Object.entries(PRESETS))
    assert.doesNotThrow(() =>
      schemeFromOptions({ dtype: name, groupSize: preset.group, scaleDtype: preset.scaleDtype }),
    );
});

test('contradictions and nonsense are LPQ_USAGE', () => {
  const wrong: SchemeOptions[] = [
    {},
    { bits: 4, dtype: 'i4' },
    { bits: 4, sym: true, asym: true },
    { bits: 0 },
    { bits: 9 },
    { bits: 3.5 },
    { bits: 'four' },
    { bits: ' ' },
    { dtype: 'f4e2m1', asym: true },
    { dtype: 'nvfp4', asym: true },
    { dtype: 'nvfp4', groupSize: 32 },
    { dtype: 'mxfp4', scaleDtype: 'f16' },
    { dtype: 'mxfp4', groupSize: 'channel' },
    { bits: 4, groupSize: 0 },
    { bits: 4, groupSize: -1 },
    { bits: 4, groupSize: 'row' },
    { bits: 4, scaleDtype: 'f64' },
  ];
  for (const options of wrong) fails('LPQ_USAGE', () => schemeFromOptions(options));
  fails('LPQ_TYPE', () => schemeFromOptions({ dtype: 'q4_k' }));
  for (const inherited of ['constructor', '__proto__', 'toString']) {
    fails('LPQ_TYPE', () => schemeFromOptions({ dtype: inherited }));
    fails('LPQ_USAGE', () => schemeFromOptions({ bits: 4, scaleDtype: inherited }));
  }
});

test('a group size that does not divide K names the module and the sizes that do', () => {
  const scheme = schemeFromOptions({ bits: 4 });
  checkGroupSize(scheme, 'm', 256);
  checkGroupSize(schemeFromOptions({ bits: 4, groupSize: 'channel' }), 'm', 7);
  const error = fails('LPQ_GROUP_SIZE', () => checkGroupSize(scheme, 'model.layers.3.mlp.down_proj', 160));
  assert.match(error.message, /groups of 128 do not divide the 160 input features of model\.layers\.3\.mlp\.down_proj/);
  assert.equal(error.expected, '32 or channel');
  assert.match(error.hint!, /--group-size 32,/);
  const prime = fails('LPQ_GROUP_SIZE', () => checkGroupSize(scheme, 'm', 13));
  assert.equal(prime.expected, 'channel');
  assert.match(prime.hint!, /--group-size channel/);
});
