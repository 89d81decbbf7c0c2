import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { batchSequences, type TokenBatch } from '../../../src/model/batch.js';
import { loadOuter } from '../../../src/model/forward.js';
import { openModel, planSource } from '../../../src/model/graph.js';
import { linearsOf } from '../../../src/quantize/linears.js';
import type { ModelTask } from '../../../src/quantize/model-task.js';
import type { QuantizedModule } from '../../../src/quantize/result.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { SourceView } from '../../../src/quantize/source-view.js';
import { Student } from '../../../src/tune/scales/student.js';
import { teach } from '../../../src/tune/scales/teacher.js';
import { normsOf, TrainedNorm } from '../../../src/tune/scales/trained-norms.js';
import { TrainedScales } from '../../../src/tune/scales/trained-scales.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const rt = createRuntime(1);

/** The scales of modules times factors. */
function scaled(module: QuantizedModule, factors: (group: number) => number): QuantizedModule {
  const scales = typed(module.scales).map((value, i) => value * factors(i));
  return { ...module, scales: fromTyped('f32', module.scales.shape, scales) };
}

// Grouped queries, caps of attention and logits, one norm for both branches, keys of another block, projections head by head.
for (const name of ['llama', 'gemma2', 'cohere', 'gemma4_text', 'qwen3', 'gpt2'])
  test(`${name}: gradients of scales and of norms through the whole model that central differences have`, async () => {
    const source = new SourceView(SourceCheckpoint.open(path.join(ARCHITECTURES, name)));
    const [graph, plan] = [openModel(source), planSource(source)];
    const scheme = schemeFromOptions({ bits: 3, groupSize: 16, scaleDtype: 'f32' });
    const modules = new Map<string, QuantizedModule>();
    for (const linear of graph.blocks.flatMap(linearsOf)) {
      const weight = await source.tensor(`${linear.name}.weight`);
      const [n, k] = [linear.n, linear.k];
      const values = fromTyped(
        'f32',
        [n, k],
        Float32Array.from({ length: n * k }, (_, i) => Math.sin(i * i * 0.37 + linear.name.length) / Math.sqrt(k)),
      );
      weight.dispose();
      modules.set(linear.name, await roundWeight(rt, values, scheme, linear.name));
    }
    const ids = [19, 30].map((length, s) => Int32Array.from({ length }, (_, i) => (i * i * 7 + s * 5 + i) % 64));
    const [batch] = batchSequences(rt, ids, 64) as [TokenBatch];
    const task: ModelTask = { rt, graph, plan, source, modules, sequences: ids, seen: 0, check: () => {} };
    const outer = await loadOuter(rt, source, graph);
    const [target] = await teach(task, outer, [batch]);
    const scales = new Map([...modules].map(([each, module]) => [each, TrainedScales.begin(rt, module)] as const));
    const norms = new Map<string, TrainedNorm>();
    for (const [each, norm] of normsOf(plan)) norms.set(each, await TrainedNorm.begin(rt, source, norm));
    const sum = await new Student(task, scales, outer, norms).gradient(batch, target!);
    assert.ok(Math.abs((await new Student(task, new Map(), outer).loss(batch, target!)) - sum) <= 1e-4 * sum);

    // Along the gradient of a module the mean over tokens changes by its norm a unit; bounds as of blocks (block.test.ts).
    for (const [each, module] of modules) {
      const gradient = typed(scales.get(each)!.factors.g).slice();
      const norm = Math.sqrt(gradient.reduce((all, g) => all + g * g, 0));
      assert.ok(norm > 0, each);
      const step = Math.min(0.02, (3e-3 * sum) / 49 / norm);
      const at = async (sign: number): Promise<number> => {
        const moved = scaled(module, (i) => 1 + (sign * step * gradient[i]!) / norm);
        const student = new Student({ ...task, modules: new Map([...modules, [each, moved]]) }, new Map(), outer);
        return (await student.loss(batch, target!)) / 49;
      };
      const slope = ((await at(1)) - (await at(-1))) / (2 * step);
      assert.ok(Math.abs(slope - norm) <= 1e-2 * norm, `${each}: ${slope}, not ${norm}`);
    }
    for (const [each, trained] of norms) {
      const gradient = typed(trained.factors.g).slice();
      const norm = Math.sqrt(gradient.reduce((all, g) => all + g * g, 0));
      assert.ok(norm > 0, each);
      const step = Math.min(0.02, (3e-3 * sum) / 49 / norm);
      const { offset } = normsOf(plan).get(each)!;
      const stored = await source.tensor(each);
      const wide = rt.allocate('f32', stored.shape);
      ops.cast(rt, stored, wide);
      await rt.sync();
      const values = typed(wide);
      const at = async (sign: number): Promise<number> => {
        const moved = values.map((w, i) => (w + offset) * (1 + (sign * step * gradient[i]!) / norm) - offset);
        const tensor = () => fromTyped('f32', stored.shape, Float32Array.from(moved));
        const own = { value: async (asked: string) => (asked === each ? tensor() : source.tensor(asked)) };
        const around = new Map(outer);
        if (around.has(each)) around.set(each, tensor());
        const student = new Student({ ...task, source: Object.create(source, { tensor: own }) }, new Map(), around);
        return (await student.loss(batch, target!)) / 49;
      };
      const slope = ((await at(1)) - (await at(-1))) / (2 * step);
      assert.ok(Math.abs(slope - norm) <= 1e-2 * norm, `${each}: ${slope}, not ${norm}`);
    }
  });
