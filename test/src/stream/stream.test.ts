import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq } from '../cli/lpq.js';
import { ID } from '../hub/server.js';
import { bench, differing, gptq, RTN, watchDisk } from './setup.js';

for (const method of ['rtn', 'gptq'])
  test(`a streamed ${method} run gives the bytes of a downloaded one, and has two blocks on the disk at most`, async (t) => {
    const { hub, home, dir, shards, fetched } = await bench(t);
    const args = method === 'rtn' ? RTN : gptq(home);
    const [here, out] = [path.join(home, 'here'), path.join(home, 'out')];
    const whole = await lpq(['quantize', dir, '-o', here, ...args]);
    assert.equal(whole.code, 0, whole.stderr);
    const watched = watchDisk(`${out}.stream`);
    const ran = await lpq(['quantize', ID, '-o', out, '--stream', '--json', ...args]);
    const peak = watched();
    assert.equal(ran.code, 0, ran.stderr + ran.stdout);
    assert.deepEqual(differing(here, out), []);
    const told = events(ran);
    const block = (hub.files.get(shards[1] as string) as { bytes: Buffer }).bytes.length;
    const { mostBytes } = told.find(({ event }) => event === 'stream') as { mostBytes: number };
    assert.equal(mostBytes, 2 * block);
    const { peakBytes } = told.find(({ event }) => event === 'streamed') as { peakBytes: number };
    assert.ok(peak > 0 && peak <= peakBytes && peakBytes <= mostBytes, `${peak} ${peakBytes} ${mostBytes}`);
    // Every shard came once, though the embedding is the head, too.
    assert.deepEqual(Object.values(fetched()), [1, 1, 1, 1, 1, 1]);
    assert.ok(!existsSync(`${out}.stream`));
    // The cache has the small files alone.
    const cache = readdirSync(path.join(home, 'hf'), { recursive: true }).map(String);
    assert.ok(cache.some((name) => name.endsWith('tokenizer.json')) && !cache.some((name) => /0000\d-of/.test(name)));
  });
