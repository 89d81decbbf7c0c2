import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { gptqConfig, readGptqConfig } from '../../../formats/gptq/config.js';
import { detectZeroConvention, gptqTensors, symmetricZeroWords, words } from '../../../formats/gptq/layout.js';
import { integers } from '../canonical/fixture.js';
import { designed } from '../scratch.js';
import { hexWords, vectors } from '../vectors.js';
import { decodeGptq } from './decode.js';

const golden = vectors<{
  qweight: { bits: number; codes: number[]; words: string[] }[];
  symmetricZeros: { bits: number; v1: string[]; v2: string[] }[];
}>('gptq.json');

/** Fields as one big integer: the definition of the stream, written the other way round than the decoder. */
function encode(fields: readonly number[], bits: number): Int32Array {
  const big = fields.reduce((sum, field, i) => sum | (BigInt(field) << BigInt(i * bits)), 0n);
  return Int32Array.from({ length: words(fields.length, bits) }, (_, w) =>
    Number(BigInt.asIntN(32, big >> BigInt(32 * w))),
  );
}

test('golden words decode', () => {
  for (const { bits, codes, words: hex } of golden.qweight) {
    const k = codes.length;
    const n = 32;
    const column = hexWords(hex);
    const qweight = Int32Array.from({ length: column.length * n }, (_, i) => column[Math.floor(i / n)] as number);
    const decoded = decodeGptq(
      { qweight, qzeros: new Int32Array(words(n, bits)), scales: new Uint16Array(n), gIdx: new Int32Array(k) },
      { bits, n, k, groups: 1, convention: 'v2' },
    );
    for (let row = 0; row < n; row++) assert.deepEqual([...decoded.codes.subarray(row * k, (row + 1) * k)], codes);
    assert.deepEqual(encode(codes, bits), column);
  }
});

test('golden symmetric zero words: written, recognised, decoded', () => {
  for (const { bits, ...conventions } of golden.symmetricZeros)
    for (const convention of ['v1', 'v2'] as const) {
      const expected = hexWords(conventions[convention]);
      assert.deepEqual(symmetricZeroWords(bits, convention), expected);
      const n = 64;
      const qzeros = Int32Array.from({ length: words(n, bits) }, (_, i) => expected[i % expected.length] as number);
      assert.equal(detectZeroConvention(qzeros, bits), convention);
      const k = 32;
      const decoded = decodeGptq(
        { qweight: new Int32Array(words(k, bits) * n), qzeros, scales: new Uint16Array(n), gIdx: new Int32Array(k) },
        { bits, n, k, groups: 1, convention },
      );
      assert.ok(decoded.zeros.every((zero) => zero === 2 ** (bits - 1)));
    }
  assert.equal(detectZeroConvention(Int32Array.of(0x12345678), 4), undefined);
  assert.equal(detectZeroConvention(new Int32Array(), 4), undefined);
});

test('any codes, zeros and g_idx come back', () => {
  fc.assert(
    fc.property(
      fc.constantFrom(2, 3, 4, 8),
      fc.constantFrom('v1' as const, 'v2' as const),
      fc.nat(),
      fc.integer({ min: 1, max: 3 }),
      (bits, convention, seed, groups) => {
        const [n, k] = [32, 64];
        const codes = integers(n * k, 2 ** bits, seed);
        const zeros = integers(n * groups, 2 ** bits, seed + 1);
        const scales = integers(n * groups, 65536, seed + 2);
        const gIdx = Int32Array.from(integers(k, groups, seed + 3));
        const qweight = new Int32Array(words(k, bits) * n);
        for (let row = 0; row < n; row++)
          encode(codes.slice(row * k, (row + 1) * k), bits).forEach((word, w) => {
            qweight[w * n + row] = word;
          });
        const qzeros = new Int32Array(groups * words(n, bits));
        const fileScales = new Uint16Array(groups * n);
        for (let g = 0; g < groups; g++) {
          // v1 with z = 0 as the tolerant writers store it: -1 cut to its field.
          const stored = Array.from(
            { length: n },
            (_, row) => ((zeros[row * groups + g] as number) - (convention === 'v1' ? 1 : 0)) & (2 ** bits - 1),
          );
          qzeros.set(encode(stored, bits), g * words(n, bits));
          for (let row = 0; row < n; row++) fileScales[g * n + row] = scales[row * groups + g] as number;
        }
        const decoded = decodeGptq({ qweight, qzeros, scales: fileScales, gIdx }, { bits, n, k, groups, convention });
        assert.deepEqual([...decoded.codes], codes);
        assert.deepEqual([...decoded.zeros], zeros);
        assert.deepEqual([...decoded.scales], scales);
      },
    ),
    { numRuns: 60 },
  );
});

