import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { createRuntime } from '../../native/binding.js';
import type { Architecture } from '../../src/model/architecture.js';
import { ARCHITECTURES } from '../../src/model/architectures/index.js';
import { llama } from '../../src/model/architectures/llama.js';
import { smollm3 } from '../../src/model/architectures/smollm3.js';
import { makeBatch } from '../../src/model/batch.js';
import { loadOuter, runForward } from '../../src/model/forward.js';
import { buildGraph } from '../../src/model/graph.js';
import { planModel } from '../../src/model/plan.js';
import { ROOT, randomSource } from '../src/model/fixtures.js';

const section = readFileSync(path.join(ROOT, 'CONTRIBUTING.md'), 'utf8')
  .split('## Adding an architecture')[1]!
  .split('\n## ')[0]!;
const block = (language: string) => section.split(`\`\`\`${language}\n`)[1]!.split('```')[0]!;

test('the table shown in CONTRIBUTING.md is the file of that architecture', () => {
  assert.equal(block('ts'), readFileSync(path.join(ROOT, 'src/model/architectures/smollm3.ts'), 'utf8'));
});

test('the table shown in CONTRIBUTING.md, run as written, makes a model of the config shown', async () => {
  const body = block('ts')
    .replace(/^import .*$/gm, '')
    .replace('export const smollm3: Architecture =', 'return');
  const table = new Function('llama', body)(llama) as Architecture;
  assert.deepEqual(table, smollm3);
  assert.ok(ARCHITECTURES.includes(smollm3));
  const config = JSON.parse(block('json')) as Record<string, unknown>;
  const plan = planModel(table, config, 'example');
  assert.ok(plan.tied);
  const attention = plan.blocks.map((each) => each.attention);
  assert.deepEqual(
    attention.map((each) => each.kind === 'attention' && [each.rope?.theta, each.window]),
    [
      [2_000_000, 0],
      [undefined, 16],
    ],
  );
  const rt = createRuntime(1);
  const graph = buildGraph(plan);
  const source = randomSource(config);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, [Int32Array.of(1, 2, 3)])]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  assert.deepEqual(logits.shape, [3, 100]);
});

test('the files that CONTRIBUTING.md sends to are there', () => {
  for (const [file] of section.matchAll(/test\/[\w/]+\.test\.ts/g)) readFileSync(path.join(ROOT, file));
});
