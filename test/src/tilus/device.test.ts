import assert from 'node:assert/strict';
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { buildContenders, sumAfter } from '../../../bench/tilus/contenders.js';
import { SPACES } from '../../../bench/tilus/space.js';
import { addon, allocate } from '../../../native/binding.js';
import { check, type Settings } from '../../../src/tilus/check/check.js';
import { compile } from '../../../src/tilus/compile/compile.js';
import { buffersOf } from '../../../src/tilus/device/buffers.js';
import { launchCall } from '../../../src/tilus/device/launch.js';
import { buildCubins } from '../../../src/tilus/device/nvcc.js';
import { enumerate } from '../../../src/tilus/enumerate.js';
import { program } from '../../../src/tilus/programs.js';

/** Puts NVCC back after the test. */
function keepNvcc(t: TestContext): void {
  const before = process.env.NVCC;
  t.after(() => {
    if (before === undefined) delete process.env.NVCC;
    else process.env.NVCC = before;
  });
}

test('a launch lists each parameter: pointers by inputs and outputs, numbers, boxes', () => {
  assert.ok(addon().cudaOperations().includes('launch_program'));
  const hopper = check(program('hopper'), { settings: { N: 128, K: 256, BM: 32 }, arch: 90 });
  const kernel = compile(hopper, 'k');
  const scalars = new Map([['m', 40]]);
  const tensors = new Map(hopper.parameters.map(({ name }) => [name, allocate('u8', [16])]));
  const call = launchCall({ program: hopper, kernel, cubin: '/k.cubin' }, { tensors, scalars });
  assert.deepEqual(
    call.inputs,
    ['a_ptr', 'w_ptr', 's_ptr'].map((name) => tensors.get(name)),
  );
  assert.deepEqual(call.outputs, [tensors.get('c_ptr')]);
  assert.deepEqual(call.params, {
    ...{ cubin: '/k.cubin', kernel: 'k', blocks: 2 * 2, threads: 128, shared: kernel.sharedBytes },
    // Four pointers, m, and boxes of 64 x 32 of a f16[40, 256].
    arguments: [0, 0, 0, 1, 0, 2, 0, 3, 1, 40, 2, 0, 2, 256, 40, 1, 64, 32, 1],
  });
  for (const tensor of tensors.values()) tensor.dispose();
});

test('buffers are as large as the views of a program', () => {
  const matmul = check(program('matmul'), { settings: { T: 'u3', N: 64, K: 128, GROUPS: 2, SPLIT: 2, O: 'f32' } });
  const buffers = buffersOf(matmul, new Map([['m', 5]]));
  assert.deepEqual(
    buffers.map(({ name, bytes, written }) => [name, bytes, written]),
    [
      ['a_ptr', 5 * 128 * 2, false],
      ['w_ptr', (64 * 128 * 3) / 8, false],
      ['s_ptr', 2 * 64 * 2, false],
      ['z_ptr', 2 * 64 * 2, false],
      ['bias_ptr', 64 * 4, false],
      ['c_ptr', 2 * 5 * 64 * 4, true],
    ],
  );
});

test('kernels are compiled in batches by several compilers, and once', async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-tilus-build-'));
  t.after(() => rmSync(folder, { recursive: true }));
  keepNvcc(t);
  const nvcc = path.join(folder, 'nvcc');
  // Writes the names of its kernels where a cubin goes; fails for u1.
  writeFileSync(
    nvcc,
    '#!/bin/sh\nfor last; do :; done\ngrep -q "T = u1" "$last" && { echo "no u1" >&2; exit 1; }\ngrep -c __global__ "$last" >> "$(dirname "$last")/$(basename "$last" .cu).cubin"\n',
  );
  chmodSync(nvcc, 0o755);
  process.env.NVCC = nvcc;
  const kernels = enumerate(
    program('sum'),
    Array.from({ length: 11 }, (_, i) => ({ SPLIT: 2 + i })),
  ).map(({ kernel }) => kernel!);
  const built: number[] = [];
  const files = await buildCubins(kernels, 90, folder, { jobs: 2, onBuilt: (done) => built.push(done) });
  assert.deepEqual([built.at(-1), new Set(files).size], [11, 2]);
  assert.deepEqual([...new Set(files)].map((file) => readFileSync(file, 'utf8')).sort(), ['5\n', '6\n']);
  await buildCubins(kernels, 90, folder, { jobs: 2 });
  assert.deepEqual([...new Set(files)].map((file) => readFileSync(file, 'utf8')).sort(), ['5\n', '6\n']);
  const failing = compile(check(program('transform'), { settings: { T: 'u1' } }));
  await assert.rejects(buildCubins([failing], 90, folder), { code: 'LPQ_BUILD', got: 'no u1 ' });
  process.env.NVCC = path.join(folder, 'absent');
  await assert.rejects(buildCubins([failing], 90, folder), { code: 'LPQ_BUILD', got: /absent does not start$/ });
  assert.ok(readdirSync(folder).length > 0);
});

test('configurations of a space can be compiled; parts of K are added up by one program', async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-tilus-space-'));
  t.after(() => rmSync(folder, { recursive: true }));
  keepNvcc(t);
  process.env.NVCC = '/bin/true';
  const point = { type: 'i4', k: 4096, n: 4096, m: 1, group: 128 };
  const space = SPACES.matmul(point);
  assert.ok(space.length >= 150 && space.length <= 300, String(space.length));
  const some = space.filter((_, i) => i % 16 === 0);
  const request = { source: program('matmul'), all: some, arch: 80, deviceArch: 90, folder, after: sumAfter } as const;
  const { contenders, refused } = await buildContenders(request);
  assert.deepEqual([contenders.length, refused.length], [some.length, 0]);
  for (const { settings, launches } of contenders) assert.equal(launches.length, settings.SPLIT === 1 ? 1 : 2);
  const many: Settings[] = [SPACES.matmul({ ...point, m: 4096 }), SPACES.hopper({ ...point, m: 64, group: 0 })].map(
    ([first]) => first!,
  );
  assert.deepEqual([many[0]!.SPLIT, many[1]!.BM], [1, 16]);
});