test('refused: sizes that do not match, groups that do not exist', () => {
  const good = {
    qweight: new Int32Array(4 * 8),
    qzeros: new Int32Array(1),
    scales: new Uint16Array(8),
    gIdx: new Int32Array(32),
  };
  const p = { bits: 4, n: 8, k: 32, groups: 1, convention: 'v1' } as const;
  decodeGptq(good, p);
  for (const [key, value, message] of [
    ['qweight', new Int32Array(31), /qweight has the wrong size.*got 31 elements \| expected 32/],
    ['qzeros', new Int32Array(2), /qzeros/],
    ['scales', new Uint16Array(7), /scales/],
    ['gIdx', new Int32Array(31), /g_idx has the wrong size/],
    ['gIdx', new Int32Array(32).fill(1), /g_idx names a group that does not exist.*got 1 at \[0\]/],
    ['gIdx', new Int32Array(32).fill(-1), /does not exist/],
  ] as const)
    assert.throws(() => decodeGptq({ ...good, [key]: value }, p), designed('LPQ_PACK', message));
});

test('tensor table', () => {
  assert.deepEqual(gptqTensors('m', { bits: 3, shape: [64, 128], granularity: { kind: 'group', size: 32 } }), [
    { name: 'm.qweight', dtype: 'I32', shape: [12, 64] },
    { name: 'm.qzeros', dtype: 'I32', shape: [4, 6] },
    { name: 'm.scales', dtype: 'F16', shape: [4, 64] },
    { name: 'm.g_idx', dtype: 'I32', shape: [128] },
  ]);
  for (const [module, message] of [
    [{ bits: 5, shape: [32, 32], granularity: { kind: 'channel' } }, /'m' .*2, 3, 4 or 8 bits, not 5/],
    [{ bits: 4, shape: [32, 32], granularity: { kind: 'group', size: 24 } }, /groups do not divide K = 32/],
    [{ bits: 3, shape: [32, 48], granularity: { kind: 'channel' } }, /K = 48 is not a multiple of 32/],
    [{ bits: 3, shape: [40, 32], granularity: { kind: 'channel' } }, /N = 40 is not a multiple of 32/],
    [{ bits: 4, shape: [12, 32], granularity: { kind: 'channel' } }, /N = 12 is not a multiple of 8/],
    [{ bits: 2, shape: [16, 24], granularity: { kind: 'channel' } }, /K = 24 is not a multiple of 16/],
  ] as const)
    assert.throws(() => gptqTensors('m', module), designed('LPQ_PACK', message));
});

test('config: written, read back, refused', () => {
  const base = {
    bits: 4,
    granularity: { kind: 'group', size: 128 },
    descAct: false,
    sym: true,
    convention: 'v1',
    quantizer: 'lpq:0.1.0',
  } as const;
  const written = gptqConfig(base);
  assert.deepEqual(written, {
    quant_method: 'gptq',
    checkpoint_format: 'gptq',
    bits: 4,
    group_size: 128,
    desc_act: false,
    sym: true,
    static_groups: false,
    true_sequential: true,
    lm_head: false,
    damp_percent: 0.01,
    pack_dtype: 'int32',
    meta: { quantizer: ['lpq:0.1.0'] },
  });
  const { quantizer: _, ...facts } = base;
  assert.deepEqual(readGptqConfig('x', written), facts);
  const channel = gptqConfig({
    ...base,
    sym: false,
    convention: 'v2',
    granularity: { kind: 'channel' },
    dynamic: { '-:lm_head': {} },
  });
  assert.deepEqual(
    [channel.group_size, channel.checkpoint_format, channel.dynamic],
    [-1, 'gptq_v2', { '-:lm_head': {} }],
  );
  assert.deepEqual(readGptqConfig('x', channel).granularity, { kind: 'channel' });
  assert.throws(
    () => gptqConfig({ ...base, sym: false }),
    designed('LPQ_PACK', /v1 is unsafe for asymmetric.*gptq_v2/),
  );
  assert.throws(() => gptqConfig({ ...base, bits: 5 }), designed('LPQ_PACK', /no 5-bit codes/));
  for (const [key, value] of [
    ['bits', 5],
    ['bits', '4'],
    ['group_size', 0],
    ['group_size', undefined],
    ['checkpoint_format', 'marlin'],
    ['desc_act', 1],
    ['sym', 'yes'],
    ['quant_method', 'awq'],
  ] as const)
    assert.throws(
      () => readGptqConfig('cfg', { ...written, [key]: value }),
      designed('LPQ_CONFIG', `cfg: ${key} of the GPTQ`),
    );
});
