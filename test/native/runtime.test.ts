import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { addon, allocate, createRuntime, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { i32, poisoned, typed } from './support.js';

const T = (dtype: Parameters<typeof allocate>[0], ...shape: number[]) => allocate(dtype, shape);

/** Resolves when `call` has failed with `code` and a message that matches. */
async function fails(rt: NativeRuntime, call: () => void, code: string, message: RegExp): Promise<void> {
  call();
  await assert.rejects(rt.sync(), (error: Error & { code?: string; op?: string }) => {
    assert.equal(error.code, code, error.message);
    assert.match(error.message, message);
    assert.ok(error.op);
    return true;
  });
}

test('wrong shapes, dtypes and parameters are named, never a crash', async () => {
  const rt = createRuntime(2);
  const x = T('f32', 4, 6);
  for (const tensor of [x]) tensor.bytes().fill(0);
  const y = T('f32', 4, 6);
  const w = T('f32', 6);
  const attention = { heads: 3, kvHeads: 1, headDim: 2, scale: 1 };
  const rope = { heads: 1, headDim: 6, rotary: 4, style: 'half' } as const;
  const cases: [() => void, RegExp][] = [
    [() => ops.cast(rt, T('i8', 4), T('f32', 4)), /x is i8, not f64 or f32/],
    [() => ops.cast(rt, T('i32', 4), T('f16', 4)), /i32 is cast to f32 only/],
    [() => ops.cast(rt, x, T('f16', 6, 4)), /y has the shape \[6,4\], not \[4,6\]/],
    [() => ops.embedding(rt, i32([1, 9]), T('f32', 9, 3), T('f32', 2, 3)), /token 1 has the id 9.*9 rows/],
    [() => ops.embedding(rt, i32([-1]), T('f32', 9, 3), T('f32', 1, 3)), /token 0 has the id -1/],
    [() => ops.embedding(rt, T('f32', 1), T('f32', 9, 3), T('f32', 1, 3)), /ids is f32, not i32/],
    [() => ops.rmsnorm(rt, x, T('f32', 5), y, { eps: 1e-5 }), /weight has the shape \[5\], not \[6\]/],
    [() => ops.rmsnorm(rt, x, T('i32', 6), y, { eps: 1e-5 }), /weight is i32/],
    [() => ops.linear(rt, x, T('f32', 5, 7), undefined, T('f32', 4, 5)), /weight has the shape \[5,7\], not \[-1,6\]/],
    [() => ops.linear(rt, x, T('i8', 5, 6), undefined, T('f32', 4, 5)), /weight is i8/],
    [() => ops.linear(rt, x, T('f32', 5, 6), T('f32', 4), T('f32', 4, 5)), /bias has the shape \[4\]/],
    [() => ops.linear(rt, x, T('f32', 5, 6), undefined, T('f32', 5, 4)), /y has the shape/],
    [() => ops.linear(rt, x, T('f32', 6, 6), undefined, x), /y must not be x/],
    [() => ops.rope(rt, x, T('f32', 8, 2), T('f32', 8, 2), i32([0, 1, 2, 8]), rope), /token 3 has the position 8/],
    [() => ops.rope(rt, x, T('f32', 8, 3), T('f32', 8, 3), i32([0, 1, 2, 3]), rope), /cos has the shape/],
    [() => ops.rope(rt, x, T('f32', 8, 2), T('f32', 8, 2), i32([0, 1, 2, 3]), { ...rope, rotary: 8 }), /rotary is 8/],
    [() => ops.attention(rt, x, T('f32', 4, 2), T('f32', 4, 2), i32([0, 3]), y, attention), /starts does not run/],
    [() => ops.attention(rt, x, T('f32', 4, 2), T('f32', 4, 2), i32([0, 3, 1, 4]), y, attention), /starts falls/],
    [() => ops.attention(rt, x, T('f32', 4, 2), T('f32', 4, 2), i32([0, 4]), x, attention), /y must be none of/],
    [
      () => ops.attention(rt, x, x, x, i32([0, 4]), y, { ...attention, kvHeads: 2 }),
      /heads is 3, not a multiple of kvHeads = 2/,
    ],
    [() => ops.gatedActivation(rt, x, T('f32', 6, 4), y, { act: 'silu' }), /up has the shape/],
    [() => ops.gatedActivation(rt, x, x, y, { act: 'softplus' as 'silu' }), /act is 'softplus'/],
    [() => ops.add(rt, x, T('f64', 4, 6), y), /b is f64, not f32/],
    [() => ops.routeTopK(rt, x, T('i32', 4, 7), T('f32', 4, 7), { k: 7, normalize: true }), /k is 7/],
    [() => ops.groupByExpert(rt, i32([0, 5], [1, 2]), T('i32', 2), T('i32', 6), { experts: 5 }), /indices holds 5/],
    [() => ops.gatherRows(rt, x, i32([0, 4]), T('f32', 2, 6)), /rows\[1\] is 4, outside x of 4 rows/],
    [
      () => ops.scatterAddRows(rt, T('f32', 2, 6), i32([0, 8]), T('f32', 8), y, { divide: 2 }),
      /rows\[1\] is 8, outside y of 4 rows/,
    ],
    [
      () => ops.scatterAddRows(rt, T('f32', 2, 6), i32([0, 7]), T('f32', 7), y, { divide: 2 }),
      /rows\[1\] is 7, outside weights of 7 rows/,
    ],
    [() => ops.negLogLikelihood(rt, x, i32([0, 1, 2, 6]), T('f64', 4)), /token 3 has the target 6/],
    [() => ops.gramAccumulate(rt, x, T('f64', 5, 5)), /the sum has the shape \[5,5\], not \[6,6\]/],
    [() => ops.gramAccumulate(rt, x, T('f32', 6, 6)), /the sum is f32, not f64/],
    [() => ops.crossAccumulate(rt, x, T('f32', 3, 6), T('f64', 6, 6)), /b has the shape/],
    [() => ops.crossDrift(rt, T('f64', 5, 5), T('f64', 6, 6)), /c has the shape/],
    [() => ops.cholesky(rt, T('f64', 5, 6), T('i32', 1)), /a has the shape/],
    [() => ops.cholesky(rt, T('f64', 5), T('i32', 1)), /a has the shape/],
    [() => ops.cholesky(rt, T('f64', 5, 5), T('i32', 2)), /info has the shape/],
    [() => rt.enqueue('linear', [x], [y]), /the input weight is missing/],
    [() => rt.enqueue('linear', [x, T('f32', 5, 6)], []), /the output y is missing/],
  ];
  for (const [call, message] of cases) await fails(rt, call, 'LPQ_NATIVE_ARGUMENT', message);
  await fails(rt, () => rt.enqueue('rmsnorm', [x, w], [y]), 'LPQ_NATIVE_PARAM', /'eps' is missing/);
  await fails(rt, () => rt.enqueue('no_such', [], []), 'LPQ_NATIVE_OP', /no_such/);
  const nan = poisoned('f32', [2, 3]);
  const route = () => ops.routeTopK(rt, nan, T('i32', 2, 1), T('f32', 2, 1), { k: 1, normalize: false });
  await fails(rt, route, 'LPQ_NATIVE_NUMERICS', /routing logit of token 0 and expert 0/);
});

test('a parameter that an operation does not know fails it, by name', async () => {
  const rt = createRuntime(2);
  const [x, y, w] = [T('f32', 4, 6), T('f32', 4, 6), T('f32', 6)];
  for (const tensor of [x, w]) tensor.bytes().fill(0);
  const unknown = (op: string, name: string) => new RegExp(`no parameter of ${op} is called '${name}'`);
  const rmsnorm = (params: Record<string, number>) => () =>
    rt.enqueue('rmsnorm', [x, w], [y], { eps: 1e-5, ...params });
  await fails(rt, rmsnorm({ epsilon: 1 }), 'LPQ_NATIVE_PARAM', unknown('rmsnorm', 'epsilon'));
  await fails(rt, () => rt.enqueue('zero', [], [y], { value: 1 }), 'LPQ_NATIVE_PARAM', unknown('zero', 'value'));
  // The description of a number type goes with every operation that takes one, whatever it reads of it.
  const type = { kind: 'int', bits: 4, signed: 1, exponent: 0, mantissa: 0, bias: 0, special: 'none' };
  const rest = { blockN: 1, blockK: 6 };
  const dequantize = (more: object) => () =>
    rt.enqueue('dequantize', [codes, T('f32', 4, 1)], [y], { ...type, ...rest, ...more });
  const codes = T('u8', 4, 6);
  codes.bytes().fill(0);
  await fails(rt, dequantize({ blockM: 1 }), 'LPQ_NATIVE_PARAM', unknown('dequantize', 'blockM'));
  dequantize({})();
  rmsnorm({})();
  await rt.sync();
});

test('every operation of the table is registered', () => {
  const names = addon().operations();
  for (const name of ['cast', 'embedding', 'rmsnorm', 'linear', 'rope', 'attention', 'gated_activation', 'add', 'zero'])
    assert.ok(names.includes(name), name);
  for (const name of ['route_top_k', 'group_by_expert', 'gather_rows', 'scatter_add_rows', 'neg_log_likelihood'])
    assert.ok(names.includes(name), name);
  for (const name of ['gram_accumulate', 'cross_accumulate', 'cholesky']) assert.ok(names.includes(name), name);
});

test('after a failure the rest is dropped until sync has told of it; then the queue works again', async () => {
  const rt = createRuntime(2);
  const y = poisoned('f32', [8]);
  rt.enqueue('no_such', [], []);
  ops.zero(rt, y);
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_OP' });
  assert.ok(typed(y).every(Number.isNaN));
  ops.zero(rt, y);
  await rt.sync();
  assert.deepEqual([...typed(y)], new Array(8).fill(0));
  const { zero } = rt.profile();
  assert.equal(zero?.calls, 1);
  assert.deepEqual(rt.profile(), {});
});

function longProduct(rt: NativeRuntime): Tensor {
  // 2 * 6000^2 * 6000 flops twice: seconds on any machine of a few cores.
  const x = allocate('f32', [6000, 6000]);
  typed(x).fill(1);
  const y = allocate('f32', [6000, 6000]);
  for (let i = 0; i < 4; i++) ops.linear(rt, x, x, undefined, y);
  return y;
}

test('abort stops a long product within 0.2 s, and the runtime can be used again', async () => {
  const rt = createRuntime(2);
  longProduct(rt);
  const running = rt.sync();
  running.catch(() => {});
  let seen = { done: 0, total: 0 };
  while (seen.done === 0) {
    await sleep(20);
    seen = rt.progress();
  }
  assert.ok(seen.done < seen.total);
  const start = performance.now();
  rt.abort();
  await assert.rejects(running, { code: 'LPQ_ABORTED' });
  const took = performance.now() - start;
  assert.ok(took < 200, `${took} ms`);
  const y = poisoned('f32', [8]);
  ops.zero(rt, y);
  await rt.sync();
  assert.equal(typed(y)[7], 0);
});

test('a runtime lives until its sync has settled', async () => {
  const y = poisoned('f32', [1 << 20]);
  const pending = (() => {
    const rt = createRuntime(1);
    for (let i = 0; i < 200; i++) ops.zero(rt, y);
    return rt.sync();
  })();
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  await pending;
  assert.equal(typed(y)[5], 0);
});

test('memory is used again, and too much of it is refused', async () => {
  assert.throws(() => allocate('f64', [2 ** 50, 2 ** 50]), { code: 'LPQ_NATIVE_MEMORY' });
  assert.throws(() => allocate('f64', [2 ** 46]), { code: 'LPQ_NATIVE_MEMORY' });
  const rt = createRuntime(1);
  for (let i = 0; i < 50; i++) {
    const y = poisoned('f32', [1 << 18]);
    ops.zero(rt, y);
    y.dispose(); // queued work still finishes
  }
  await rt.sync();
  assert.throws(
    () => {
      const y = allocate('f32', [4]);
      y.dispose();
      ops.zero(rt, y);
    },
    { code: 'LPQ_NATIVE_DISPOSED' },
  );
});
