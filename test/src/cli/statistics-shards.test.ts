import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SafetensorsFile } from '../../../formats/safetensors/read.js';
import { typed } from '../../../native/binding.js';
import { CALIB, lpq, model, root, scratch, spawned } from './lpq.js';

const SHORT = ['--samples', '4', '--seq-len', '24', ...CALIB, '--device', 'cpu', '--quiet'];
const part = (stats: string, i: number, of: number, ...more: string[]) => [
  'quantize',
  model,
  '--save-stats',
  stats,
  '--shard',
  `${i}/${of}`,
  ...SHORT,
  ...more,
];
const files = (dir: string) =>
  Object.fromEntries(readdirSync(dir).map((name) => [name, readFileSync(path.join(dir, name))]));

/** Every tensor of a directory of statistics. */
function tensors(dir: string): Map<string, Float32Array> {
  const file = SafetensorsFile.open(path.join(dir, 'statistics.safetensors'));
  try {
    return new Map([...file.names()].map((name) => [name, typed<Float32Array>(file.tensor(name)).slice()]));
  } finally {
    file.close();
  }
}

test('parts of statistics from processes of any kind, one of them lost, add up to the bytes of one process', async (t) => {
  const dir = scratch(t);
  const [many, one, whole] = ['many', 'one', 'whole'].map((name) => path.join(dir, name)) as [string, string, string];
  // A worker is lost in the middle; another, with other threads and instructions, does its part again.
  const lost = spawn(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...part(many, 1, 3)], { stdio: 'ignore' });
  const ended = once(lost, 'exit');
  for (let i = 0; i < 1000 && !readdirSync(dir).some((name) => name.startsWith('.many.shard-1')); i++) await sleep(5);
  lost.kill('SIGKILL');
  await ended;
  assert.ok(!existsSync(`${many}.shard-1-of-3`));
  const early = await lpq(['merge', many]);
  assert.deepEqual([early.code, /^LPQ_SHARDS/.test(early.stderr)], [4, true]);
  const ran = await Promise.all([
    spawned(part(many, 0, 3, '--threads', '1'), { LPQ_ISA: 'generic' }),
    spawned(part(many, 1, 3, '--threads', '2', '--resume')),
    spawned(part(many, 2, 3, '--threads', '1')),
  ]);
  for (const each of ran) assert.equal(each.code, 0, each.stderr);
  for (const i of [0, 1, 2]) assert.equal((await lpq(part(one, i, 3))).code, 0);
  for (const stats of [many, one]) {
    const merged = await lpq(['merge', stats]);
    assert.equal(merged.code, 0, merged.stderr);
    assert.match(merged.stdout, /merged the statistics of \d+ inputs of 3 shards/);
  }
  assert.deepEqual(files(many), files(one));
  // One part is what a process without parts makes; of three, the sums are those of plain numbers, and near those of one.
  assert.equal((await lpq(part(whole, 0, 1))).code, 0);
  assert.equal((await lpq(['merge', whole])).code, 0);
  const plain = path.join(dir, 'plain');
  const saved = await lpq(['quantize', model, '--save-stats', plain, ...SHORT]);
  assert.equal(saved.code, 0, saved.stderr);
  assert.deepEqual(files(whole), files(plain));
  const parts = [0, 1, 2].map((i) => tensors(`${many}.shard-${i}-of-3`));
  const undivided = tensors(plain);
  for (const [name, sums] of tensors(many)) {
    const want = sums.map((_, at) => parts.reduce((sum, each) => sum + (each.get(name) as Float32Array)[at]!, 0));
    assert.ok(Buffer.from(sums.buffer).equals(Buffer.from(want.buffer)), name);
    // Within a batch the 96 rows are summed in fp32, in an order of its own: rounded by 2^-24 of the root of both diagonals a row.
    const near = undivided.get(name) as Float32Array;
    const k = (Math.sqrt(8 * sums.length + 1) - 1) / 2;
    const diagonal = Array.from({ length: k }, (_, i) => sums[(i * (i + 1)) / 2 + i] as number);
    let worst = 0;
    for (let i = 0, at = 0; i < k; i++)
      for (let j = 0; j <= i; j++, at++)
        worst = Math.max(worst, Math.abs(sums[at]! - near[at]!) / Math.sqrt(diagonal[i]! * diagonal[j]!));
    assert.ok(worst <= 100 * 2 ** -24, `${name}: ${worst}`);
  }
  const manifest = JSON.parse(readFileSync(path.join(many, 'lpq.json'), 'utf8')) as { parts: number };
  assert.equal(manifest.parts, 3);
  const used = await lpq([
    'quantize',
    model,
    '-o',
    path.join(dir, 'out'),
    '--bits',
    '4',
    '--stats',
    many,
    '--quiet',
    '--no-report',
  ]);
  assert.equal(used.code, 0, used.stderr);
});

