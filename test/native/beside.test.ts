import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type FakeCuda, fakeCuda } from './fake-cuda/fake.js';

const made = fakeCuda();
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

test('runtimes beside one of a device have streams of their own and a part of its memory', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const script = fileURLToPath(new URL('./fake-cuda/beside.js', import.meta.url));
  const run = spawnSync(process.execPath, [script], { encoding: 'utf8', env: { ...process.env, ...fake.env } });
  assert.equal(run.status, 0, run.stderr);
  // 1024 MiB less 512; more than what is left is refused. While 256 are held, 256 may go, and then nothing.
  assert.deepEqual(JSON.parse(run.stdout), [
    ...[true, false],
    ...[true, false],
    256,
    ...[new Array(3).fill(['cuda:0', 64]), 64],
    ...[[1000], 0],
  ]);
});
