import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addon, createRuntime, fromTyped, readTyped } from '../../../../native/binding.js';
import { chooseDevice, parseBytes } from '../../../../src/cli/options/device.js';
import { asLpqError } from '../../../../src/cli/terminal/failure.js';
import { LpqError } from '../../../../src/core/error.js';

const code = (expected: string) => (error: unknown) => error instanceof LpqError && error.code === expected;

test('sizes take g, m, k and t, fractions and plain bytes', () => {
  const parse = parseBytes('--vram-limit');
  assert.deepEqual(['24g', '1.5G', '512m', '64 MiB', '2k', '1t', '1000'].map(parse), [
    24 * 2 ** 30,
    1.5 * 2 ** 30,
    512 * 2 ** 20,
    64 * 2 ** 20,
    2048,
    2 ** 40,
    1000,
  ]);
  for (const bad of ['', 'g', '-1g', '0', '1x', 'all']) assert.throws(() => parse(bad), code('LPQ_USAGE'));
});

test('a device that is none, or that a command has no operations for, is refused', () => {
  for (const wish of ['tpu', 'cuda:', 'cuda:-1', 'cuda:x', 'CUDA'])
    assert.throws(() => chooseDevice(wish), code('LPQ_USAGE'));
  assert.throws(() => chooseDevice('cuda', false), code('LPQ_DEVICE'));
  assert.throws(() => chooseDevice('cuda:4096'), code('LPQ_DEVICE'));
  assert.equal(chooseDevice('cpu'), 'cpu');
  assert.equal(chooseDevice('auto', false), 'cpu');
});

test('native CUDA failures become errors with a remedy', () => {
  for (const [native, seen] of [
    ['LPQ_CUDA_MEMORY', 'LPQ_CUDA_MEMORY'],
    ['LPQ_CUDA_DEVICE', 'LPQ_DEVICE'],
    ['LPQ_CUDA_LOST', 'LPQ_CUDA_LOST'],
    ['LPQ_CUDA_OF_TOMORROW', 'LPQ_CUDA'],
  ] as const) {
    const error = asLpqError(Object.assign(new Error('facts'), { code: native, op: 'linear' }));
    assert.equal(error.code, seen);
    assert.ok(error.hint);
    assert.match(error.message, /facts/);
  }
});

test('the CPU runtime allocates, uploads and downloads without copies', async () => {
  const rt = createRuntime({ threads: 1 });
  assert.equal(rt.device, 'cpu');
  assert.equal(rt.memory(), undefined);
  const host = fromTyped('f32', [2], Float32Array.of(1, 2));
  const there = rt.upload(host);
  there.bytes()[3] = 0x40; // seen through the other handle: the same memory
  assert.deepEqual(there.bytes(), host.bytes());
  const back = await rt.download(there);
  host.dispose();
  there.dispose();
  assert.equal((await readTyped(rt, back)).length, 2);
  assert.equal(rt.allocate('bf16', [3, 5]).byteLength, 30);
});

test('every CUDA operation has a CPU operation of its name', () => {
  // What registers hold can be asked of a device alone, and compiled kernels run there alone: the CPU interprets their programs.
  const cpu = new Set([...addon().operations(), 'probe_map', 'launch_program']);
  assert.deepEqual(
    addon()
      .cudaOperations()
      .filter((name) => !cpu.has(name)),
    [],
  );
});
