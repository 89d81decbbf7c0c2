import assert from 'node:assert/strict';
import { openQuantized } from '../../../formats/canonical/source.js';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';

/** Packs the foreign directory `dir` into `output` and compares every tensor with the file's, byte by byte. */
export async function expectRoundTrip(rt: NativeRuntime, dir: string, output: string, target: string): Promise<void> {
  const input = await openQuantized(dir);
  assert.deepEqual(await input.verifyHashes(), []);
  await packCheckpoint({ input, target, output, runtime: rt });
  input.close();
  expectSameTensors(dir, output);
  const opened = await openQuantized(dir);
  const report = await verifyArtifact({ dir: output, opened, runtime: rt, emulate: false });
  assert.deepEqual(report.failures, []);
}

/** The same names, dtypes, shapes and bytes in both directories. */
export function expectSameTensors(one: string, other: string): void {
  const before = Checkpoint.open(one);
  const after = Checkpoint.open(other);
  assert.deepEqual([...after.names()].sort(), [...before.names()].sort());
  for (const name of before.names()) {
    assert.equal(after.dtype(name), before.dtype(name), name);
    assert.deepEqual(after.shape(name), before.shape(name), name);
    assert.deepEqual(Buffer.from(after.tensor(name).bytes()), Buffer.from(before.tensor(name).bytes()), name);
  }
  before.close();
  after.close();
}
