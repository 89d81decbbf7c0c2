import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { QUANT_TYPES } from '../../../src/core/quant-type.js';
import { indexAt, type Layout } from '../../../src/layout/layout.js';
import { check } from '../../../src/tilus/check/check.js';
import { pairs } from '../../../src/tilus/check/pairs.js';
import { type LaunchArguments, run } from '../../../src/tilus/interpret/run.js';
import { type Builder, build } from '../../../src/tilus/language/build.js';
import { decode, ELEMENT_TYPES, encode } from '../../../src/tilus/types.js';
import { elements, nearest, numberOf, packed, typeNamed, unpacked, valuesOf } from './direct.js';

/** A layout of 32 threads as text and as a table of its definition: factors of powers of two, spatial and local in any order. */
const layouts = fc
  .tuple(
    fc.shuffledSubarray([2, 4, 4], { minLength: 3 }),
    fc.array(fc.constantFrom(2, 3), { maxLength: 2 }),
    fc.infiniteStream(fc.nat(1)),
    fc.infiniteStream(fc.boolean()),
  )
  .map(([threads, locals, dims, columns]) => {
    const sizes = (size: number): string => (dims.next().value === 0 ? `${size}, 1` : `1, ${size}`);
    const parts = [
      ...threads.map((size) => `spatial(${sizes(size)})`),
      ...locals.map((size) => `local(${sizes(size)})`),
    ];
    // Any order of factors is a layout.
    parts.sort(() => (columns.next().value ? 1 : -1));
    const layout = check(build('l<1>()', { L: parts.join('.') }, (b) => b.add('x = AllocateRegister(u8, layout=L)')))
      .body[0] as unknown as { out: { layout: Layout } };
    return { text: parts.join('.'), layout: layout.out.layout };
  });
const PROPERTY = { numRuns: 12, seed: 30 };

const launch = (
  head: string,
  constants: Record<string, string | number>,
  args: LaunchArguments,
  fill: (b: Builder) => void,
): string => run(check(build(head, constants, fill)), args).printed;

const types = fc.constantFrom(...QUANT_TYPES.map((type) => type.name), 'f16', 'bf16');

test('LoadGlobal and StoreGlobal move bits as they lie: element by element, at an offset, nothing beyond the tensor', () => {
  fc.assert(
    fc.property(layouts, types, fc.nat(3), fc.nat(3), fc.nat(1000), ({ text, layout }, type, row, column, seed) => {
      const { bits } = typeNamed(type);
      const [rows, columns] = [layout.shape[0]! + 2, 8 * layout.shape[1]!];
      const codes = Array.from({ length: rows * columns }, (_, i) => (i * 2654435761 + seed) % 2 ** bits);
      // Stored as bytes, for threads do not share them.
      const out = new Uint8Array(layout.shape[0]! * layout.shape[1]! * 4);
      launch(
        'move<1>(T* from, f32* to)',
        { T: type, L: text },
        { from: packed(bits, codes), to: { output: out } },
        (b) =>
          b.add(
            `a = ViewGlobal(from, shape=[${rows}, ${columns}])`,
            `c = ViewGlobal(to, shape=[${layout.shape[0]}, ${layout.shape[1]}])`,
            `x = LoadGlobal(a, layout=L, offset=[${row}:, ${column}:])`,
            'y = Cast(x, f32)',
            'StoreGlobal(y, c)',
          ),
      );
      const got = valuesOf('f32', out);
      for (let i = 0; i < layout.shape[0]!; i++)
        for (let j = 0; j < layout.shape[1]!; j++) {
          const inside = row + i < rows && column + j < columns;
          const want = inside ? numberOf(type, codes[(row + i) * columns + column + j]!) : 0;
          assert.equal(got[i * layout.shape[1]! + j], want);
        }
    }),
    PROPERTY,
  );
});

