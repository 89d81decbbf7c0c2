// Builds native/build/lpq.node with CMake, where the package has no compiled addon that fits (scripts/release.mjs). Run by `npm ci` and
// `npm install`; building needs a C++20 compiler and cmake >= 3.22, no network.
// CXX chooses the compiler, LPQ_BUILD_DIR another build directory.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { prebuiltMisfit } from './prebuilt.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const APT = 'Debian, Ubuntu: apt-get install cmake g++; Fedora: dnf install cmake gcc-c++';

function fail(what, remedy) {
  console.error(`LPQ_BUILD  ${what}\n  hint      ${remedy}`);
  process.exit(3);
}

/** What a command prints about its version; undefined when it does not run. */
function version(command, args = ['--version']) {
  const run = spawnSync(command, args, { encoding: 'utf8' });
  return run.error || run.status !== 0 ? undefined : run.stdout;
}

/** Whether the compiler builds a program of C++20 that uses what the native part uses of it. */
function speaksCpp20(compiler) {
  const program =
    '#include <span>\n#include <bit>\nint main() { return std::popcount(0u) + int(std::span<int>().size()); }\n';
  return spawnSync(compiler, ['-std=c++20', '-x', 'c++', '-fsyntax-only', '-'], { input: program }).status === 0;
}

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 19))
  fail(`Node.js is ${process.versions.node}, lpq needs 20.19 or newer`, 'Install a newer Node.js.');

// A clone has no prebuilt addon: it compiles its own.
const misfit = prebuiltMisfit();
if (misfit === undefined) process.exit(0);
if (existsSync(path.join(root, 'prebuilds'))) console.log(`lpq: the prebuilt addon is not used: ${misfit}`);

const cmake = version('cmake');
if (!cmake) fail('cmake was not found', `Install cmake >= 3.22 (${APT}).`);
const [, cmakeMajor = '0', cmakeMinor = '0'] = /version (\d+)\.(\d+)/.exec(cmake) ?? [];
if (Number(cmakeMajor) < 3 || (Number(cmakeMajor) === 3 && Number(cmakeMinor) < 22))
  fail(
    `cmake is ${cmakeMajor}.${cmakeMinor}, lpq needs 3.22 or newer`,
    'Install a newer one: pip install cmake, or cmake.org.',
  );

const wish = process.env.CXX || undefined;
const compiler = wish ? (version(wish) ? wish : undefined) : ['c++', 'g++', 'clang++'].find((name) => version(name));
if (!compiler)
  fail(
    wish ? `CXX=${wish} does not run` : 'no C++ compiler was found',
    `Install g++ >= 11 or clang++ >= 14 (${APT}), or set CXX.`,
  );
if (!speaksCpp20(compiler))
  fail(
    `${compiler} does not compile C++20`,
    'Use g++ >= 11 or clang++ >= 14: install one, and set CXX if it is not the default.',
  );

const ninja = version('ninja') !== undefined;
if (!ninja && !['make', 'gmake'].some((name) => version(name)))
  fail('neither ninja nor make was found', 'Install one of them (apt-get install ninja-build, or make).');

const require = createRequire(import.meta.url);
let includes;
try {
  includes = [require('node-api-headers').include_dir, path.dirname(require.resolve('node-addon-api/napi.h'))];
} catch {
  fail(
    'the headers of the addon interface (node-api-headers, node-addon-api) are not installed',
    'Run npm ci in the project root.',
  );
}

// A build directory that was copied or moved names its old place, and cmake refuses it.
const cache = path.join(build, 'CMakeCache.txt');
const home = existsSync(cache)
  ? /^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$/m.exec(readFileSync(cache, 'utf8'))?.[1]
  : undefined;
if (home !== undefined && home !== path.join(root, 'native')) rmSync(build, { recursive: true, force: true });

mkdirSync(build, { recursive: true });
const fresh = !existsSync(cache);
const configure = [
  '-S',
  path.join(root, 'native'),
  '-B',
  build,
  '-DCMAKE_BUILD_TYPE=Release',
  `-DNAPI_INCLUDE=${includes.join(';')}`,
  ...(fresh ? [`-DCMAKE_CXX_COMPILER=${compiler}`] : []),
  ...(fresh && ninja ? ['-G', 'Ninja'] : []),
];
// npm shows nothing of its own while this runs.
const jobs = availableParallelism();
if (fresh) console.log(`lpq: compiling the native part with ${compiler}, ${jobs} at a time: some minutes, once`);
for (const [what, args] of [
  ['configure', configure],
  ['build', ['--build', build, '--parallel', String(jobs)]],
]) {
  const run = spawnSync('cmake', args, { stdio: ['ignore', 'pipe', 'pipe'], encoding: 'utf8', maxBuffer: 1 << 28 });
  if (run.status === 0) continue;
  process.stderr.write(`${run.stdout ?? ''}${run.stderr ?? ''}`);
  fail(
    `cmake could not ${what} the native part`,
    `See the message above; after changing compilers, remove ${build} first.`,
  );
}
