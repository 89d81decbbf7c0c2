import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq, text } from '../cli/lpq.js';
import { ID } from '../hub/server.js';
import { bench, RTN } from './setup.js';

test('--dry-run --stream says how much is on the disk at once, from headers alone', async (t) => {
  const { home, hub, dir, fetched } = await bench(t);
  const out = path.join(home, 'out');
  const planned = await lpq(['quantize', ID, '-o', out, '--stream', '--dry-run', '--json', ...RTN]);
  assert.equal(planned.code, 0, planned.stdout);
  const plan = events(planned).at(-1) as { estimate: { shards: number; output: number }; modules: object[] };
  const whole = events(await lpq(['quantize', dir, '-o', out, '--dry-run', '--json', ...RTN])).at(-1) as typeof plan;
  assert.deepEqual(plan.modules, whole.modules);
  assert.equal(plan.estimate.output, whole.estimate.output);
  assert.equal(
    plan.estimate.shards,
    2 * (hub.files.get('model-00002-of-00006.safetensors') as { bytes: Buffer }).bytes.length,
  );
  assert.deepEqual(fetched(), {});
  const said = await lpq(['quantize', ID, '-o', out, '--stream', '--dry-run', ...RTN]);
  assert.match(said.stdout, /3\.15 MB of shards on the disk at once/);
  assert.ok(!existsSync(`${out}.stream`));
});

test('a run tells what it fetched and why it measured nothing; what the cache holds is not fetched', async (t) => {
  const { home, hub } = await bench(t);
  const args = ['quantize', ID, '-o', path.join(home, 'out'), '--stream', '--bits', '4', '--method', 'rtn'];
  // A process of its own: tests leave the measure out otherwise.
  const ran = await lpq(args, {});
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stderr + ran.stdout, /quality not measured, because --stream would fetch all of acme\/tiny again/);
  assert.match(ran.stderr + ran.stdout, /fetched 6 shards, .*; at most 3\.15 MB of them were on the disk at once/);
  assert.equal((await lpq(['inspect', ID])).code, 0); // downloads all
  hub.seen.length = 0;
  const again = await lpq(['quantize', ID, '-o', path.join(home, 'again'), '--stream', ...RTN]);
  assert.equal(again.code, 0, again.stderr);
  assert.deepEqual(hub.downloads(), []);
  assert.match(again.stderr, /all weights are in the cache/);
});

test('what --stream cannot do is refused, and nothing is left', async (t) => {
  const { home, hub, dir } = await bench(t);
  const out = path.join(home, 'out');
  const refused = async (model: string, code: string, message: RegExp, ...more: string[]) => {
    const ran = await lpq(['quantize', model, '-o', out, '--stream', '--json', ...RTN, ...more]);
    const last = events(ran).at(-1);
    assert.deepEqual([last?.event, last?.code], ['error', code], ran.stdout);
    assert.match(String(last?.message), message);
  };
  await refused(dir, 'LPQ_USAGE', /--stream has no effect on .*, which is not a model on the Hub/);
  await refused(ID, 'LPQ_USAGE', /--eval does not go with --stream/, '--eval', text);
  mkdirSync(`${out}.stream`);
  writeFileSync(path.join(`${out}.stream`, 'mine.txt'), '');
  await refused(ID, 'LPQ_PARTIAL_EXISTS', /out\.stream is not a folder of shards of lpq/);
  const foreign = `${out}.stream`;
  assert.deepEqual(readdirSync(foreign), ['mine.txt']);
  const other = path.join(home, 'other');
  const ran = async () => {
    const { stdout } = await lpq(['quantize', ID, '-o', other, '--stream', '--json', ...RTN]);
    return events({ code: 0, stdout, stderr: '' }).at(-1);
  };
  // A server that gives no parts, a header that is none, and a shard that is not what its parts were.
  hub.behave = ({ host }) => (host === 'cdn' ? { ignoreRange: true } : undefined);
  assert.equal((await ran())?.code, 'LPQ_HUB_RESPONSE');
  hub.behave = ({ host, headers }) =>
    host === 'cdn' && headers.range === 'bytes=0-7' ? { body: Buffer.alloc(8, 255) } : undefined;
  assert.equal((await ran())?.code, 'LPQ_SAFETENSORS');
  let parts = 0;
  hub.behave = ({ host, headers }) => {
    const range = /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? '');
    const small = host === 'cdn' && range && Number(range[1]) > 100_000;
    return small && parts++ === 0 ? { body: Buffer.alloc(Number(range[2]) - Number(range[1]) + 1, 1) } : undefined;
  };
  const last = await ran();
  assert.deepEqual(
    [last?.code, /differs from the parts of it that came before/.test(String(last?.message))],
    ['LPQ_HUB_CHECKSUM', true],
  );
  assert.ok(!existsSync(other));
});
