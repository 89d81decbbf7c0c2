import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped } from '../../../native/binding.js';
import { pack, unpack } from '../../../src/layout/engine.js';
import {
  MMA_M16N8K16,
  reinterpretedTile,
  reorderLocals,
  storedTile,
  WORD_75316420,
} from '../../../src/layout/fragment.js';
import { indexAt, layout } from '../../../src/layout/layout.js';
import { local, spatial } from '../../../src/layout/make.js';
import { bitPositions, extents, type MemoryLayout, memoryLayout, repeatTile } from '../../../src/layout/memory.js';
import { permute, product } from '../../../src/layout/product.js';
import { integers } from '../../formats/canonical/fixture.js';
import { replicated } from './random-layout.js';

// Layouts that no target uses yet, built from the same pieces and run through the same engine: the declarations are data,
// and the closed forms beside them come from the formats' descriptions.

const runtime = createRuntime(2);
const div = (a: number, b: number): number => Math.floor(a / b);
const pair = product(local(1, 2), MMA_M16N8K16.b); // a 16x16 tile [k, n], element 4s + 2c + e of a lane
const [n, k] = [256, 128];

/** Checks positions against a closed form, then packing and unpacking of random codes bit by bit. */
async function check(
  name: string,
  value: MemoryLayout,
  bitsOf: (n: number, k: number, bit: number) => number,
): Promise<void> {
  const [rows, columns] = extents(value);
  const codes = Uint8Array.from(integers(rows * columns, 2 ** value.bits, 7));
  const expected = new Uint8Array(value.bytes);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const positions = bitPositions(value, row, column);
      for (let bit = 0; bit < value.bits; bit++) {
        const at = bitsOf(row, column, bit);
        assert.equal(positions[bit], at, `${name}: (k, n) = (${column}, ${row}), bit ${bit}`);
        expected[at >> 3]! |= ((codes[row * columns + column]! >> bit) & 1) << (at & 7);
      }
    }
  const matrix = fromTyped('u8', [rows, columns], codes);
  const packed = allocate('u8', [value.bytes]);
  const back = allocate('u8', [rows, columns]);
  pack(runtime, value, matrix, packed);
  unpack(runtime, value, packed, back);
  await runtime.sync();
  assert.deepEqual(Buffer.from(packed.bytes()), Buffer.from(expected), name);
  assert.deepEqual(Buffer.from(back.bytes()), Buffer.from(codes), name);
}

test('Tilus: every width as bytes, tile after tile', async () => {
  for (let bits = 1; bits <= 8; bits++) {
    const tile = reinterpretedTile(permute(pair, [1, 0]), bits);
    const value = memoryLayout({
      bits,
      ...repeatTile(tile, [n / 16, k / 16], [tile.bits, (n / 16) * tile.bits]),
      unit: tile.unit!,
      bytes: (n * k * bits) / 8,
    });
    const inner = [0, 1, 2, 1, 4, 1, 2, 1, 8][bits]!; // gcd(bits, 16)
    await check(`tilus u${bits}`, value, (row, column, bit) => {
      const [s, c, e] = [div(row % 16, 8), div(column % 16, 8), column % 2];
      const lane = 4 * (row % 8) + div(column % 8, 2);
      const p = (4 * s + 2 * c + e) * bits + bit; // bit of the lane's own bytes
      const [o, r] = [div(div(p, 8), inner), div(p, 8) % inner];
      const byte = (div(column, 16) * (n / 16) + div(row, 16)) * 32 * bits + o * 32 * inner + lane * inner + r;
      return byte * 8 + (p % 8);
    });
  }
});

