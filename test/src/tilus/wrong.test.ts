import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LpqError } from '../../../src/core/error.js';
import { check } from '../../../src/tilus/check/check.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { parse } from '../../../src/tilus/language/parse.js';

const HEAD = 'const M = 16\ndef wrong<2>(f16* p, u8* q, f16* o, i32 n):\n    b = BlockIndices()\n';
const GLOBAL = [
  'g = ViewGlobal(p, shape=[64, 64])',
  'u = ViewGlobal(q, shape=[64, 64])',
  'out = ViewGlobal(o, shape=[2, 64, 64])',
];
const L = 'spatial(4, 8).local(1, 8)';

/** Runs a program whose body follows the views; what it throws as one line. */
function outcome(...body: readonly string[]): string {
  const text = `${HEAD}${[...GLOBAL, ...body].map((line) => `    ${line}\n`).join('')}`;
  try {
    run(check(parse(text)), {
      p: new Uint8Array(8192),
      q: new Uint8Array(4096),
      o: { output: new Uint8Array(16384) },
      n: 3,
    });
  } catch (error) {
    assert.ok(error instanceof LpqError && error.code === 'LPQ_TILUS', String(error));
    return error.message;
  }
  return 'fine';
}

const shared = 's = AllocateShared(f16, [4, 64])';
const copy = 'CopyAsync(s, g, offset=[0:, 0:])';
const read = `x = LoadShared(s, layout=${L})`;
const store = `StoreShared(y, s)`;
const other = `z = LoadShared(s, layout=local(1, 8).spatial(4, 8))`;

