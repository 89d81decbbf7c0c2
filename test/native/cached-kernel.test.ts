import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { complaints, type FakeCuda, fakeCuda } from './fake-cuda/fake.js';
import { testHostProgram } from './host-program.js';

testHostProgram('attention over kept rows, on a simulated device', {
  sources: ['cached-kernel.cpp', 'simulator/simulator.cpp'],
  includes: ['test/native/simulator', 'test/native'],
  prints: /^10 caches, 0 failures, at most 0\.\d\d of the bound$/m,
});

const made = fakeCuda([
  ...['f16', 'bf16'].flatMap((dtype) => [64, 128, 256].map((d) => `lpq_cached_attention_${dtype}_${d}`)),
  'lpq_kv_prefill_sm90_4_channel_64',
]);
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

test('the operations of kept rows launch what the CPU computes, run on a simulated device', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const kernels = fake.simulated('cached');
  if (typeof kernels === 'string') return t.skip(kernels);
  const lines = ['cached', 'step'].flatMap((name) => {
    const script = fileURLToPath(new URL(`./fake-cuda/${name}.js`, import.meta.url));
    const run = spawnSync(process.execPath, [script], {
      encoding: 'utf8',
      env: { ...process.env, ...fake.env, FAKE_CUDA_KERNELS: kernels.file },
    });
    assert.equal(run.status, 0, run.stderr);
    assert.equal(complaints(run.stderr), '');
    return run.stdout.trim().split('\n');
  });
  const refused = lines.filter((line) => line.startsWith('refused '));
  assert.equal(refused.length, 8);
  // Rows of y that are no sequence's would stay as they were.
  for (const line of refused) assert.match(line, /: LPQ_NATIVE_ARGUMENT$/);
  const taken = lines.filter((line) => /^many queries: taken$/.test(line));
  assert.equal(taken.length, 1);
  const rest = lines.filter((line) => !refused.includes(line) && !taken.includes(line));
  assert.equal(rest.length, 5 + 10 + 2 + 16);
  for (const line of rest) {
    const [dtype = '', what = '', off] = line.split(' ');
    // One product less another, each rounded to fp32 once, as on the CPU: the same numbers, rounded to 16 bits the same way. Sums too.
    if (what === 'rope_append' || what === 'sums') {
      assert.equal(Number(off), 0, line);
      continue;
    }
    // Of heads of up to 64 numbers whose sum of squares runs in another order: some units of 2^-24 of at most 20.
    if (what === 'normed') {
      assert.ok(Number(off) <= 1e-5, line);
      continue;
    }
    // Sums of squares run in another order, in fp32, and what comes of them is rounded once.
    if (what === 'add_norm') {
      assert.ok(Number(off) <= { f32: 1e-6, f16: 2 ** -11 + 1e-6, bf16: 2 ** -8 + 1e-6 }[dtype as 'f32'], line);
      continue;
    }
    // Values below 5: q, weights and y are each rounded once, to 2^-11 or 2^-8 of themselves, weights through scores below 30.
    const bound = { f32: 1e-5, f16: 0.03, bf16: 0.25 }[dtype];
    assert.ok(Number(off) <= (bound as number), line);
  }
});
