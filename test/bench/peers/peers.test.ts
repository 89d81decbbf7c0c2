import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { allCells, models } from '../../../bench/peers/cells.js';
import { measured } from '../../../bench/peers/measure.js';
import { type Kept, keptOf, merged } from '../../../bench/peers/merge.js';
import { places, TOOLS } from '../../../bench/peers/tools.js';
import { scratch } from '../../src/cli/lpq.js';

test('every cell has a name of its own, and what is only timed has no trained method of all blocks', () => {
  const cells = allCells(models('/root', '/shared', '/smollm2'));
  assert.equal(new Set(cells.map(({ name }) => name)).size, cells.length);
  const steps = (name: string) => cells.filter((cell) => cell.name.startsWith(name)).map((cell) => cell.name);
  assert.ok(steps('smollm2-w4').includes('smollm2-w4-autoround-200'));
  assert.ok(
    steps('smollm2-w2').includes('smollm2-w2-autoround-50') &&
      steps('tiny-llama-w2').includes('tiny-llama-w2-lpq-tune200'),
  );
  assert.deepEqual(
    cells.filter(({ model, tool }) => model.name === 'llama-1b' && tool === 'autoround'),
    [],
  );
});

test('on a device the large model is one of 8B, whole for what solves, of two blocks for all', () => {
  const cells = allCells(models('/root', '/shared', '/smollm2', 'cuda'));
  const of = (name: string) => cells.filter(({ model }) => model.name === name).map(({ name }) => name);
  assert.deepEqual(
    of('llama-8b'),
    ['lpq', 'lpq-plain', 'gptqmodel', 'llmcompressor'].map((tool) => `llama-8b-w4-${tool}`),
  );
  assert.deepEqual(of('llama-8b-two-blocks').slice(4), [
    'llama-8b-two-blocks-w4-lpq-tune50',
    'llama-8b-two-blocks-w4-lpq-tune200',
    'llama-8b-two-blocks-w4-autoround-200',
  ]);
  assert.deepEqual(of('llama-1b'), []);
  const [cell] = cells.filter(({ name }) => name === 'llama-8b-w4-lpq');
  const at = places('/root', 'cuda');
  const command = TOOLS.lpq!.command(cell!, { model: '/m', samples: '/s' }, '/o', at).join(' ');
  assert.match(command, /--samples 128 --seq-len 2048 --bos never --device cuda /);
});

test('device memory is what the driver counts beyond what was in use before', async (t) => {
  const dir = scratch(t);
  // A driver's program that tells of more memory each time.
  const program = path.join(dir, 'nvidia-smi');
  writeFileSync(program, '#!/bin/sh\nfor used in 500 900 700; do echo $used; sleep 0.1; done; sleep 5\n', {
    mode: 0o755,
  });
  const before = process.env.PATH;
  process.env.PATH = `${dir}:${before}`;
  t.after(() => {
    process.env.PATH = before;
  });
  const options = { env: {}, log: path.join(dir, 'log'), cwd: '/', deviceMemory: true };
  const found = await measured([process.execPath, '-e', 'setTimeout(() => {}, 600)'], options);
  assert.equal(found.deviceBytes, 400 * 2 ** 20);
  writeFileSync(program, '#!/bin/sh\nexit 9\n', { mode: 0o755 });
  await assert.rejects(measured([process.execPath, '-e', ''], options), /nvidia-smi ended/);
});

test('a result takes the lesser time and the greater memory of the rounds, and extrapolates blocks without imports', () => {
  const facts = { tool: 'autoround', bits: 4, args: ['50'], version: 'auto-round 1' };
  const cells: Kept[] = [
    { ...facts, name: 'a', model: 'm', runs: { 0: { seconds: 9, peakBytes: 5 }, 1: { seconds: 8, peakBytes: 6 } } },
    {
      ...facts,
      name: 'b',
      model: 'm',
      blocks: 2,
      of: 16,
      runs: { 0: { seconds: 30, peakBytes: 5, ownSeconds: 20 } },
    },
    { ...facts, name: 'c', model: 'm', runs: {}, failed: 'ValueError: bits' },
    { ...facts, name: 'd', model: 'm', runs: {} },
  ];
  const found = merged(cells).cells as { name: string; seconds?: number; peakBytes?: number; failed?: string }[];
  assert.deepEqual(
    found.map(({ name }) => name),
    ['a', 'b', 'c'],
  );
  assert.deepEqual([found[0]?.seconds, found[0]?.peakBytes], [8, 6]);
  assert.equal((found[1] as { extrapolatedSeconds?: number }).extrapolatedSeconds, 160);
  assert.deepEqual([found[2]?.seconds, found[2]?.failed], [undefined, 'ValueError: bits']);
  // What was merged can be added to.
  assert.deepEqual([...keptOf(JSON.parse(JSON.stringify(merged(cells)))).values()], cells.slice(0, 3));
});

