import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { addon } from '../../native/binding.js';
import { attentionKernels } from './fake-cuda/attention.js';
import { fakeCuda } from './fake-cuda/fake.js';

// The caches of liblpq_kernels.so, of keys and values and of latents, from plain C, on a machine without a GPU.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-library-kv-'));
after(() => rmSync(work, { recursive: true, force: true }));

const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
const skip = compiler === undefined ? 'no C compiler was found' : undefined;

function runs(cache: 'kv' | 'latent', args: readonly string[], env: Record<string, string> = {}) {
  const program = path.join(work, cache);
  const flags = [
    '-std=c99',
    '-Wall',
    '-Wextra',
    '-pedantic',
    '-Werror',
    '-O1',
    '-I',
    path.join(root, 'native/library'),
  ];
  const files = [
    '-o',
    program,
    path.join(root, `test/gpu/library/${cache}.c`),
    '-L',
    build,
    '-llpq_kernels',
    '-lm',
    '-ldl',
  ];
  const made = spawnSync(compiler as string, [...flags, ...files], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  const paths = [build, env.LD_LIBRARY_PATH].filter(Boolean).join(':');
  return spawnSync(program, args, { encoding: 'utf8', env: { ...process.env, ...env, LD_LIBRARY_PATH: paths } });
}

test('the contract of the cache, as far as it needs no device', { skip }, () => {
  const run = runs('kv', []);
  assert.equal(run.status, 0, run.stdout);
  assert.match(run.stdout, /^27 checks, 0 failed$/m);
});

test("latents on the host are plain C's, and bad calls end in a sentence", { skip }, (t) => {
  const run = runs('latent', []);
  assert.equal(run.status, 0, run.stdout);
  assert.match(run.stdout, /^135 checks, 0 failed$/m);
  for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(line[1] as string);
});

const latents = ['few', 'many', 'small'].flatMap((rows) => [`lpq_latent_decode_${rows}`, `lpq_latent_join_${rows}`]);

test("and on a simulated device, the kernels' sources run by the host", { skip }, (t) => {
  const fake = fakeCuda(latents);
  if (typeof fake === 'string') return t.skip(fake);
  try {
    const kernels = fake.simulated('latent');
    if (typeof kernels === 'string') return t.skip(kernels);
    const run = runs('latent', ['gpu'], { ...fake.env, FAKE_CUDA_KERNELS: kernels.file, LPQ_SIMULATED: '1' });
    assert.equal(run.status, 0, run.stdout + run.stderr);
    for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(line[1] as string);
  } finally {
    fake.remove();
  }
});

test('and its calls on a driver that is none', { skip }, (t) => {
  if (!addon().cudaOperations().includes('kv_append')) return t.skip('this build has no kv_append');
  const fake = fakeCuda([...attentionKernels(), ...latents, 'lpq_latent_decode_sm90']);
  if (typeof fake === 'string') return t.skip(fake);
  try {
    for (const cache of ['kv', 'latent'] as const) {
      const run = runs(cache, ['calls'], fake.env);
      assert.equal(run.status, 0, run.stdout + run.stderr);
      assert.match(run.stdout, /^\d{2,} checks, 0 failed$/m);
    }
  } finally {
    fake.remove();
  }
});