test('StoreShared, Synchronize, LoadShared: what one layout stores another loads, swizzled or not; CopyAsync brings the same', () => {
  for (const columns of [8, 16, 32, 64, 128])
    for (const swizzle of [0, 1]) {
      const rows = 512 / columns;
      const [down, across] = [Math.min(rows, 8), 32 / Math.min(rows, 8)];
      const values = Array.from({ length: 512 }, (_, i) => i);
      const out = new Uint8Array(1024);
      launch('through<1>(f16* from, f16* to)', {}, { from: elements('f16', values), to: { output: out } }, (b) =>
        b.add(
          `a = ViewGlobal(from, shape=[${rows}, ${columns}])`,
          `c = ViewGlobal(to, shape=[${rows}, ${columns}])`,
          `s = AllocateShared(f16, [2, ${rows}, ${columns}], swizzle=${swizzle})`,
          'CopyAsync(s, a, offset=[0:, 0:], at=[1, 0:, 0:])',
          'CopyAsyncCommitGroup()',
          'CopyAsyncWaitGroup(0)',
          'Synchronize()',
          `x = LoadShared(s, layout=local(${rows / down}, 1).spatial(${down}, ${across}).local(1, ${columns / across}), offset=[1, 0:, 0:])`,
          'StoreShared(x, s, offset=[0, 0:, 0:])',
          'Synchronize()',
          `y = LoadShared(s, layout=local(${rows / down}, ${columns / across}).column_spatial(${down}, ${across}), offset=[0, 0:, 0:])`,
          'StoreGlobal(y, c)',
        ),
      );
      assert.deepEqual(valuesOf('f16', out), values);
    }
});

test('memory may be laid out as any layout of one thread', () => {
  const out = new Uint8Array(64);
  const bytes = Uint8Array.from({ length: 64 }, (_, i) => i);
  launch('order<1>(u8* from, u8* to)', {}, { from: bytes, to: { output: out } }, (b) =>
    b.add(
      'a = ViewGlobal(from, shape=[8, 8])',
      'c = ViewGlobal(to, shape=[8, 8], layout=local(2, 1).column_local(4, 8))',
      'x = LoadGlobal(a, layout=spatial(8, 4).local(1, 2))',
      'StoreGlobal(x, c)',
    ),
  );
  for (let i = 0; i < 8; i++) for (let j = 0; j < 8; j++) assert.equal(out[(i >> 2) * 32 + j * 4 + (i & 3)], i * 8 + j);
});

test('View keeps the bits of each thread, one element after another', () => {
  fc.assert(
    fc.property(types, types, fc.nat(1000), (from, to, seed) => {
      const [a, b] = [typeNamed(from).bits, typeNamed(to).bits];
      // As many elements as both widths divide into.
      const bits = 8 * a * b;
      const codes = Array.from({ length: (32 * bits) / a }, (_, i) => (i * 2654435761 + seed) % 2 ** a);
      const out = new Uint8Array(4 * bits);
      launch('look<1>(A* from, u8* to)', { A: from, B: to }, { from: packed(a, codes), to: { output: out } }, (build) =>
        build.add(
          `g = ViewGlobal(from, shape=[${codes.length}])`,
          `h = ViewGlobal(to, shape=[${4 * bits}])`,
          `x = LoadGlobal(g, layout=spatial(32).local(${bits / a}))`,
          `y = View(x, dtype=B, layout=local(${bits / b}).spatial(32))`,
          `z = View(y, dtype=u8, layout=spatial(32).local(${bits / 8}))`,
          'StoreGlobal(z, h)',
        ),
      );
      assert.deepEqual(unpacked(a, out, codes.length), codes);
    }),
    PROPERTY,
  );
});

