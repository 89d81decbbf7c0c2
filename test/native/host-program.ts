import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { drawn } from '../sample.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

interface HostProgram {
  /** Source files below test/native; the first gives the program its name. */
  readonly sources: readonly string[];
  /** Folders of headers below the project that come before native and native/include. */
  readonly includes?: readonly string[];
  readonly options?: readonly string[];
  /** Headers that are made for it. */
  readonly headers?: Readonly<Record<string, () => string>>;
  /** What it prints when all is well, besides exiting with 0. */
  readonly prints: RegExp;
}

/** Compiling one takes up to half a minute: a commit draws one in so many. */
const PERIOD = 3;

/**
 * Tests code of the GPU that is plain C++ for the host's compiler, too: compiles a program, runs it and looks at what it
 * prints. Skipped where there is no compiler.
 */
export function testHostProgram(name: string, program: HostProgram): void {
  if (!drawn(name, PERIOD)) return;
  test(name, (t) => {
    const compiler = hostCompiler();
    if (compiler === undefined) t.skip('no C++ compiler was found');
    else runHostProgram(compiler, program);
  });
}

function hostCompiler(): string | undefined {
  return [process.env.CXX, 'c++', 'g++', 'clang++'].find(
    (name) => name !== undefined && spawnSync(name, ['--version']).status === 0,
  );
}

function runHostProgram(
  compiler: string,
  { sources, includes = [], options = [], headers = {}, prints }: HostProgram,
): void {
  const folder = mkdtempSync(path.join(tmpdir(), `lpq-${path.parse(sources[0] as string).name}-`));
  try {
    const file = path.join(folder, 'program');
    for (const [header, text] of Object.entries(headers)) writeFileSync(path.join(folder, header), text());
    const build = spawnSync(
      compiler,
      [
        '-std=c++20',
        '-O1',
        '-Wno-unknown-pragmas',
        ...options,
        '-I',
        folder,
        ...[...includes, 'native', 'native/include'].flatMap((each) => ['-I', path.join(root, each)]),
        '-o',
        file,
        ...sources.map((source) => path.join(root, 'test', 'native', source)),
      ],
      { encoding: 'utf8' },
    );
    assert.equal(build.status, 0, build.stderr);
    const run = spawnSync(file, { encoding: 'utf8' });
    assert.equal(run.status, 0, run.stdout);
    assert.match(run.stdout, prints);
  } finally {
    rmSync(folder, { recursive: true });
  }
}
