import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { rowOrder } from '../../../formats/gguf/names.js';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { encodeCodes, searchBlocks } from '../../../src/pack/gguf/encode.js';
import { codesForm } from '../../../src/pack/gguf/forms.js';
import { designed, scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';
import { decodeMatrix, half } from './gguf-blocks.js';

const runtime = createRuntime(2);
const uint8 = { kind: 'int', dtype: 'u8' } as const;
const int16 = { kind: 'int', dtype: 'i16' } as const;
const identity = (n: number): Int32Array => Int32Array.from({ length: n }, (_, i) => i);

/** What a module stands for, in doubles, and the zero point of each element. */
function meaning(module: Made): { code: number; zero: number; scale: number }[] {
  const { type, shape, zeros } = module.declaration;
  const bits = Number(type.slice(1));
  const [, k] = shape;
  return module.codes.map((raw, i) => {
    const group = Math.floor(i / k) * module.groups + Math.floor((i % k) / (k / module.groups));
    const code = type.startsWith('i') && raw >= 2 ** (bits - 1) ? raw - 2 ** bits : raw;
    const zero = zeros.kind === 'int' ? module.zeros[group]! : zeros.kind === 'const' ? zeros.value : 0;
    return { code, zero, scale: half(module.scales[group]!) };
  });
}

/** Width and zero point that give each type of block. */
const FORMS = [
  [4, 'middle'],
  [4, 'tensor'],
  [5, 'middle'],
  [5, 'tensor'],
  [8, 'middle'],
] as const;

test('codes of any width, zero point and group become blocks that mean the same', async () => {
  const shapes = fc.record({
    bits: fc.integer({ min: 2, max: 8 }),
    signed: fc.boolean(),
    zero: fc.constantFrom('middle', 'low', 'high', 'tensor'),
    n: fc.integer({ min: 1, max: 5 }),
    blocks: fc.constantFrom(1, 2, 3),
    groups: fc.integer({ min: 1, max: 3 }),
    channel: fc.boolean(),
    seed: fc.integer({ min: 1, max: 999 }),
  });
  type Drawn = typeof shapes extends fc.Arbitrary<infer T> ? T : never;
  const plain = { signed: false, n: 2, blocks: 1, groups: 2, channel: false, seed: 5 } as const;
  const seen = new Set<string>();
  await fc.assert(
    fc.asyncProperty(shapes, async ({ bits, signed, zero, n, blocks, groups, channel, seed }) => {
      const lowest = signed ? -(2 ** (bits - 1)) : 0;
      const value = { middle: lowest + 2 ** (bits - 1), low: lowest, high: lowest + 2 ** bits - 1, tensor: 0 }[zero];
      const module = made({
        type: `${signed ? 'i' : 'u'}${bits}`,
        n,
        k: 32 * blocks * groups,
        ...(channel ? {} : { group: 32 * blocks }),
        zeros: zero === 'tensor' ? (signed ? int16 : uint8) : { kind: 'const', value },
        zeroRange: [lowest, lowest + 2 ** bits - 1],
        seed,
      });
      const facts = zero === 'tensor' ? { zeroRange: [lowest, lowest + 2 ** bits - 1] as const } : {};
      const declared = { ...module.declaration, sha256: {} };
      const form = codesForm(declared, facts);
      if ('reason' in form) {
        // 8 bits away from the middle, or 6 and more with zero points of their own: no grid of GGUF.
        assert.ok(zero === 'tensor' ? bits > 5 : bits === 8 && zero !== 'middle', form.reason);
        return;
      }
      seen.add(form.type);
      const checkpoint = await checkpointOf(scratch(), 'canonical', { m: module });
      const order = rowOrder(n, undefined);
      const tensor = await encodeCodes({ rt: runtime, checkpoint, name: 'm', module: declared }, form, order);
      const values = decodeMatrix(form.type, tensor.bytes(), n, module.declaration.shape[1]);
      for (const [i, { code, zero: z, scale }] of meaning(module).entries()) {
        const exact = (code - z) * scale;
        // Exact but for the minimum's rounding to f16 (half of 2^-10 of its size) and one rounding of the sum to f32.
        const minimum = form.minima ? Math.abs((z - lowest) * scale) * 2 ** -11 : 0;
        assert.ok(Math.abs(values[i]! - exact) <= minimum + Math.abs(exact) * 2 ** -23, `${form.type} ${i}`);
      }
      checkpoint.close();
    }),
    // Every form is tried, whatever is drawn besides.
    {
      numRuns: 60,
      examples: FORMS.map(([bits, zero]) => [{ bits, zero, ...plain }] as [Drawn]),
    },
  );
  assert.deepEqual([...seen].sort(), ['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0']);
});

test('searched blocks mean what the search says, and beat plain rounding to the same grid', async () => {
  let seed = 7;
  const uniform = (): number => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    return (seed + 1) / (2 ** 31 + 1);
  };
  const normal = (): number => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  const [n, k] = [6, 768];
  // Rows of zeros, of one constant, of one sign, of tiny weights and of outliers are the edges of the search.
  const rows = [() => 0, () => -0.25, () => Math.abs(normal()), () => normal() * 1e-6, normal, () => normal() ** 5];
  const weight = Float32Array.from({ length: n * k }, (_, i) => rows[Math.floor(i / k)]!());
  const order = Int32Array.of(3, 1, 0, 5, 4, 2);
  // Relative squared errors that plain rounding of a normal row to the type's uniform grid has, measured in its parts:
  // a bound that a broken search misses by far.
  const bounds = { q2_k: 0.1, q3_k: 0.04, q4_k: 0.01, q5_k: 0.0025, q6_k: 0.0008, q8_0: 0.0001 } as const;
  for (const [type, bound] of Object.entries(bounds)) {
    const tensor = fromTyped('f32', [n, k], weight);
    const { blocks, mean, error, norm } = await searchBlocks(runtime, 'm', tensor, type as 'q2_k', order);
    const values = decodeMatrix(type, blocks.bytes(), n, k);
    const meant = typed<Float32Array>(mean);
    for (let row = 0; row < n; row++)
      assert.deepEqual(
        values.subarray(row * k, row * k + k),
        meant.subarray(order[row]! * k, order[row]! * k + k),
        type,
      );
    const share = (row: number): number => {
      const own = weight.subarray(row * k, row * k + k);
      const squares = own.reduce((sum, w) => sum + w * w, 0);
      return own.reduce((sum, w, i) => sum + (w - meant[row * k + i]!) ** 2, 0) / (squares || 1);
    };
    assert.ok(share(4) < bound, `${type}: ${share(4)}`);
    assert.equal(share(0), 0, type);
    // One constant: scale and minimum meet it to the precision of d and dmin, f16 with 6-bit steps.
    assert.ok(share(1) < 2 ** -18, `${type}: ${share(1)}`);
    assert.ok(error > 0 && error < norm);
  }
});

