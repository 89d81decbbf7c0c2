import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { complaints, type FakeCuda, fakeCuda } from './fake-cuda/fake.js';

const made = fakeCuda();
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

test('the layout kernels give the bytes of the CPU engine, run on a simulated device', (t) => {
  if (typeof made === 'string') return t.skip(made);
  const kernels = fake.simulated('layout');
  if (typeof kernels === 'string') return t.skip(kernels);
  const script = fileURLToPath(new URL('./fake-cuda/layouts.js', import.meta.url));
  const run = spawnSync(process.execPath, [script], {
    encoding: 'utf8',
    env: { ...process.env, ...fake.env, FAKE_CUDA_KERNELS: kernels.file },
  });
  assert.equal(run.status, 0, run.stderr);
  assert.equal(complaints(run.stderr), '');
  const [packings, refusal] = run.stdout.split('\n');
  assert.equal(packings, '234 packings');
  // What an operation of the CPU does with a name that it does not know, one of the device does, too.
  assert.match(String(refusal), /^LPQ_NATIVE_PARAM: .*no parameter of zero is called 'value'/);
});
