import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CALIB, events, lpq, model, scratch } from './lpq.js';

/** sha256 of every file of a directory. */
function hashes(dir: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(dir)
      .sort()
      .map((name) => [
        name,
        createHash('sha256')
          .update(readFileSync(path.join(dir, name)))
          .digest('hex'),
      ]),
  );
}

const four = [0, 1, 2, 3];

/** The same command for each of `count` shards, all at once, and the merge. */
async function inShards(args: readonly string[], output: string, count = 4): Promise<void> {
  const ran = await Promise.all(
    Array.from({ length: count }, (_, i) =>
      lpq([...args, '-o', output, '--shard', `${i}/${count}`, '--quiet', '--threads', '1']),
    ),
  );
  for (const each of ran) assert.equal(each.code, 0, each.stderr);
  assert.ok(!existsSync(output));
  const merged = await lpq(['merge', output]);
  assert.equal(merged.code, 0, merged.stderr);
  assert.match(merged.stdout, new RegExp(`of ${count} shards`));
}

test('four processes quantize and pack to the bytes of one', async (t) => {
  const dir = scratch(t);
  for (const [i, args] of [
    ['--bits', '4', '--method', 'rtn', '--asym'],
    ['--dtype', 'nvfp4', '--method', 'rtn'],
  ].entries()) {
    const [one, many] = [path.join(dir, `one${i}`), path.join(dir, `many${i}`)];
    const whole = await lpq(['quantize', model, '-o', one, ...args, '--quiet', '--no-report']);
    assert.equal(whole.code, 0, whole.stderr);
    await inShards(['quantize', model, ...args], many);
    assert.deepEqual(hashes(many), hashes(one));
    for (const target of i === 0 ? ['awq', 'marlin'] : ['compressed-tensors']) {
      const [packed, parts] = [path.join(dir, `${target}-one`), path.join(dir, `${target}-many`)];
      assert.equal((await lpq(['pack', one, '--target', target, '-o', packed, '--quiet'])).code, 0);
      await inShards(['pack', many, '--target', target], parts, target === 'awq' ? 4 : 3);
      assert.deepEqual(hashes(parts), hashes(packed), target);
    }
  }
  const verified = await lpq(['verify', path.join(dir, 'awq-many'), '--against', path.join(dir, 'one0'), '--quiet']);
  assert.equal(verified.code, 0, verified.stderr);
});

test('more shards than blocks, and saved statistics, give the same bytes too', async (t) => {
  const dir = scratch(t);
  const stats = path.join(dir, 'stats');
  const saved = await lpq([
    'quantize',
    model,
    '--save-stats',
    stats,
    '--samples',
    '2',
    '--seq-len',
    '64',
    ...CALIB,
    '--device',
    'cpu',
    '--quiet',
  ]);
  assert.equal(saved.code, 0, saved.stderr);
  const args = ['quantize', model, '--bits', '4', '--stats', stats, '--device', 'cpu'];
  const one = path.join(dir, 'one');
  assert.equal((await lpq([...args, '-o', one, '--quiet', '--no-report'])).code, 0);
  await inShards(args, path.join(dir, 'many'), 6);
  assert.deepEqual(hashes(path.join(dir, 'many')), hashes(one));
});

test('shards that are missing, damaged, of another run or of different --shard counts are refused by name', async (t) => {
  const dir = scratch(t);
  const out = path.join(dir, 'out');
  const make = (i: number, of = 4, bits = '4') =>
    lpq(['quantize', model, '-o', out, '--bits', bits, '--method', 'rtn', '--shard', `${i}/${of}`, '--quiet']);
  const refused = async (says: RegExp) => {
    const ran = await lpq(['merge', out]);
    assert.equal(ran.code, 4, ran.stderr);
    assert.match(ran.stderr, /^LPQ_SHARDS/);
    assert.match(ran.stderr, says);
    assert.ok(!existsSync(out));
  };
  await refused(/there are no shards/);
  for (const i of four.slice(0, 3)) assert.equal((await make(i)).code, 0);
  await refused(/shard 3 of 4 .* is missing/);
  assert.equal((await make(3, 4, '3')).code, 0);
  await refused(/belongs to another run .* provenance differs/);
  const last = `${out}.shard-3-of-4`;
  rmSync(last, { recursive: true });
  assert.equal((await make(3)).code, 0);
  assert.equal((await make(0)).code, 2, 'never overwritten');
  assert.equal((await lpq(['eval', last, '--text', 'README.md'])).code, 4);

  cpSync(last, `${last}.kept`, { recursive: true });
  const file = path.join(last, 'model.safetensors');
  const bytes = readFileSync(file);
  bytes[bytes.length - 100] = (bytes[bytes.length - 100] as number) ^ 4;
  writeFileSync(file, bytes);
  await refused(/has changed since it was written/);
  rmSync(last, { recursive: true });
  renameSync(`${last}.kept`, last);
  writeFileSync(path.join(last, 'shard.json'), '{"format":"lpq-shard"}');
  await refused(/shard\.json is malformed: /);
  assert.equal((await make(0, 5)).code, 0);
  await refused(/different --shard counts/);
});

