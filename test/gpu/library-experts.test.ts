import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime } from '../../native/binding.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import { gpuTest } from './gpu.js';
import { expertModules } from './library-experts.js';

// Products of rows sorted by expert of liblpq_kernels.so. Where this runs from a bundle, the header lies elsewhere.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = path.join(root, 'native', 'build');
const include = ['native/library', 'include'].map((dir) => path.join(root, dir)).find((dir) => existsSync(dir));
const work = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-library-experts-'));
after(() => rmSync(work, { recursive: true, force: true }));

gpuTest('lpq_experts_upload and lpq_gemm_experts agree with plain C', async (t) => {
  const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
  if (!compiler) return t.skip('SKIPPED: no C compiler was found');
  const program = path.join(work, 'experts');
  const files = ['-o', program, path.join(root, 'test/gpu/library/experts.c'), '-L', build, '-llpq_kernels'];
  const made = spawnSync(compiler, ['-std=c99', '-O2', '-I', include as string, ...files, '-lm', '-ldl'], {
    encoding: 'utf8',
  });
  assert.equal(made.status, 0, made.stderr);
  for (const parts of [1, 2] as const) {
    const dir = path.join(work, `artifact-${parts}`);
    const input = await expertModules(work, `w${parts}`, parts);
    await packCheckpoint({ input, target: 'tilus', output: dir, runtime: createRuntime(1) });
    input.close();
    const env = { ...process.env, LD_LIBRARY_PATH: build };
    const run = spawnSync(program, ['gpu', dir, '6', `${parts}`], { encoding: 'utf8', env });
    for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(line[1] as string);
    assert.equal(run.status, 0, run.stdout + run.stderr);
  }
});
