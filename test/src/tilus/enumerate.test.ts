import assert from 'node:assert/strict';
import { test } from 'node:test';
import { combinations, enumerate } from '../../../src/tilus/enumerate.js';
import { program } from '../../../src/tilus/programs.js';

test('configurations of a template are enumerated, checked and emitted; those that cannot run are refused with a reason', () => {
  const all = combinations({
    ...{ T: ['u4'], N: [4096], K: [4096] },
    ...{ WN: [4, 8], WM: [1, 2, 8], RN: [2, 4], RM: [1, 4], RK: [1, 2, 4], STAGES: [3, 4], SPLIT: [1] },
  });
  assert.equal(all.length, 144);
  const candidates = enumerate(program('matmul'), all);
  const refused = candidates.filter((each) => each.refused !== undefined);
  assert.ok(refused.length > 0 && refused.length < 100);
  for (const { refused: why, settings } of refused)
    assert.match(
      why!,
      (settings.WM as number) * (settings.WN as number) > 32
        ? /a block has a multiple of 32 threads and at most 1024, not 2048$/
        : /shared memory of sm_80 is too small for s[aw]$/,
      JSON.stringify(settings),
    );
  for (const { kernel } of candidates) if (kernel) assert.ok((kernel.selected.get('ldmatrix.x4') ?? 0) > 0);
});
