import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { createRuntime } from '../../native/binding.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import { expertModules, mixtureModules } from '../gpu/library-experts.js';
import { type FakeCuda, fakeCuda } from './fake-cuda/fake.js';

// Products of rows sorted by expert of liblpq_kernels.so from plain C: on the CPU, and by the kernels' sources on a simulated device.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-library-experts-'));
after(() => rmSync(work, { recursive: true, force: true }));

const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
const skip = compiler === undefined ? 'no C compiler was found' : undefined;

const flags = ['-std=c99', '-Wall', '-Wextra', '-pedantic', '-Werror', '-O2', '-I', path.join(root, 'native/library')];

before(() => {
  if (skip !== undefined) return;
  for (const program of ['experts', 'mixture']) {
    const files = ['-o', path.join(work, program), path.join(root, `test/gpu/library/${program}.c`)];
    const libraries = ['-L', build, '-llpq_kernels', '-lm', '-ldl'];
    const made = spawnSync(compiler as string, [...flags, ...files, ...libraries], { encoding: 'utf8' });
    assert.equal(made.status, 0, made.stderr);
  }
});

function runs(program: string, args: readonly string[], env: Record<string, string> = {}) {
  const paths = [build, env.LD_LIBRARY_PATH].filter(Boolean).join(':');
  return spawnSync(path.join(work, program), args, {
    encoding: 'utf8',
    env: { ...process.env, ...env, LD_LIBRARY_PATH: paths },
  });
}

const KERNELS = [
  ...['t2', 't8', 'm2_g', 'm4_g', 'm2_o', 'm4_o', 'm8_o', 'c16x2'].map((cut) => `lpq_experts_int4_f16_${cut}`),
  ...['t1', 's1', 'x1'].map((cut) => `lpq_gemm_int4_f16_${cut}`),
  ...['words_4', 'u8', 'u16'].map((of) => `lpq_interleave_${of}`),
];
const made = fakeCuda(KERNELS, { hopper: true });
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());
let kernels: ReturnType<FakeCuda['simulated']> | undefined;

/** A program on simulated devices, the kernels' sources run by the host. `launches`: says of each kernel that is launched. */
function simulated(t: TestContext, program: string, args: readonly string[], launches = (_: readonly string[]) => {}) {
  if (typeof made === 'string') return t.skip(made);
  kernels ??= fake.simulated('experts');
  if (typeof kernels === 'string') return t.skip(kernels);
  for (const arch of ['80', '90']) {
    const told = { FAKE_CUDA_KERNELS: kernels.file, FAKE_CUDA_ARCH: arch, FAKE_CUDA_TRACE: '1' };
    const run = runs(program, args, { ...fake.env, ...told });
    assert.equal(run.status, 0, `${arch}: ${run.stdout}${run.stderr}`);
    assert.match(run.stdout, /^\d{2,} checks, 0 failed$/m);
    launches(run.stderr.split('\n'));
    for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(`${arch}: ${line[1]}`);
  }
}

async function packed(input: CanonicalCheckpoint, name: string): Promise<string> {
  const output = path.join(work, name);
  await packCheckpoint({ input, target: 'tilus', output, runtime: createRuntime(1) });
  input.close();
  return output;
}

test('the contract of experts as far as it needs neither device nor files, and products of codes', { skip }, () => {
  const run = runs('experts', []);
  assert.equal(run.status, 0, run.stdout + run.stderr);
  assert.match(run.stdout, /^37 checks, 0 failed$/m);
});

/** Experts of one module, with tails of N and K and a bias; of two (gate, up), whose outputs do not fill a block, with zero points. */
for (const [name, parts] of [
  ['down', 1],
  ['gate and up', 2],
] as const)
  test(`experts of an artifact: ${name}`, { skip }, async (t) => {
    const dir = await packed(await expertModules(work, `w${parts}`, parts), `artifact-${parts}`);
    const cpu = runs('experts', ['cpu', dir, '6', `${parts}`]);
    assert.equal(cpu.status, 0, cpu.stdout + cpu.stderr);
    simulated(t, 'experts', ['gpu', dir, '6', `${parts}`]);
  });

for (const form of ['gated', 'apart'])
  test(`a whole mixture, gate and up ${form}: rows grouped, products, sums of tokens`, { skip }, async (t) => {
    const dir = await packed(await mixtureModules(work, form), `mixture-${form}`);
    simulated(t, 'mixture', [dir, '6', form], (kernels) => {
      const [gates, sums] = ['lpq_gated', 'lpq_combine'].map((name) => kernels.filter((line) => line.includes(name)));
      assert.ok(sums!.length >= 10);
      assert.equal(gates!.length, form === 'gated' ? 0 : sums!.length);
    });
  });
