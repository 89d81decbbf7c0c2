import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { scratch } from '../formats/scratch.js';

const cli = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', 'bin', 'lpq.js');
const root = scratch();

/** The fields of results that are looked at; an error has a code and none of them. */
interface Result {
  readonly code: string;
  readonly blocks: number;
  readonly blocksOfShape: number;
  readonly seconds: number;
  readonly overlap: number;
  readonly stages: Readonly<Record<string, number>>;
  readonly estimate: { readonly seconds: number };
  readonly peak: { readonly anonymous: number; readonly rss: number; readonly device: number | null };
  readonly relativeError: number;
  readonly source: {
    readonly seconds: number | null;
    readonly bytes: number;
    readonly streamed?: {
      readonly shards: number;
      readonly bytes: number;
      readonly seconds: number;
      readonly peak: number;
    };
  };
  readonly output: { readonly bytes: number; readonly sha256: string; readonly discarded: boolean };
  readonly vocabulary: object;
  readonly runs: readonly { readonly seconds: number }[];
  readonly copies: readonly number[];
  readonly share: number;
  readonly spread: Readonly<Record<'seconds' | 'copySeconds' | 'share', Record<'least' | 'median' | 'most', number>>>;
  readonly calibration: object;
}

function lpq(...args: string[]): { status: number | null; stderr: string; result: Result } {
  const env = { ...process.env, TMPDIR: root };
  const run = spawnSync(process.execPath, [cli, ...args, '--json'], { encoding: 'utf8', env });
  const last = run.stdout.trim().split('\n').at(-1) || '{}';
  return { status: run.status, stderr: run.stderr, result: JSON.parse(last) as Result };
}

const SMALL = ['bench', 'quantize', '--layers', '1', '--samples', '6', '--seq-len', '64'];

test('a shape is quantized and its time told apart; nothing is left behind', () => {
  for (const shape of ['tiny', 'tiny-moe']) {
    const { status, stderr, result } = lpq(...SMALL, '--shape', shape);
    assert.equal(status, 0, stderr);
    assert.equal(result.blocks, 1);
    assert.equal(result.blocksOfShape, 4);
    for (const stage of ['forward', 'hessian', 'factor', 'clip', 'solve', 'descend', 'encode', 'write'])
      assert.ok((result.stages[stage] as number) > 0, `${shape} ${stage}`);
    const sum = Object.values(result.stages).reduce((a, b) => a + b, 0);
    assert.ok(Math.abs(sum - result.overlap - result.seconds) < 1e-6);
    assert.ok(result.estimate.seconds > result.seconds);
    assert.ok(result.peak.anonymous > 1e6 && result.peak.rss >= result.peak.anonymous);
    assert.equal(result.peak.device, null);
    assert.ok(result.relativeError > 0 && result.relativeError < 0.1, `${result.relativeError}`);
  }
  assert.deepEqual(readdirSync(root), []);
});

test('a kept checkpoint is used again, and a kept result is what lpq quantize makes of it', () => {
  const keep = path.join(root, 'keep');
  const [first, second] = [path.join(root, 'first'), path.join(root, 'second')];
  const args = ['bench', 'quantize', '--shape', 'tiny', '--layers', '2', '--method', 'rtn', '--keep', keep];
  const made = lpq(...args, '-o', first);
  assert.equal(made.status, 0, made.stderr);
  assert.ok((made.result.source.seconds as number) > 0);
  const again = lpq(...args, '-o', path.join(root, 'again'));
  assert.equal(again.result.source.seconds, null);
  assert.equal(
    lpq('quantize', path.join(keep, 'checkpoint'), '-o', second, '--bits', '4', '--method', 'rtn').status,
    0,
  );
  assert.deepEqual(
    readFileSync(path.join(first, 'model.safetensors')),
    readFileSync(path.join(second, 'model.safetensors')),
  );
  assert.equal(lpq(...args, '-o', first).result.code, 'LPQ_OUTPUT_EXISTS');
  const other = lpq(...args, '--seed', '9');
  assert.equal(other.result.code, 'LPQ_OUTPUT_EXISTS');
  assert.ok(existsSync(path.join(keep, 'checkpoint', 'model.safetensors')));
});

test('what a method decides before it solves is a stage, and in the seconds', () => {
  const { status, stderr, result } = lpq(...SMALL, '--shape', 'tiny', '--method', 'fmpq', '--group-size', '128');
  assert.equal(status, 0, stderr);
  const sum = Object.values(result.stages).reduce((a, b) => a + b, 0);
  assert.ok((result.stages.prepare as number) > 0 && result.seconds > (result.stages.prepare as number));
  assert.ok(Math.abs(sum - result.overlap - result.seconds) < 1e-6);
});

