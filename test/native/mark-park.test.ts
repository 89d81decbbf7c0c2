import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { allocate, createRuntime, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { poisoned } from './support.js';

/** About 0.3 s of work on two cores, in one operation that an abort may stop. */
function work(rt: ReturnType<typeof createRuntime>): void {
  const x = allocate('f32', [3000, 3000]);
  typed(x).fill(1);
  ops.linear(rt, x, x, undefined, allocate('f32', [3000, 3000]));
}

test('a mark settles once what was before it has run, while what follows is still waiting', async () => {
  const rt = createRuntime(2);
  const y = poisoned('f32', [8]);
  ops.zero(rt, y);
  const first = rt.mark();
  work(rt);
  let ended = false;
  const last = rt.mark().then(() => {
    ended = true;
  });
  await first;
  assert.deepEqual([...typed(y)], new Array(8).fill(0));
  assert.equal(ended, false);
  await last;
  await rt.sync();
});

test('a mark tells of a failure before it, and leaves it for sync, which ends it', async () => {
  const rt = createRuntime(2);
  const y = poisoned('f32', [8]);
  const before = rt.mark();
  rt.enqueue('no_such', [], []);
  const behind = rt.mark();
  ops.zero(rt, y);
  await before;
  await assert.rejects(behind, { code: 'LPQ_NATIVE_OP', op: 'no_such' });
  await assert.rejects(rt.mark(), { code: 'LPQ_NATIVE_OP', op: 'no_such' });
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_OP', op: 'no_such' });
  assert.ok(typed(y).every(Number.isNaN)); // dropped
  ops.zero(rt, y);
  await rt.mark();
  assert.equal(typed(y)[0], 0);
});

test('a mark behind an abort rejects, and so does the sync that ends it', async () => {
  const rt = createRuntime(2);
  for (let i = 0; i < 8; i++) work(rt);
  const mark = assert.rejects(rt.mark(), { code: 'LPQ_ABORTED' });
  const sync = assert.rejects(rt.sync(), { code: 'LPQ_ABORTED' });
  while (rt.progress().done === 0) await sleep(5);
  rt.abort();
  await mark;
  await sync;
  await rt.mark();
});

test('on the CPU parked and restored tensors are views, and copyFrom takes any of its tensors', async () => {
  const rt = createRuntime(2);
  const x = allocate('f32', [4]);
  const parked = rt.park(x);
  ops.zero(rt, x);
  x.dispose();
  const back = rt.restore(parked);
  parked.dispose();
  await rt.mark();
  assert.equal(back.device, 'cpu');
  assert.equal(back.parked, false);
  assert.deepEqual([...typed(back)], [0, 0, 0, 0]);
  assert.deepEqual([...typed(createRuntime(1).copyFrom(back))], [0, 0, 0, 0]);
  assert.equal((await rt.download(back)).byteLength, 16);
  assert.throws(() => rt.park(x), { code: 'LPQ_NATIVE_DISPOSED' });
  assert.throws(() => rt.restore({} as typeof back), { code: 'LPQ_NATIVE_ARGUMENT' });
  assert.equal(rt.memory(), undefined);
});
