import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const FOLDERS = ['test/gpu/native', 'bench/native'];
const includes = ['native/include', 'native', 'test/gpu/native'].map((dir) => `-I${path.join(ROOT, dir)}`);

// They run where there is a GPU (test/gpu/README.md) and are compiled there: here, so that they follow what they call.
for (const folder of FOLDERS)
  for (const file of readdirSync(path.join(ROOT, folder)).filter((name) => name.endsWith('.cpp')))
    test(`${folder}/${file} compiles`, () => {
      const options = ['-std=c++20', '-fsyntax-only', '-Wall', '-Wextra', '-Werror', ...includes];
      const compiler = process.env.CXX ?? 'c++';
      const { status, stderr } = spawnSync(compiler, [...options, path.join(ROOT, folder, file)], { encoding: 'utf8' });
      assert.equal(status, 0, stderr);
    });