test('TurboMind: u4 dense and grouped, two fragments a store', async () => {
  const tile = storedTile(permute(reorderLocals(product(local(1, 2), pair), WORD_75316420), [1, 0]), 4);
  const build = (strides: readonly [number, number]): MemoryLayout =>
    memoryLayout({ bits: 4, ...repeatTile(tile, [n / 32, k / 16], strides), bytes: (n * k) / 2 });
  const form = (tileIndex: (kt: number, nt: number) => number) => (row: number, column: number, bit: number) => {
    const [p, s, c, e] = [div(row % 32, 16), div(row % 16, 8), div(column % 16, 8), column % 2];
    const lane = 4 * (row % 8) + div(column % 8, 2);
    const word = (tileIndex(div(column, 16), div(row, 32)) * 32 + lane) * 2 + p;
    return word * 32 + 4 * [0, 4, 1, 5, 2, 6, 3, 7][4 * s + 2 * c + e]! + bit;
  };
  await check(
    'dense',
    build([tile.bits, (n / 32) * tile.bits]),
    form((kt, nt) => kt * (n / 32) + nt),
  );
  await check(
    'grouped',
    build([(k / 16) * tile.bits, tile.bits]),
    form((kt, nt) => nt * (k / 16) + kt),
  );
});

test('MARLIN, 8 bits', async () => {
  // A word holds the four codes of one B fragment: bytes 2e + c, so the words of a lane are those of j and s.
  const order = layout([4], [2, 2], [], [1, 0]);
  const tile = storedTile(permute(reorderLocals(product(local(1, 4), pair), order), [1, 0]), 8);
  const value = memoryLayout({
    bits: 8,
    ...repeatTile(tile, [n / 64, k / 16], [tile.bits, (n / 64) * tile.bits]),
    bytes: n * k,
  });
  await check('marlin8', value, (row, column, bit) => {
    const [kr, j, c] = [column % 16, div(row % 64, 16), row % 16];
    const lane = 4 * (c % 8) + div(kr % 8, 2);
    const word = div(column, 16) * 4 * n + div(row, 64) * 256 + lane * 8 + 2 * j + div(c, 8);
    return word * 32 + 8 * (2 * (kr & 1) + div(kr, 8)) + bit;
  });
});

test('AWQ words and MARLIN zero points are modes too', async () => {
  const awq = memoryLayout({
    bits: 4,
    rows: [
      { size: n / 8, stride: 32 },
      { size: 4, stride: 4 },
      { size: 2, stride: 16 },
    ],
    columns: [{ size: k, stride: (n / 8) * 32 }],
    bytes: (n * k) / 2,
  });
  const nibble = [0, 4, 1, 5, 2, 6, 3, 7];
  await check('awq', awq, (row, column, bit) => (column * (n / 8) + div(row, 8)) * 32 + 4 * nibble[row % 8]! + bit);
  const zeros = memoryLayout({
    bits: 4,
    rows: [
      { size: n / 64, stride: 256 },
      { size: 4, stride: 4 },
      { size: 2, stride: 16 },
      { size: 8, stride: 32 },
    ],
    columns: [{ size: 3, stride: n * 4 }],
    bytes: (n * 3) / 2,
  });
  await check('zeros', zeros, (row, g, bit) => {
    const word = g * (n / 8) + div(row, 64) * 8 + (row % 8);
    return word * 32 + 4 * nibble[div(row % 64, 8)]! + bit;
  });
});

test('tiles that cannot be stored are refused with LPQ_LAYOUT', () => {
  const refused = (make: () => unknown): void => {
    assert.throws(make, (error: { code?: string }) => error.code === 'LPQ_LAYOUT');
  };
  refused(() => storedTile(product(replicated(2, 2), local(2, 2)), 4));
  refused(() => storedTile(local(8), 4));
  refused(() => reinterpretedTile(product(local(1, 3), spatial(4, 8)), 3));
  refused(() => reorderLocals(local(2, 3), WORD_75316420));
  refused(() => reorderLocals(local(3, 2), layout([6], [2, 3], [], [1, 0])));
  assert.deepEqual(indexAt(reorderLocals(local(4, 2), layout([4], [2, 2], [], [1, 0])), 0, 1), [1, 0]);
});
