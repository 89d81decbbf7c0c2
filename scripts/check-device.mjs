// Compares every kernel with double precision on this machine's GPU, some under compute-sanitizer, by the programs of test/gpu/native
// (cmake -DLPQ_GPU_TESTS=ON). They mostly wait for their reference on the host, so several run at once: nothing here is timed.
//
//   node scripts/check-device.mjs --programs DIR [--quick] [--only WORD,...] [--seconds N] [--record FILE] [--logs DIR]
//
// Exit code 1 if anything failed or was cut off.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, totalmem } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    programs: { type: 'string' },
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    seconds: { type: 'string', default: '600' },
    record: { type: 'string' },
    logs: { type: 'string', default: 'build/check-device' },
    help: { type: 'boolean', default: false },
  },
});
if (values.help || values.programs === undefined) {
  console.log(
    'usage: node scripts/check-device.mjs --programs DIR [--quick] [--only WORD,...] [--seconds N] [--record FILE]',
  );
  process.exit(values.help ? 0 : 2);
}
const programs = path.resolve(values.programs);
const logs = path.resolve(values.logs);
if (!existsSync(path.join(programs, 'lpq_gpu_kernels'))) {
  console.error(
    `no lpq_gpu_kernels in ${programs}\n  remedy: cmake -S native -B ${values.programs} -DLPQ_GPU_TESTS=ON && cmake --build ${values.programs}`,
  );
  process.exit(2);
}
mkdirSync(logs, { recursive: true });

const INTEGERS = ['u1', 'u2', 'u3', 'u4', 'u5', 'u6', 'u7', 'u8', 'i2', 'i3', 'i4', 'i5', 'i6', 'i7', 'i8'];
const FLOATS = ['f3', 'f4', 'f5', 'f6', 'f7', 'f8'];
const SANITIZED = [
  ['scaled', 'u4'],
  ['scaled', 'f6e3m2'],
  ['large', 'u4'],
  ['stream', 'f4e2m1'],
  ['wide', 'u4'],
];
// Asking the driver for a kernel that a device lacks is no error.
const OPTIONS = { racecheck: ['--tool', 'racecheck'], memcheck: ['--tool', 'memcheck', '--report-api-errors', 'no'] };
const quick = values.quick ? ['--quick'] : [];

/** Name, program, arguments, tool of compute-sanitizer. Families whose reference takes long run type by type; what takes longest begins first. */
function* jobs() {
  for (const tool of ['racecheck', 'memcheck']) {
    const size = tool === 'racecheck' ? '--small' : '--quick';
    const checked = (name, program, ...args) => [`${tool} ${name}`, program, args, tool];
    yield checked('attention', 'lpq_gpu_attention', '--small');
    yield checked('latent', 'lpq_gpu_latent', '--small');
    yield checked('attention_backward', 'lpq_gpu_attention_backward', '--small');
    yield checked('act', 'lpq_gpu_act', '--quick');
    // Racecheck follows the lane alone that arrives at a barrier for its warp (docs/internals/kernels/experts.md).
    yield checked('experts', 'lpq_gpu_experts', '--small', ...(tool === 'racecheck' ? ['--without', 'hopper'] : []));
    for (const kernel of ['sparse', 'marlin', 'turbomind'])
      yield checked(kernel, 'lpq_gpu_kernels', size, '--kernel', kernel);
    for (const [kernel, type] of SANITIZED)
      yield checked(`${kernel} ${type}`, 'lpq_gpu_kernels', size, '--kernel', kernel, type);
  }
  yield ['attention', 'lpq_gpu_attention', quick];
  yield ['latent', 'lpq_gpu_latent', quick.length > 0 ? ['--small'] : []];
  yield ['attention_backward', 'lpq_gpu_attention_backward', []];
  yield ['act', 'lpq_gpu_act', quick];
  yield ['experts', 'lpq_gpu_experts', quick];
  yield ['chosen', 'lpq_gpu_kernels', ['--quick']];
  for (const kernel of ['marlin', 'turbomind', 'sparse'])
    yield [kernel, 'lpq_gpu_kernels', [...quick, '--kernel', kernel]];
  for (const kernel of ['scaled', 'large', 'wide', 'stream'])
    for (const type of [...INTEGERS, ...FLOATS])
      yield [`${kernel} ${type}`, 'lpq_gpu_kernels', [...quick, '--kernel', kernel, type]];
  for (const name of ['runtime', 'forward', 'backward', 'mixtures', 'solver'])
    yield [name, `lpq_gpu_${name}`, ['--small']];
  yield ['probe', 'lpq_gpu_probe', [path.join(logs, 'probe.json')]];
}

