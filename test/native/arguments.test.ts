import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createRuntime } from '../../native/binding.js';
import { hostCases, trainingCases, verifierCases } from './argument-cases.js';
import { type Refusal, refusals } from './argument-refusals.js';
import { complaints, type FakeCuda, fakeCuda } from './fake-cuda/fake.js';

const made = fakeCuda();
const fake = made as FakeCuda;
if (typeof made !== 'string') after(() => fake.remove());

function judge(all: readonly Refusal[], least = 400): void {
  assert.ok(all.length > least);
  for (const { op, wrong, name, said } of all) {
    const code = wrong === 'parameter' ? 'LPQ_NATIVE_PARAM' : 'LPQ_NATIVE_ARGUMENT';
    assert.ok(said.startsWith(`${code}: `), `${op}, ${wrong} of ${name}: ${said || 'taken'}`);
    const sentence =
      wrong === 'parameter'
        ? `no parameter of ${op} is called '${name}'`
        : `${name} ${wrong === 'dtype' ? 'is' : 'has'} `;
    assert.ok(said.includes(sentence), `${op}, ${wrong} of ${name}: ${said}`);
  }
}

test('every operation refuses an unknown parameter, a wrong dtype and a wrong shape by name', async () => {
  judge(await refusals(createRuntime({ threads: 1 })));
});

test('so do those that run on the CPU only', async () => {
  judge(await refusals(createRuntime({ threads: 1 }), hostCases), 10);
});

test("so do the verifier's operations", async () => {
  judge(await refusals(createRuntime({ threads: 1 }), verifierCases), 150);
});

test('so do those that train', async () => {
  judge(await refusals(createRuntime({ threads: 1 }), trainingCases), 90);
});

test('the CUDA backend refuses them with the same sentences', async (t) => {
  if (typeof made === 'string') return t.skip(made);
  const script = fileURLToPath(new URL('./fake-cuda/arguments.js', import.meta.url));
  const run = spawnSync(process.execPath, [script], {
    encoding: 'utf8',
    env: { ...process.env, ...fake.env },
    maxBuffer: 1 << 24,
  });
  assert.equal(run.status, 0, run.stderr);
  assert.equal(complaints(run.stderr), '');
  const cuda = JSON.parse(run.stdout) as Refusal[];
  judge(cuda);
  const plain = (all: readonly Refusal[]) =>
    all.map((each) => ({ ...each, said: each.said.replace(/ on cuda:0/g, '') }));
  assert.deepEqual(plain(cuda), plain(await refusals(createRuntime({ threads: 1 }))));
});
