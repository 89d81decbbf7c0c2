import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type FakeCuda, fakeCuda } from './fake-cuda/fake.js';
import { testHostProgram } from './host-program.js';

testHostProgram('attention over kept rows, on threads that the host plays', {
  sources: ['cached-kernel.cpp', 'simt/simt.cpp'],
  includes: ['test/native/simt', 'test/native'],
  prints: /^10 caches, 0 failures, at most 0\.\d\d of the bound$/m,
});

const made = fakeCuda([
  ...['f16', 'bf16'].flatMap((dtype) => [64, 128, 256].map((d) => `lpq_cached_attention_${dtype}_${d}`)),
  'lpq_kv_prefill_64',
]);
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

test('the operations of kept rows launch what the CPU computes, run on the host thread by thread', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const emulator = fake.emulator(['fake-cuda/cached.cpp', 'simt/simt.cpp'], ['simt']);
  if (typeof emulator === 'string') return t.skip(emulator);
  const script = fileURLToPath(new URL('./fake-cuda/cached.js', import.meta.url));
  const run = spawnSync(process.execPath, [script], {
    encoding: 'utf8',
    env: { ...process.env, ...fake.env, FAKE_CUDA_KERNELS: emulator.file },
  });
  assert.equal(run.status, 0, run.stderr);
  assert.equal(run.stderr, '');
  const lines = run.stdout.trim().split('\n');
  const refused = lines.filter((line) => line.startsWith('refused '));
  assert.equal(refused.length, 8);
  // Rows of y that are no sequence's would stay as they were.
  for (const line of refused) assert.match(line, /: LPQ_NATIVE_ARGUMENT$/);
  assert.equal(lines.length, 14);
  assert.equal(lines[13], 'many queries: taken');
  for (const line of lines.slice(0, 5)) {
    const [dtype = '', , off] = line.split(' ');
    // Values below 5: q, weights and y are each rounded once, to 2^-11 or 2^-8 of themselves, weights through scores below 30.
    const bound = { f32: 1e-5, f16: 0.03, bf16: 0.25 }[dtype];
    assert.ok(Number(off) <= (bound as number), line);
  }
});
