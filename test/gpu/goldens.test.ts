import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { createRuntime, type NativeRuntime, readTyped, typed } from '../../native/binding.js';
import { makeBatch } from '../../src/model/batch.js';
import { loadOuter, runForward } from '../../src/model/forward.js';
import { openModel } from '../../src/model/graph.js';
import { ARCHITECTURES, GOLDENS, PlainFile, plainSource } from '../src/model/fixtures.js';
import { gpuTest } from './gpu.js';

/** Largest difference between transformers' logits of a checkpoint and those of the graph on `rt`. */
async function off(rt: NativeRuntime, dir: string): Promise<number> {
  const source = plainSource(dir);
  const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
  const ids = golden.tensor('input_ids');
  const [rows, length] = ids.shape as [number, number];
  const flat = typed<Int32Array>(ids);
  const sequences = Array.from({ length: rows }, (_, row) => flat.slice(row * length, (row + 1) * length));
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)]);
  const got = await readTyped<Float32Array>(rt, graph.logits(rt, outer, state!.h));
  const want = typed<Float32Array>(golden.tensor('logits'));
  assert.equal(got.length, want.length);
  return got.reduce((worst, value, i) => Math.max(worst, Math.abs(value - (want[i] as number))), 0);
}

const more = process.env.LPQ_GOLDENS;
const others = more === undefined ? [] : readdirSync(more).map((name) => path.join(more, name));
const all = [...GOLDENS.map((name) => path.join(ARCHITECTURES, name)), ...others];

/** With fp32 throughout, 1e-3: sums on a device run in another order, and its exp and tanh are good to some units of 2^-24. */
for (const dir of all)
  if (existsSync(path.join(dir, 'golden.safetensors')))
    gpuTest(`${path.basename(dir)}: the graph on the device in fp32 gives transformers' logits`, async (t) => {
      const worst = await off(createRuntime({ device: 'cuda:0', activationDtype: 'f32' }), dir);
      t.diagnostic(`max |Δlogit| ${worst.toExponential(2)}`);
      assert.ok(worst <= 1e-3, `logits differ by ${worst}`);
    });
