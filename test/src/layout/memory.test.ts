import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bitPositions, extents, memoryLayout } from '../../../src/layout/memory.js';
import { MARLIN_WARP_TILE, marlinScales, marlinWeight } from '../../../src/pack/layouts/marlin.js';
import {
  columnStreams,
  rowStreams,
  transposedColumnStreams,
  transposedRowStreams,
} from '../../../src/pack/layouts/stream.js';

const div = (a: number, b: number): number => Math.floor(a / b);

test('the derived MARLIN layout is the closed form', () => {
  assert.deepEqual(MARLIN_WARP_TILE.shape, [16, 64]);
  for (const [n, k] of [
    [64, 16],
    [256, 128],
    [192, 48],
  ] as const) {
    const layout = marlinWeight(n, k);
    assert.deepEqual(extents(layout), [n, k]);
    for (let row = 0; row < n; row++)
      for (let column = 0; column < k; column++) {
        // spec of the format: tile kt of 16 rows of B, nt of 64 columns, j of 16, c inside.
        const [kt, kr, nt] = [div(column, 16), column % 16, div(row, 64)];
        const [j, c] = [div(row % 64, 16), row % 16];
        const lane = 4 * (c % 8) + div(kr % 8, 2);
        const word = kt * 2 * n + nt * 128 + lane * 4 + j;
        const nibble = 4 * (kr & 1) + 2 * div(c, 8) + div(kr, 8);
        assert.equal(bitPositions(layout, row, column)[0], word * 32 + nibble * 4, `(${column}, ${row})`);
      }
  }
});

test('MARLIN scales follow their permutations', () => {
  const [n, groups] = [128, 3];
  for (let g = 0; g < groups; g++)
    for (let block = 0; block < n / 64; block++)
      for (let p = 0; p < 64; p++) {
        const column = 64 * block + div(p, 8) + 8 * (p % 8);
        assert.equal(bitPositions(marlinScales(n, groups, false), column, g)[0], (g * n + 64 * block + p) * 16);
      }
  for (let block = 0; block < n / 32; block++)
    for (let p = 0; p < 32; p++) {
      const column = 32 * block + 2 * div(p, 8) + 8 * div(p % 8, 2) + (p % 2);
      assert.equal(bitPositions(marlinScales(n, 1, true), column, 0)[0], (32 * block + p) * 16);
    }
});

test('streams put bit b k of column n into word (b k div 32, n)', () => {
  for (const bits of [1, 2, 3, 4, 5, 6, 7, 8]) {
    const [n, k] = [10, 32];
    const down = columnStreams(n, k, bits);
    const along = rowStreams(n, k, bits);
    const zerosAlong = transposedRowStreams(n, k, bits);
    const zerosDown = transposedColumnStreams(n, k, bits);
    const wide = Math.ceil((n * bits) / 32);
    for (let row = 0; row < n; row++)
      for (let column = 0; column < k; column++)
        for (let bit = 0; bit < bits; bit++) {
          const p = bits * column + bit;
          assert.equal(bitPositions(down, row, column)[bit], (div(p, 32) * n + row) * 32 + (p % 32));
          assert.equal(bitPositions(along, row, column)[bit], row * bits * k + p);
          const q = bits * row + bit;
          assert.equal(bitPositions(zerosAlong, row, column)[bit], column * wide * 32 + q);
          assert.equal(bitPositions(zerosDown, row, column)[bit], (div(q, 32) * k + column) * 32 + (q % 32));
        }
  }
});

test('overlapping or straying layouts are refused with LPQ_LAYOUT', () => {
  const good = { bits: 4, rows: [{ size: 2, stride: 16 }], columns: [{ size: 4, stride: 4 }], bytes: 4 };
  memoryLayout(good);
  for (const wrong of [
    { ...good, bits: 9 },
    { ...good, bytes: 3 },
    { ...good, columns: [{ size: 4, stride: 2 }] },
    { ...good, rows: [{ size: 2, stride: 12 }] },
    { ...good, rows: [{ size: 0, stride: 16 }] },
    { ...good, rows: [{ size: 2, stride: -16 }] },
    { ...good, rows: [{ size: 2, stride: 16, stream: true as const }] },
    { ...good, unit: { bits: 12, stride: 12 } },
  ])
    assert.throws(
      () => memoryLayout(wrong),
      (error: { code?: string }) => error.code === 'LPQ_LAYOUT',
    );
});
