import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CALIB, events, lpq, model, root, scratch, spawned } from '../lpq.js';

/** What errors are measured with, where it is not said: 16 times 512 tokens. */
const FEW = ['--samples', '2', '--seq-len', '64', ...CALIB];

/** Bytes of the files of a directory. */
function size(dir: string): number {
  const files = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return files.reduce((sum, entry) => sum + statSync(path.join(entry.parentPath, entry.name)).size, 0);
}

function near(got: number, truth: number, share: number, what: string): void {
  assert.ok(Math.abs(got - truth) <= share * truth, `${what}: ${got}, in truth ${truth}`);
}

test('estimates: output within 1 %, memory within a fifth', async (t) => {
  const dir = scratch(t);
  const runs = [
    ['--bits', '4', '--method', 'rtn'],
    ['--bits', '4', '--samples', '16', '--seq-len', '256'],
    ['--dtype', 'nvfp4', '--method', 'rtn', '--asym'].slice(0, 4),
    ['--bits', '3', '--asym', '--group-size', '32', '--samples', '4', '--seq-len', '64', ...CALIB, '--gptaq', '0'],
  ];
  for (const [i, args] of runs.entries()) {
    const output = path.join(dir, String(i));
    // What it takes at most is the process's.
    const run = [...args, '--device', 'cpu', '--threads', '2', '--json'];
    const ran = await spawned(['quantize', model, '-o', output, ...run]);
    assert.equal(ran.code, 0, ran.stdout);
    const needs = events(ran).find(({ event }) => event === 'preflight') as { output: number; rss: number };
    near(needs.output, size(output), 0.01, `${args.join(' ')}: output`);
    // A sanitizer's own memory is not lpq's.
    if (process.env.LD_PRELOAD?.includes('asan')) continue;
    const { totals } = JSON.parse(readFileSync(`${output}.report.json`, 'utf8')) as { totals: { peakRss: number } };
    near(needs.rss, totals.peakRss, 0.2, `${args.join(' ')}: memory`);
  }
  for (const [target, source] of [
    ['marlin', '0'],
    ['gptq', '0'],
    ['compressed-tensors', '3'],
    ['awq', '1'],
  ] as const) {
    const output = path.join(dir, `${source}-${target}`);
    const input = path.join(dir, source);
    const [plan] = events(await lpq(['pack', input, '--target', target, '-o', output, '--dry-run', '--json'])) as [
      { estimate: { output: number; seconds?: number } },
    ];
    const ran = await lpq(['pack', input, '--target', target, '-o', output, '--quiet']);
    assert.equal(ran.code, 0, ran.stderr);
    near(plan.estimate.output, size(output), 0.01, target);
  }
});

test('a dry run asks every target, with ranks, and gives reasons and remedies', async (t) => {
  const none = path.join(scratch(t), 'none');
  const base = ['quantize', model, '-o', none, '--bits', '3', '--dry-run', '--pack'];
  const [found] = events(await lpq([...base, 'all', '--json'])) as [
    { targets: Record<string, string>[]; carried: string[] },
  ];
  const rows = found.targets;
  const actions = (target: string) =>
    [...new Set(rows.filter((row) => row.target === target).map(({ action }) => action))].sort();
  assert.deepEqual(actions('tilus'), ['ok']);
  assert.deepEqual(actions('marlin'), ['fallback']);
  assert.equal(rows.length % 28, 0);
  for (const row of rows) if (row.action === 'fallback') assert.ok(row.reason && row.remedy, JSON.stringify(row));
  assert.equal(found.carried.length, 10);
  const ranks = await lpq([...base, 'tilus,gptq', '--tp', '4']);
  assert.equal(ranks.code, 0, ranks.stderr);
  assert.match(ranks.stdout, /module +tilus +gptq\n/);
  assert.match(ranks.stdout, /gptq: target gptq has no tensors for each rank. Leave --tp out/);
  assert.match(ranks.stdout, /to write \(.* free\), about .* of memory/);
  assert.equal((await lpq([...base, 'nonsense'])).code, 2);
  assert.equal((await lpq(['quantize', model, '-o', none, '--bits', '4', '--tp', '2'])).code, 2);
  for (const method of [
    ['--method', 'rtn'],
    ['--samples', '2', '--seq-len', '32'],
  ]) {
    const timed = await lpq([
      ...['quantize', model, '-o', none, '--bits', '4', ...method],
      ...['--device', 'cpu', '--dry-run', '--timed', '--json'],
    ]);
    const { estimate } = events(timed).at(-1) as unknown as {
      estimate: { seconds: number; block: { index: number } };
    };
    assert.ok(estimate.seconds > 0 && estimate.block.index < 4, timed.stdout);
    assert.deepEqual(readdirSync(path.dirname(none)), []);
  }
});

