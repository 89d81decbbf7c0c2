import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { addon, createRuntime, type NativeRuntime, typed } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { sampled } from '../../sample.js';
import { ARCHITECTURES, GOLDENS, PlainFile, plainSource } from './fixtures.js';
import { ReferenceRuntime } from './reference-runtime.js';

/** Largest difference between a checkpoint's goldens and what the graph computes on `rt`: logits, state after block 0. */
async function compare(rt: NativeRuntime, dir: string): Promise<{ logits: number; block0: number }> {
  const source = plainSource(dir);
  const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
  const ids = golden.tensor('input_ids');
  const [rows, length] = ids.shape as [number, number];
  const flat = typed<Int32Array>(ids);
  const sequences = Array.from({ length: rows }, (_, row) => flat.slice(row * length, (row + 1) * length));
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const differ = (got: Float32Array, name: string) => {
    // Of several streams the first is the residual stream.
    const want = typed(golden.tensor(name)).slice(0, name === 'logits' ? undefined : got.length);
    assert.equal(got.length, want.length);
    return got.reduce((worst, value, i) => Math.max(worst, Math.abs(value - (want[i] as number))), 0);
  };
  const stated = Object.hasOwn(golden.header, 'hidden_after_layer_0');
  let block0 = stated ? Number.NaN : 0;
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)], {
    onBlock: (index, states) => {
      if (index === 0 && stated) block0 = differ(typed(states[0]!.h), 'hidden_after_layer_0');
    },
  });
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  return { logits: differ(typed(logits), 'logits'), block0 };
}

const onReference = sampled('goldens on the reference operations', GOLDENS, 3);
for (const name of GOLDENS) {
  const dir = path.join(ARCHITECTURES, name);
  // The goldens are themselves fp32: logits of about 1 carry some 1e-6 of rounding through two blocks; 1e-4 is the
  // bound that the project promises for any fp32 implementation.
  if (onReference.includes(name))
    test(`${name}: the graph on the reference operations gives transformers' logits`, async () => {
      const { logits, block0 } = await compare(new ReferenceRuntime(), dir);
      assert.ok(logits <= 1e-5, `logits differ by ${logits}`);
      assert.ok(block0 <= 1e-5, `states after block 0 differ by ${block0}`);
    });

  test(`${name}: the graph on the native operations gives transformers' logits`, async (t) => {
    const { logits, block0 } = await compare(createRuntime(2), dir);
    t.diagnostic(`max |Δlogit| ${logits.toExponential(2)}, after block 0 ${block0.toExponential(2)}`);
    assert.ok(logits <= 1e-4, `logits differ by ${logits}`);
    assert.ok(block0 <= 1e-4, `states after block 0 differ by ${block0}`);
  });
}

// More of them, made by bench/interop/goldens.py: one test for each directory below LPQ_GOLDENS.
const more = process.env.LPQ_GOLDENS;
for (const name of more === undefined ? [] : readdirSync(more)) {
  const dir = path.join(more as string, name);
  if (!existsSync(path.join(dir, 'golden.safetensors'))) continue;
  test(`${name}: the graph on the native operations gives transformers' logits`, async (t) => {
    const { logits } = await compare(createRuntime(2), dir);
    t.diagnostic(`${name} max |Δlogit| ${logits.toExponential(2)}`);
    assert.ok(logits <= 1e-4, `logits differ by ${logits}`);
  });
}

test('the native table has every operation of the graph', () => {
  const have = new Set(addon().operations());
  for (const op of [
    'embedding',
    'rmsnorm',
    'layernorm',
    'activation',
    'soft_cap',
    'slice_columns',
    'transpose',
    'linear',
    'rope',
    'attention',
    'gated_activation',
    'route_top_k',
  ])
    assert.ok(have.has(op), `${op} is missing`);
});
