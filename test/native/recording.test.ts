import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type Recording, readTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { f32 } from './support.js';

const rt = createRuntime(2);

/** y = 2 (a + b) by way of a tensor of its own. */
function twice(a: Tensor, b: Tensor, y: Tensor, scale = 1): Recording | undefined {
  rt.record();
  const sum = rt.allocate('f32', a.shape);
  ops.add(rt, a, b, sum, { scale });
  ops.add(rt, sum, sum, y);
  sum.dispose();
  return rt.recorded();
}

test('a recording runs again on what its tensors hold then', async () => {
  const [a, b, y] = [f32([2], Float32Array.of(1, 2)), f32([2], Float32Array.of(10, 20)), f32([2], new Float32Array(2))];
  const recording = twice(a, b, y) as Recording;
  assert.deepEqual([...(await readTyped(rt, y))], [22, 44]);
  typed<Float32Array>(a).set([3, 4]);
  rt.replay(recording);
  assert.deepEqual([...(await readTyped(rt, y))], [26, 48]);
  assert.equal(rt.profile().add?.calls, 4);
  recording.dispose();
  assert.throws(() => rt.replay(recording), /disposed of/);
});

test('recordings match where calls, parameters and tensors are the same, but for tensors that they made', () => {
  const [a, b, y] = [f32([2], new Float32Array(2)), f32([2], new Float32Array(2)), f32([2], new Float32Array(2))];
  const first = twice(a, b, y) as Recording;
  assert.equal(twice(a, b, y)?.matches(first), true);
  assert.equal(twice(a, b, y, 2)?.matches(first), false, 'a parameter');
  assert.equal(twice(b, a, y)?.matches(first), false, 'a tensor');
  const view = f32([3], new Float32Array(3)).view([2], 1);
  assert.equal(twice(view, b, y)?.matches(first), false, 'a tensor from before');
  rt.record();
  const made = [rt.allocate('f32', [2]), rt.allocate('f32', [2])] as const;
  ops.add(rt, a, b, made[0]);
  ops.add(rt, made[0], made[1], y);
  assert.equal(rt.recorded()?.matches(first), false, 'one tensor instead of two');
});

test('there is no recording where JavaScript waited or read meanwhile, and none of a failure', async () => {
  const a = f32([2], new Float32Array(2));
  for (const wait of [() => rt.sync(), () => rt.mark(), () => readTyped(rt, a)]) {
    rt.record();
    ops.add(rt, a, a, a);
    await wait();
    assert.equal(rt.recorded(), undefined);
  }
  assert.equal(rt.recorded(), undefined);
  rt.record();
  ops.add(rt, a, f32([3], new Float32Array(3)), a);
  const wrong = rt.recorded() as Recording;
  await assert.rejects(rt.sync());
  rt.replay(wrong);
  await assert.rejects(rt.sync(), { op: 'add' });
});
