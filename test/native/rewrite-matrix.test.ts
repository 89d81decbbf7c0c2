import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addon, allocate, type Tensor } from '../../native/binding.js';

/** Matrices in another order and times powers of two, against one element at a time. */
const ELEMENTS = {
  u8: Uint8Array,
  bf16: Uint16Array,
  f16: Uint16Array,
  f32: Uint32Array,
  f64: BigUint64Array,
} as const;
type Bits = InstanceType<(typeof ELEMENTS)[keyof typeof ELEMENTS]>;

let seed = 7;
const random = () => {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return seed / 2 ** 32;
};

function shuffled(count: number): Int32Array {
  const order = Int32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j] as number, order[i] as number];
  }
  return order;
}

function bitsOf(tensor: Tensor): Bits {
  const bytes = tensor.bytes().slice();
  return new ELEMENTS[tensor.dtype as keyof typeof ELEMENTS](bytes.buffer) as Bits;
}

function noise(dtype: keyof typeof ELEMENTS, shape: readonly number[]): Tensor {
  const tensor = allocate(dtype, shape);
  const bytes = tensor.bytes();
  for (let i = 0; i < bytes.length; i++) bytes[i] = Math.floor(random() * 256);
  return tensor;
}

for (const dtype of Object.keys(ELEMENTS) as (keyof typeof ELEMENTS)[])
  test(`rows and columns of ${dtype} in another order`, () => {
    for (const shape of [[1, 1], [37, 65], [64, 3], [19]] as const) {
      const [rows, columns = 1] = shape as readonly [number, number?];
      const from = noise(dtype, shape);
      const bits = bitsOf(from);
      for (const [r, c] of [
        [shuffled(rows), shuffled(columns)],
        [shuffled(rows), undefined],
        [undefined, shuffled(columns)],
        [undefined, undefined],
      ])
        for (const threads of [1, 3]) {
          const to = noise(dtype, shape);
          addon().permuteMatrix(from, to, r, c, threads);
          const want = bits.slice();
          for (let i = 0; i < rows; i++)
            for (let j = 0; j < columns; j++)
              want[i * columns + j] = bits[(r ? (r[i] as number) : i) * columns + (c ? (c[j] as number) : j)] as never;
          assert.deepEqual(bitsOf(to), want);
        }
    }
  });

const VALUE = {
  f32: (bits: number) => new Float32Array(Uint32Array.of(bits).buffer)[0] as number,
  bf16: (bits: number) => new Float32Array(Uint32Array.of(bits << 16).buffer)[0] as number,
  f16(bits: number) {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size =
      exponent === 31
        ? fraction
          ? Number.NaN
          : Infinity
        : 2 ** (Math.max(exponent, 1) - 25) * ((exponent ? 1024 : 0) + fraction);
    return bits & 0x8000 ? -size : size;
  },
} as const;

/** A tensor of patterns of its elements. */
function patterns(dtype: 'f32' | 'bf16' | 'f16', shape: readonly number[], values: readonly number[]): Tensor {
  const tensor = allocate(dtype, shape);
  const words = dtype === 'f32' ? Uint32Array.from(values) : Uint16Array.from(values);
  tensor.bytes().set(new Uint8Array(words.buffer));
  return tensor;
}

/** Numbers that the tests reach, with what is special about each type. */
const SOME = {
  f32: [0, 0x80000000, 0x3f800000, 0xc0490fdb, 0x7f800000, 0x3f000001, 0x41200000],
  bf16: [0, 0x8000, 0x3f80, 0xc049, 0x7f80, 0xff80, 0x3e01, 0x4120],
  f16: [0, 0x8000, 0x3c00, 0xc049, 0x7c00, 0x0400, 0x0401, 0x8001, 0x03ff, 0x2555],
} as const;

for (const dtype of ['f32', 'bf16', 'f16'] as const)
  test(`channels of ${dtype} times powers of two`, () => {
    const list = SOME[dtype];
    const [rows, columns] = [list.length, 9];
    const cells = Array.from({ length: rows * columns }, (_, i) => list[Math.floor(i / columns)] as number);
    const from = patterns(dtype, [rows, columns], cells);
    const [r, c] = [
      Int32Array.from({ length: rows }, (_, i) => (i % 3) - 1),
      Int32Array.from({ length: columns }, (_, i) => i - 6),
    ];
    for (const threads of [1, 4]) {
      const to = noise(dtype, [rows, columns]);
      assert.equal(addon().raiseMatrix(from, to, r, c, threads), -1);
      const [before, after] = [from, to].map((each) => Array.from(bitsOf(each) as Uint32Array)) as [number[], number[]];
      for (let i = 0; i < rows * columns; i++) {
        const exact =
          VALUE[dtype](before[i] as number) *
          2 ** ((r[Math.floor(i / columns)] as number) + (c[i % columns] as number));
        const got = VALUE[dtype](after[i] as number);
        // f16 rounds to multiples of 2^-24 below 2^-14, ties to even.
        const units = Math.abs(exact) * 2 ** 24;
        const even = Math.abs(units % 1) === 0.5 ? 2 * Math.round(units / 2) : Math.round(units);
        const want = dtype === 'f16' && Math.abs(exact) < 2 ** -14 ? Math.sign(exact) * even * 2 ** -24 : exact;
        assert.equal(got + 0, want + 0, `${i}: ${before[i]}`);
      }
    }
  });

test('the first element that leaves its range is told, whatever the number of threads', () => {
  for (const [dtype, large] of [
    ['f32', 0x7f000000],
    ['bf16', 0x7f00],
    ['f16', 0x7800],
  ] as const) {
    const one = { f32: 0x3f800000, bf16: 0x3f80, f16: 0x3c00 }[dtype];
    const from = patterns(
      dtype,
      [6, 10],
      Array.from({ length: 60 }, (_, i) => (i === 23 || i === 47 ? large : one)),
    );
    for (const threads of [1, 2, 6]) {
      const to = allocate(dtype, [6, 10]);
      assert.equal(addon().raiseMatrix(from, to, new Int32Array(6).fill(1), new Int32Array(10).fill(1), threads), 23);
    }
  }
});

test('lists that do not fit a matrix are refused', () => {
  const [from, to] = [allocate('f32', [2, 3]), allocate('f32', [2, 3])];
  const refused = (run: () => unknown, says: RegExp) => assert.throws(run, says);
  refused(() => addon().permuteMatrix(from, to, Int32Array.of(0), undefined, 1), /rows has 1 entries, not 2/);
  refused(() => addon().permuteMatrix(from, to, undefined, Int32Array.of(0, 1, 3), 1), /columns leaves the matrix/);
  refused(() => addon().permuteMatrix(from, from, undefined, undefined, 1), /differ in dtype or shape, or are one/);
  refused(() => addon().permuteMatrix(from, allocate('f32', [3, 2]), undefined, undefined, 1), /differ in dtype/);
  refused(() => addon().raiseMatrix(from, to, new Int32Array(2), new Int32Array(2), 1), /columns has 2 entries, not 3/);
  const bytes = [allocate('u8', [2, 3]), allocate('u8', [2, 3])] as const;
  refused(() => addon().raiseMatrix(...bytes, new Int32Array(2), new Int32Array(3), 1), /from/);
});
