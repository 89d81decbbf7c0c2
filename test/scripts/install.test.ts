import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** Runs the installer with a PATH that holds only these commands, each a shell script. */
async function install(t: TestContext, commands: Record<string, string>, env: Record<string, string> = {}) {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-install-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  const bin = path.join(dir, 'bin');
  mkdirSync(bin);
  symlinkSync('/bin/sh', path.join(bin, 'sh'));
  for (const [name, script] of Object.entries(commands)) {
    writeFileSync(path.join(bin, name), `#!/bin/sh\n${script}\n`);
    chmodSync(path.join(bin, name), 0o755);
  }
  const { exitCode, stderr } = await execa(process.execPath, [path.join(root, 'scripts', 'install.mjs')], {
    reject: false,
    env: { PATH: bin, CXX: '', LPQ_BUILD_DIR: path.join(dir, 'build'), ...env },
    extendEnv: false,
  });
  return { exitCode, stderr };
}

const cmake = 'echo "cmake version 3.25.1"';
const works = 'echo "g++ 12.2.0"';

// [what is wrong, commands, environment, what the message must say]
const LACKS: readonly (readonly [string, Record<string, string>, Record<string, string>, RegExp])[] = [
  ['no cmake', {}, {}, /cmake was not found\n {2}hint .*apt-get install cmake/],
  ['an old cmake', { cmake: 'echo "cmake version 3.16.3"' }, {}, /cmake is 3\.16, lpq needs 3\.22/],
  ['no compiler', { cmake }, {}, /no C\+\+ compiler was found\n {2}hint .*g\+\+ >= 11/],
  ['a CXX that does not run', { cmake, 'g++': works }, { CXX: 'icpc' }, /CXX=icpc does not run/],
  [
    'an old compiler',
    { cmake, 'g++': '[ "$1" = --version ] && echo "g++ 9.4.0" && exit 0; exit 1' },
    {},
    /g\+\+ does not compile C\+\+20/,
  ],
  ['no make', { cmake, 'g++': works }, {}, /neither ninja nor make was found/],
  [
    'a build that fails',
    {
      cmake:
        '[ "$1" = --version ] && echo "cmake version 3.25.1" && exit 0\n[ "$1" = -S ] && exit 0\necho "kernel.cpp:1: error" >&2; exit 2',
      'g++': works,
      make: works,
    },
    {},
    /kernel\.cpp:1: error\nLPQ_BUILD {2}cmake could not build the native part/,
  ],
];

for (const [what, commands, env, says] of LACKS)
  test(`the installer explains ${what}`, async (t) => {
    const { exitCode, stderr } = await install(t, commands, env);
    assert.equal(exitCode, 3);
    assert.match(stderr, says);
    assert.match(stderr, /^LPQ_BUILD {2}.*\n {2}hint {6}\S/m);
    assert.doesNotMatch(stderr, /\bat .*install\.mjs/);
  });