test('parts of statistics that do not belong together are refused by name', async (t) => {
  const dir = scratch(t);
  const stats = path.join(dir, 'stats');
  const [first, second] = [`${stats}.shard-0-of-2`, `${stats}.shard-1-of-2`];
  const made = async (args: readonly string[]) => {
    const ran = await lpq(args);
    assert.equal(ran.code, 0, ran.stderr);
  };
  const refused = async (says: RegExp, code = 'LPQ_SHARDS') => {
    const ran = await lpq(['merge', stats]);
    assert.equal(ran.code, 4, ran.stderr);
    assert.match(ran.stderr, new RegExp(`^${code}`));
    assert.match(ran.stderr, says);
    assert.ok(!existsSync(stats));
    rmSync(second, { recursive: true, force: true });
  };
  await made(part(stats, 0, 2));
  await refused(/shard 1 of 2 .* is missing/);
  cpSync(first, second, { recursive: true });
  await refused(/does not hold the shard that its name says/);
  await made(part(stats, 1, 2, '--samples', '3'));
  await refused(/belongs to another run .* calibration differs/);
  await made(part(stats, 1, 2, '--products', 'f32'));
  await refused(/belongs to another run .* products differs/);
  // Another model of the same shapes.
  const other = path.join(dir, 'other');
  cpSync(model, other, { recursive: true });
  const weights = path.join(other, 'model.safetensors');
  const bytes = readFileSync(weights);
  bytes[bytes.length - 1] = (bytes[bytes.length - 1] as number) ^ 1;
  writeFileSync(weights, bytes);
  await made(part(stats, 1, 2).map((word) => (word === model ? other : word)));
  await refused(/belongs to another run .* model differs/);
  // Another version of lpq; a manifest that is none; a file that is cut short, that has another bit, that is gone.
  const damaged = async (damage: () => void, says: RegExp, code?: string) => {
    cpSync(`${second}.kept`, second, { recursive: true });
    damage();
    await refused(says, code);
  };
  await made(part(stats, 1, 2));
  renameSync(second, `${second}.kept`);
  const [shard, data] = [path.join(second, 'shard.json'), path.join(second, 'statistics.safetensors')];
  const told = readFileSync(path.join(`${second}.kept`, 'shard.json'), 'utf8');
  await damaged(() => writeFileSync(shard, told.replace(/"lpq": "[^"]*"/, '"lpq": "0.0.9"')), /version of lpq differs/);
  await damaged(() => writeFileSync(shard, '{"format":"lpq-shard"}'), /shard\.json is malformed/);
  await damaged(() => truncateSync(data, 100_000), /statistics\.safetensors/, 'LPQ_SAFETENSORS');
  await damaged(() => rmSync(data), /lack statistics\.safetensors/);
  await damaged(() => {
    const flipped = readFileSync(data);
    flipped[flipped.length - 50] = (flipped[flipped.length - 50] as number) ^ 4;
    writeFileSync(data, flipped);
  }, /are damaged/);
  // --resume keeps a part of the same command only.
  renameSync(`${second}.kept`, second);
  await made(part(stats, 1, 2, '--resume'));
  const resumed = await lpq(part(stats, 1, 2, '--resume', '--seed', '1'));
  assert.deepEqual([resumed.code, /^LPQ_RESUME/.test(resumed.stderr)], [2, true], resumed.stderr);
  await made(['merge', stats]);
});

test('what statistics cannot be divided by is refused', async (t) => {
  const stats = path.join(scratch(t), 'stats');
  for (const [args, code, says] of [
    [part(stats, 6, 7), 4, /--shard 6\/7 divides the calibration sequences/],
    [
      part(stats, 0, 2, '-o', `${stats}-out`, '--bits', '4'),
      2,
      /--shard does not go with -o and --save-stats together/,
    ],
    [part(stats, 0, 2, '--save-imatrix', `${stats}.dat`), 2, /--save-imatrix does not go with --shard/],
  ] as const) {
    const ran = await lpq(args);
    assert.equal(ran.code, code, ran.stderr);
    assert.match(ran.stderr, says);
  }
});
