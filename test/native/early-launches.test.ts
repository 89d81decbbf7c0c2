import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type FakeCuda, fakeCuda } from './fake-cuda/fake.js';

const made = fakeCuda([], { hopper: true });
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

/** Launches after each line of early.ts. */
function launches(arch: string): Record<string, readonly string[]> {
  const script = fileURLToPath(new URL('./fake-cuda/early.js', import.meta.url));
  const env = { ...process.env, ...fake.env, FAKE_CUDA_ARCH: arch, FAKE_CUDA_TRACE: '1' };
  const run = spawnSync(process.execPath, [script], { encoding: 'utf8', env });
  assert.equal(run.status, 0, run.stderr);
  const parts = run.stderr.trim().split(/^# /m).slice(1);
  return Object.fromEntries(
    parts.map((part) => {
      const [what, ...lines] = part.trim().split('\n');
      return [what, lines.map((line) => line.replace('lpq_', '').replace('_f32', ''))];
    }),
  );
}

test('a kernel starts early behind a launch alone', (t) => {
  if (typeof made === 'string') return t.skip(made);
  // The first launch behind anything else waits for it; a recording begins anew, and what comes behind it waits.
  assert.deepEqual(launches('90'), {
    uploads: ['add', 'add early'],
    'a copy': ['add', 'add early'],
    zeros: ['add', 'rope', 'add early'],
    'a mark': ['add', 'add early'],
    'a recording': ['add', 'add early', 'add', 'add early', 'add', 'add early'],
  });
});

test('nothing starts early before 9.0', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const all = Object.values(launches('80')).flat();
  assert.equal(all.length, 15);
  assert.deepEqual(new Set(all), new Set(['add', 'rope']));
});
