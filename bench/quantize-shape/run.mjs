// The GPU tests and the shape benchmarks of a machine, one after the other, each bounded in time; a failed step does not
// stop the others. JSON of each goes to --out, a short table to the end of the output. Runs from a checkout or a bundle:
//
//   node bench/quantize-shape/run.mjs --out DIR [--device cuda] [--devices LIST] [--work DIR] STEP...
//   runtime/node bench/quantize-shape/run.mjs --out DIR tests 8b 8b-plain
//
// --devices goes to lpq as it is (--device LIST), for the lists of devices that it takes. Checkpoints are made in --work, or
// a temporary directory, and removed after the last step that reads them.
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
    devices: { type: 'string' },
    work: { type: 'string' },
  },
  allowPositionals: true,
});

const full = ['--bits', '4', '--samples', '128', '--seq-len', '2048'];
const shape = (name, ...rest) => ['bench', 'quantize', '--shape', name, ...rest];
// Where a part of a model is measured, its vocabulary is small: the embedding and the head are read and written once,
// whatever the blocks take. The JSON says so (vocabulary.reduced).
const part = (blocks) => ['--blocks', String(blocks), '--vocab', '16384'];
/** Seconds at most, the checkpoint that is kept for other steps, and the arguments. */
const STEPS = {
  doctor: [60, undefined, ['doctor']],
  tests: [300, undefined, undefined],
  // On the device. Real sizes; 128 sequences of 2048 tokens.
  '8b': [240, '8b', shape('llama-3-8b', ...full)],
  '8b-plain': [240, '8b', shape('llama-3-8b', '--gptaq', '0', ...full)],
  '8b-12g': [300, '8b', shape('llama-3-8b', '--vram-limit', '12g', ...full)],
  '8b-rtn': [300, '8b', ['bench', 'rtn', '--shape', 'llama-3-8b', '--rounds', '5']],
  // Its estimate of the whole, against 8b, says how far the estimates below can be trusted.
  '8b-4blocks': [120, undefined, shape('llama-3-8b', ...part(4), ...full)],
  '70b-4blocks-24g': [400, undefined, shape('llama-3-70b', ...part(4), '--vram-limit', '24g', ...full)],
  'moe-12blocks': [400, undefined, shape('qwen3-30b-a3b', ...part(12), ...full)],
  // The CPU alone.
  '8b-rtn-cpu': [300, '8b', ['bench', 'rtn', '--shape', 'llama-3-8b', '--rounds', '5', '--device', 'cpu']],
  rtn: [300, undefined, ['bench', 'rtn', '--gb', '8', '--device', 'cpu']],
  'rtn-cold': [300, undefined, ['bench', 'rtn', '--gb', '8', '--cold', '--device', 'cpu']],
  tiny: [60, undefined, shape('tiny', '--samples', '16', '--seq-len', '128', '--device', 'cpu')],
};

const wrong = positionals.filter((step) => !(step in STEPS));
if (!values.out || positionals.length === 0 || wrong.length > 0) {
  console.error(
    `usage: run.mjs --out DIR [--device D] [--devices LIST] [--work DIR] STEP...\nsteps: ${Object.keys(STEPS).join(', ')}`,
  );
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
for (const [at, step] of positionals.entries()) {
  const [seconds, keep, args] = STEPS[step];
  const file = path.join(out, `${step}.json`);
  const device = args?.[0] === 'bench' && !args.includes('--device') ? (values.devices ?? values.device) : undefined;
  const command = args
    ? [
        path.join(root, 'bin', 'lpq.js'),
        ...args,
        '--json',
        ...(device ? ['--device', device] : []),
        ...(keep ? ['--keep', path.join(work, keep)] : []),
      ]
    : [path.join(root, 'scripts', 'test-gpu.mjs'), '--record', file];
  const started = Date.now();
  const { code, stdout, stderr } = await run(command, seconds);
  const took = (Date.now() - started) / 1000;
  const needed = keep && positionals.slice(at + 1).some((later) => STEPS[later][1] === keep);
  if (keep && !needed) rmSync(path.join(work, keep), { recursive: true, force: true });
  const last = stdout.trim().split('\n').at(-1) ?? '';
  if (args) writeFileSync(file, last.startsWith('{') ? `${last}\n` : `${JSON.stringify({ code, stdout, stderr })}\n`);
  if (code !== 0) console.log(`--- ${step}: exit ${code}\n${stdout.slice(-3000)}\n${stderr.slice(-3000)}`);
  table.push(`${step.padEnd(16)} exit ${code}  ${took.toFixed(1).padStart(6)} s  ${summary(file)}`);
}
console.log(table.join('\n'));

function percent(share) {
  return `${(100 * share).toFixed(0)} %`;
}

/** How fast a checkpoint was made. */
function rate({ bytes, seconds }) {
  return seconds ? `${(bytes / seconds / 1e9).toFixed(1)} GB/s` : 'an earlier step';
}

function summary(file) {
  if (!existsSync(file)) return '';
  const result = JSON.parse(readFileSync(file, 'utf8'));
  if (result.findings) return result.findings.map(({ name, status }) => `${name} ${status}`).join(', ');
  if (result.tests) return `${result.passed} passed, ${result.failed} failed, ${result.skipped} skipped`;
  if (result.copySeconds)
    return `${result.seconds.toFixed(2)} s, copy ${result.copySeconds.toFixed(2)} s, share ${percent(result.share)} (${percent(result.spread.share.least)} to ${percent(result.spread.share.most)}), anonymous ${(result.peak.anonymous / 1e6).toFixed(0)} MB, made at ${rate(result.source)}`;
  if (!result.stages) return result.message ?? '';
  const stages = Object.entries(result.stages)
    .filter(([, time]) => time > 0.0005)
    .map(([name, time]) => `${name} ${time.toFixed(2)}`);
  const memory = `rss ${(result.peak.rss / 1e9).toFixed(1)} GB${result.peak.device === null ? '' : `, device ${(result.peak.device / 1e9).toFixed(1)} GB`}`;
  return `${result.seconds.toFixed(2)} s, made at ${rate(result.source)}, whole ${result.estimate?.seconds.toFixed(1)} s, ${memory}\n${' '.repeat(18)}${stages.join('  ')}`;
}
