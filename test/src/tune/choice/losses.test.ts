import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../../formats/canonical/source.js';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../../native/binding.js';
import { ops } from '../../../../native/ops.js';
import { batchSequences } from '../../../../src/model/batch.js';
import { embedBatches, loadOuter, runBlock } from '../../../../src/model/forward.js';
import { openModel, planSource } from '../../../../src/model/graph.js';
import { loadWeights } from '../../../../src/model/weights.js';
import { linearsOf } from '../../../../src/quantize/linears.js';
import { roundWeight } from '../../../../src/quantize/round.js';
import { schemeFromOptions } from '../../../../src/quantize/scheme.js';
import { unitsOf } from '../../../../src/quantize/sensitivity.js';
import { SourceView } from '../../../../src/quantize/source-view.js';
import { dequantizeResult } from '../../../../src/quantize/stored.js';
import { measureLosses } from '../../../../src/tune/choice/losses.js';
import { ARCHITECTURES } from '../../model/fixtures.js';

const rt = createRuntime(1);
/** Of two tokens each: the loss of a sequence is that of its first token, so that the squares of tokens are those of sequences. */
const PAIRS = Array.from({ length: 12 }, (_, s) => Int32Array.of((s * 7 + 3) % 64, (s * s * 5 + 11) % 64));

for (const name of ['llama', 'gemma2', 'qwen3', 'mixtral'])
  test(`${name}: the loss of a rounded module is half the mean of the squared slopes that central differences have`, async () => {
    const source = new SourceView(SourceCheckpoint.open(path.join(ARCHITECTURES, name)));
    const [graph, plan] = [openModel(source), planSource(source)];
    const all = graph.blocks.flatMap(linearsOf);
    const units = unitsOf(graph, new Set([...all.map((linear) => linear.name), graph.head.name]));
    const schemes = [2, 3].map((bits) => schemeFromOptions({ bits, groupSize: 16 }));
    const request = { source, graph, plan, units, schemes, sequences: PAIRS };
    const losses = await measureLosses({ rt, ...request });
    assert.deepEqual(await measureLosses({ rt: createRuntime(3), ...request }), losses);
    const outer = await loadOuter(rt, source, graph);

    /** The loss of each pair's second token, with one weight replaced. */
    const lossesWith = async (key: string, weight: Tensor): Promise<number[]> => {
      const [batch] = batchSequences(rt, PAIRS, 64);
      const around = new Map(outer);
      if (outer.has(key)) around.set(key, weight);
      let [state] = embedBatches(rt, graph, outer, [batch!]);
      for (const block of graph.blocks) {
        const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
        if (weights.has(key)) weights.set(key, weight);
        state = await runBlock(rt, block, weights, state!);
      }
      const logits = graph.logits(rt, around, state!.h);
      await rt.sync();
      const values = typed(logits);
      return PAIRS.map(([, next], s) => {
        const row = Float64Array.from(values.subarray(2 * s * graph.vocab, (2 * s + 1) * graph.vocab));
        const peak = row.reduce((a, b) => Math.max(a, b));
        return peak + Math.log(row.reduce((sum, value) => sum + Math.exp(value - peak), 0)) - row[next!]!;
      });
    };

    const mixture = all.some(({ expert }) => expert !== undefined);
    const step = 0.02;
    let compared = 0;
    for (const [u, { block, linears }] of units.entries()) {
      // The gradient does not go through routers: in a mixture it is whole behind the last.
      if (mixture && block !== null && linears[0]?.expert === undefined) continue;
      if (mixture && block !== null && block < graph.blocks.length - 1) continue;
      let expected = 0;
      for (const linear of linears) {
        const key = `${linear.name}.weight`;
        const [weight] = (await loadWeights(rt, source, [key], graph.transposed)).values();
        const wide = await floats(weight!);
        const made = dequantizeResult(rt, await roundWeight(rt, weight!, schemes[1]!, linear.name));
        await rt.sync();
        const rounded = typed(made);
        const at = (sign: number) =>
          lossesWith(
            key,
            fromTyped(
              'f32',
              [linear.n, linear.k],
              wide.map((w, i) => w + sign * step * (rounded[i]! - w)),
            ),
          );
        const [up, down] = [await at(1), await at(-1)];
        expected +=
          up.reduce((sum, loss, s) => sum + ((loss - down[s]!) / (2 * step)) ** 2, 0) / (2 * 2 * PAIRS.length);
      }
      const found = losses[u]![1]!;
      assert.ok(
        Math.abs(found - expected) <= 2e-2 * expected + 1e-12,
        `${linears[0]?.name}: ${found}, not ${expected}`,
      );
      assert.ok(losses[u]![0]! > found, linears[0]?.name);
      compared++;
    }
    assert.ok(compared > 1);
  });

/** A weight in fp32. */
async function floats(weight: Tensor): Promise<Float32Array> {
  const wide = rt.allocate('f32', weight.shape);
  ops.cast(rt, weight, wide);
  await rt.sync();
  return typed(wide) as Float32Array;
}