test('programs that are wrong are refused before they run, by line and instruction', () => {
  const cases: readonly (readonly [string, RegExp, ...string[]])[] = [
    ['instruction', /^line 7, x = Multiply\(g\): there is no instruction Multiply$/, 'x = Multiply(g)'],
    ['name', /^line 7, Print\(nothing\): there is no tensor nothing here$/, 'Print(nothing)'],
    ['scope', /^line 7, .*: g is in global memory$/, `x = LoadShared(g, layout=${L})`],
    [
      'rank',
      /^line 7, .*: a tile of rank 3 does not fit g, which has rank 2$/,
      'x = LoadGlobal(g, layout=spatial(1, 4, 8))',
    ],
    ['offset', /an offset in g has 2 numbers$/, `x = LoadGlobal(g, layout=${L}, offset=[0])`],
    [
      'threads',
      /the layout has 64 threads, and other layouts of the program have 32$/,
      `x = LoadGlobal(g, layout=${L})`,
      'y = LoadGlobal(g, layout=spatial(8, 8))',
    ],
    ['warps', /a block has a multiple of 32 threads/, 'x = LoadGlobal(g, layout=spatial(3, 5))'],
    [
      'bits',
      /a View must keep the bits of each thread$/,
      `x = LoadGlobal(u, layout=${L})`,
      `y = View(x, dtype=u6, layout=${L})`,
    ],
    [
      'view',
      /a View must keep the threads$/,
      `x = LoadGlobal(u, layout=${L})`,
      'y = View(x, layout=spatial(64).local(4))',
    ],
    ['low', /there is no arithmetic on u8$/, `x = LoadGlobal(u, layout=${L})`, 'y = Add(x, x)'],
    ['types', /both must have the same type$/, `x = LoadGlobal(g, layout=${L})`, 'y = Cast(x, f32)', 'z = Add(x, y)'],
    [
      'layouts',
      /b has neither the layout of a/,
      `x = LoadGlobal(g, layout=${L})`,
      'y = LoadGlobal(g, layout=local(1, 8).spatial(4, 8))',
      'z = Add(x, y)',
    ],
    [
      'mma',
      /the layout of b is not a product whose last factor is operand b of mma.m16n8k16$/,
      'x = LoadGlobal(g, layout=mma_a(f16))',
      'y = LoadGlobal(g, layout=spatial(16, 2).local(1, 4))',
      'c = AllocateRegister(f32, layout=mma_c(f16), init=0.0)',
      'd = Dot(x, y, c)',
    ],
    ['dot', /no mma multiplies f32/, `x = AllocateRegister(f32, layout=mma_a(f16), init=1.0)`, 'd = Dot(x, x, x)'],
    ['shared', /^line 7, .*: shared memory of sm_80 is too small for s$/, 's = AllocateShared(f32, [256, 256])'],
    ['beyond', /the tile reaches beyond dimension 0 of s$/, shared, `x = LoadShared(s, layout=local(2, 1).${L})`],
    ['store', /x and u have different types$/, `x = LoadGlobal(g, layout=${L})`, 'StoreGlobal(x, u)'],
    ['chunks', /cp.async copies 16 bytes at a time/, 's = AllocateShared(f16, [4, 4])', 'CopyAsync(s, g)'],
    [
      'loop',
      /x was made outside of this block and cannot change its type in it$/,
      `x = LoadGlobal(g, layout=${L})`,
      'for i in range(2):',
      '    x = Cast(x, f32)',
    ],
    ['gone', /there is no tensor y here$/, 'if n > 2:', `    y = LoadGlobal(g, layout=${L})`, 'Print(y)'],
    ['output', /its result, a tensor, needs a name$/, `LoadGlobal(g, layout=${L})`],
    ['missing', /layout is missing$/, 'x = LoadGlobal(g)'],
    [
      'out',
      /out=x has a different type or layout from the result$/,
      `x = LoadGlobal(g, layout=${L})`,
      'Cast(x, f32, out=x)',
    ],
    ['wait', /it takes 0 to 7, the number of groups that may be in flight$/, 'CopyAsyncWaitGroup(8)'],
    ['constant', /this must be a number that is known before the launch$/, 'CopyAsyncWaitGroup(n)'],
    ['text', /^line 7: the program has a syntax error$/, 'x = LoadGlobal(g, layout=)'],
    ['real', /^line 7, x = n \* 0.5: scalars are integers$/, 'x = n * 0.5'],
    ['whole', /scalars are integers$/, `x = LoadGlobal(g, layout=${L}, offset=[0.5:, 0:])`],
    ['indices', /b exists already$/, 'b = BlockIndices()'],
    ['count', /i is a loop variable, which only the loop sets$/, 'for i in range(3):', '    i = i + 1'],
    ['division', /a division by 0$/, 's = AllocateShared(f16, [M / 0, 64])'],
  ];
  for (const [what, message, ...body] of cases) assert.match(outcome(...body), message, what);
});