test('a disk that is too small is told before any work', async (t) => {
  const { preflight } = await import('../../../../src/cli/options/preflight.js');
  const told: string[] = [];
  const run = {
    report: {
      event: (_: string, __: object, line: string) => told.push(line),
      warn: (line: string) => told.push(line),
    },
  };
  const place = path.join(scratch(t), 'a', 'b');
  const needs = { output: 2 ** 60, rss: 1 };
  assert.throws(() => preflight(place, needs, run as never), { code: 'LPQ_DISK_FULL' });
  assert.match(told[0] ?? '', /to write \(.* free\)/);
  process.env.LPQ_PREFLIGHT = 'warn';
  t.after(() => {
    delete process.env.LPQ_PREFLIGHT;
  });
  preflight(place, needs, run as never);
  assert.match(told.at(-1) ?? '', /its disk has/);
});

test('a target of size or bits is met, and the divergence is below that of other mixtures of that size', async (t) => {
  const dir = scratch(t);
  const rtn = ['--method', 'rtn', '--device', 'cpu', '--json'];
  const sized = path.join(dir, 'sized');
  const target = ['--target-size', '2650k', ...FEW];
  const ran = await lpq(['quantize', model, '-o', sized, ...target, '--device', 'cpu', '--json']);
  assert.equal(ran.code, 0, ran.stdout);
  // 1k is 1024 bytes. What is left of the budget is less than a bit of the smallest group of modules, 256 x 256 weights.
  assert.ok(size(sized) <= 2650 * 1024);
  assert.ok(size(sized) > 2650 * 1024 - 2 * ((512 * 256) / 8), String(size(sized)));
  const chosen = path.join(dir, 'chosen');
  const bpw = await lpq(['quantize', model, '-o', chosen, '--target-bpw', '3.625', ...rtn]);
  assert.equal(bpw.code, 0, bpw.stdout);
  const result = events(bpw).find(({ event }) => event === 'result') as { bitsPerWeight: number };
  assert.ok(result.bitsPerWeight <= 3.625 && result.bitsPerWeight > 3.55, String(result.bitsPerWeight));
  // The same size by hand: two blocks of four with 4 bits, two with 3.
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(40_000, 50_000));
  const kl = async (place: string) => {
    const [found] = events(
      await lpq(['eval', place, '--text', text, '--ctx', '256', '--source', model, '--device', 'cpu', '--json']),
    ).slice(-1);
    return (found as { source: { kl: { mean: number } } }).source.kl.mean;
  };
  const ours = await kl(chosen);
  for (const [i, half] of ['[01]', '[23]', '[02]'].entries()) {
    const recipe = path.join(dir, `${i}.yaml`);
    writeFileSync(recipe, `bits: 3\nmethod: rtn\nrules:\n  - match: layers\\.${half}\\.\n    bits: 4\n`);
    const place = path.join(dir, `half${i}`);
    assert.equal((await lpq(['quantize', model, '-o', place, '--recipe', recipe, '--quiet', '--no-report'])).code, 0);
    const theirs = await kl(place);
    assert.ok(ours < theirs, `${ours} against ${theirs} with layers ${half} in 4 bits`);
  }
  const recipe = await lpq(['quantize', model, '-o', path.join(dir, 'x'), ...target, '--print-recipe', '--quiet']);
  const file = path.join(dir, 'printed.yaml');
  writeFileSync(file, recipe.stdout);
  const again = path.join(dir, 'again');
  assert.equal((await lpq(['quantize', model, '-o', again, '--recipe', file, '--quiet', '--no-report'])).code, 0);
  for (const name of ['model.safetensors', 'lpq.json'])
    assert.ok(readFileSync(path.join(again, name)).equals(readFileSync(path.join(sized, name))), name);
});

test('targets that contradict other options, or cannot be met, are refused', async (t) => {
  const out = path.join(scratch(t), 'out');
  for (const [args, says] of [
    [['--bits', '4', '--target-bpw', '3'], /--target-bpw chooses the bits, which --bits fixes/],
    [['--target-size', '1g', '--target-bpw', '3'], /exclude each other/],
    [['--target-size', 'much'], /--target-size does not take/],
    [['--target-bpw', '1.5', ...FEW], /cannot be met[\s\S]*at least 2\.125 bits/],
    [['--target-bpw', '3.6', '--pack', 'marlin', ...FEW], /at least 4\.125[\s\S]*marlin takes 4, 8 bits only/],
    [['--target-size', '1m', ...FEW], /cannot be met[\s\S]*the smallest that was tried/],
  ] as const) {
    const ran = await lpq(['quantize', model, '-o', out, ...args, '--quiet']);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, says);
  }
});
