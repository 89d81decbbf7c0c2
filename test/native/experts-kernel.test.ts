import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sampled } from '../sample.js';
import { complaints, type FakeCuda, fakeCuda } from './fake-cuda/fake.js';
import { testHostProgram } from './host-program.js';

const RANGES = [
  { from: 1, to: 3, products: 72 },
  { from: 4, to: 4, products: 242 },
  { from: 5, to: 8, products: 292 },
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

/**
 * What runs for each product of fake-cuda/experts.ts by the rows an expert has in the mean, or what is asked for: on 8.0 tiles of 64 from
 * more than 28 on; on 9.0 of 32 from more than 10 on, of 128 with rounded weights from more than 44.
 */
const DEVICES = {
  '80': [
    'int4_f16_t2',
    'int4_f16_t8',
    'int4_f16_t8',
    'float6_bf16_t2',
    'int4_f16_t8',
    'int4_f16_t2',
    'int4_f16_t8',
    'float6_bf16_t2',
    'int4_f16_t8',
    'int4_f16_t2',
    'int4_f16_t2',
  ],
  '90': [
    'int4_f16_m2_g',
    'int4_f16_m4_o',
    'int4_f16_m8_o',
    'float6_bf16_h2',
    'int4_f16_c16x2',
    'int4_f16_m2_g',
    'int4_f16_m4_o',
    'float6_bf16_h2',
    'int4_f16_c16x2',
    'int4_f16_m2_o',
    'int4_f16_m2_o',
  ],
} as const;
const made = fakeCuda(
  Object.values(DEVICES).flatMap((names) => names.map((name) => `lpq_experts_${name}`)),
  { hopper: true },
);
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());
let kernels: ReturnType<FakeCuda['simulated']> | undefined;

for (const [arch, names] of Object.entries(DEVICES))
  test(`the operations of experts launch what the CPU computes, run on a simulated device of ${arch}`, (t) => {
    if (typeof made === 'string') return t.skip(made);
    kernels ??= fake.simulated('experts');
    if (typeof kernels === 'string') return t.skip(kernels);
    const script = fileURLToPath(new URL('./fake-cuda/experts.js', import.meta.url));
    const settings = { FAKE_CUDA_KERNELS: kernels.file, FAKE_CUDA_ARCH: arch, FAKE_CUDA_TRACE: '1' };
    const env = { ...process.env, ...fake.env, ...settings };
    const run = spawnSync(process.execPath, [script], { encoding: 'utf8', env });
    assert.equal(run.status, 0, run.stderr);
    const launched = complaints(run.stderr)
      .trim()
      .split('\n')
      .map((line) => line.replace(/^lpq_| early$/g, ''));
    assert.deepEqual(
      launched.filter((name) => name.startsWith('experts_')),
      names.map((name) => `experts_${name}`),
    );
    // Up to 1024 rows one launch groups, and one adds up.
    const few = Array.from({ length: 4 }, () => ['group_few', 'scatter_few_f32']).flat();
    assert.deepEqual(
      launched.filter((name) => /group|count|offsets|invert|scatter/.test(name)),
      [...few, 'invert_rows', 'scatter_f32', 'group_few', 'group_few'],
    );
    const lines = run.stdout.trim().split('\n');
    const near = lines.filter((line) => / experts: /.test(line));
    assert.equal(near.length, 9);
    // Both round once, and so are at most one unit in the last place apart, 2^-10 of a number in f16, 2^-7 in bf16; sums of a few
    // hundred terms in fp32 in another order add a hundredth of that.
    for (const line of near) assert.ok(Number(/: (.+)$/.exec(line)![1]) <= 2.1, line);
    const refused = (sentence: string) =>
      lines.filter((line) => line.startsWith('refused LPQ_NATIVE_ARGUMENT: ') && line.endsWith(sentence)).length;
    assert.equal(refused('offsets do not ascend from 0 or more to at most 7'), 2, run.stdout);
    assert.equal(refused('a value outside 3 experts'), 2, run.stdout);
    assert.match(run.stdout, arch === '90' ? /width is not 4, 8 or 16/ : /it needs wgmma/);
    assert.doesNotMatch(run.stdout, /^taken$/m);
    assert.equal(lines.filter((line) => /^rows .*: true$/.test(line)).length, 5, run.stdout);
  });
