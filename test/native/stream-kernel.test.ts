import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** The kernel's source, compiled for the host, with every thread, warp and cluster played there. */
test('the streaming kernel on threads that the host plays: every type, f16 and bf16, every way of cutting', (t) => {
  const compiler = [process.env.CXX, 'c++', 'g++', 'clang++'].find(
    (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
  );
  if (compiler === undefined) return t.skip('no C++ compiler was found');
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-stream-kernel-'));
  try {
    const program = path.join(folder, 'stream-kernel');
    const here = path.join(root, 'test', 'native');
    const folders = [path.join(root, 'native'), path.join(root, 'native', 'include'), path.join(here, 'simt')];
    const build = spawnSync(
      compiler,
      [
        '-std=c++20',
        '-O1',
        '-Wno-unknown-pragmas',
        ...folders.flatMap((directory) => ['-I', directory]),
        '-o',
        program,
        path.join(here, 'stream-kernel.cpp'),
        path.join(here, 'simt', 'simt.cpp'),
      ],
      { encoding: 'utf8' },
    );
    assert.equal(build.status, 0, build.stderr);
    const run = spawnSync(program, { encoding: 'utf8' });
    assert.equal(run.status, 0, run.stdout);
    assert.match(run.stdout, /^540 products, 0 failures, at most 0\.\d\d of the bound$/m);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
