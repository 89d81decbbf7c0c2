import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { CALIB, lpq, model, scratch } from '../cli/lpq.js';

/** The tiny model, and one with the same config.json and headers whose weights all have the other sign. */
function twins(t: TestContext): { dir: string; other: string } {
  const dir = scratch(t);
  const other = path.join(dir, 'other');
  mkdirSync(other);
  cpSync(model, other, { recursive: true });
  const file = path.join(other, 'model.safetensors');
  const bytes = readFileSync(file);
  const begin = 8 + Number(bytes.readBigUInt64LE(0));
  for (let at = begin + 1; at < bytes.length; at += 2) bytes[at] = (bytes[at] as number) ^ 0x80;
  writeFileSync(file, bytes);
  return { dir, other };
}

const RTN = ['--bits', '4', '--method', 'rtn', '--quiet', '--no-report'];
const FEW = ['--samples', '2', '--seq-len', '32', ...CALIB, '--device', 'cpu', '--quiet'];

async function done(...args: readonly string[]): Promise<void> {
  const ran = await lpq(args);
  assert.equal(ran.code, 0, ran.stderr);
}

async function refused(code: string, says: RegExp, ...args: readonly string[]): Promise<void> {
  const ran = await lpq(args);
  assert.notEqual(ran.code, 0);
  assert.match(ran.stderr, new RegExp(`^${code}`), ran.stderr);
  assert.match(ran.stderr, says);
}

test('models that share config.json and headers are told apart: shards that are merged', async (t) => {
  const { dir, other } = twins(t);
  const out = path.join(dir, 'out');
  const shard = (from: string, i: number) => ['quantize', from, '-o', out, '--shard', `${i}/2`, ...RTN.slice(0, -1)];
  await done(...shard(model, 0));
  await done(...shard(other, 1));
  await refused('LPQ_SHARDS', /to another run .*provenance differs/, 'merge', out);
  assert.ok(!existsSync(out));
});

test('models that share config.json and headers are told apart: a run that is redone, and one that is resumed', async (t) => {
  const { dir, other } = twins(t);
  const first = path.join(dir, 'first');
  await done('quantize', model, '-o', first, ...RTN);
  const redo = ['--redo', 'mlp', '--from', first];
  const out = path.join(dir, 'out');
  await refused('LPQ_REDO', /made from another model/, 'quantize', other, '-o', out, ...redo, ...RTN);
  // Stopped by a weight of the last block that is no number, and gone on with from another model.
  const broken = path.join(dir, 'broken');
  cpSync(model, broken, { recursive: true });
  const file = path.join(broken, 'model.safetensors');
  const bytes = readFileSync(file);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString()) as Record<string, { data_offsets: number[] }>;
  const [begin = 0] = header['model.layers.3.mlp.down_proj.weight']?.data_offsets ?? [];
  bytes.writeUInt16LE(0x7fc0, 8 + length + begin);
  writeFileSync(file, bytes);
  await refused('LPQ_MODULE_NUMERICS', /NaN/, 'quantize', broken, '-o', out, ...RTN);
  await refused('LPQ_RESUME', /fingerprint of the source/, 'quantize', other, '-o', out, '--resume', ...RTN);
});

test('models that share config.json and headers are told apart: saved statistics', async (t) => {
  const { dir, other } = twins(t);
  const stats = path.join(dir, 'stats');
  await done('quantize', other, '--save-stats', stats, ...FEW);
  const args = ['--bits', '4', '--stats', stats, '--device', 'cpu', '--quiet'];
  await refused('LPQ_STATISTICS', /belong to another model/, 'quantize', model, '-o', path.join(dir, 'out'), ...args);
});

test('models that share config.json and headers are told apart: --source of pack, eval and verify', async (t) => {
  const { dir, other } = twins(t);
  const [quantized, packed] = [path.join(dir, 'q'), path.join(dir, 'g')];
  await done('quantize', model, '-o', quantized, ...RTN);
  const pack = ['pack', quantized, '--target', 'gguf-q4_k', '-o', packed, '--quiet'];
  await refused('LPQ_SOURCE', /not the model that .* was quantized from/, ...pack, '--source', other);
  assert.ok(!existsSync(packed));
  await done(...pack, '--source', model);
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, readFileSync('README.md', 'utf8').slice(0, 2000));
  const evaluate = ['eval', quantized, '--text', text, '--ctx', '64', '--device', 'cpu', '--quiet', '--source'];
  const foreign = await lpq([...evaluate, other]);
  assert.match(foreign.stderr, /--source .* is not the model that .* was quantized from/);
  const own = await lpq([...evaluate, model]);
  assert.deepEqual([own.code, own.stderr], [0, '']);
  rmSync(packed, { recursive: true });
});
