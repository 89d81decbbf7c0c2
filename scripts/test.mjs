// Runs the compiled tests with node:test, each file in a process of its own. Arguments filter by path. Tests of the CUDA
// backend are loaded and skipped, whatever the machine: scripts/test-gpu.mjs runs them. --quick leaves out test/slow.txt.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const filters = process.argv.slice(2).filter((word) => word !== '--quick');
const left = process.argv.includes('--quick')
  ? readFileSync(path.join(root, 'test', 'slow.txt'), 'utf8')
      .replaceAll('.ts', '.js')
      .split('\n')
  : [];
const files = readdirSync(path.join(root, 'dist', 'test'), { recursive: true })
  .filter((file) => file.endsWith('.test.js'))
  .filter((file) => !left.includes(path.join('test', file)))
  .filter((file) => filters.length === 0 || filters.some((filter) => file.includes(filter)))
  .sort()
  .map((file) => path.join('dist', 'test', file));
if (files.length === 0) {
  console.error('no test file matches');
  process.exit(1);
}
// node:test would leave one core idle, which is half of a small machine; many of the tests wait for timers and child processes.
const concurrency = `--test-concurrency=${availableParallelism()}`;
// LPQ_TEST_TIMES=FILE: each file's seconds, too.
const times = process.env.LPQ_TEST_TIMES;
const reporters = times
  ? [
      '--test-reporter=tap',
      '--test-reporter-destination=stdout',
      `--test-reporter=${path.join(root, 'scripts', 'test', 'times.mjs')}`,
      `--test-reporter-destination=${times}`,
    ]
  : [];
const run = spawnSync(process.execPath, ['--test', concurrency, ...reporters, '--enable-source-maps', ...files], {
  cwd: root,
  stdio: 'inherit',
  env: { ...process.env, LPQ_GPU_TESTS: 'skip' },
});
const gpu = files.filter((file) => file.startsWith(path.join('dist', 'test', 'gpu', ''))).length;
if (gpu > 0) console.log(`\nSKIPPED: the tests of ${gpu} files need a GPU; npm run test:gpu runs them`);
process.exit(run.status ?? 1);
