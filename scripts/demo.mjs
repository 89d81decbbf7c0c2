// The whole pipeline on the bundled model, through the real command line: quantize to 4 and 3 bits, evaluate, pack, verify, and let each
// continue the same sentence. What it makes stays: in the directory that is given, or in lpq-demo.
import { existsSync, mkdirSync, statSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { ExecaError, execa } from 'execa';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const lpq = path.join(root, 'bin', 'lpq.js');
const model = path.join(root, 'share', 'tiny-llama');
const text = path.join(root, 'share', 'text', 'books-valid.txt');
const SENTENCE = 'The captain stood on the deck and looked at the sea, and';
const scratch = path.resolve(process.argv[2] ?? 'lpq-demo');
const started = performance.now();

if (existsSync(scratch)) {
  console.error(
    `LPQ_OUTPUT_EXISTS  ${scratch} exists already\n  hint      Remove it, or name another: npm run demo -- DIR.`,
  );
  process.exit(2);
}
mkdirSync(scratch, { recursive: true });
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(130));

/** Runs a command, shows it, and returns its result event with the seconds it took. */
async function run(...args) {
  console.log(`$ lpq ${args.map((arg) => arg.replace(`${root}/`, '').replace(`${scratch}/`, '')).join(' ')}`);
  const begun = performance.now();
  const { stdout } = await execa(process.execPath, [lpq, ...args, '--json'], { stderr: 'inherit' });
  const events = stdout.split('\n').map((line) => JSON.parse(line));
  return { ...events.findLast(({ event }) => event === 'result'), seconds: (performance.now() - begun) / 1000 };
}

/** How the model in `dir` goes on with the sentence. */
async function continued(dir) {
  const { sequences } = await run('generate', dir, '--prompt', SENTENCE, '--max-tokens', '24');
  return sequences[0].text.replace(/\s+/g, ' ').trim();
}

async function megabytes(dir) {
  const names = (await readdir(dir)).filter((name) => name.endsWith('.safetensors'));
  return names.reduce((sum, name) => sum + statSync(path.join(dir, name)).size, 0) / 1e6;
}

async function row(name, dir, seconds, verified) {
  const { ppl } = await run('eval', dir, '--text', text, '--ctx', '512');
  return [
    name,
    ppl.toFixed(3),
    (await megabytes(dir)).toFixed(2),
    seconds === undefined ? '-' : seconds.toFixed(1),
    verified,
  ];
}

function print(head, rows) {
  const width = head.map((title, c) => Math.max(title.length, ...rows.map((cells) => cells[c].length)));
  for (const cells of [head, ...rows])
    console.log(cells.map((cell, c) => (c === 0 ? cell.padEnd(width[c]) : cell.padStart(width[c]))).join('  '));
}

try {
  const rows = [await row('tiny-llama (bf16)', model, undefined, '-')];
  const texts = [['16 bits', await continued(model)]];
  const reports = [];
  for (const [bits, target] of [
    ['4', 'marlin'],
    ['3', 'gptq'],
  ]) {
    const quantized = path.join(scratch, `tiny-llama-${bits}bit`);
    const packed = `${quantized}-${target}`;
    const { seconds } = await run(
      'quantize',
      model,
      '-o',
      quantized,
      '--bits',
      bits,
      '--group-size',
      '128',
      '--samples',
      '64',
      '--no-eval',
    );
    await run('pack', quantized, '--target', target, '-o', packed);
    const { ok } = await run('verify', packed, '--against', quantized);
    texts.push([`${bits} bits`, await continued(packed)]);
    reports.push(`${quantized}.report.html`);
    rows.push(await row(`${bits} bits, groups of 128, for ${target}`, packed, seconds, ok ? 'verified' : 'WRONG'));
  }
  console.log();
  print(['weights', 'perplexity', 'MB', 'quantized in s', 'packed bytes'], rows);
  console.log(`\n${SENTENCE} ...`);
  for (const [bits, text] of texts) console.log(`${bits.padEnd(7)}  ... ${text}`);
  console.log(
    `\nreports, with a verdict and each module: ${reports.map((file) => path.relative('.', file)).join(', ')}`,
  );
  console.log(`everything else: ${path.relative('.', scratch)}`);
  console.log(
    `\nperplexity of share/text/books-valid.txt, windows of 512 tokens; ${((performance.now() - started) / 1000).toFixed(0)} s in all`,
  );
} catch (error) {
  if (!(error instanceof ExecaError)) throw error;
  // The command's own error is its last event.
  const last = String(error.stdout ?? '')
    .split('\n')
    .at(-1);
  console.error(last || error.shortMessage);
  process.exitCode = error.exitCode ?? 1;
}
