import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** The maps are plain C++ that the host's compiler takes too. */
test('maps of the streaming kernel: products of every width through an emulated mma, banks, cuts of the work', (t) => {
  const compiler = [process.env.CXX, 'c++', 'g++', 'clang++'].find(
    (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
  );
  if (compiler === undefined) return t.skip('no C++ compiler was found');
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-stream-maps-'));
  try {
    const program = path.join(folder, 'stream-maps');
    const source = path.join(root, 'test', 'native', 'stream-maps.cpp');
    const build = spawnSync(compiler, ['-std=c++20', '-O1', '-I', path.join(root, 'native'), '-o', program, source], {
      encoding: 'utf8',
    });
    assert.equal(build.status, 0, build.stderr);
    const run = spawnSync(program, { encoding: 'utf8' });
    assert.equal(run.status, 0, run.stdout);
    assert.match(run.stdout, /^362824 checks, 0 failures$/m);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
