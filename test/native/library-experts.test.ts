import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime } from '../../native/binding.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import { expertModules } from '../gpu/library-experts.js';
import { fakeCuda } from './fake-cuda/fake.js';

// Products of rows sorted by expert of liblpq_kernels.so from plain C: on the CPU, and by the kernels' sources on a simulated device.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-library-experts-'));
after(() => rmSync(work, { recursive: true, force: true }));

const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
const skip = compiler === undefined ? 'no C compiler was found' : undefined;
const program = path.join(work, 'experts');

before(() => {
  if (skip !== undefined) return;
  const flags = [
    '-std=c99',
    '-Wall',
    '-Wextra',
    '-pedantic',
    '-Werror',
    '-O2',
    '-I',
    path.join(root, 'native/library'),
  ];
  const files = ['-o', program, path.join(root, 'test/gpu/library/experts.c'), '-L', build, '-llpq_kernels'];
  const made = spawnSync(compiler as string, [...flags, ...files, '-lm', '-ldl'], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
});

function runs(args: readonly string[], env: Record<string, string> = {}) {
  const paths = [build, env.LD_LIBRARY_PATH].filter(Boolean).join(':');
  return spawnSync(program, args, { encoding: 'utf8', env: { ...process.env, ...env, LD_LIBRARY_PATH: paths } });
}

test('the contract of experts as far as it needs neither device nor files, and products of codes', { skip }, () => {
  const run = runs([]);
  assert.equal(run.status, 0, run.stdout + run.stderr);
  assert.match(run.stdout, /^33 checks, 0 failed$/m);
});

/** Experts of one module, with tails of N and K and a bias; of two (gate, up), whose outputs do not fill a block, with zero points. */
for (const [name, parts] of [
  ['down', 1],
  ['gate and up', 2],
] as const)
  test(`experts of an artifact: ${name}`, { skip }, async (t) => {
    const dir = path.join(work, `artifact-${parts}`);
    const input = await expertModules(work, `w${parts}`, parts);
    await packCheckpoint({ input, target: 'tilus', output: dir, runtime: createRuntime(1) });
    input.close();
    const cpu = runs(['cpu', dir, '6', `${parts}`]);
    assert.equal(cpu.status, 0, cpu.stdout + cpu.stderr);
    const kernels = ['t2', 't8', 'h2', 'h8', 'm8_o', 'm16_g'].map((cut) => `lpq_experts_int4_f16_${cut}`);
    const fake = fakeCuda([...kernels, ...['t1', 's1', 'x1'].map((cut) => `lpq_gemm_int4_f16_${cut}`)], {
      hopper: true,
    });
    if (typeof fake === 'string') return t.skip(fake);
    try {
      const simulated = fake.simulated('experts');
      if (typeof simulated === 'string') return t.skip(simulated);
      for (const arch of ['80', '90']) {
        const env = { ...fake.env, FAKE_CUDA_KERNELS: simulated.file, FAKE_CUDA_ARCH: arch };
        const run = runs(['gpu', dir, '6', `${parts}`], env);
        assert.equal(run.status, 0, `${arch}: ${run.stdout}${run.stderr}`);
        assert.match(run.stdout, /^\d{2,} checks, 0 failed$/m);
      }
    } finally {
      fake.remove();
    }
  });
