import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { batchSequences, type TokenBatch } from '../../../src/model/batch.js';
import { loadOuter } from '../../../src/model/forward.js';
import { openModel, planSource } from '../../../src/model/graph.js';
import type { ModelTask } from '../../../src/quantize/model-task.js';
import { SourceView } from '../../../src/quantize/source-view.js';
import { keptBlocks } from '../../../src/tune/scales/kept.js';
import { ON_HOST } from '../../../src/tune/scales/sizes.js';
import { Teacher, teach } from '../../../src/tune/scales/teacher.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const rt = createRuntime(1);

function open(name: string): ModelTask {
  const source = new SourceView(SourceCheckpoint.open(path.join(ARCHITECTURES, name)));
  const sequences = Array.from({ length: 3 }, (_, s) =>
    Int32Array.from({ length: 20 }, (_, i) => (i * i + 7 * s) % 64),
  );
  const [graph, plan] = [openModel(source), planSource(source)];
  return { rt, graph, plan, source, modules: new Map(), sequences, seen: 0, check: () => {} };
}

test('a teacher gives what each batch has by itself, whether batches stay or not, from any step on', async () => {
  const task = open('llama');
  const outer = await loadOuter(rt, task.source, task.graph);
  const batches = batchSequences(rt, task.sequences, 20);
  const want: number[][] = [];
  for (const batch of batches) want.push([...typed((await teach(task, outer, [batch]))[0]!)]);
  const order = [2, 0, 1, 1, 0, 2, 1];
  // With batches of so many tokens, all stay; one does; none does, and they come one at a time.
  for (const tokens of [20, 2 ** 29 / (4 * task.plan.head.k), 2 ** 30]) {
    for (const from of [0, 3]) {
      const teacher = new Teacher(
        task,
        outer,
        order.map((i) => batches[i] as TokenBatch),
        tokens,
      );
      for (const [step, i] of order.entries())
        if (step >= from) assert.deepEqual([...typed(await teacher.target(step))], want[i], `${tokens}: step ${step}`);
      teacher.dispose();
    }
  }
});

test('passes of the last blocks are kept while they fit', () => {
  const { graph, plan } = open('llama');
  const all = keptBlocks(graph.blocks, plan, 64, ON_HOST.kept);
  assert.deepEqual([...all.blocks], graph.blocks.toReversed());
  const each = all.bytes / graph.blocks.length;
  // So many tokens that all blocks but one fit.
  let tokens = 64;
  while (keptBlocks(graph.blocks, plan, tokens, ON_HOST.kept).blocks.size === graph.blocks.length) tokens *= 2;
  const some = keptBlocks(graph.blocks, plan, tokens, ON_HOST.kept);
  assert.ok(each > 0 && some.bytes <= ON_HOST.kept);
  assert.deepEqual([...some.blocks], graph.blocks.toReversed().slice(0, some.blocks.size));
  assert.equal(keptBlocks(graph.blocks, plan, 2 ** 31, ON_HOST.kept).blocks.size, 0);
});
