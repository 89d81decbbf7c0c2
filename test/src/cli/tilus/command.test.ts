import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { lpq, scratch } from '../lpq.js';

const TUNE = ['tune', 'transform', '--try', 'WN=1,2', '--try', 'RK=1,2'];
const SMALL = ['--set', 'T=u4', '--set', 'K=32', '--set', 'N=32'];

test('lpq tilus run transforms and dequantizes files', async (t) => {
  const dir = scratch(t);
  const file = (name: string): string => path.join(dir, name);
  const codes = Uint8Array.from({ length: 512 }, (_, i) => (i * 37) % 256);
  writeFileSync(file('w'), codes);
  writeFileSync(file('none'), '');
  const transform = await lpq([
    'tilus',
    'run',
    'transform',
    ...SMALL,
    '--in',
    `w_ptr=${file('w')}`,
    '--out',
    `transformed_ptr=${file('t')}:512`,
  ]);
  assert.deepEqual([transform.code, transform.stderr], [0, '']);
  const args = [
    '--set',
    'O=f32',
    '--set',
    'SCALED=0',
    '--in',
    `tiles_ptr=${file('t')}`,
    '--in',
    `s_ptr=${file('none')}`,
    '--in',
    `z_ptr=${file('none')}`,
  ];
  const ran = await lpq([
    'tilus',
    'run',
    'dequantize',
    ...SMALL,
    ...args,
    '--out',
    `w_ptr=${file('f')}:4096`,
    '--json',
  ]);
  assert.equal(ran.code, 0);
  const numbers = new Float32Array(new Uint8Array(readFileSync(file('f'))).buffer);
  assert.deepEqual(
    [...numbers],
    Array.from({ length: 1024 }, (_, i) => (codes[i >> 1]! >> (4 * (i & 1))) & 15),
  );
});

test('lpq tilus compile writes the kernel and says what it takes', async (t) => {
  const output = path.join(scratch(t), 'matmul.cu');
  const args = [
    'tilus',
    'compile',
    'matmul',
    '--set',
    'STAGES=3',
    '--set',
    'RK=2',
    '--name',
    'u4_times_f16',
    '-o',
    output,
  ];
  const ran = await lpq([...args, '--json']);
  assert.equal(ran.code, 0);
  const result = JSON.parse(ran.stdout.split('\n').at(-1)!);
  assert.equal(result.name, 'u4_times_f16');
  assert.deepEqual(result.instructions, { ...result.instructions, 'ldmatrix.x4': 2, 'mma.m16n8k16.f16': 1 });
  assert.match(readFileSync(output, 'utf8'), /^extern "C" __global__ __launch_bounds__\(32\) void u4_times_f16\(/m);
  const again = await lpq(args);
  assert.deepEqual([again.code, again.stderr.split(' ')[0]], [2, 'LPQ_OUTPUT_EXISTS']);
});

test('lpq tilus refuses what it cannot do, and writes nothing', async (t) => {
  const dir = scratch(t);
  const out = path.join(dir, 'out');
  const wrong = path.join(dir, 'wrong.tilus');
  writeFileSync(wrong, 'def wrong<1>(f16* p):\n    x = Load(p)\n');
  const cases: readonly (readonly [number, RegExp, ...string[]])[] = [
    [4, /^LPQ_TILUS {2}lpq has no program sgemm/, 'show', 'sgemm'],
    [4, /^LPQ_FILE {2}the program .*absent\.tilus does not exist/, 'show', path.join(dir, 'absent.tilus')],
    [4, /^LPQ_TILUS {2}line 2, x = Load\(p\): there is no instruction Load/, 'compile', wrong],
    [4, /^LPQ_TILUS {2}matmul has no constant BITS/, 'show', 'matmul', '--set', 'BITS=4'],
    [2, /^LPQ_USAGE {2}--set takes NAME=VALUE/, 'show', 'matmul', '--set', 'T'],
    [2, /^LPQ_USAGE {2}--arch does not take '70'/, 'show', 'matmul', '--arch', '70'],
    [2, /^LPQ_USAGE {2}--part does not take 'grid'/, 'show', 'matmul', '--part', 'grid'],
    [2, /^LPQ_USAGE {2}--output takes a file that ends in \.cu or \.cubin/, 'compile', 'matmul', '-o', out],
    [2, /^LPQ_USAGE {2}--name takes a C identifier/, 'compile', 'matmul', '--name', 'a b'],
    [2, /^LPQ_USAGE {2}--out takes NAME=FILE:BYTES/, 'run', 'sum', '--out', `c_ptr=${out}`],
    [4, /^LPQ_FILE {2}the input .* could not be read/, 'run', 'sum', '--in', `parts_ptr=${path.join(dir, 'absent')}`],
    [
      4,
      /^LPQ_TILUS {2}sum needs bytes for its parameter parts_ptr\n.*got +nothing\n.*--in parts_ptr=FILE/,
      'run',
      'sum',
      '--out',
      `c_ptr=${out}:64`,
    ],
    [3, /^LPQ_DEVICE {2}--device cuda:99 is not available/, 'run', 'sum', '--device', 'cuda:99'],
    [2, /^LPQ_USAGE {2}there is nothing to tune/, 'tune', 'transform'],
    [2, /^LPQ_USAGE {2}the launch needs the number m/, 'tune', 'matmul', '--try', 'WN=1,2'],
    [2, /^LPQ_USAGE {2}--in does not take 'n=1'\n.*\n.*m=NUMBER/, 'tune', 'matmul', '--in', 'n=1', '--try', 'WN=1,2'],
    [2, /^LPQ_USAGE {2}--in does not take 'm=1'\n.*\n.*takes no numbers/, 'tune', 'transform', '--in', 'm=1'],
    [2, /^LPQ_USAGE {2}--try does not take 'WN'/, 'tune', 'transform', '--try', 'WN'],
    [2, /^LPQ_USAGE {2}there are 4 configurations, more than --most 3/, ...TUNE, '--most', '3'],
    [3, /^LPQ_DEVICE {2}--device cuda:99 is not available/, ...TUNE, '--device', 'cuda:99'],
    [2, /^LPQ_USAGE {2}programs are compiled for a CUDA device/, ...TUNE, '--device', 'cpu'],
  ];
  for (const [code, message, ...words] of cases) {
    const ran = await lpq(['tilus', ...words]);
    assert.equal(ran.code, code, words.join(' '));
    assert.match(ran.stderr, message);
  }
  assert.ok(!existsSync(out));
});
