import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { estimateWhole, STAGES, stageReport } from '../../bench/stages.js';
import { addon } from '../../native/binding.js';

test('stages add up to the wall time, or exceed it by the overlap', () => {
  const seconds = fc.double({ min: 0, max: 100, noNaN: true });
  const names = fc.constantFrom(...addon().operations(), 'upload', 'no_such_operation');
  const profile = fc.dictionary(
    names,
    seconds.map((value) => ({ calls: 1, seconds: value })),
  );
  fc.assert(
    fc.property(profile, seconds, seconds, seconds, (operations, read, write, wall) => {
      const { stages, overlap } = stageReport(operations, { read, write }, wall);
      assert.deepEqual(Object.keys(stages), [...STAGES]);
      const sum = Object.values(stages).reduce((a, b) => a + b, 0);
      // About 40 additions of values up to 100: far below 1e-9.
      assert.ok(Math.abs(sum - overlap - wall) < 1e-9);
      assert.ok(overlap >= 0 && stages.other >= 0 && (overlap === 0 || stages.other === 0));
    }),
  );
});

test('operations count for the stage they work for', () => {
  const calls = 1;
  const { stages } = stageReport(
    {
      linear: { calls, seconds: 1 },
      attention: { calls, seconds: 2 },
      gram_accumulate: { calls, seconds: 4 },
      gptq_factor: { calls, seconds: 8 },
      gptq_clip: { calls, seconds: 16 },
      gptq_solve: { calls, seconds: 32 },
      gptq_descend: { calls, seconds: 64 },
      gptq_refit: { calls, seconds: 128 },
      pack_codes: { calls, seconds: 256 },
      attention_backward: { calls, seconds: 512 },
      cast: { calls, seconds: 0.25 },
    },
    { read: 0.5, write: 512 },
    1536,
  );
  assert.deepEqual(stages, {
    prepare: 0,
    read: 0.5,
    forward: 3,
    hessian: 4,
    factor: 8,
    clip: 16,
    solve: 32,
    descend: 192,
    encode: 256,
    error: 0,
    train: 512,
    write: 512,
    other: 0.5,
  });
});

test('a whole model is what lies outside its blocks and the median block times their number', () => {
  // 5 s outside; the first block also pays 1 s of setting up; the 9 is an accident that the median ignores.
  assert.deepEqual(estimateWhole(22, [3, 2, 2, 9, 1], 10), { secondsPerBlock: 2, blocks: 10, seconds: 26 });
  assert.deepEqual(estimateWhole(6, [4], 3), { secondsPerBlock: 4, blocks: 3, seconds: 14 });
  assert.equal(estimateWhole(6, [], 3), null);
});
