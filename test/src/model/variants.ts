import assert from 'node:assert/strict';
import { createRuntime, typed } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { randomSource } from './fixtures.js';
import { Layers, type Rows } from './plain-forward.js';

/**
 * Settings that no golden at hand has: each model's forward pass is spelled out below from the description of its class,
 * in f64, and compared with what the table makes of the same config.
 */
export const rt = createRuntime(2);
export const SEQUENCES = [13, 1, 7].map((length, s) =>
  Int32Array.from({ length }, (_, i) => (i * 29 + s * 13 + 3) % 90),
);

export async function agrees(
  config: Record<string, unknown>,
  forward: (layers: Layers, ids: number[]) => Rows,
  base = '',
): Promise<void> {
  const source = randomSource(config, base);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, SEQUENCES)]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  const layers = await Layers.of(source);
  const want = SEQUENCES.flatMap((ids) => forward(layers, [...ids]));
  const got = typed(logits);
  const most = Math.max(...want.flat().map(Math.abs));
  assert.ok(most > 0.05, 'logits that say something');
  want.flat().forEach((value, i) => {
    // fp32 through a few layers of width 48: the bound of the goldens.
    assert.ok(Math.abs(got[i]! - value) <= 1e-4 * Math.max(1, most), `logit ${i}: ${got[i]} is not ${value}`);
  });
}

export const places = (ids: readonly number[], first = 0) => ids.map((_, t) => t + first);
