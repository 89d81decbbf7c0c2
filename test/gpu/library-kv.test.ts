import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gpuTest } from './gpu.js';

// The caches of liblpq_kernels.so, of keys and values and of latents. Where this runs from a bundle, the header lies elsewhere.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = path.join(root, 'native', 'build');
const include = ['native/library', 'include'].map((dir) => path.join(root, dir)).find((dir) => existsSync(dir));
const work = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-library-kv-'));
after(() => rmSync(work, { recursive: true, force: true }));

for (const cache of ['kv', 'latent'] as const)
  gpuTest(`lpq_${cache}_pack, lpq_${cache}_append and lpq_${cache}_decode agree with plain C`, (t) => {
    const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
    if (!compiler) return t.skip('SKIPPED: no C compiler was found');
    const program = path.join(work, cache);
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
    const made = spawnSync(compiler, ['-std=c99', '-O2', '-I', include as string, ...files], { encoding: 'utf8' });
    assert.equal(made.status, 0, made.stderr);
    const env = { ...process.env, LD_LIBRARY_PATH: build };
    const run = spawnSync(program, ['gpu'], { encoding: 'utf8', env });
    for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(line[1] as string);
    assert.equal(run.status, 0, run.stdout + run.stderr);
  });
