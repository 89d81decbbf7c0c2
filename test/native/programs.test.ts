import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sampled } from '../sample.js';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const FOLDERS = ['test/gpu/native', 'bench/native'];
const includes = ['native/include', 'native', 'native/library', 'test/gpu/native'].map(
  (dir) => `-I${path.join(ROOT, dir)}`,
);

// They run where there is a GPU (test/gpu/README.md) and are compiled there: here, so that they follow what they call.
const files = FOLDERS.flatMap((folder) => readdirSync(path.join(ROOT, folder)).map((name) => `${folder}/${name}`));
const programs = files.filter((file) => file.endsWith('.cpp')).sort();
for (const file of sampled('programs for a GPU', programs, 3))
  test(`${file} compiles`, () => {
    const options = ['-std=c++20', '-fsyntax-only', '-Wall', '-Wextra', '-Werror', ...includes];
    const compiler = process.env.CXX ?? 'c++';
    const { status, stderr } = spawnSync(compiler, [...options, path.join(ROOT, file)], { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
  });
