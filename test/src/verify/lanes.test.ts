import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { made } from '../pack/checkpoint.js';
import { again, laneCalls } from './lanes.js';

const runtime = createRuntime(1);
const [call] = await laneCalls(runtime, 'turbomind', {
  m: made({ type: 'f8e4m3', n: 64, k: 64, group: 32 }),
});
const program = call!.params.program;
const last = program.trimEnd().split('\n').length;

/** What a line behind the program's last one, in its tile, is refused for. */
const LINES: Readonly<Record<string, RegExp>> = {
  'q = 1 +': /'' is no value/,
  'q = 0x100000000': /'0x100000000' is no number of 32 bits/,
  'q = 12ab': /'12ab' is no number of 32 bits/,
  'q = frobnicate(1)': /there is no function 'frobnicate'/,
  'q = pair(1)': /pair takes another number of arguments/,
  'q = (1': /'\)' is missing/,
  'q = 1 2': /'2' is too much/,
  'q = mma_a(row, 0, 1, 1, 1, 1)': /it is no statement/,
  'q = 1 + mma_a(row, 0, 1, 1, 1, 1)': /a statement has no value/,
  'pair(1, 2)': /it is no statement/,
  '3 = 4': /only a variable can be assigned/,
  'a = 1': /'a' is an array/,
  'q = s[0]': /'s' is no array/,
  'q = nothing': /it reads what was given no value/,
  'q = a[9]': /it reads what was given no value/,
  'a[32] = 1': /an array has no element 32/,
  'a[lane] = 1': /lanes differ in what must be one number/,
  'q = 1 / (lane / 32)': /a division by 0/,
  'q = numbers2(256)': /there is no code 256/,
  'q = word(packed, 1 << 20)': /element 1048576 is beyond the end/,
  'q = word(meta, 0)': /the module has no such tensor/,
  'mma_a(row + 1, 0, 0, 0, 0, 0)': /feature 16 is outside of the tile/,
  'mma_a(row, 1, 0, 0, 0, 0)': /k is outside of the tile/,
  'mma_b(col, 0, 0, 0)': /the instruction has another number of tokens/,
  'mma_sp(row, 0, 0, 2, 0, 0, 0, 0)': /the selector is 0 or 1/,
  'for i in 33:\n        q = 1': /a loop of 33/,
  'if 1:': /a block is missing/,
  '    q = 1': /it belongs to no block/,
  ' q = 1': /it is not indented by fours/,
  [`q = ${'('.repeat(20)}1${')'.repeat(20)}`]: /it is nested too deep/,
};

test('a program that cannot be is refused, and the line is named', async () => {
  for (const [line, what] of Object.entries(LINES))
    await assert.rejects(again(runtime, call!, `${program.trimEnd()}\n    ${line}\n`), (error: Error) => {
      const at = /line (\d+) of the lanes' program: (.*)/.exec(error.message);
      assert.ok(at && Number(at[1]) === last + 1, `${line}: ${error.message}`);
      assert.match(at[2]!, what, line);
      return true;
    });
});

test('a tile says its size and tokens', async () => {
  for (const [from, to, what] of [
    ['features = 16', 'features = 0', /a tile is 1 to 256 by 1 to 256/],
    ['features = 16', 'features = 257', /a tile is 1 to 256 by 1 to 256/],
    ['features = 16', 'features = 48', /the padded shape is whole tiles/],
    ['tokens = 8', 'tokens = 9', /there are 8 or 16 tokens/],
    ['tokens = 8', '', /there are 8 or 16 tokens/],
    ['depth = 16', 'depth = mma_a(row, 0, 1, 1, 1, 1)', /it is no statement/],
  ] as const) {
    assert.ok(program.includes(from));
    await assert.rejects(again(runtime, call!, program.replace(from, to)), what);
  }
  await assert.rejects(again(runtime, call!, ''), /a tile is 1 to 256 by 1 to 256/);
});

test('operators bind as in Python, shifts beyond 31 give 0', async () => {
  const lines = [
    '1 + 2 * 3 == 7',
    '1 << 2 + 1 == 8',
    '6 & 3 | 8 == 10',
    '5 ^ 1 & 3 == 4',
    '7 - 2 - 1 == 4',
    '100 / 7 % 4 == 2',
    '1 << 32 == 0',
    '0x10 == 16',
    '(2 < 3) + (3 < 2) == 1',
    'min(3, 2) == 2',
    'pair(0x12345678, 0x9abc) == 0x9abc5678',
    'number(3) == 0x4200',
    'sub2(0x44004200, 0x3c003c00) == 0x42004000',
    'mul2(0x44004200, 0x40004000) == 0x48004600',
    'fma2(0x3c003c00, 0x40004000, 0x3c00c000) == 0x42000000',
  ];
  for (const line of lines) {
    const tested = (to: string) => `${program.trimEnd()}\n    if ${to}:\n        q = 1\n    else:\n        q = 1 / 0\n`;
    const { registers, outputs } = await again(runtime, call!, tested(line));
    assert.equal(registers.count + outputs.count, 0, line);
    await assert.rejects(again(runtime, call!, tested(`(${line}) == 0`)), /a division by 0/);
  }
});
