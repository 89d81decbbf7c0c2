// Builds native/build/lpq.node with CMake. Run by `npm ci`; needs a C++20 compiler and cmake >= 3.22, no network.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');

function fail(what, remedy) {
  console.error(`LPQ_BUILD_TOOL: ${what}\n  remedy: ${remedy}`);
  process.exit(1);
}

function version(command, args = ['--version']) {
  const run = spawnSync(command, args, { encoding: 'utf8' });
  return run.error || run.status !== 0 ? undefined : run.stdout;
}

const cmake = version('cmake');
if (!cmake) fail('cmake was not found', 'install cmake >= 3.22 (Debian, Ubuntu: apt-get install cmake g++)');
const [major = '0', minor = '0'] = /version (\d+\.\d+)/.exec(cmake)?.[1]?.split('.') ?? [];
if (Number(major) < 3 || (Number(major) === 3 && Number(minor) < 22))
  fail(`cmake is ${major}.${minor}, lpq needs 3.22 or newer`, 'install a newer cmake (apt, or the cmake.org tarball)');
const compiler = process.env.CXX ?? ['c++', 'g++', 'clang++'].find((name) => version(name));
if (!compiler || !version(compiler))
  fail('no C++ compiler was found', 'install g++ >= 11 or clang++ >= 14 (apt-get install g++), or set CXX');

const require = createRequire(import.meta.url);
let includes;
try {
  includes = [require('node-api-headers').include_dir, path.dirname(require.resolve('node-addon-api/napi.h'))];
} catch {
  fail('node-api-headers or node-addon-api is not installed', 'run npm ci in the project root');
}

mkdirSync(build, { recursive: true });
const configure = [
  '-S',
  path.join(root, 'native'),
  '-B',
  build,
  '-DCMAKE_BUILD_TYPE=Release',
  `-DNAPI_INCLUDE=${includes.join(';')}`,
];
if (!existsSync(path.join(build, 'CMakeCache.txt')) && version('ninja')) configure.push('-G', 'Ninja');
for (const [what, args] of [
  ['configure', configure],
  ['build', ['--build', build, '--parallel', String(availableParallelism())]],
]) {
  const run = spawnSync('cmake', args, { stdio: ['ignore', 'pipe', 'pipe'], encoding: 'utf8', maxBuffer: 1 << 28 });
  if (run.status !== 0) {
    process.stderr.write(`${run.stdout ?? ''}${run.stderr ?? ''}`);
    fail(
      `cmake could not ${what} the native part`,
      `see the compiler's message above; ${compiler} must speak C++20 (g++ >= 11)`,
    );
  }
}
