import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sampled } from '../sample.js';
import { complaints, type FakeCuda, fakeCuda } from './fake-cuda/fake.js';
import { testHostProgram } from './host-program.js';

const RANGES = [
  { from: 1, to: 3, products: 24 },
  { from: 4, to: 4, products: 108 },
  { from: 5, to: 8, products: 119 },
];

// The kernels' source, with every thread, warp, box and product played by the host: one third of the types a commit.
for (const { from, to, products } of sampled('the kernels of experts on the host', RANGES, 3))
  testHostProgram(
    `the kernels of experts on a simulated device: types of ${from} to ${to} bits, f16 and bf16, experts of 0 to 100 rows, shared items`,
    {
      sources: ['experts-kernel.cpp', 'simulator/simulator.cpp'],
      includes: ['test/native/simulator'],
      options: [`-DLPQ_BITS_FROM=${from}`, `-DLPQ_BITS_TO=${to}`],
      prints: new RegExp(`^${products} products, 0 failures, at most 0\\.\\d\\d of the bound$`, 'm'),
    },
  );

const KERNELS = ['int4_f16_t2', 'int4_f16_t8', 'float6_bf16_t2'];
const made = fakeCuda(KERNELS.map((name) => `lpq_experts_${name}`));
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

test('the operation of experts launches what the CPU computes, run on a simulated device', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const kernels = fake.simulated('experts');
  if (typeof kernels === 'string') return t.skip(kernels);
  const script = fileURLToPath(new URL('./fake-cuda/experts.js', import.meta.url));
  const env = {
    ...process.env,
    ...fake.env,
    FAKE_CUDA_KERNELS: kernels.file,
    FAKE_CUDA_ARCH: '80',
    FAKE_CUDA_TRACE: '1',
  };
  const run = spawnSync(process.execPath, [script], { encoding: 'utf8', env });
  assert.equal(run.status, 0, run.stderr);
  const launched = complaints(run.stderr).trim().split('\n');
  // Tiles of 64 tokens from more than 32 rows an expert on, or where they are asked for.
  const names = ['int4_f16_t2', 'int4_f16_t8', 'int4_f16_t8', 'float6_bf16_t2', 'int4_f16_t2', 'int4_f16_t2'];
  assert.deepEqual(
    launched.filter((name) => name.startsWith('lpq_experts_')),
    names.map((name) => `lpq_experts_${name}`),
  );
  // Up to 1024 rows one launch groups, and one adds up.
  assert.deepEqual(
    launched.filter((name) => /group|count|offsets|invert|scatter/.test(name)),
    [
      ...Array.from({ length: 4 }, () => ['lpq_group_few', 'lpq_scatter_few_f32']).flat(),
      'lpq_invert_rows',
      'lpq_scatter_f32',
      'lpq_group_few',
      'lpq_group_few',
    ],
  );
  const lines = run.stdout.trim().split('\n');
  const near = lines.filter((line) => / experts: /.test(line));
  assert.equal(near.length, 4);
  // Both round once; sums of a few hundred terms in fp32 in another order differ by less than that.
  for (const line of near) assert.ok(Number(/: (.+)$/.exec(line)![1]) <= 2.1, line);
  const refused = lines.filter((line) =>
    /^refused LPQ_NATIVE_ARGUMENT: .*offsets do not ascend from 0 or more to at most 7/.test(line),
  );
  assert.equal(refused.length, 2, run.stdout);
  const same = lines.filter((line) => /^rows .*: true$/.test(line));
  assert.equal(same.length, 5, run.stdout);
  const outside = lines.filter((line) => /^refused LPQ_NATIVE_ARGUMENT: .*a value outside 3 experts/.test(line));
  assert.equal(outside.length, 2, run.stdout);
});
