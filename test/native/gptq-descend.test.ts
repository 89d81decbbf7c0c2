import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, typed } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { quantType, typeParams } from '../../src/core/quant-type.js';
import { cost, rounded, rt } from './gptq-problem.js';

test('gptq_descend of several problems gives the codes of each alone', async () => {
  const type = quantType('i3');
  const params = { ...typeParams(type), sweeps: 2 };
  const sizes = [
    [4, 140, 2],
    [7, 64, 1],
    [3, 260, 4],
  ] as const;
  const begin = () => Promise.all(sizes.map(([n, k, groups]) => rounded(n, k, groups, type, n)));
  const [apart, together] = [await begin(), await begin()];
  const [one, all] = [allocate('f64', [1]), allocate('f64', [1])];
  let moved = 0;
  for (const { inputs, level } of apart) {
    gptqOps.descend(rt, inputs, level, one, params);
    await rt.sync();
    moved += typed<Float64Array>(one)[0]!;
  }
  gptqOps.descendAll(
    rt,
    together.map(({ inputs, level }) => ({ ...inputs, level })),
    all,
    params,
  );
  await rt.sync();
  for (const [i, { level }] of together.entries())
    assert.deepEqual(typed(level), typed(apart[i]!.level), `problem ${i}`);
  assert.equal(typed<Float64Array>(all)[0], moved);
  const { inputs } = together[0]!;
  const { t, matrix, scale, zero } = inputs;
  await assert.rejects(async () => {
    rt.enqueue('gptq_descend', [t, matrix, scale, zero, inputs.group, t], [together[0]!.level, all], params);
    await rt.sync();
  }, /the input the matrix is missing/);
});

test('gptq_descend never increases the error and ends where no single code can improve it', async () => {
  for (const name of ['i2', 'u3', 'i4']) {
    const [n, k, groups] = [4, 140, 2];
    const type = quantType(name);
    const state = await rounded(n, k, groups, type, 11);
    const changed = allocate('f64', [1]);
    let before = Array.from({ length: n }, (_, r) => cost(state.m, state.errorOf(r)));
    for (let sweep = 0; sweep < 60; sweep++) {
      gptqOps.descend(rt, state.inputs, state.level, changed, { ...typeParams(type), sweeps: 1 });
      await rt.sync();
      const after = before.map((_, r) => cost(state.m, state.errorOf(r)));
      // f32 gradients choose between codes whose costs differ by less than their own rounding: 1e-5 of the cost.
      for (const [r, value] of after.entries()) assert.ok(value <= before[r]! * (1 + 1e-5), `${name} row ${r}`);
      before = after;
      if (typed<Float64Array>(changed)[0] === 0) break;
    }
    assert.equal(typed<Float64Array>(changed)[0], 0, 'converged');
    for (let r = 0; r < n; r++)
      for (let j = 0; j < k; j += 3)
        for (const by of [-1, 1]) {
          const next = typed(state.level)[r * k + j]! + by;
          if (next < state.min || next > state.max) continue;
          assert.ok(cost(state.m, state.errorOf(r, { j, by })) >= before[r]! * (1 - 1e-5));
        }
  }
});

test('gptq_refit finds scales that no perturbation improves', async () => {
  const [n, k, groups] = [3, 48, 3];
  const state = await rounded(n, k, groups, quantType('i3'), 5);
  const before = Array.from({ length: n }, (_, r) => cost(state.m, state.errorOf(r)));
  const count = allocate('f64', [1]);
  gptqOps.refit(rt, state.inputs, state.level, count);
  await rt.sync();
  assert.equal(typed<Float64Array>(count)[0], n);
  for (let r = 0; r < n; r++) {
    const best = cost(state.m, state.errorOf(r));
    assert.ok(best < before[r]!);
    for (let g = 0; g < groups; g++)
      for (const factor of [0.99, 1.01]) {
        const scales = Float64Array.from(typed(state.scale));
        scales[r * groups + g]! *= factor;
        assert.ok(cost(state.m, state.errorOf(r, undefined, scales)) > best);
      }
  }
});
