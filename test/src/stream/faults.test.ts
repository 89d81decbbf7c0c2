import assert from 'node:assert/strict';
import { cpSync, existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq, type Ran } from '../cli/lpq.js';
import { ID, type Misbehaviour, type Seen } from '../hub/server.js';
import { type Bench, bench, differing, gptq, RTN, watchDisk } from './setup.js';

/** A request for a whole shard, of the host that has it; headers and samples come in ranges. */
const isWhole = ({ host, headers }: Seen) => host === 'cdn' && !/-\d+$/.test(headers.range ?? '');

async function streamed(
  { home }: Bench,
  name: string,
  ...more: string[]
): Promise<{ out: string; ran: Ran; peak: number }> {
  const out = path.join(home, name);
  const watched = watchDisk(`${out}.stream`);
  const ran = await lpq(['quantize', ID, '-o', out, '--stream', '--json', ...RTN, ...more]);
  return { out, ran, peak: watched() };
}

const codeOf = (ran: Ran) => events(ran).at(-1)?.code;

test('what the Hub does wrong in passing changes no byte, and no more is on the disk', async (t) => {
  const it = await bench(t);
  const { hub, home, dir } = it;
  const here = path.join(home, 'here');
  assert.equal((await lpq(['quantize', dir, '-o', here, ...RTN])).code, 0);
  let [wholes, parts] = [0, 0];
  const faults: (Misbehaviour | undefined)[] = [
    { trickle: 200_000 },
    { cutAfter: 500_000 },
    { status: 429, headers: { 'retry-after': '0' } },
    { status: 503 },
  ];
  hub.behave = (seen) => {
    if (isWhole(seen)) return faults[wholes++];
    // One of the small requests, too.
    if (seen.host === 'cdn' && parts++ === 7) return { cutAfter: 3 };
    return undefined;
  };
  const { out, ran, peak } = await streamed(it, 'out');
  assert.equal(ran.code, 0, ran.stdout);
  assert.deepEqual(differing(here, out), []);
  assert.ok(wholes > faults.length && parts > 8);
  const { mostBytes } = events(ran).find(({ event }) => event === 'stream') as { mostBytes: number };
  assert.ok(peak <= mostBytes, `${peak}`);
});

test('wrong bytes and a shard that vanishes end the run, and --resume fetches only what unfinished blocks need', async (t) => {
  const it = await bench(t);
  const { hub, home, dir, shards, fetched } = it;
  const here = path.join(home, 'here');
  assert.equal((await lpq(['quantize', dir, '-o', here, ...RTN])).code, 0);
  // The shard of the third block is no more when its turn comes.
  const third = shards[3] as string;
  const away = (seen: Seen) => (isWhole(seen) || seen.host === 'hub') && seen.path.endsWith(third);
  hub.behave = (seen) =>
    away(seen) && !/-\d+$/.test(seen.headers.range ?? '')
      ? { status: 404, headers: { 'x-error-code': 'EntryNotFound' } }
      : undefined;
  const { ran, out } = await streamed(it, 'out');
  assert.deepEqual([ran.code, codeOf(ran)], [4, 'LPQ_HUB_NOT_FOUND'], ran.stdout);
  assert.match(String(events(ran).at(-1)?.message), new RegExp(third));
  assert.ok(!existsSync(out));
  assert.ok(existsSync(`${out}.partial`));
  // Somebody has the model on a disk: the run goes on without a stream.
  const other = path.join(home, 'other');
  cpSync(`${out}.partial`, `${other}.partial`, { recursive: true });
  const plain = await lpq(['quantize', dir, '-o', other, '--resume', ...RTN]);
  assert.equal(plain.code, 0, plain.stderr);
  assert.match(plain.stderr, /continues from 2 finished blocks of 4/);
  assert.deepEqual(differing(here, other), []);
  // Another file in its place: the digest tells.
  const bytes = (hub.files.get(third) as { bytes: Buffer }).bytes;
  hub.behave = (seen) =>
    isWhole(seen) && seen.headers.range === undefined && hub.seen.at(-2)?.path.endsWith(third)
      ? { body: Buffer.alloc(bytes.length, 7) }
      : undefined;
  const wrong = await streamed(it, 'out', '--resume');
  assert.deepEqual([wrong.ran.code, codeOf(wrong.ran)], [4, 'LPQ_HUB_CHECKSUM'], wrong.ran.stdout);
  hub.behave = () => undefined;
  hub.seen.length = 0;
  const after = await streamed(it, 'out', '--resume');
  assert.equal(after.ran.code, 0, after.ran.stdout);
  assert.deepEqual(differing(here, out), []);
  assert.deepEqual(
    Object.keys(fetched()).filter((shard) => shard === '00002' || shard === '00003'),
    [],
  );
  assert.ok(!existsSync(`${out}.stream`));
});

