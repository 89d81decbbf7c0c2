// Runs the compiled tests of the CUDA backend (dist/test/gpu) on this machine's GPU and fails where there is none.
// Arguments filter by path; --record FILE keeps the outcome as JSON.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { run } from 'node:test';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const { values, positionals } = parseArgs({ options: { record: { type: 'string' } }, allowPositionals: true });
const folder = path.join(root, 'dist', 'test', 'gpu');

function fail(what, remedy) {
  console.error(`LPQ_DEVICE: ${what}\n  remedy: ${remedy}`);
  process.exit(1);
}

if (!existsSync(path.join(folder, 'gpu.js'))) fail('the tests are not compiled', 'npm run build');
process.env.LPQ_GPU_TESTS = 'require';
const { gpus, whyNoGpu } = await import(path.join(folder, 'gpu.js'));
if (gpus.length === 0)
  fail(
    `no GPU to test on: ${whyNoGpu}`,
    'run this on a machine with an NVIDIA GPU and its driver, or npm test for the rest',
  );

const files = readdirSync(folder, { recursive: true })
  .filter((file) => file.endsWith('.test.js'))
  .filter((file) => positionals.length === 0 || positionals.some((filter) => file.includes(filter)))
  .sort()
  .map((file) => path.join(folder, file));
if (files.length === 0) fail('no test file matches', `look into ${folder}`);
for (const { name, arch, memory } of gpus) console.log(`${name}, sm_${arch}, ${(memory / 1e9).toFixed(0)} GB`);

const tests = [];
const started = new Date();
// One file at a time: they share the GPU's memory, and times mean something.
for (const file of files) {
  const title = path.relative(folder, file);
  const stream = run({ files: [file], concurrency: 1 });
  stream.on('test:pass', (data) => note(title, data, 'passed'));
  stream.on('test:fail', (data) => note(title, data, 'failed'));
  stream.on('test:stderr', ({ message }) => process.stderr.write(message));
  stream.resume();
  await new Promise((resolve) => stream.on('end', resolve));
}

const count = (outcome) => tests.filter((test) => test.outcome === outcome).length;
const summary = { passed: count('passed'), failed: count('failed'), skipped: count('skipped') };
if (values.record !== undefined) {
  const file = path.resolve(values.record);
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, `${JSON.stringify(record(), null, 2)}\n`);
}
// A run that tested nothing proves nothing.
process.exitCode = summary.failed > 0 || summary.passed === 0 ? 1 : 0;
console.log(`${summary.passed} passed, ${summary.failed} failed, ${summary.skipped} skipped`);

/** A test's outcome as a line and a row of the record. What holds other tests is told by them, unless it fails by itself. */
function note(file, { name, skip, details }, result) {
  const error = details.error?.cause ?? details.error;
  if (details.type === 'suite' || /^\d+ subtests? failed$/.test(details.error?.message ?? '')) return;
  const outcome = skip === undefined ? result : 'skipped';
  const ms = Math.round(details.duration_ms * 1000) / 1000;
  const message = outcome === 'failed' ? String(error?.message ?? error) : typeof skip === 'string' ? skip : undefined;
  tests.push({ file, name, outcome, ms, ...(message !== undefined && { message }) });
  const mark = { passed: 'ok  ', failed: 'FAIL', skipped: 'skip' }[outcome];
  console.log(
    `${mark}  ${ms.toFixed(0).padStart(6)} ms  ${file}: ${name}${outcome === 'skipped' ? ` (${message})` : ''}`,
  );
  if (outcome === 'failed') console.log(String(error?.stack ?? error).replace(/^/gm, '    '));
}

function record() {
  const { version } = json('package.json');
  return {
    when: started.toISOString(),
    seconds: (Date.now() - started.getTime()) / 1000,
    gpus,
    driver: firstLine('/proc/driver/nvidia/version'),
    node: process.version,
    lpq: version,
    commit: existsSync(path.join(root, 'bundle.json')) ? json('bundle.json').commit : commitOf(path.join(root, '.git')),
    addon: sha256('native/build/lpq.node'),
    kernels: sha256('native/build/lpq_kernels.fatbin'),
    filters: positionals,
    ...summary,
    tests,
  };
}

function json(file) {
  return JSON.parse(readFileSync(path.join(root, file), 'utf8'));
}

function firstLine(file) {
  return existsSync(file) ? readFileSync(file, 'utf8').split('\n')[0] : null;
}

function sha256(file) {
  const place = path.join(root, file);
  return existsSync(place) ? createHash('sha256').update(readFileSync(place)).digest('hex') : null;
}

/** The commit that HEAD names, read from git's files: a machine with a GPU need not have git. */
function commitOf(git) {
  if (!existsSync(path.join(git, 'HEAD'))) return null;
  const head = readFileSync(path.join(git, 'HEAD'), 'utf8').trim();
  if (!head.startsWith('ref: ')) return head;
  const ref = path.join(git, head.slice(5));
  return existsSync(ref) ? readFileSync(ref, 'utf8').trim() : null;
}
