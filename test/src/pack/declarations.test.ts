import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped } from '../../../native/binding.js';
import { pack, unpack } from '../../../src/layout/engine.js';
import { MMA_M16N8K16, reorderLocals } from '../../../src/layout/fragment.js';
import { layout, localCount, threadCount } from '../../../src/layout/layout.js';
import { columnSpatial, local } from '../../../src/layout/make.js';
import { bitPositions, extents, type MemoryLayout } from '../../../src/layout/memory.js';
import { product } from '../../../src/layout/product.js';
import { COMET_TILE, cometScales, cometWeight } from '../../../src/pack/layouts/comet.js';
import { marlinWeight, marlinZeros } from '../../../src/pack/layouts/marlin.js';
import { pairWords, TILUS_TILE, tilusScales, tilusWeight } from '../../../src/pack/layouts/tilus.js';
import { turbomindScales, turbomindWeight } from '../../../src/pack/layouts/turbomind.js';
import { integers } from '../../formats/canonical/fixture.js';
import { equal } from '../layout/equal.js';

// Every declaration against the closed form of its format, element by element and bit by bit, and through the engine.

const runtime = createRuntime(2);
const div = (a: number, b: number): number => Math.floor(a / b);
const NIBBLE = [0, 4, 1, 5, 2, 6, 3, 7];
const [n, k] = [256, 256];

type Form = (n: number, k: number, bit: number) => number;

async function check(name: string, value: MemoryLayout, form: Form): Promise<void> {
  const [rows, columns] = extents(value);
  const codes = Uint8Array.from(integers(rows * columns, 2 ** Math.min(8, value.bits), 7));
  const expected = new Uint8Array(value.bytes);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const positions = bitPositions(value, row, column);
      for (let bit = 0; bit < value.bits; bit++) {
        const at = form(row, column, bit);
        assert.equal(positions[bit], at, `${name}: (n, k) = (${row}, ${column}), bit ${bit}`);
        if (value.bits <= 8) expected[at >> 3]! |= ((codes[row * columns + column]! >> bit) & 1) << (at & 7);
      }
    }
  if (value.bits > 8) return;
  const packed = allocate('u8', [value.bytes]);
  const back = allocate('u8', [rows, columns]);
  pack(runtime, value, fromTyped('u8', [rows, columns], codes), packed);
  unpack(runtime, value, packed, back);
  await runtime.sync();
  assert.deepEqual(Buffer.from(packed.bytes()), Buffer.from(expected), name);
  assert.deepEqual(Buffer.from(back.bytes()), Buffer.from(codes), name);
}

/** Word and bit of a half-word, of bit m of pair i: the table of the format, width by width. */
function pairBit(bits: number, i: number, m: number): [number, number] {
  const fields = div(16, bits);
  if (i < fields * bits) return [div(i, fields), (i % fields) * bits + m];
  if (bits === 3 || bits === 5) return [m, 15];
  if (bits === 6) {
    const y = i - 12;
    return m < 4 ? [y, 12 + m] : [4 + div(y, 2), 12 + 2 * (y % 2) + m - 4];
  }
  const y = i - 14;
  return m === 6 ? [6, 14 + y] : [3 * y + div(m, 2), 14 + (m % 2)];
}

test('tilus, every width', async () => {
  for (let bits = 1; bits <= 8; bits++)
    await check(`tilus ${bits}`, tilusWeight(n, k, bits), (row, column, bit) => {
      const [n1, k1] = [row % 32, column % 128];
      const lane = 4 * (n1 % 8) + div(k1 % 8, 2);
      const pair = 4 * div(k1 % 32, 8) + div(n1, 8);
      const [word, at] = pairBit(bits, pair, bit);
      const W = div(k1, 32) * bits + word;
      const block = div(row, 32) * (k / 128) + div(column, 128);
      return 8 * (block * 512 * bits + 512 * div(W, 4) + 16 * lane + 4 * (W % 4)) + 16 * (k1 % 2) + at;
    });
  await check('tilus scales', tilusScales(n, 5, 16), (row, g, bit) => {
    return 16 * ((div(row, 32) * 5 + g) * 32 + 4 * (row % 8) + div(row % 32, 8)) + bit;
  });
});

test('tilus: its tile is fragments of mma.m16n8k16, and every word order uses every bit once', () => {
  assert.deepEqual([threadCount(TILUS_TILE), localCount(TILUS_TILE)], [32, 128]);
  const outer = product(local(16, 1), local(1, 4));
  assert.ok(equal(TILUS_TILE, product(outer, columnSpatial(4, 8), local(2, 1))));
  // 8 x 4 fragments of operand B, (k / 16, n / 8, k / 8 % 2, k % 2), with the middle two exchanged.
  const fragments = product(local(8, 1), local(1, 4), MMA_M16N8K16.b);
  const exchanged = reorderLocals(fragments, layout([16], [4, 2, 2], [], [1, 0, 2]));
  assert.ok(equal(exchanged, TILUS_TILE));
  for (let bits = 1; bits <= 8; bits++)
    assert.deepEqual(
      pairWords(bits).sort((a, b) => a - b),
      Array.from({ length: 32 * bits }, (_, bit) => bit),
    );
});