test('a resumed forward pass reads finished blocks where they were written, and fetches none of their shards', async (t) => {
  const it = await bench(t);
  const { hub, home, dir, shards, fetched } = it;
  const args = [...gptq(home), '--gptaq', '0'];
  const here = path.join(home, 'here');
  assert.equal((await lpq(['quantize', dir, '-o', here, ...args])).code, 0);
  const out = path.join(home, 'out');
  const run = (...more: string[]) => lpq(['quantize', ID, '-o', out, '--stream', ...args, ...more]);
  hub.behave = (seen) =>
    seen.path.endsWith(shards[4] as string) && !/-\d+$/.test(seen.headers.range ?? '')
      ? { status: 404, headers: { 'x-error-code': 'EntryNotFound' } }
      : undefined;
  assert.equal((await run()).code, 4);
  assert.ok(existsSync(`${out}.partial`));
  hub.behave = () => undefined;
  hub.seen.length = 0;
  const after = await run('--resume');
  assert.equal(after.code, 0, after.stderr);
  assert.match(after.stderr, /continues from [23] finished blocks of 4/);
  assert.deepEqual(differing(here, out), []);
  assert.deepEqual(
    Object.keys(fetched()).filter((shard) => shard < '00004'),
    [],
  );
});

test('parts of a streamed model fetch the shards of their own blocks, and merge to the bytes of one run', async (t) => {
  const { hub, home, dir, fetched } = await bench(t);
  const [here, out] = [path.join(home, 'here'), path.join(home, 'out')];
  assert.equal((await lpq(['quantize', dir, '-o', here, ...RTN])).code, 0);
  for (const part of ['0/2', '1/2']) {
    hub.seen.length = 0;
    const ran = await lpq(['quantize', ID, '-o', out, '--stream', '--shard', part, ...RTN]);
    assert.equal(ran.code, 0, ran.stderr);
    const outside = (shard: string) => shard === '00001' || shard === '00006';
    assert.deepEqual(
      Object.keys(fetched()).filter((shard) => !outside(shard)),
      part === '0/2' ? ['00002', '00004'] : ['00003', '00005'],
    );
  }
  const merged = await lpq(['merge', out]);
  assert.equal(merged.code, 0, merged.stderr);
  assert.deepEqual(differing(here, out), []);
});

test('a Hub that asks for an hour ends the run at once, silence is taken up again, and --resume goes on from both', async (t) => {
  const it = await bench(t);
  const { hub, home, dir, shards } = it;
  const here = path.join(home, 'here');
  assert.equal((await lpq(['quantize', dir, '-o', here, ...RTN])).code, 0);
  const third = shards[3] as string;
  hub.behave = (seen) =>
    seen.host === 'hub' && seen.path.endsWith(third) && !/-\d+$/.test(seen.headers.range ?? '')
      ? { status: 429, headers: { 'retry-after': '3600' } }
      : undefined;
  const { ran, out } = await streamed(it, 'out');
  assert.deepEqual([ran.code, codeOf(ran)], [3, 'LPQ_HUB_RATE_LIMIT'], ran.stdout);
  assert.ok(!existsSync(out) && existsSync(`${out}.partial`) && existsSync(`${out}.stream`));
  // The server stops sending in the middle of a shard, once, and keeps the connection.
  process.env.HF_HUB_DOWNLOAD_TIMEOUT = '0.3';
  t.after(() => delete process.env.HF_HUB_DOWNLOAD_TIMEOUT);
  let silent = 0;
  hub.behave = (seen) => (isWhole(seen) && silent++ === 0 ? { stallAfter: 300_000 } : undefined);
  hub.seen.length = 0;
  const after = await streamed(it, 'out', '--resume');
  assert.equal(after.ran.code, 0, after.ran.stdout);
  assert.ok(
    hub.seen.some(({ headers }) => /^bytes=300000-/.test(headers.range ?? '')),
    'the rest alone',
  );
  assert.deepEqual(differing(here, out), []);
  assert.ok(!existsSync(`${out}.stream`));
});

test('a part of statistics streams every block once, and gives the bytes of a downloaded model', async (t) => {
  const { home, dir, fetched } = await bench(t);
  const text = gptq(home).flatMap((word, i, all) => (all[i - 1] === '--calib' ? ['--calib', word] : []));
  const args = ['--samples', '2', '--seq-len', '48', '--shard', '1/2', ...text];
  const [here, there] = ['here', 'there'].map((name) => path.join(home, name)) as [string, string];
  assert.equal((await lpq(['quantize', dir, '--save-stats', here, ...args])).code, 0);
  const ran = await lpq(['quantize', ID, '--save-stats', there, '--stream', ...args]);
  assert.equal(ran.code, 0, ran.stderr);
  assert.ok(Object.values(fetched()).every((times) => times === 1));
  assert.deepEqual(differing(`${here}.shard-1-of-2`, `${there}.shard-1-of-2`), []);
});
