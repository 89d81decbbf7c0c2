import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** LPQ_ALL_FORMS=1: every form with both types of activations, which takes twice as long. */
const all = process.env.LPQ_ALL_FORMS === '1' ? ['-DLPQ_ALL_FORMS'] : [];

test("the kernel of MARLIN's and TurboMind's layouts runs on a multiprocessor of fibers", (t) => {
  const compiler = [process.env.CXX, 'c++', 'g++', 'clang++'].find(
    (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
  );
  if (compiler === undefined) return t.skip('no C++ compiler was found');
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-stripes-'));
  try {
    const program = path.join(folder, 'stripes');
    // fake-device comes first: it has headers of the same names as the instructions' own.
    const includes = ['test/native/fake-device', 'native', 'native/include'].flatMap((each) => [
      '-I',
      path.join(root, each),
    ]);
    const source = path.join(root, 'test', 'native', 'stripes.cpp');
    const options = ['-std=c++20', '-O0', '-Wno-unknown-pragmas', ...all, ...includes, '-o', program, source];
    const build = spawnSync(compiler, options, { encoding: 'utf8' });
    assert.equal(build.status, 0, build.stderr);
    const run = spawnSync(program, { encoding: 'utf8' });
    assert.equal(run.status, 0, run.stdout);
    assert.match(run.stdout, /^\d{6} checks, 0 failures$/m);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
