import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { ARCHITECTURES } from '../model/fixtures.js';
import { lpq, model, root, scratch } from './lpq.js';

/** A model of a moment: what is told of it is the same. */
const SMALL = [path.join(ARCHITECTURES, 'llama'), '--bits', '4', '--group-size', '32', '--method', 'rtn'];

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

type Sink = 'pipe' | 'closed' | 'full';

/** Runs lpq with stdout and stderr as they are said to be: read to the end, closed by their reader at once, or a full disk. */
function into(args: readonly string[], stdout: Sink, stderr: Sink = 'pipe'): Promise<Ended> {
  const fds: number[] = [];
  const of = (sink: Sink) => {
    if (sink !== 'full') return 'pipe';
    fds.push(openSync('/dev/full', 'w'));
    return fds.at(-1) as number;
  };
  const child = spawn(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], {
    cwd: root,
    stdio: ['ignore', of(stdout), of(stderr)],
  });
  for (const fd of fds) closeSync(fd);
  const text = { stdout: '', stderr: '' };
  for (const [name, sink] of [['stdout', stdout] as const, ['stderr', stderr] as const]) {
    if (sink === 'closed') child[name]?.destroy();
    else child[name]?.on('data', (chunk) => (text[name] += chunk));
  }
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, ...text })));
}

async function artifacts(t: TestContext): Promise<{ dir: string; good: string; broken: string; quantized: string }> {
  const dir = scratch(t);
  const [quantized, good, broken] = ['q', 'good', 'broken'].map((name) => path.join(dir, name)) as [
    string,
    string,
    string,
  ];
  const made = await lpq(['quantize', ...SMALL, '-o', quantized, '--no-report']);
  assert.equal(made.code, 0, made.stderr);
  for (const out of [good, broken])
    assert.equal((await lpq(['pack', quantized, '--target', 'marlin', '-o', out])).code, 0);
  const file = path.join(broken, 'model.safetensors');
  const bytes = readFileSync(file);
  bytes[bytes.length - 1000] = (bytes[bytes.length - 1000] as number) ^ 1;
  writeFileSync(file, bytes);
  return { dir, good, broken, quantized };
}

const PLAIN = [
  ['--version'],
  ['--help'],
  ['explain'],
  ['completion', 'bash'],
  ['inspect', model],
  ['doctor', model],
  ['quantize', model, '-o', 'never', '--bits', '4', '--method', 'rtn', '--dry-run'],
  ['quantize', model, '-o', 'never', '--bits', '4', '--print-recipe'],
] as const;

test('a result that a full disk or device did not take: exit 3 and a designed error, whatever the command and form', async () => {
  for (const args of PLAIN)
    for (const form of [[], ['--json']]) {
      if (args[0].startsWith('--') && form.length > 0) continue;
      const ran = await into([...args, ...form], 'full');
      assert.equal(ran.code, 3, `${args.join(' ')}: ${ran.stderr}`);
      assert.match(ran.stderr, /^LPQ_DISK_FULL {2}the result could not be written to stdout/m);
      assert.doesNotMatch(ran.stderr, /^ +at /m);
    }
});

test('a file that takes a part of the result only is not taken for the whole', async (t) => {
  const file = path.join(scratch(t), 'codes');
  const child = spawn('sh', ['-c', `ulimit -f 1; "$0" bin/lpq.js explain > "$1"`, process.execPath, file], {
    cwd: root,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let stderr = '';
  child.stderr.on('data', (chunk) => (stderr += chunk));
  const code = await new Promise((resolve) => child.on('close', resolve));
  assert.equal(code, 3, stderr);
  assert.match(stderr, /^LPQ_OUTPUT_WRITE {2}the result could not be written to stdout/);
});

test('a reader that went away: 141; a listing says nothing of it, other commands do', async () => {
  for (const args of PLAIN) {
    const ran = await into(args, 'closed');
    assert.equal(ran.code, 141, args.join(' '));
    if (args[0] === 'quantize') assert.match(ran.stderr, /^LPQ_PIPE {2}stdout was closed/m);
    else assert.equal(ran.stderr, '', args.join(' '));
  }
});

test('verify: a verdict that nobody got is never 0, and a failed verification stays 1', async (t) => {
  const { good, broken } = await artifacts(t);
  for (const form of [[], ['--json']])
    for (const [sink, code] of [['closed', 141] as const, ['full', 3] as const]) {
      const held = await into(['verify', good, ...form], sink);
      assert.equal(held.code, code, held.stderr);
      const failed = await into(['verify', broken, ...form], sink);
      assert.equal(failed.code, 1, failed.stderr);
      // What --json could not tell on stdout is told beside it.
      assert.match(failed.stderr, /^LPQ_VERIFY /m);
      assert.match(failed.stderr, /^LPQ_(PIPE|DISK_FULL) /m);
    }
});

test('a lost log is told by the exit code alone; a lost error keeps its own', async () => {
  assert.equal((await into(['explain'], 'pipe', 'full')).code, 0, 'there was nothing to tell');
  const log = ['quantize', model, '-o', 'never', '--bits', '4', '--dry-run', '--method', 'rtn', '--pack', 'marlin'];
  const quiet = await into(log, 'pipe', 'full');
  assert.notEqual(quiet.stdout, '');
  for (const sink of ['full', 'closed'] as const) {
    assert.equal((await into(['frobnicate'], 'pipe', sink)).code, 2);
    assert.equal((await into(['inspect', 'nowhere'], 'pipe', sink)).code, 4);
  }
});

test('what is written to files is finished, and the exit code tells that nobody heard of it', async (t) => {
  const { dir, quantized } = await artifacts(t);
  for (const form of [[], ['--json']])
    for (const [sink, code] of [['closed', 141] as const, ['full', 3] as const]) {
      const place = path.join(dir, `${sink}${form.length}`);
      mkdirSync(place);
      const out = path.join(place, 'q');
      const ran = await into(['quantize', ...SMALL, '-o', out, ...form], sink);
      assert.equal(ran.code, code, ran.stderr);
      assert.ok(existsSync(path.join(out, 'lpq.json')) && existsSync(`${out}.report.json`));
      const packed = await into(['pack', quantized, '--target', 'gptq', '-o', `${out}-p`, ...form], sink);
      assert.equal(packed.code, code, packed.stderr);
      assert.ok(existsSync(path.join(`${out}-p`, 'lpq.json')));
    }
  const log = path.join(dir, 'log');
  const unheard = await into(['quantize', ...SMALL, '-o', log], 'pipe', 'closed');
  assert.equal(unheard.code, 141);
  assert.match(unheard.stdout, /^quantized /);
});

test('text that is written as it comes ends when nobody reads it', async () => {
  const ran = await into(['generate', model, '--prompt', 'Once', '--max-tokens', '200', '--ignore-eos'], 'closed');
  assert.equal(ran.code, 141);
  assert.equal(ran.stderr.match(/^LPQ_PIPE /gm)?.length, 1, ran.stderr);
  assert.doesNotMatch(ran.stderr, /^prompt: /m);
});