test('a part that is there twice, cut short, of another model, of other options or of another version is refused by name', async (t) => {
  const dir = scratch(t);
  const [out, other] = [path.join(dir, 'out'), path.join(dir, 'other')];
  const [first, second] = [`${out}.shard-0-of-2`, `${out}.shard-1-of-2`];
  const make = async (source: string, i: number, ...more: string[]) => {
    const args = ['quantize', source, '-o', out, '--bits', '4', '--method', 'rtn', '--shard', `${i}/2`, '--quiet'];
    // Hosts may have other instructions: the bytes are the same.
    const ran = await lpq([...args, ...more], i === 0 && more.length === 0 ? { LPQ_ISA: 'generic' } : undefined);
    assert.equal(ran.code, 0, ran.stderr);
  };
  const refused = async (says: RegExp, code = 'LPQ_SHARDS') => {
    const ran = await lpq(['merge', out]);
    assert.equal(ran.code, 4, ran.stderr);
    assert.match(ran.stderr, new RegExp(`^${code}`));
    assert.match(ran.stderr, says);
    assert.ok(!existsSync(out));
    rmSync(second, { recursive: true });
  };
  await make(model, 0);
  await make(model, 1);
  const good = path.join(dir, 'good');
  renameSync(second, good);
  const told = readFileSync(path.join(good, 'shard.json'), 'utf8');
  const damaged = async (from: string, damage: () => void, says: RegExp, code?: string) => {
    cpSync(from, second, { recursive: true });
    damage();
    await refused(says, code);
  };
  const tell = (text: string) => () => writeFileSync(path.join(second, 'shard.json'), text);
  await damaged(first, () => {}, /does not hold the shard that its name says/);
  const twice = readFileSync(path.join(first, 'shard.json'), 'utf8').replace('"index": 0', '"index": 1');
  await damaged(first, tell(twice), /' is in .*shard-0-of-2 and in .*shard-1-of-2/);
  await damaged(good, tell(told.replace(/"lpq": "[^"]*"/, '"lpq": "0.0.9"')), /another run .* provenance differs/);
  const data = path.join(second, 'model.safetensors');
  await damaged(good, () => truncateSync(data, 50_000), /model\.safetensors/, 'LPQ_SAFETENSORS');
  await damaged(good, () => rmSync(data), /shard-1-of-2/, 'LPQ_[A-Z]+');
  cpSync(model, other, { recursive: true });
  const weights = path.join(other, 'model.safetensors');
  const bytes = readFileSync(weights);
  bytes[bytes.length - 1] = (bytes[bytes.length - 1] as number) ^ 1;
  writeFileSync(weights, bytes);
  await make(other, 1);
  await refused(/another run .* provenance differs/);
  await make(model, 1, '--asym');
  await refused(/another run .* provenance differs/);
  renameSync(good, second);
  const [one, merged] = [path.join(dir, 'one'), await lpq(['merge', out])];
  assert.equal(merged.code, 0, merged.stderr);
  assert.equal(
    (await lpq(['quantize', model, '-o', one, '--bits', '4', '--method', 'rtn', '--quiet', '--no-report'])).code,
    0,
  );
  assert.deepEqual(hashes(out), hashes(one));
});

test('the disk that a part needs is that of its own tensors', async (t) => {
  const out = path.join(scratch(t), 'out');
  const args = ['quantize', model, '-o', out, '--bits', '4', '--method', 'rtn', '--shard', '1/4'];
  const planned = events(await lpq([...args, '--dry-run', '--json'])).at(-1) as { estimate: { output: number } };
  assert.equal((await lpq([...args, '--quiet'])).code, 0);
  const part = `${out}.shard-1-of-4`;
  const made = readdirSync(part).reduce((sum, name) => sum + statSync(path.join(part, name)).size, 0);
  // Names of its tensors lie in shard.json, with the text of config.json as a string.
  assert.ok(Math.abs(planned.estimate.output - made) < 0.01 * made, `${planned.estimate.output} ${made}`);
});

test('what cannot be divided is refused', async (t) => {
  const out = path.join(scratch(t), 'out');
  for (const [args, says] of [
    [['--bits', '4', '--shard', '0/2', '--samples', '1', '--seq-len', '16'], /--shard does not go with --method gptq/],
    [['--bits', '4', '--method', 'rtn', '--shard', '2/2'], /--shard does not take '2\/2'/],
    [['--bits', '4', '--method', 'rtn', '--shard', 'x'], /I\/N, with I from 0/],
    [['--bits', '4', '--method', 'rtn', '--shard', '0/2', '--pack', 'marlin'], /Run lpq merge, then pack its output/],
    [['--target-bpw', '4', '--method', 'rtn', '--shard', '0/2'], /Choose the bits once/],
  ] as const) {
    const ran = await lpq(['quantize', model, '-o', out, ...args, '--device', 'cpu', '--quiet']);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, says);
  }
});