test('marlin, 8 bits and zero points', async () => {
  await check('marlin8', marlinWeight(n, k, 8), (row, column, bit) => {
    const [kr, j, c] = [column % 16, div(row % 64, 16), row % 16];
    const lane = 4 * (c % 8) + div(kr % 8, 2);
    const word = div(column, 16) * 4 * n + div(row, 64) * 256 + lane * 8 + 2 * j + div(c, 8);
    return word * 32 + 8 * (2 * (kr & 1) + div(kr, 8)) + bit;
  });
  // Zero points go through the grouped scale permutation and then the interleave of a word.
  for (const bits of [4, 8] as const) {
    const per = 32 / bits;
    const interleave = bits === 4 ? [0, 2, 4, 6, 1, 3, 5, 7] : [0, 2, 1, 3];
    const place = new Map<number, number>();
    for (let p = 0; p < n; p++) {
      const permuted = p - (p % per) + interleave[p % per]!;
      const q = permuted % 64;
      place.set(permuted - q + div(q, 8) + 8 * (q % 8), p);
    }
    await check(`zeros ${bits}`, marlinZeros(n, 3, bits), (row, g, bit) => (g * n + place.get(row)!) * bits + bit);
  }
});

test('turbomind: every form', async () => {
  const word8 = (v: number): number => 8 * [0, 2, 1, 3][v % 4]!;
  const b = (bits: 4 | 8, tile: (kt: number, nt: number) => number): Form => {
    return (row, column, bit) => {
      const [p, s, c, e] = [div(row % 32, 16), div(row % 16, 8), div(column % 16, 8), column % 2];
      const lane = 4 * (row % 8) + div(column % 8, 2);
      const v = 4 * s + 2 * c + e;
      const at = (tile(div(column, 16), div(row, 32)) * 32 + lane) * 2 + p;
      return bits === 4 ? at * 32 + 4 * NIBBLE[v]! + bit : (2 * at + s) * 32 + word8(v) + bit;
    };
  };
  for (const bits of [4, 8] as const) {
    const words = bits / 4;
    const dense = b(bits, (kt, nt) => kt * (n / 32) + nt);
    await check(`b ${bits}`, turbomindWeight(n, k, bits, 'b'), dense);
    const experts = b(bits, (kt, nt) => nt * (k / 16) + kt);
    await check(`b experts ${bits}`, turbomindWeight(n, k, bits, 'b', 'n-major'), experts);
    await check(`a ${bits}`, turbomindWeight(n, k, bits, 'a'), (row, column, bit) => {
      const j = div(row % 16, 8) + 2 * div(column % 16, 8);
      const v = 2 * j + (column % 2);
      const lane = 4 * (row % 8) + div(column % 8, 2);
      const at = ((n / 16) * div(column, 16) + div(row, 16)) * 32 + lane;
      return bits === 4 ? at * 32 + 4 * NIBBLE[v]! + bit : (at * words + div(v, 4)) * 32 + word8(v) + bit;
    });
    await check(`sm70 ${bits}`, turbomindWeight(n, k, bits, 'sm70'), (row, column, bit) => {
      const at = (div(row, 32) * (k / 8) + div(column, 8)) * 32 + (row % 32);
      const v = column % 8;
      return bits === 4 ? at * 32 + 4 * NIBBLE[v]! + bit : (at * words + div(v, 4)) * 32 + word8(v) + bit;
    });
  }
  for (const bits of [8, 16, 32] as const) {
    await check(`scales ${bits}`, turbomindScales(n, 3, bits, false), (row, g, bit) => {
      return bits * (((g * (n / 16) + div(row, 16)) * 8 + (row % 8)) * 2 + div(row % 16, 8)) + bit;
    });
    await check(`sm70 scales ${bits}`, turbomindScales(n, 3, bits, true), (row, g, bit) => bits * (g * n + row) + bit);
  }
});

test('comet: the closed form of docs/internals/layouts/comet.md, out of fragments of m16n8k32', async () => {
  assert.deepEqual([threadCount(COMET_TILE), localCount(COMET_TILE)], [32, 64]);
  await check('comet', cometWeight(n, k), (row, column, bit) => {
    const [chunk, quad, high] = [div(column % 128, 32), div(column % 16, 4), div(column % 32, 16)];
    const lane = 4 * (row % 8) + quad;
    const byte = 512 * div(chunk, 2) + 16 * lane + 4 * (2 * (chunk % 2) + div(row % 16, 8)) + (column % 4);
    return 8 * ((div(row, 16) * (k / 128) + div(column, 128)) * 1024 + byte) + 4 * high + bit;
  });
  await check('comet scales', cometScales(n, 3), (row, g, bit) => 32 * (g * n + row) + bit);
});
