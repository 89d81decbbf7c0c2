import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { allocate, createRuntime, fromTyped, type NativeRuntime, typed } from '../../native/binding.js';
import { pack, unpack } from '../../src/layout/engine.js';
import { bitPositions, extents, type MemoryLayout, memoryLayout, type PackMode } from '../../src/layout/memory.js';

const runtimes: NativeRuntime[] = [createRuntime(1), createRuntime(2), createRuntime(3)];

/** Bit by bit, from the definition of a layout's positions. */
function packed(layout: MemoryLayout, element: (row: number, column: number) => number): Uint8Array {
  const bytes = new Uint8Array(layout.bytes);
  const [rows, columns] = extents(layout);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const value = element(row, column);
      bitPositions(layout, row, column).forEach((at, bit) => {
        if (Math.floor(value / 2 ** bit) % 2) bytes[at >> 3]! |= 1 << (at & 7);
      });
    }
  return bytes;
}

/** The permutation that sorts `keys`. */
function sortedBy(keys: readonly number[]): number[] {
  return [...keys.keys()].sort((a, b) => keys[a]! - keys[b]! || a - b);
}

/** Random layouts: modes nested in a random order, gaps now and then, streams cut into units now and then. */
const randomPackLayout = fc
  .record({
    bits: fc.constantFrom(1, 2, 3, 4, 5, 6, 7, 8, 16, 32),
    modes: fc.array(
      fc.record({ dim: fc.nat(1), size: fc.integer({ min: 1, max: 6 }), gap: fc.nat(9), stream: fc.boolean() }),
      {
        minLength: 1,
        maxLength: 5,
      },
    ),
    unitBytes: fc.constantFrom(0, 0, 4, 4, 1, 2, 3, 8),
    base: fc.constantFrom(0, 0, 0, 8, 32),
    keys: fc.array(fc.nat(), { minLength: 6, maxLength: 6 }),
    spare: fc.nat(5),
    // Periods of a word order: keys to sort its bits by.
    order: fc.option(
      fc
        .constantFrom(1, 2, 3, 5)
        .chain((units) => fc.array(fc.nat(), { minLength: 32 * units, maxLength: 32 * units })),
    ),
  })
  .map(({ bits, modes, unitBytes, base, keys, spare, order }) => {
    const unit = unitBytes * 8 >= bits ? unitBytes * 8 : 0;
    let low: number = bits;
    const built: { dim: number; mode: PackMode; key: number }[] = [];
    const nest = (list: typeof modes, stream: boolean): void => {
      for (const { dim, size, gap } of list) {
        const stride = gap === 0 ? low + bits * gap : gap === 1 ? Math.ceil(low / 32) * 32 : low;
        built.push({
          dim,
          mode: { size, stride, ...(stream ? { stream: true as const } : {}) },
          key: keys[built.length]!,
        });
        low = stride * size;
      }
    };
    let unitOf: { bits: number; stride: number } | undefined;
    if (unit > 0) {
      nest(
        modes.filter((mode) => mode.stream),
        true,
      );
      const period = order?.length ?? 1;
      const units = Math.ceil((Math.ceil(low / period) * period) / unit);
      // Units side by side, or interleaved with the addresses (GPTQ).
      const addresses = modes.filter((mode) => !mode.stream);
      low = unit;
      if (keys[5]! % 2) {
        unitOf = { bits: unit, stride: unit };
        low = unit * units;
        nest(addresses, false);
      } else {
        nest(addresses, false);
        unitOf = { bits: unit, stride: low };
        low *= units;
      }
    } else nest(modes, false);
    const dim = (which: number): PackMode[] =>
      built
        .filter((each) => each.dim === which)
        .sort((a, b) => a.key - b.key)
        .map((each) => each.mode);
    return memoryLayout({
      bits,
      rows: dim(0),
      columns: dim(1),
      ...(unitOf ? { unit: unitOf } : {}),
      ...(unitOf && order ? { wordOrder: sortedBy(order) } : {}),
      base,
      bytes: Math.ceil((base + low) / 8) + spare,
    });
  });

