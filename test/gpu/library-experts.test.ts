import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { createRuntime } from '../../native/binding.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import { gpuTest } from './gpu.js';
import { expertModules, mixtureModules } from './library-experts.js';

// Products of rows sorted by expert of liblpq_kernels.so. Where this runs from a bundle, the header lies elsewhere.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = path.join(root, 'native', 'build');
const include = ['native/library', 'include'].map((dir) => path.join(root, dir)).find((dir) => existsSync(dir));
const work = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-library-experts-'));
after(() => rmSync(work, { recursive: true, force: true }));

const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);

/** A program of the folder, over an artifact that is packed here. */
async function runs(t: TestContext, source: string, input: CanonicalCheckpoint, args: (dir: string) => string[]) {
  const [program, dir] = [path.join(work, source), mkdtempSync(path.join(work, 'packed-'))];
  const output = path.join(dir, 'artifact');
  const files = ['-o', program, path.join(root, `test/gpu/library/${source}.c`), '-L', build, '-llpq_kernels'];
  const flags = ['-std=c99', '-O2', '-I', include as string];
  const made = spawnSync(compiler as string, [...flags, ...files, '-lm', '-ldl'], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  await packCheckpoint({ input, target: 'tilus', output, runtime: createRuntime(1) });
  input.close();
  const run = spawnSync(program, args(output), { encoding: 'utf8', env: { ...process.env, LD_LIBRARY_PATH: build } });
  for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(line[1] as string);
  assert.equal(run.status, 0, run.stdout + run.stderr);
}

gpuTest('lpq_experts_upload and lpq_gemm_experts agree with plain C', async (t) => {
  if (!compiler) return t.skip('SKIPPED: no C compiler was found');
  for (const parts of [1, 2] as const)
    await runs(t, 'experts', await expertModules(work, `w${parts}`, parts), (dir) => ['gpu', dir, '6', `${parts}`]);
});

for (const form of ['gated', 'apart'])
  gpuTest(`lpq_mixture agrees with plain C, gate and up ${form}`, async (t) => {
    if (!compiler) return t.skip('SKIPPED: no C compiler was found');
    await runs(t, 'mixture', await mixtureModules(work, form), (dir) => [dir, '6', form]);
  });
