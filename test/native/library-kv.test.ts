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

// The cache of keys and values of liblpq_kernels.so from plain C, on a machine without a GPU.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-library-kv-'));
after(() => rmSync(work, { recursive: true, force: true }));

const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
const skip = compiler === undefined ? 'no C compiler was found' : undefined;

function runs(args: readonly string[], env: Record<string, string> = {}) {
  const program = path.join(work, 'kv');
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
  const files = ['-o', program, path.join(root, 'test/gpu/library/kv.c'), '-L', build, '-llpq_kernels', '-lm', '-ldl'];
  const made = spawnSync(compiler as string, [...flags, ...files], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  const paths = [build, env.LD_LIBRARY_PATH].filter(Boolean).join(':');
  return spawnSync(program, args, { encoding: 'utf8', env: { ...process.env, ...env, LD_LIBRARY_PATH: paths } });
}

test('the contract of the cache, as far as it needs no device', { skip }, () => {
  const run = runs([]);
  assert.equal(run.status, 0, run.stdout);
  assert.match(run.stdout, /^27 checks, 0 failed$/m);
});

test('and its calls on a driver that is none', { skip }, (t) => {
  if (!addon().cudaOperations().includes('kv_append')) return t.skip('this build has no kv_append');
  const fake = fakeCuda(attentionKernels());
  if (typeof fake === 'string') return t.skip(fake);
  try {
    const run = runs(['calls'], fake.env);
    assert.equal(run.status, 0, run.stdout + run.stderr);
    assert.match(run.stdout, /^\d{2,} checks, 0 failed$/m);
  } finally {
    fake.remove();
  }
});