test('of two numbers of blocks the seconds of all are on a line', () => {
  const facts = { tool: 'autoround', bits: 4, args: ['200'], of: 32 };
  const ran = (seconds: number) => ({ 0: { seconds, peakBytes: 5, ownSeconds: seconds - 10 } });
  const cells: Kept[] = [
    { ...facts, name: 'two', model: 'two', blocks: 2, runs: ran(60) },
    { ...facts, name: 'four', model: 'four', blocks: 4, runs: ran(78) },
    { ...facts, name: 'other', model: 'two', args: ['50'], blocks: 4, runs: ran(26) },
    { ...facts, name: 'stopped', model: 'two', tool: 'lpq', blocks: 2, runs: {}, failed: 'why' },
    { ...facts, name: 'alone', model: 'four', tool: 'lpq', blocks: 4, runs: ran(26) },
  ];
  const result = merged(cells, { device: 'cpu', threads: 3, without: 'one: it was not there' });
  const found = result.cells as { extrapolatedSeconds?: number; extrapolatedFrom?: number[] }[];
  assert.deepEqual(
    found.map(({ extrapolatedSeconds }) => extrapolatedSeconds),
    [50 * 16, 78 + 9 * 28, 16 * 8, undefined, 16 * 8],
  );
  assert.deepEqual(found[1]?.extrapolatedFrom, [2, 4]);
  assert.equal(result.without, 'one: it was not there');
  assert.deepEqual([...keptOf(JSON.parse(JSON.stringify(result))).values()], cells);
});

test('without a checkpoint of SmolLM2 there are no cells of it', () => {
  const cells = allCells(models('/root', '/shared', undefined, 'cuda'));
  assert.ok(cells.length > 0 && cells.every(({ model }) => model.name !== 'smollm2'));
});

test('a run is stopped at its limit with all that it started', async (t) => {
  const log = path.join(scratch(t), 'log');
  const found = await measured(['sh', '-c', 'sleep 30 & echo $!; wait'], { env: {}, log, cwd: '/', limitMs: 400 });
  assert.equal(found.code, null);
  assert.ok(found.seconds < 5);
  const child = Number(readFileSync(log, 'utf8'));
  // What is killed stays a zombie until its parent has seen it.
  const state = () => {
    try {
      return readFileSync(`/proc/${child}/stat`, 'utf8').split(') ')[1]?.[0];
    } catch {
      return 'gone';
    }
  };
  for (let i = 0; i < 50 && !['Z', 'gone'].includes(state() ?? ''); i++) await new Promise((r) => setTimeout(r, 20));
  assert.ok(['Z', 'gone'].includes(state() ?? ''));
});

test('the script of a card survives tools that fail, and its result says why', { timeout: 120_000 }, (t) => {
  const dir = scratch(t);
  const root = path.resolve(import.meta.dirname, '..', '..', '..', '..');
  for (const tool of ['gptqmodel', 'llmcompressor', 'autoround']) {
    mkdirSync(path.join(dir, 'carried', tool), { recursive: true });
    const site = 'import os, sys; os.makedirs(sys.argv[2])';
    writeFileSync(path.join(dir, 'carried', tool, 'install.py'), site);
  }
  const env = {
    ...process.env,
    LPQ_CARD_WORK: path.join(dir, 'work'),
    LPQ_CARD_DEVICE: 'cpu',
    LPQ_CARD_ONLY: '^tiny-llama-w4-(gptqmodel|autoround-200)$',
  };
  const script = path.join(root, 'bench', 'peers', 'card.sh');
  const ran = spawnSync('sh', [script, path.join(dir, 'carried'), path.join(dir, 'out'), '60'], {
    encoding: 'utf8',
    env,
  });
  assert.equal(ran.status, 0, ran.stderr);
  assert.match(ran.stdout, /GPTQModel's first run failed/);
  const { cells, without } = JSON.parse(readFileSync(path.join(dir, 'out', 'peers.json'), 'utf8'));
  assert.deepEqual(
    cells.map(({ name, failed }: Kept) => [name, /PackageNotFoundError/.test(failed ?? '')]),
    [
      ['tiny-llama-w4-gptqmodel', true],
      ['tiny-llama-w4-autoround-200', true],
    ],
  );
  assert.match(without, /^SmolLM2-135M: /);
  assert.equal(spawnSync('sh', [script]).status, 1);
});

test('memory is that of a process with all that it starts, and a failure is told by its code', async (t) => {
  const log = path.join(scratch(t), 'log');
  const hold = (next: string) => `const held = Buffer.alloc(1e8, 1); ${next} setTimeout(() => held, 700)`;
  const child = hold('');
  const both = hold(`require('child_process').spawn(process.execPath, ['-e', ${JSON.stringify(child)}]);`);
  const found = await measured([process.execPath, '-e', both], { env: {}, log, cwd: '/' });
  assert.equal(found.code, 0);
  assert.ok(found.peakBytes > 2e8 && found.peakBytes < 6e8, `${found.peakBytes}`);
  assert.ok(found.seconds > 0.7);
  const failed = await measured(['sh', '-c', 'echo said; exit 3'], { env: {}, log, cwd: '/' });
  assert.deepEqual([failed.code, readFileSync(log, 'utf8')], [3, 'said\n']);
  await assert.rejects(measured(['/no/such/program'], { env: {}, log, cwd: '/' }), /ENOENT/);
});
