// Runs the compiled tests with node:test. Arguments filter by path. Tests of the CUDA backend are loaded and skipped, whatever the
// machine: scripts/test-gpu.mjs runs them. --quick leaves out the files of test/slow.txt, each of which has a process of its own and
// begins before the others; those share one, a few files at a time, which loads what they import once.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const quick = process.argv.includes('--quick');
const filters = process.argv.slice(2).filter((word) => word !== '--quick');
const slow = new Set(
  readFileSync(path.join(root, 'test', 'slow.txt'), 'utf8')
    .replaceAll('.ts', '.js')
    .split('\n'),
);
const isSlow = (file) => slow.has(path.join('test', file));
const files = readdirSync(path.join(root, 'dist', 'test'), { recursive: true })
  .filter((file) => file.endsWith('.test.js'))
  .filter((file) => !(quick && isSlow(file)))
  .filter((file) => filters.length === 0 || filters.some((filter) => path.join('test', file).includes(filter)))
  .sort();
if (files.length === 0) {
  console.error('no test file matches');
  process.exit(1);
}

/** Files that share a process: so few that the last processes to end do not leave a core idle. */
const TOGETHER = 8;
const shared = mkdtempSync(path.join(tmpdir(), 'lpq-tests-'));
const compiled = (file) => path.join(root, 'dist', 'test', file);
const processes = files.filter(isSlow).map(compiled);
const others = files.filter((file) => !isSlow(file));
for (let at = 0; at < others.length; at += TOGETHER) {
  const entry = path.join(shared, `${others[at].replaceAll('/', '-')}.mjs`);
  const urls = others.slice(at, at + TOGETHER).map((file) => pathToFileURL(compiled(file)).href);
  writeFileSync(entry, urls.map((url) => `import '${url}';\n`).join(''));
  processes.push(entry);
}
// node:test would leave one core idle, which is half of a small machine; many of the tests wait for timers and child processes.
const concurrency = `--test-concurrency=${availableParallelism()}`;
const failures = path.join(shared, 'failures.txt');
const reporter = (name, destination) => [`--test-reporter=${name}`, `--test-reporter-destination=${destination}`];
const own = (name) => path.join(root, 'scripts', 'test', name);
const reporters = [
  ...reporter(process.stdout.isTTY ? 'spec' : 'tap', 'stdout'),
  ...reporter(own('failures.mjs'), failures),
  // LPQ_TEST_TIMES=FILE: each file's seconds, too.
  ...(process.env.LPQ_TEST_TIMES ? reporter(own('times.mjs'), process.env.LPQ_TEST_TIMES) : []),
];
const run = spawnSync(process.execPath, ['--test', concurrency, ...reporters, '--enable-source-maps', ...processes], {
  cwd: root,
  stdio: 'inherit',
  // What is named runs whole, even if commits draw a part of it (test/sample.ts).
  env: { ...process.env, LPQ_GPU_TESTS: 'skip', ...(filters.length > 0 && { LPQ_TEST_NAMED: '1' }) },
});
if (existsSync(failures)) process.stdout.write(`\n${readFileSync(failures, 'utf8')}`);
rmSync(shared, { recursive: true });
const gpu = files.filter((file) => file.startsWith(path.join('gpu', ''))).length;
if (gpu > 0) console.log(`\nSKIPPED: the tests of ${gpu} files need a GPU; npm run test:gpu runs them`);
process.exit(run.status ?? 1);