test('Cast rounds to the nearest number, ties to even; saturates or becomes infinite beyond', () => {
  for (const type of ELEMENT_TYPES.values()) {
    if (type.bits > 16) continue;
    // Every number stays itself.
    for (let code = 0; code < 2 ** type.bits; code += type.bits > 8 ? 137 : 1) {
      const value = numberOf(type.name, code);
      assert.ok(Object.is(decode(type, code), value) || Number.isNaN(value), `${type.name} ${code}`);
      if (Number.isFinite(value)) assert.equal(encode(type, value), code, `${type.name} ${value}`);
    }
    fc.assert(
      fc.property(fc.double({ min: -1e5, max: 1e5, noNaN: true }), fc.integer({ min: 0, max: 24 }), (value, shift) => {
        const small = Math.fround(value / 2 ** shift);
        const got = decode(type, encode(type, small));
        if (Number.isFinite(got))
          assert.equal(got + 0, numberOf(type.name, nearest(type.name, small)) + 0, `${type.name} of ${small}`);
        // 65520 is half a step beyond the largest f16.
        else assert.ok(type.name === 'f16' && Math.abs(small) >= 65520);
      }),
      { numRuns: 60, seed: 7 },
    );
  }
});

const ARITHMETIC: Readonly<Record<string, (x: number, y: number) => number>> = {
  Add: (x, y) => x + y,
  Sub: (x, y) => x - y,
  Mul: (x, y) => x * y,
  Div: (x, y) => x / y,
};

test('arithmetic is element by element and rounds once; what has size 1 counts for all of its dimension', () => {
  fc.assert(
    fc.property(
      layouts,
      fc.constantFrom('f16', 'bf16', 'f32', 'i32'),
      fc.nat(1),
      fc.nat(99),
      ({ text, layout }, type, dim, seed) => {
        const [rows, columns] = layout.shape as [number, number];
        const shape = [rows, columns].map((size, i) => (i === dim ? 1 : size)) as [number, number];
        const a = Array.from({ length: rows * columns }, (_, i) => ((i * 7 + seed) % 31) - 15);
        const b = Array.from({ length: shape[0] * shape[1] }, (_, i) => ((i * 5 + seed) % 7) + 1);
        for (const [op, of] of Object.entries({
          ...ARITHMETIC,
          ...(type === 'i32' && { Mod: (x: number, y: number) => x % y }),
        })) {
          const out = new Uint8Array(elements(type, a).length);
          launch(
            'compute<1>(T* p, T* q, T* r)',
            { T: type, L: text },
            { p: elements(type, a), q: elements(type, b), r: { output: out } },
            (build) =>
              build.add(
                `ga = ViewGlobal(p, shape=[${rows}, ${columns}])`,
                `gb = ViewGlobal(q, shape=[${shape}])`,
                `gc = ViewGlobal(r, shape=[${rows}, ${columns}])`,
                'x = LoadGlobal(ga, layout=L)',
                `y = LoadGlobal(gb, layout=L.collapse(${dim}))`,
                `z = ${op}(x, y)`,
                'z = Neg(z)',
                'StoreGlobal(z, gc)',
              ),
          );
          const want = a.map((x, i) => {
            const exact = of(x, b[dim === 0 ? i % columns : Math.floor(i / columns)]!);
            if (type === 'i32') return -Math.trunc(exact) + 0;
            return -(type === 'f32' ? Math.fround(exact) : numberOf(type, nearest(type, exact))) + 0;
          });
          const got = type === 'i32' ? [...new Int32Array(out.buffer)] : valuesOf(type, out);
          assert.deepEqual(
            got.map((value) => value + 0),
            want,
            `${op} of ${type}`,
          );
        }
      },
    ),
    { ...PROPERTY, numRuns: 6 },
  );
});

test('pairs: of an element the one with the same coordinates, or none where another thread holds it', () => {
  fc.assert(
    fc.property(layouts, layouts, (a, b) => {
      const found = pairs(a.layout, b.layout);
      if (found === undefined) return;
      for (let thread = 0; thread < 32; thread++)
        for (const [local, at] of found.entries())
          assert.deepEqual(
            indexAt(b.layout, thread, at),
            indexAt(a.layout, thread, local).map((x, dim) => (b.layout.shape[dim] === 1 ? 0 : x)),
          );
    }),
    PROPERTY,
  );
});