test('any layout: the engine agrees with the definition, padding and bias included, and unpack inverts pack', async () => {
  await fc.assert(
    fc.asyncProperty(
      randomPackLayout,
      fc.nat(3),
      fc.nat(3),
      fc.integer({ min: 1, max: 2 ** 31 - 1 }),
      fc.nat(2),
      async (layout, lessRows, lessColumns, seed, which) => {
        const rt = runtimes[which]!;
        const [allRows, allColumns] = extents(layout);
        const [rows, columns] = [Math.max(1, allRows - lessRows), Math.max(1, allColumns - lessColumns)];
        let state = seed;
        const random = (): number => {
          state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
          return state >>> 8;
        };
        const size = 2 ** layout.bits;
        const codes = Array.from({ length: rows * columns }, () => (random() * 65537 + random()) % size);
        const bias = layout.bits <= 8 ? random() % size : 0;
        const pad = random() % size;
        const expected = packed(layout, (row, column) =>
          row < rows && column < columns ? (codes[row * columns + column]! + bias) % size : pad,
        );
        const [dtype, array] =
          layout.bits <= 8
            ? (['u8', Uint8Array.from(codes)] as const)
            : layout.bits === 16
              ? (['f16', Uint16Array.from(codes)] as const)
              : (['f32', Uint32Array.from(codes)] as const);
        const matrix = fromTyped(dtype, [rows, columns], array);
        const out = allocate('u8', [layout.bytes]);
        out.bytes().fill(255);
        pack(rt, layout, matrix, out, { bias, pad });
        await rt.sync();
        assert.deepEqual(Buffer.from(out.bytes()), Buffer.from(expected));
        const back = allocate(dtype, [rows, columns]);
        back.bytes().fill(255);
        unpack(rt, layout, out, back, { bias });
        await rt.sync();
        assert.deepEqual(Buffer.from(back.bytes()), Buffer.from(matrix.bytes()));
        if (layout.bits > 8) return;
        // The same from and to bitstream rows.
        const width = Math.ceil((columns * layout.bits) / 8);
        const stream = new Uint8Array(rows * width);
        codes.forEach((code, i) => {
          for (let bit = 0; bit < layout.bits; bit++)
            if ((code >> bit) & 1) {
              const at = (i % columns) * layout.bits + bit;
              stream[Math.floor(i / columns) * width + (at >> 3)]! |= 1 << (at & 7);
            }
        });
        const source = fromTyped('u8', [rows, width], stream);
        out.bytes().fill(255);
        pack(rt, layout, source, out, { bias, pad, streamColumns: columns });
        await rt.sync();
        assert.deepEqual(Buffer.from(out.bytes()), Buffer.from(expected));
        const again = allocate('u8', [rows, width]);
        again.bytes().fill(255);
        unpack(rt, layout, out, again, { bias, streamColumns: columns });
        await rt.sync();
        assert.deepEqual(Buffer.from(again.bytes()), Buffer.from(stream));
      },
    ),
    { numRuns: 400 },
  );
});

test('an order takes columns from elsewhere', async () => {
  const rt = runtimes[1]!;
  const layout = memoryLayout({
    bits: 4,
    rows: [{ size: 2, stride: 32 }],
    columns: [{ size: 8, stride: 4 }],
    bytes: 8,
  });
  const codes = Uint8Array.from({ length: 16 }, (_, i) => i);
  const order = fromTyped('i32', [8], Int32Array.from([7, 0, 6, 1, 5, 2, 4, 3]));
  const out = allocate('u32', [2]);
  pack(rt, layout, fromTyped('u8', [2, 8], codes), out, { order });
  await rt.sync();
  assert.deepEqual(
    [...typed<Uint32Array>(out)].map((word) => word.toString(16)),
    ['34251607', 'bcad9e8f'],
  );
});

test('what does not fit is refused', async () => {
  const rt = runtimes[0]!;
  const layout = { bits: 4, rows: [{ size: 2, stride: 32 }], columns: [{ size: 8, stride: 4 }], bytes: 8 };
  const refused = async (make: () => void): Promise<void> => {
    make();
    await assert.rejects(rt.sync(), (error: { code?: string }) => error.code === 'LPQ_NATIVE_ARGUMENT');
  };
  const codes = (rows: number, columns: number) => fromTyped('u8', [rows, columns], new Uint8Array(rows * columns));
  const out = allocate('u8', [8]);
  await refused(() => pack(rt, layout, codes(3, 8), out));
  await refused(() => pack(rt, layout, codes(2, 9), out));
  await refused(() => pack(rt, layout, codes(2, 8), allocate('u8', [4])));
  await refused(() => pack(rt, { ...layout, columns: [{ size: 8, stride: 3 }] }, codes(2, 8), out));
  await refused(() => pack(rt, { ...layout, bits: 12 }, codes(2, 8), out));
  await refused(() => pack(rt, layout, fromTyped('f16', [2, 8], new Uint16Array(16)), out));
  await refused(() => pack(rt, layout, codes(2, 8), out, { pad: 16 }));
  await refused(() => pack(rt, layout, codes(2, 4), out, { streamColumns: 9 }));
  await refused(() => pack(rt, layout, codes(2, 8), out, { order: fromTyped('i32', [8], new Int32Array(8).fill(8)) }));
  await refused(() => unpack(rt, layout, out, codes(4, 8)));
});
