import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** The kernel's source, compiled for the host, with every thread, warp, box and product played there. */
test('the wide kernel on threads that the host plays: every type, f16 and bf16, shared items, late boxes and products', (t) => {
  const compiler = [process.env.CXX, 'c++', 'g++', 'clang++'].find(
    (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
  );
  if (compiler === undefined) return t.skip('no C++ compiler was found');
  const folder = mkdtempSync(path.join(tmpdir(), 'lpq-wide-kernel-'));
  try {
    const program = path.join(folder, 'wide-kernel');
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
        path.join(here, 'wide-kernel.cpp'),
        path.join(here, 'simt', 'simt.cpp'),
      ],
      { encoding: 'utf8' },
    );
    assert.equal(build.status, 0, build.stderr);
    const run = spawnSync(program, { encoding: 'utf8' });
    assert.equal(run.status, 0, run.stdout);
    assert.match(run.stdout, /^353 products, 0 failures, at most 0\.\d\d of the bound$/m);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
