import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  packedWords,
  packingsOf,
  packQuantizedTensors,
  type WordPacking,
} from '../../../formats/compressed-tensors/layout.js';
import { readWeightSchemes } from '../../../formats/compressed-tensors/read-schemes.js';
import { quantizationConfig } from '../../../formats/compressed-tensors/schemes.js';
import { integers } from '../canonical/fixture.js';
import { designed } from '../scratch.js';
import { hexWords, vectors } from '../vectors.js';
import { decodePackQuantized } from './decode.js';

const golden = vectors<{ rows: { bits: number; packing: WordPacking; codes: number[]; words: string[] }[] }>(
  'compressed-tensors.json',
);

/** By definition: a big integer cut into words, or whole codes a word. */
function encode(codes: readonly number[], bits: number, packing: WordPacking): number[] {
  const cut = (list: readonly number[], count: number) => {
    const big = list.reduce((sum, code, i) => sum | (BigInt(code) << BigInt(i * bits)), 0n);
    return Array.from({ length: count }, (_, w) => Number(BigInt.asIntN(32, big >> BigInt(32 * w))));
  };
  if (packing === 'dense') return cut(codes, Math.ceil((codes.length * bits) / 32));
  const per = Math.floor(32 / bits);
  const out: number[] = [];
  for (let i = 0; i < codes.length; i += per) out.push(...cut(codes.slice(i, i + per), 1));
  return out;
}

test('golden rows decode, and their packing is recognised', () => {
  for (const { bits, packing, codes, words } of golden.rows) {
    const decoded = decodePackQuantized({ weightPacked: hexWords(words) }, { bits, n: 1, k: codes.length, groups: 1 });
    assert.deepEqual([...decoded.codes], codes);
    assert.equal(decoded.packing, packing);
    assert.deepEqual([...decoded.zeros], [2 ** (bits - 1)]);
  }
});

test('any codes and zeros of 1 to 8 bits come back, in both packings', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 8 }),
      fc.constantFrom<WordPacking>('dense', 'whole'),
      fc.integer({ min: 1, max: 3 }),
      fc.integer({ min: 1, max: 3 }),
      fc.nat(),
      (bits, packing, rows, groups, seed) => {
        const [n, k] = [rows * 32, 64];
        const codes = integers(n * k, 2 ** bits, seed);
        const zeros = integers(n * groups, 2 ** bits, seed + 1);
        const packed = Array.from({ length: n }, (_, row) =>
          encode(codes.slice(row * k, (row + 1) * k), bits, packing),
        );
        const columns = Array.from({ length: groups }, (_, g) =>
          encode(
            Array.from({ length: n }, (_, row) => zeros[row * groups + g] as number),
            bits,
            packing,
          ),
        );
        const zeroWords = columns[0]?.length as number;
        const weightZeroPoint = Int32Array.from(
          { length: zeroWords * groups },
          (_, i) => columns[i % groups]?.[Math.floor(i / groups)] as number,
        );
        const decoded = decodePackQuantized(
          { weightPacked: Int32Array.from(packed.flat()), weightZeroPoint },
          { bits, n, k, groups },
        );
        assert.deepEqual([...decoded.codes], codes);
        assert.deepEqual([...decoded.zeros], zeros);
      },
    ),
    { numRuns: 80 },
  );
});

test('the packings never look alike where they differ, for K in multiples of 32', () => {
  for (let bits = 1; bits <= 8; bits++)
    for (let k = 32; k <= 4096; k += 32) {
      const same = 32 % bits === 0;
      assert.equal(packedWords(k, bits, 'dense') === packedWords(k, bits, 'whole'), same, `${bits} bits, K ${k}`);
    }
  assert.equal(packingsOf(32, 3, 5)[0], undefined);
});

test('refused: word counts of neither packing', () => {
  const p = { bits: 3, n: 2, k: 32, groups: 1 };
  assert.throws(
    () => decodePackQuantized({ weightPacked: new Int32Array(10) }, p),
    designed('LPQ_PACK', /weight_packed.*got 10 words/),
  );
  assert.throws(
    () => decodePackQuantized({ weightPacked: new Int32Array(7) }, p),
    designed('LPQ_PACK', /weight_packed/),
  );
  const bad = { weightPacked: new Int32Array(6), weightZeroPoint: new Int32Array(2) };
  assert.throws(() => decodePackQuantized(bad, p), designed('LPQ_PACK', /weight_zero_point.*got 2 words/));
});

