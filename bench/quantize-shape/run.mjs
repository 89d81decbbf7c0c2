// The GPU tests and the shape benchmarks of a machine, one after the other, each bounded in time; a failed step does not
// stop the others. JSON of each goes to --out, a short table to the end of the output. Runs from a checkout or a bundle:
//
//   node bench/quantize-shape/run.mjs --out DIR [--device cuda] [--work DIR] STEP...
//   runtime/node bench/quantize-shape/run.mjs --out DIR tests 8b 8b-part
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = path.dirname(path.dirname(path.dirname(fileURLToPath(import.meta.url))));
const { values, positionals } = parseArgs({
  options: {
    out: { type: 'string' },
    device: { type: 'string', default: 'cuda' },
    work: { type: 'string' },
  },
  allowPositionals: true,
});

const full = ['--bits', '4', '--samples', '128', '--seq-len', '2048'];
const shape = (name, ...rest) => ['bench', 'quantize', '--shape', name, ...rest];
/** Seconds at most, whether the checkpoint is kept for other steps, and the arguments. */
const STEPS = {
  doctor: [60, undefined, ['doctor']],
  tests: [300, undefined, undefined],
  // Real sizes, on the device.
  '8b': [240, '8b', shape('llama-3-8b', ...full)],
  '8b-rtn': [240, '8b', shape('llama-3-8b', '--bits', '4', '--method', 'rtn')],
  '8b-part': [120, undefined, shape('llama-3-8b', '--layers', '4', ...full)],
  '8b-no-gptaq': [240, '8b', shape('llama-3-8b', '--gptaq', '0', ...full)],
  moe: [300, undefined, shape('qwen3-30b-a3b', '--layers', '12', ...full)],
  '70b': [300, undefined, shape('llama-3-70b', '--layers', '3', ...full)],
  // The CPU alone.
  rtn: [300, undefined, ['bench', 'rtn', '--gb', '8']],
  'rtn-cold': [300, undefined, ['bench', 'rtn', '--gb', '8', '--cold']],
  tiny: [60, undefined, shape('tiny', '--samples', '16', '--seq-len', '128')],
};

const wrong = positionals.filter((step) => !(step in STEPS));
if (!values.out || positionals.length === 0 || wrong.length > 0) {
  console.error(`usage: run.mjs --out DIR [--device D] [--work DIR] STEP...\nsteps: ${Object.keys(STEPS).join(', ')}`);
  process.exit(2);
}
const out = path.resolve(values.out);
mkdirSync(out, { recursive: true });
const work = values.work ? path.resolve(values.work) : mkdtempSync(path.join(tmpdir(), 'lpq-shapes-'));
mkdirSync(work, { recursive: true });
if (!values.work) process.on('exit', () => rmSync(work, { recursive: true, force: true }));

/** Runs to the end or to its time; resolves with the exit code and what it printed. */
function run(args, seconds) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, args, { env: { ...process.env, TMPDIR: work } });
    const text = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr']) child[name].on('data', (bytes) => (text[name] += bytes));
    const timer = setTimeout(() => child.kill('SIGINT'), seconds * 1000);
    const killer = setTimeout(() => child.kill('SIGKILL'), (seconds + 15) * 1000);
    child.on('close', (code) => {
      clearTimeout(timer);
      clearTimeout(killer);
      resolve({ code, ...text });
    });
  });
}

const table = [];
for (const step of positionals) {
  const [seconds, keep, args] = STEPS[step];
  const file = path.join(out, `${step}.json`);
  const computes = args?.[0] === 'bench' && args[1] === 'quantize' && step !== 'tiny';
  const command = args
    ? [
        path.join(root, 'bin', 'lpq.js'),
        ...args,
        '--json',
        ...(computes ? ['--device', values.device] : []),
        ...(keep ? ['--keep', path.join(work, keep)] : []),
      ]
    : [path.join(root, 'scripts', 'test-gpu.mjs'), '--record', file];
  const started = Date.now();
  const { code, stdout, stderr } = await run(command, seconds);
  const took = (Date.now() - started) / 1000;
  const last = stdout.trim().split('\n').at(-1) ?? '';
  if (args) writeFileSync(file, last.startsWith('{') ? `${last}\n` : `${JSON.stringify({ code, stdout, stderr })}\n`);
  if (code !== 0) console.log(`--- ${step}: exit ${code}\n${stdout.slice(-3000)}\n${stderr.slice(-3000)}`);
  table.push(`${step.padEnd(12)} exit ${code}  ${took.toFixed(1).padStart(6)} s  ${summary(file)}`);
}
console.log(table.join('\n'));

function summary(file) {
  if (!existsSync(file)) return '';
  const result = JSON.parse(readFileSync(file, 'utf8'));
  if (result.findings) return result.findings.map(({ name, status }) => `${name} ${status}`).join(', ');
  if (result.tests) return `${result.passed} passed, ${result.failed} failed, ${result.skipped} skipped`;
  if (result.copySeconds)
    return `${result.seconds.toFixed(2)} s, copy ${result.copySeconds.toFixed(2)} s, anonymous ${(result.peak.anonymous / 1e6).toFixed(0)} MB`;
  if (!result.stages) return result.message ?? '';
  const stages = Object.entries(result.stages)
    .filter(([, time]) => time > 0.0005)
    .map(([name, time]) => `${name} ${time.toFixed(2)}`);
  const memory = `rss ${(result.peak.rss / 1e9).toFixed(1)} GB${result.peak.device === null ? '' : `, device ${(result.peak.device / 1e9).toFixed(1)} GB`}`;
  return `${result.seconds.toFixed(2)} s, made in ${result.source.seconds?.toFixed(1) ?? 0} s, whole ${result.estimate?.seconds.toFixed(1)} s, ${memory}\n${' '.repeat(14)}${stages.join('  ')}`;
}