test('what the machine leaves undefined is reported with block, thread and instruction', () => {
  const cases: readonly (readonly [string, RegExp, ...string[]])[] = [
    [
      'a missing wait',
      /^line 9, x = LoadShared.*: block \(0\), thread 0 reads byte 0 of shared memory before the copy of line 8 \(CopyAsync\(s, g, .*\) has arrived$/,
      shared,
      copy,
      read,
    ],
    [
      'a wait for another group',
      /before the copy of line 8/,
      shared,
      copy,
      'CopyAsyncCommitGroup()',
      'CopyAsyncCommitGroup()',
      'CopyAsyncWaitGroup(2)',
      'Synchronize()',
      read,
    ],
    [
      'a wait without Synchronize',
      /^line 12, .*thread 0 reads byte 16 of shared memory, which thread 1 wrote at line 8 .* with no Synchronize in between$/,
      shared,
      copy,
      'CopyAsyncCommitGroup()',
      'CopyAsyncWaitGroup(0)',
      'x = LoadShared(s, layout=spatial(4, 8).local(1, 8), offset=[0:, 0:])',
      'y = LoadShared(s, layout=local(1, 8).spatial(4, 8))',
    ],
    [
      'a missing Synchronize',
      /^line 10, .*: block \(0\), thread 0 reads byte 16 of shared memory, which thread 1 wrote at line 9/,
      shared,
      `y = AllocateRegister(f16, layout=${L}, init=1.0)`,
      store,
      other,
    ],
    [
      'a write over what others read',
      /^line 12, StoreShared.*: block \(0\), thread 0 writes byte 2 of shared memory, which thread 1 reads with no Synchronize in between$/,
      shared,
      `y = AllocateRegister(f16, layout=${L}, init=1.0)`,
      store,
      'Synchronize()',
      other,
      store,
    ],
    [
      'a copy over what others read',
      /^line 12, CopyAsync.*thread 0 writes byte 2 of shared memory, which thread 1 reads with no Synchronize in between$/,
      shared,
      `y = AllocateRegister(f16, layout=${L}, init=1.0)`,
      store,
      'Synchronize()',
      other,
      copy,
    ],
    [
      'a write into a copy',
      /^line 10, .*writes byte 0 of shared memory while line 9 .* still copies to it/,
      shared,
      `y = AllocateRegister(f16, layout=${L}, init=1.0)`,
      copy,
      store,
    ],
    [
      'shared memory that was not written',
      /^line 8, .*: block \(0\), thread 0 reads byte 0 of shared memory, which was never written$/,
      shared,
      read,
    ],
    [
      'registers that were not written',
      /^line 8, .*: block \(0\), thread 0 reads x, whose registers were never written$/,
      `x = AllocateRegister(f16, layout=${L})`,
      'y = Neg(x)',
    ],
    [
      'an output that is read',
      /reads byte 0 of o, which was never written/,
      `x = LoadGlobal(out, layout=${L}, offset=[0, 0:, 0:])`,
    ],
    [
      'two blocks that write to one place',
      /block \(1\), thread 0 writes byte 0 of o, which block number 0 wrote at line 8/,
      `x = LoadGlobal(g, layout=${L})`,
      'StoreGlobal(x, out, offset=[0, 0:, 0:])',
    ],
    [
      'an address beyond memory',
      /reads bytes 8192 to 8193 of p, which has 8192/,
      'far = ViewGlobal(p, shape=[128, 64])',
      `x = LoadGlobal(far, layout=${L}, offset=[64:, 0:])`,
    ],
    [
      'an index beyond shared memory',
      /takes an index beyond s$/,
      shared,
      `x = LoadShared(s, layout=${L}, offset=[b + 1:, 0:])`,
    ],
    [
      'an offset before memory',
      /begins at -3 in dimension 0 of g$/,
      `x = LoadGlobal(g, layout=${L}, offset=[0 - n:, 0:])`,
    ],
    [
      'halves of a byte',
      /writes byte 0 of q, which thread 0 wrote/,
      'w = ViewGlobal(q, dtype=u4, shape=[64, 64])',
      `x = AllocateRegister(u4, layout=spatial(1, 32), init=1)`,
      'StoreGlobal(x, w)',
    ],
    ['a division by zero', /thread 0 divides by 0$/, `x = AllocateRegister(i32, layout=${L}, init=0)`, 'y = Div(x, x)'],
    ['copies at the end', /ends while copies or products are in flight$/, shared, copy],
    [
      'copies that are not aligned',
      /copies from byte 2 of p, which is not a multiple of 16$/,
      shared,
      'CopyAsync(s, g, offset=[0:, 1:])',
    ],
    ['indices of a grid', /has 1 indices, not 2$/, 'i, j = BlockIndices()'],
  ];
  const off = cases
    .map(([what, message, ...body]) => [what, outcome(...body), message] as const)
    .filter(([, got, want]) => !want.test(got));
  assert.deepEqual(off, []);
});

test('the same programs without their fault run', () => {
  assert.equal(
    outcome(shared, copy, 'CopyAsyncCommitGroup()', 'CopyAsyncWaitGroup(0)', 'Synchronize()', read, other),
    'fine',
  );
  assert.equal(
    outcome(
      shared,
      `y = AllocateRegister(f16, layout=${L}, init=1.0)`,
      store,
      'Synchronize()',
      other,
      'Synchronize()',
      store,
    ),
    'fine',
  );
  assert.equal(outcome(`x = LoadGlobal(g, layout=${L})`, 'StoreGlobal(x, out, offset=[b, 0:, 0:])'), 'fine');
});
