// Builds test/fuzz/native/ops.cpp with clang's libFuzzer and sanitizers and runs it; arguments go to the fuzzer
// (-runs=1000000). LPQ_CLANG names the compiler, LPQ_BUILD_DIR another build directory.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const build = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build', 'fuzz');
const clang = process.env.LPQ_CLANG ?? 'clang++';

function run(command, args) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit' });
  if (error) {
    console.error(
      `LPQ_BUILD  ${command} does not run\n  hint      Install clang >= 14 (apt-get install clang), or set LPQ_CLANG.`,
    );
    process.exit(3);
  }
  if (status !== 0) process.exit(status ?? 1);
}

mkdirSync(build, { recursive: true });
run('cmake', [
  ...['-S', path.join(root, 'native'), '-B', build, `-DCMAKE_CXX_COMPILER=${clang}`, '-DCMAKE_BUILD_TYPE=None'],
  ...[
    '-DLPQ_FUZZERS=ON',
    '-DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -g1 -O1',
  ],
]);
run('cmake', [
  '--build',
  build,
  '--target',
  'lpq_fuzz_ops',
  '--parallel',
  process.env.LPQ_JOBS ?? String(availableParallelism()),
]);
const corpus = path.join(build, 'corpus');
mkdirSync(corpus, { recursive: true });
run(path.join(build, 'lpq_fuzz_ops'), [
  corpus,
  ...(process.argv.length > 2 ? process.argv.slice(2) : ['-runs=1000000']),
  '-timeout=10',
  '-max_len=4096',
]);
