import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LpqError } from '../../../src/core/error.js';
import { decodeCode, QUANT_TYPES, quantType, typeParams, valueRange } from '../../../src/core/quant-type.js';
import { values } from '../quantize/reference.js';

const INTEGERS = 'u1 u2 u3 u4 u5 u6 u7 u8 i2 i3 i4 i5 i6 i7 i8'.split(' ');
const FLOATS =
  'f3e1m1 f4e2m1 f4e1m2 f5e3m1 f5e2m2 f5e1m3 f6e4m1 f6e3m2 f6e2m3 f6e1m4 f7e5m1 f7e4m2 f7e3m3 f7e2m4 f7e1m5 f8e6m1 f8e5m2 f8e4m3 f8e3m4 f8e2m5 f8e1m6'.split(
    ' ',
  );

test('there are 36 types, each under its name', () => {
  assert.deepEqual(
    QUANT_TYPES.map((type) => type.name),
    [...INTEGERS, ...FLOATS],
  );
  for (const type of QUANT_TYPES) assert.equal(quantType(type.name), type);
});

test('fp6_e3m2 and capitals are other spellings', () => {
  assert.equal(quantType('fp6_e3m2').name, 'f6e3m2');
  assert.equal(quantType('FP4_E2M1').name, 'f4e2m1');
  assert.equal(quantType('U4').name, 'u4');
});

test('every code decodes as the walk through the binades says', () => {
  for (const type of QUANT_TYPES) {
    const expected = values(type.name);
    assert.equal(expected.length, 2 ** type.bits);
    for (let code = 0; code < expected.length; code++)
      assert.equal(decodeCode(type, code), expected[code], `${type.name} ${code}`);
  }
});

test('published tables: e2m1, e4m3, e5m2, e3m2, e2m3', () => {
  const positive = (name: string) => Array.from({ length: 8 }, (_, code) => decodeCode(quantType(name), code));
  assert.deepEqual(positive('f4e2m1'), [0, 0.5, 1, 1.5, 2, 3, 4, 6]);
  // OCP 8-bit floats 1.0 and OCP MX 1.0: largest, least normal, least subnormal.
  const facts: [string, number, number, number][] = [
    ['f8e4m3', 448, 2 ** -6, 2 ** -9],
    ['f8e5m2', 57344, 2 ** -14, 2 ** -16],
    ['f6e3m2', 28, 0.25, 0.0625],
    ['f6e2m3', 7.5, 1, 0.125],
  ];
  for (const [name, largest, normal, least] of facts) {
    const type = quantType(name);
    assert.equal(valueRange(type).max, largest);
    assert.equal(valueRange(type).min, -largest);
    assert.equal(decodeCode(type, 1), least);
    assert.equal(type.kind === 'float' && decodeCode(type, 2 ** type.mantissa), normal);
  }
  assert.equal(valueRange(quantType('f7e5m1')).max, 98304);
});

test('ranges are the least and greatest decoded numbers', () => {
  for (const type of QUANT_TYPES) {
    const finite = values(type.name).filter((x) => !Number.isNaN(x));
    assert.deepEqual(valueRange(type), { min: Math.min(...finite), max: Math.max(...finite) }, type.name);
  }
});

test('typeParams is flat and complete', () => {
  assert.deepEqual(typeParams(quantType('i4')), {
    kind: 'int',
    bits: 4,
    signed: 1,
    exponent: 0,
    mantissa: 0,
    bias: 0,
    special: 'none',
  });
  assert.deepEqual(typeParams(quantType('f8e4m3')), {
    kind: 'float',
    bits: 8,
    signed: 1,
    exponent: 4,
    mantissa: 3,
    bias: 7,
    special: 'fn',
  });
});

test('other names are refused with LPQ_TYPE', () => {
  for (const name of ['i1', 'u9', 'f4e3m0', 'f2e1m0', 'f9e4m4', 'int4', '', 'f6e2m2'])
    assert.throws(
      () => quantType(name),
      (error: unknown) =>
        error instanceof LpqError && error.code === 'LPQ_TYPE' && error.got === name && error.exitCode === 2,
    );
});