test('the bytes of a search do not depend on threads', async () => {
  const weight = Float32Array.from({ length: 8 * 256 }, (_, i) => Math.sin(i * 12.9898) * 0.1);
  const make = async (threads: number): Promise<Uint8Array> => {
    const rt = createRuntime(threads);
    const { blocks } = await searchBlocks(rt, 'm', fromTyped('f32', [8, 256], weight), 'q4_k', identity(8));
    return Uint8Array.from(blocks.bytes());
  };
  assert.deepEqual(await make(1), await make(2));
});

test('weights that are no numbers, or too large for f16 scales, are refused by name', async () => {
  const search = (value: number) => {
    const weight = new Float32Array(256).fill(value);
    return searchBlocks(runtime, 'l.0.q', fromTyped('f32', [1, 256], weight), 'q6_k', identity(1));
  };
  await assert.rejects(search(Number.NaN), designed('LPQ_MODULE_NUMERICS', /l\.0\.q holds 256 values/));
  await assert.rejects(search(Number.POSITIVE_INFINITY), designed('LPQ_MODULE_NUMERICS', /l\.0\.q/));
  await assert.rejects(search(3e38), designed('LPQ_SCALE_RANGE', /l\.0\.q/));
});

test('rows of q and k: heads interleaved, others left', () => {
  // Two heads of eight rows: neighbours in the file are i and i + 4 of the checkpoint.
  assert.deepEqual([...rowOrder(16, 2)], [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
  assert.deepEqual([...rowOrder(3, undefined)], [0, 1, 2]);
});