test('tensor table', () => {
  const module = {
    bits: 3,
    shape: [64, 128],
    granularity: { kind: 'group', size: 32 },
    symmetric: false,
    scaleDtype: 'BF16',
  } as const;
  assert.deepEqual(packQuantizedTensors('m', { ...module, groupIndex: true }), [
    { name: 'm.weight_packed', dtype: 'I32', shape: [64, 12] },
    { name: 'm.weight_scale', dtype: 'BF16', shape: [64, 4] },
    { name: 'm.weight_shape', dtype: 'I64', shape: [2] },
    { name: 'm.weight_zero_point', dtype: 'I32', shape: [6, 4] },
    { name: 'm.weight_g_idx', dtype: 'I32', shape: [128] },
  ]);
  const channel = packQuantizedTensors('m', { ...module, granularity: { kind: 'channel' }, symmetric: true });
  assert.deepEqual(
    channel.map(({ shape }) => shape),
    [[64, 12], [64, 1], [2]],
  );
  assert.throws(
    () => packQuantizedTensors('m', { ...module, bits: 9 }),
    designed('LPQ_PACK', /'m'.*1 to 8 bits, not 9/),
  );
  assert.throws(
    () => packQuantizedTensors('m', { ...module, granularity: { kind: 'group', size: 48 } }),
    designed('LPQ_PACK', /groups do not divide K = 128/),
  );
});

test('config: exactly the keys that its readers allow, read back, refused', () => {
  const [format, type, strategy] = ['pack-quantized', 'int', 'group'] as const;
  const group = { targets: ['Linear'], format, bits: 4, type, symmetric: true, strategy, groupSize: 128 };
  const written = quantizationConfig({ groups: [group], ignore: ['lm_head'] });
  assert.deepEqual(written, {
    quant_method: 'compressed-tensors',
    format: 'pack-quantized',
    quantization_status: 'compressed',
    global_compression_ratio: null,
    ignore: ['lm_head'],
    kv_cache_scheme: null,
    config_groups: {
      group_0: {
        targets: ['Linear'],
        weights: {
          num_bits: 4,
          type: 'int',
          symmetric: true,
          strategy: 'group',
          group_size: 128,
          block_structure: null,
          dynamic: false,
          actorder: null,
          observer: 'minmax',
          observer_kwargs: {},
        },
        input_activations: null,
        output_activations: null,
        format: 'pack-quantized',
      },
    },
  });
  const read = { ...group, group: 'group_0', block: undefined, actorder: null };
  assert.deepEqual(readWeightSchemes('x', written), { schemes: [read], ignore: ['lm_head'] });
  const channel = { ...group, ...({ strategy: 'channel', groupSize: null, actorder: 'group' } as const) };
  assert.deepEqual(readWeightSchemes('x', quantizationConfig({ groups: [channel], ignore: [] })).schemes[0], {
    ...read,
    ...{ strategy: 'channel', groupSize: undefined, actorder: 'group' },
  });
  assert.throws(
    () => quantizationConfig({ groups: [{ ...group, bits: 0 }], ignore: [] }),
    designed('LPQ_PACK', /1 to 8 bits, not 0/),
  );
  const edit = (key: string, value: unknown) => {
    const copy = structuredClone(written) as { config_groups: { group_0: { weights: Record<string, unknown> } } };
    copy.config_groups.group_0.weights[key] = value;
    return copy as unknown as Record<string, unknown>;
  };
  for (const [config, message] of [
    [{ ...written, config_groups: null }, /config_groups/],
    [{ ...written, ignore: [1] }, /ignore/],
    [edit('num_bits', 9), /num_bits/],
    [edit('type', 'code'), /weights\.type/],
    [edit('symmetric', 1), /symmetric/],
    [edit('strategy', 'x'), /strategy/],
    [edit('group_size', null), /group_size/],
    [edit('actorder', 'x'), /actorder/],
  ] as const)
    assert.throws(() => readWeightSchemes('cfg', config), designed('LPQ_CONFIG', message));
});
