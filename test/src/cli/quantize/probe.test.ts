import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../../native/binding.js';
import { type QuantizeOptions, quantizeOptions } from '../../../../src/cli/quantize/options.js';
import { probedTime } from '../../../../src/cli/quantize/probe.js';
import { CALIB, events, lpq, model, scratch } from '../lpq.js';

const FEW = [...CALIB, '--samples', '4', '--seq-len', '64', '--device', 'cpu'];
const SHARED = process.env.LPQ_SHARED ?? '/work/shared';

interface Told {
  readonly estimate: { seconds?: number; leastSeconds?: number; block?: { seconds: number } };
}

async function timed(source: string, output: string, ...more: readonly string[]) {
  const ran = await lpq(['quantize', source, '-o', output, '--dry-run', '--timed', '--json', ...more]);
  return { ran, told: events(ran).find(({ dryRun }) => dryRun === true) as unknown as Told | undefined };
}

test('every method is timed by its own pipeline, and nothing stays beside the output', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'deep', 'out');
  for (const method of [
    ['--method', 'rtn', '--device', 'cpu'],
    FEW,
    [...FEW, '--tune', '3'],
    [...FEW, '--tune-scales', '3'],
    [...FEW, '--method', 'fmpq'],
  ]) {
    const { ran, told } = await timed(model, output, '--bits', '4', ...method);
    assert.equal(ran.code, 0, ran.stdout);
    assert.ok((told?.estimate.seconds ?? 0) > 0 && (told?.estimate.block?.seconds ?? 0) > 0, ran.stdout);
    assert.equal(told?.estimate.leastSeconds, undefined);
    assert.deepEqual(readdirSync(dir), []);
  }
});

test('the time of a run of all blocks is near that of the run', async (t) => {
  const dir = scratch(t);
  const args = ['--bits', '4', ...CALIB, '--samples', '8', '--seq-len', '256', '--device', 'cpu'];
  const { told } = await timed(model, path.join(dir, 'out'), ...args);
  const ran = await lpq(['quantize', model, '-o', path.join(dir, 'out'), '--no-report', '--json', ...args]);
  const { seconds } = events(ran).at(-1) as unknown as { seconds: number };
  // Tests run beside each other: this only finds what is wrong by a factor.
  const ratio = (told?.estimate.seconds ?? 0) / seconds;
  assert.ok(ratio > 0.3 && ratio < 3, `told ${told?.estimate.seconds}, took ${seconds}`);
});

test('blocks that read what earlier ones made, experts, and hybrid models are timed', async (t) => {
  for (const name of ['qwen3_moe', '../archs-2026/gemma3n_text', '../archs-2026/qwen3_next']) {
    const source = path.join(SHARED, 'archs', name);
    try {
      readdirSync(source);
    } catch {
      t.diagnostic(`${source} is absent: not tested`);
      continue;
    }
    const { ran, told } = await timed(
      source,
      path.join(scratch(t), 'o'),
      '--bits',
      '4',
      '--group-size',
      'channel',
      ...RTN,
    );
    assert.equal(ran.code, 0, ran.stdout + ran.stderr);
    assert.ok((told?.estimate.seconds ?? 0) > 0, ran.stdout);
  }
});

const RTN = ['--method', 'rtn', '--device', 'cpu'];

test('a trial that fails leaves nothing, and its error is that of the run', async (t) => {
  const dir = scratch(t);
  const broken = path.join(dir, 'broken');
  cpSync(model, broken, { recursive: true });
  const file = path.join(broken, readdirSync(broken).find((name) => name.endsWith('.safetensors')) as string);
  const bytes = readFileSync(file);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, start)) as Record<string, { data_offsets: [number, number] }>;
  const at = header['model.layers.1.mlp.down_proj.weight']?.data_offsets[0] as number;
  bytes.writeUInt16LE(0x7fc0, start + at); // NaN in bf16
  writeFileSync(file, bytes);
  const before = readdirSync(dir);
  const { ran } = await timed(broken, path.join(dir, 'out'), '--bits', '4', ...FEW);
  assert.equal(ran.code, 4, ran.stdout);
  assert.match(ran.stdout, /LPQ_\w+.*down_proj/);
  assert.deepEqual(readdirSync(dir), before);
});

test('a trial that is interrupted leaves nothing', async (t) => {
  const dir = scratch(t);
  const text = path.join(dir, 'text');
  mkdirSync(text);
  const flags = { output: path.join(dir, 'out'), bits: 4, method: 'rtn' };
  const options = (await quantizeOptions(model, flags as never)) as QuantizeOptions;
  const stopped = Object.assign(new Error('stopped'), { code: 'LPQ_ABORTED' });
  const cleanups: (() => void)[] = [];
  const run = {
    report: { event() {}, warn() {} },
    interrupt: {
      check() {
        throw stopped;
      },
      cleanup: (action: () => void) => cleanups.push(action),
    },
  };
  await assert.rejects(probedTime(options, undefined, [createRuntime(1)], run as never), stopped);
  assert.deepEqual(readdirSync(dir), ['text']);
  assert.ok(cleanups.length > 0);
  for (const action of cleanups) action();
});
