// Builds the native part with AddressSanitizer and UndefinedBehaviorSanitizer into native/build/sanitized, and runs the CPU
// tests with it (arguments filter by path, as for scripts/test.mjs). Needs g++ with libasan and libubsan.
import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const build = path.join(root, 'native', 'build', 'sanitized');
const compiler = process.env.CXX ?? 'g++';
const require = createRequire(import.meta.url);
const includes = [require('node-api-headers').include_dir, path.dirname(require.resolve('node-addon-api/napi.h'))];

function run(command, args, env = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', cwd: root, env: { ...process.env, ...env } });
  if (error || status !== 0) process.exit(status ?? 3);
}

/** Where the compiler keeps a library that must be loaded before Node.js. */
function library(name) {
  return spawnSync(compiler, [`-print-file-name=${name}`], { encoding: 'utf8' }).stdout.trim();
}

// -O1 keeps the kernels fast enough for the tests; a static libstdc++ would hide exceptions from the sanitizer.
const flags = '-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 -O1';
run('cmake', [
  ...['-S', path.join(root, 'native'), '-B', build, `-DCMAKE_CXX_COMPILER=${compiler}`, '-DCMAKE_BUILD_TYPE=None'],
  ...[`-DCMAKE_CXX_FLAGS=${flags}`, '-DLPQ_STATIC_LIBSTDCXX=OFF', `-DNAPI_INCLUDE=${includes.join(';')}`],
]);
run('cmake', ['--build', build, '--parallel', process.env.LPQ_JOBS ?? String(availableParallelism())]);
run(process.execPath, [path.join(root, 'scripts', 'test.mjs'), ...process.argv.slice(2)], {
  LPQ_ADDON: path.join(build, 'lpq.node'),
  LD_PRELOAD: [library('libasan.so'), library('libstdc++.so')].join(' '),
  // Node.js itself leaks at its end and keeps alternate stacks; a request for more memory than there can be is to be refused, not to end the process.
  ASAN_OPTIONS: 'detect_leaks=0:abort_on_error=0:exitcode=86:use_sigaltstack=0:allocator_may_return_null=1',
  UBSAN_OPTIONS: 'print_stacktrace=1',
});