test('Dot is the product of the tiles that stand in the operands, for every type of operand and any repeats and warps', () => {
  const forms = fc.tuple(
    fc.constantFrom('f16', 'bf16', 'i8', 'i4'),
    fc.constantFrom(1, 2),
    fc.constantFrom(1, 2),
    fc.constantFrom(1, 2),
    fc.constantFrom(1, 2),
    fc.nat(99),
  );
  fc.assert(
    fc.property(forms, ([type, warps, m, n, k, seed]) => {
      const sum = type.startsWith('i') ? 'i32' : 'f32';
      const depth = { f16: 16, bf16: 16, i8: 32, i4: 64 }[type]! * k;
      const [rows, columns] = [16 * m, 8 * n * warps];
      const a = Array.from({ length: rows * depth }, (_, i) => ((i * 7 + seed) % 15) - 7);
      const b = Array.from({ length: depth * columns }, (_, i) => ((i * 11 + seed) % 15) - 7);
      const c = Array.from({ length: rows * columns }, (_, i) => (i % 9) - 4);
      const out = new Uint8Array(4 * rows * columns);
      const floats = (values: number[]): Uint8Array =>
        sum === 'f32' ? elements('f32', values) : new Uint8Array(Int32Array.from(values).buffer);
      launch(
        'multiply<1>(T* p, T* q, U* r, U* to)',
        { T: type, U: sum },
        { p: elements(type, a), q: elements(type, b), r: floats(c), to: { output: out } },
        (build) =>
          build.add(
            `x = ViewGlobal(p, shape=[${rows}, ${depth}])`,
            `y = ViewGlobal(q, shape=[${depth}, ${columns}])`,
            `z = ViewGlobal(r, shape=[${rows}, ${columns}])`,
            `w = ViewGlobal(to, shape=[${rows}, ${columns}])`,
            `i = LoadGlobal(x, layout=replicate(${warps}).local(${m}, ${k}).mma_a(T))`,
            `j = LoadGlobal(y, layout=spatial(1, ${warps}).local(${k}, ${n}).mma_b(T))`,
            `l = LoadGlobal(z, layout=spatial(1, ${warps}).local(${m}, ${n}).mma_c(T))`,
            'o = Dot(i, j, l)',
            'StoreGlobal(o, w)',
          ),
      );
      const got = sum === 'f32' ? valuesOf('f32', out) : [...new Int32Array(out.buffer)];
      const want = c.map((start, i) => {
        let all = start;
        for (let at = 0; at < depth; at++)
          all += a[Math.floor(i / columns) * depth + at]! * b[at * columns + (i % columns)]!;
        return all;
      });
      assert.deepEqual(got, want);
    }),
    { ...PROPERTY, numRuns: 10 },
  );
});

test('if, for, while, Exit, Print, AllocateRegister, AllocateGlobal and indices of a grid of expressions', () => {
  const printed = launch('flow<n / 2, 2>(i32 n)', {}, { n: 7 }, (b) => {
    b.add('i, j = BlockIndices()', 'turns = 0');
    b.if('i == 2', (c) => c.add('Exit()'));
    b.while('turns < 3 + j', (c) => c.add('turns = turns + 1'));
    b.add('x = AllocateRegister(i32, layout=replicate(32, 1).local(2), init=i * 100 + turns)');
    b.for('at', [1, 'j + 2'], (c) => c.add('x = Add(x, x)'));
    b.if(
      'j == 1 and not i == 0',
      (c) => c.add('Print(x)'),
      (c) => c.if('i == 0', (d) => d.add('Print(x)')),
    );
    b.add('w = AllocateGlobal(f32, [4, 4])');
    b.if('i + j == 0', (c) => c.add('Print(w)'));
  });
  assert.equal(printed, 'x: i32[2]\n  6 6\nw: f32[4, 4] in global memory\nx: i32[2]\n  16 16\nx: i32[2]\n  416 416\n');
});