const wanted = values.only?.split(',');
const list = [...jobs()].filter(([name]) => wanted === undefined || wanted.some((word) => name.includes(word)));
const until = performance.now() + 1000 * Number(values.seconds);
const results = [];
// Racecheck takes tens of gigabytes of the host for each program.
const [heavy, light] = [
  list.filter(([, , , tool]) => tool === 'racecheck'),
  list.filter(([, , , tool]) => tool !== 'racecheck'),
];
const queues = [heavy.values(), light.values()];
const most = Math.max(1, Math.min(3, Math.floor(totalmem() / 40e9)));
await Promise.all(Array.from({ length: availableParallelism() }, (_, i) => worker(queues[i < most ? 0 : 1])));

const bad = results.filter(({ outcome }) => outcome !== 'passed');
console.log(
  `${results.length - bad.length} of ${results.length} passed${bad.length > 0 ? `; not: ${bad.map(({ name }) => name).join(', ')}` : ''}`,
);
if (values.record !== undefined) {
  const kernels = process.env.LPQ_CUDA_FATBIN;
  const record = {
    when: new Date().toISOString(),
    gpu: await output('nvidia-smi', ['--query-gpu=name,driver_version,power.limit', '--format=csv,noheader']),
    processor: `${cpus()[0]?.model.trim()}, ${availableParallelism()} cores`,
    kernels: kernels === undefined ? null : createHash('sha256').update(readFileSync(kernels)).digest('hex'),
    command: `node scripts/check-device.mjs ${process.argv.slice(2).join(' ')}`,
    results,
  };
  writeFileSync(values.record, `${JSON.stringify(record, null, 2)}\n`);
}
process.exitCode = bad.length > 0 ? 1 : 0;

/** Its own jobs first, then whatever is left. */
async function worker(own) {
  for (const job of both(own, queues[1])) {
    const result = await run(...job);
    results.push(result);
    console.log(
      `${result.outcome.padEnd(8)} ${result.name.padEnd(22)} ${result.seconds.toFixed(1).padStart(6)} s  ${result.last}`,
    );
    for (const line of result.failures.slice(0, 3)) console.log(`         ${line}`);
  }
}

function* both(first, second) {
  yield* first;
  yield* second;
}

/** Runs a program until it ends or the time is up; its output is kept in a file, of which the last line and those of failures are told. */
async function run(name, program, args, tool) {
  const started = performance.now();
  const left = until - started;
  if (left <= 0) return { name, outcome: 'left out', seconds: 0, last: 'the time was up', failures: [] };
  const file = path.join(logs, `${name.replaceAll(' ', '-')}.log`);
  const [command, words] =
    tool === undefined
      ? [path.join(programs, program), args]
      : ['compute-sanitizer', [...OPTIONS[tool], '--error-exitcode', '9', path.join(programs, program), ...args]];
  const log = createWriteStream(file);
  const child = spawn(command, words, { stdio: ['ignore', 'pipe', 'pipe'] });
  for (const stream of [child.stdout, child.stderr]) stream.pipe(log, { end: false });
  const timer = setTimeout(() => child.kill('SIGKILL'), left);
  const [code, signal] = await new Promise((resolve) => {
    child.on('error', (error) => resolve([error.code, null]));
    child.on('close', (...how) => resolve(how));
  });
  clearTimeout(timer);
  await new Promise((resolve) => log.end(resolve));
  let last = '';
  const failures = [];
  for await (const line of createInterface({ input: createReadStream(file) })) {
    if (line.trim() !== '' && !/^\s*\w+\s+ok$/.test(line)) last = line.trim();
    if (/^FAIL|Error:|hazard detected/i.test(line) && failures.length < 40) failures.push(line.trim());
  }
  const outcome = code === 0 ? 'passed' : signal === 'SIGKILL' ? 'cut off' : 'failed';
  return { name, outcome, seconds: (performance.now() - started) / 1000, last: last.slice(0, 120), failures };
}

function output(command, args) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'ignore'] });
    let text = '';
    child.stdout.on('data', (chunk) => {
      text += chunk;
    });
    child.on('error', () => resolve(null));
    child.on('close', () => resolve(text.trim()));
  });
}