test('a streamed checkpoint gives the result of one that is there', () => {
  const [whole, streamed] = ['whole', 'streamed'].map((name) => path.join(root, `of-${name}`)) as [string, string];
  const args = [...SMALL, '--shape', 'tiny-moe', '--method', 'gptq'];
  assert.equal(lpq(...args, '-o', whole).status, 0);
  const { status, result, stderr } = lpq(...args, '-o', streamed, '--stream');
  assert.equal(status, 0, stderr);
  const read = (dir: string) => readFileSync(path.join(dir, 'model.safetensors'));
  assert.deepEqual(read(streamed), read(whole));
  // Where nobody keeps the result, its shards go as they fill; the hash of their tensors stays.
  const { output } = lpq(...args, '--stream').result;
  assert.deepEqual([output.discarded, output.sha256, output.bytes], [true, result.output.sha256, result.output.bytes]);
  assert.equal(result.output.discarded, false);
  const { streamed: made, seconds } = result.source;
  assert.equal(seconds, null);
  assert.ok(made && made.shards >= 1 && made.seconds > 0 && made.peak <= made.bytes, JSON.stringify(made));
});

test('--blocks is --layers; a small vocabulary is told of', () => {
  const few = ['bench', 'quantize', '--blocks', '1', '--samples', '4', '--seq-len', '64', '--shape', 'tiny'];
  const whole = lpq(...few);
  const small = lpq(...few, '--vocab', '100');
  assert.equal(small.status, 0, small.stderr);
  assert.equal(whole.result.blocks, 1);
  assert.deepEqual(whole.result.vocabulary, { size: 2048, reduced: false });
  assert.deepEqual(small.result.vocabulary, { size: 100, reduced: true });
  // The embedding and the head of 256 channels, bf16.
  assert.equal(whole.result.source.bytes - small.result.source.bytes, 2 * (2048 - 100) * 256 * 2);
});

test('rounding and copying take turns, and the spread is told', () => {
  const { status, stderr, result } = lpq('bench', 'rtn', '--shape', 'tiny', '--rounds', '3', '--device', 'cpu');
  assert.equal(status, 0, stderr);
  assert.equal(result.runs.length, 3);
  assert.equal(result.copies.length, 3);
  for (const [values, { least, median, most }] of [
    [result.copies, result.spread.copySeconds],
    [result.runs.map(({ seconds }) => seconds), result.spread.seconds],
    [result.runs.map(({ seconds }, i) => (result.copies[i] as number) / seconds), result.spread.share],
  ] as const) {
    const sorted = [...values].sort((a, b) => a - b);
    assert.deepEqual([least, median, most], sorted);
  }
  assert.equal(result.share, result.spread.share.median);
  assert.deepEqual(
    readdirSync(root).filter((name) => name.startsWith('lpq-bench')),
    [],
  );
});

test('calibration ids come from a file', () => {
  const ids = path.join(root, 'ids.json');
  writeFileSync(ids, JSON.stringify(Array.from({ length: 640 }, (_, i) => (i * 7) % 2048)));
  const { status, stderr, result } = lpq(...SMALL, '--shape', 'tiny', '--ids', ids);
  assert.equal(status, 0, stderr);
  assert.deepEqual(result.calibration, { name: 'ids.json', sequences: 6, tokens: 384 });
});

test('wrong arguments are refused before anything is made', () => {
  mkdirSync(path.join(root, 'ids.d'), { recursive: true });
  const before = readdirSync(root);
  for (const [args, code] of [
    [['--shape', 'nothing'], 'LPQ_USAGE'],
    [['--shape', 'tiny', '--layers', '5'], 'LPQ_USAGE'],
    [['--shape', 'tiny', '--bits', '9'], 'LPQ_USAGE'],
    [['--shape', 'tiny', '--vocab', '2'], 'LPQ_USAGE'],
    [['--shape', 'tiny', '--vocab', '2049'], 'LPQ_USAGE'],
    [['--shape', 'tiny', '--ids', path.join(root, 'ids.d')], 'LPQ_FILE'],
    [['--shape', 'tiny', '--method', 'rtn', '--ids', 'x'], 'LPQ_USAGE'],
    [['--shape', 'tiny', '--stream', '--keep', path.join(root, 'keep')], 'LPQ_USAGE'],
    [[], 'LPQ_USAGE'],
  ] as const) {
    const { status, result } = lpq('bench', 'quantize', ...args);
    assert.notEqual(status, 0);
    assert.equal(result.code, code, args.join(' '));
  }
  const small = lpq('bench', 'rtn', '--gb', '0.1');
  assert.equal(small.result.code, 'LPQ_USAGE');
  assert.equal(lpq('bench', 'rtn', '--gb', '1', '--shape', 'tiny').result.code, 'LPQ_USAGE');
  assert.deepEqual(readdirSync(root), before);
});
