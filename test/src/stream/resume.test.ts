import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { lpq, root } from '../cli/lpq.js';
import { ID, sha256 } from '../hub/server.js';
import { bench, differing, RTN } from './setup.js';

for (const signal of ['SIGINT', 'SIGKILL'] as const)
  test(`after ${signal} in the middle of a shard, --resume asks for the rest of it, of the commit it began with`, async (t) => {
    const { hub, home, dir, shards } = await bench(t);
    const [here, out] = [path.join(home, 'here'), path.join(home, 'out')];
    assert.equal((await lpq(['quantize', dir, '-o', here, ...RTN])).code, 0);
    const third = (hub.files.get(shards[3] as string) as { bytes: Buffer }).bytes;
    const digest = sha256(third);
    hub.behave = ({ host, path: asked, headers }) =>
      host === 'cdn' && asked === `/${digest}` && headers.range === undefined ? { trickle: 4000 } : undefined;
    const args = ['quantize', ID, '-o', out, '--stream', ...RTN];
    const child = spawn(process.execPath, [path.join(root, 'bin', 'lpq.js'), ...args], { stdio: 'ignore' });
    const ended = once(child, 'exit');
    const place = path.join(`${out}.stream`, `${digest}.incomplete`);
    for (let i = 0; i < 1000 && (statSync(place, { throwIfNoEntry: false })?.size ?? 0) < 400_000; i++) await sleep(10);
    child.kill(signal);
    const [code] = await ended;
    assert.equal(code, signal === 'SIGINT' ? 130 : null);
    assert.ok(readdirSync(`${out}.stream`).includes(`${digest}.incomplete`));
    assert.ok(!existsSync(out));
    // The branch moves on meanwhile.
    hub.refs.set('main', 'f'.repeat(40));
    hub.behave = () => undefined;
    hub.seen.length = 0;
    const ran = await lpq([...args, '--resume']);
    assert.equal(ran.code, 0, ran.stderr);
    assert.deepEqual(differing(here, out), []);
    const rest = hub.seen.filter(({ host, path: asked }) => host === 'cdn' && asked === `/${digest}`);
    // Stopped by a signal, the run has finished what was under way: the third block is the next.
    if (signal === 'SIGINT')
      assert.deepEqual(
        rest.map(({ headers }) => /^bytes=[1-9]\d+-(\d+)$/.exec(headers.range ?? '')?.[1]),
        [String(third.length - 1)],
      );
    assert.ok(!existsSync(`${out}.stream`) && !existsSync(`${out}.partial`));
  });
