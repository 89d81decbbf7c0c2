import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { record } from '../../../src/bench/model/record.js';
import { modelBenchSchema } from '../../../src/bench/model/schema.js';
import { main } from '../../../src/cli/main.js';
import { scratch } from '../../formats/scratch.js';
import { f32, typed } from '../../native/support.js';

async function bench(...args: string[]) {
  const [out, err] = [new PassThrough(), new PassThrough()];
  const text = { stdout: '', stderr: '' };
  out.on('data', (chunk) => {
    text.stdout += chunk;
  });
  err.on('data', (chunk) => {
    text.stderr += chunk;
  });
  const code = await main(['bench', 'model', '--device', 'cpu', ...args], { stdout: out, stderr: err } as never);
  return { code, ...text };
}

test('what is recorded runs later, on tensors that their makers have let go of', async () => {
  const rt = createRuntime(1);
  const { runtime, calls, dispose } = record(rt);
  const x = f32([1, 2], Float32Array.of(1, 2));
  const y = runtime.allocate('f32', [1, 2]);
  y.bytes().fill(0);
  ops.add(runtime, x, x, y);
  const seen = y.view(y.shape);
  for (const tensor of [x, y]) tensor.dispose();
  await rt.sync();
  assert.deepEqual([...typed(seen)], [0, 0]);
  assert.deepEqual(
    calls.map(({ op }) => op),
    ['add'],
  );
  await rt.time(calls, { passes: 1 });
  assert.deepEqual([...typed(seen)], [2, 4]);
  dispose();
});

test('steps of a tiny model: a table, JSON that its schema takes, and tables in Markdown', async () => {
  const dir = scratch();
  const [results, markdown] = ['bench.json', 'bench.md'].map((name) => path.join(dir, name)) as [string, string];
  const ran = await bench(
    ...['--shape', 'tiny', '--blocks', '2', '--m', '1,2', '--context', '40', '--prefill', '16', '--passes', '2'],
    ...['--weights', 'dense', '--results', results, '--markdown', markdown],
  );
  assert.equal(ran.code, 0, ran.stderr);
  assert.match(ran.stdout, /dense +16 +decode +2 +40/);
  const found = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  assert.deepEqual(
    found.rows.map(({ phase, m, context }) => [phase, m, context]),
    [
      ['prefill', 1, 16],
      ['decode', 1, 40],
      ['decode', 2, 40],
    ],
  );
  const [, one] = found.rows;
  // tiny: hidden 256, MLP 768, 4 heads and 2 kv heads of 64, 4 blocks, 2048 tokens of vocabulary, twice; norms.
  const block = 256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768 + 2 * 256;
  assert.equal(one?.weightBytes, 2 * (4 * block + 2 * 2048 * 256 + 256));
  assert.equal(one?.cacheBytes, 4 * 2 * 40 * 128 * 2);
  const { products, attention, rest } = one!.shares;
  assert.ok(Math.abs(products + attention + rest - 1) < 1e-9 && products > 0 && attention > 0 && rest > 0);
  assert.match(readFileSync(markdown, 'utf8'), /tiny, 2 of 4 blocks measured.*\| dense \| 16 \| 2 \| 40 \|/s);
  const packed = await bench(
    ...['--shape', 'tiny', '--blocks', '1', '--m', '1', '--context', '8', '--prefill', '0', '--passes', '1'],
    ...['--weights', 'f6e3m2', '--quiet'],
  );
  assert.match(packed.stdout, /f6e3m2 +16 +decode +1 +8/, packed.stderr);
});

test('what cannot be timed is refused', async () => {
  for (const [args, words] of [
    [['--shape', 'none'], /--shape does not take 'none'/],
    [['--shape', 'tiny', '--blocks', '5'], /--blocks does not take 5/],
    [['--shape', 'tiny', '--kv', '3'], /--kv does not take '3'/],
    [['--shape', 'tiny', '--m', '0'], /--m does not take '0'/],
    [['--shape', 'tiny', '--context', '1'], /--context does not take '1'/],
    [['--shape', 'tiny', '--weights', 'u9'], /u9/],
    [['--shape', 'tiny', '--kv', '4'], /cache of few bits are timed on a CUDA device only/],
    [['--shape', 'tiny-moe'], /block 0 of tiny-moe has a mixture of experts/],
  ] as const) {
    const ran = await bench(...args);
    assert.notEqual(ran.code, 0);
    assert.match(ran.stderr, words);
  }
});
