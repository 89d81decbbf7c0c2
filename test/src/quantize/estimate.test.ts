import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { modelShape } from '../../../bench/shapes.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { buildGraph } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';
import { memoryOf } from '../../../src/quantize/estimate.js';
import { blockMemory } from '../../../src/quantize/memory-plan.js';
import { ROOT } from '../model/fixtures.js';

interface Recorded {
  readonly shape: string;
  readonly calibration: { readonly tokens: number };
  readonly peak: { readonly device: number };
}

/** What is foretold for a recorded run over what it took, and of that the moments of a section, which runs before 2026-11-28 did not keep. */
function foretold({ shape: name, calibration, peak }: Recorded, original: boolean): { ratio: number; section: number } {
  const shape = modelShape(name);
  const graph = buildGraph(planModel(architectureOf(shape.config, name), shape.config, name));
  const { device } = memoryOf(graph, 16e9, { tokens: calibration.tokens, original, kind: 'activations' }, true);
  const moments = graph.blocks.flatMap((block) => {
    const { statistics } = blockMemory(block, graph.hidden, original ? 2 : 1, 0, 1);
    return block.stages.map((stage) => statistics(stage));
  });
  return { ratio: device / peak.device, section: Math.max(...moments) / peak.device };
}

const results = (name: string) => JSON.parse(readFileSync(path.join(ROOT, 'bench', 'results', name), 'utf8'));

test('device memory is foretold within 20 % of what runs without a limit took (an H200, bench/results)', () => {
  const { runs } = results('2026-11-21-h200-quantize.json') as {
    runs: readonly (Recorded & { commandLine: string })[];
  };
  const free = runs.filter(({ commandLine }) => !commandLine.includes('--vram-limit'));
  assert.ok(free.length >= 4);
  for (const run of free) {
    const { ratio, section } = foretold(run, !run.commandLine.includes('--gptaq 0'));
    const off = ratio - section;
    assert.ok(off > 0.8 && off < 1.2, `${run.commandLine}: ${off.toFixed(2)} of ${run.peak.device}`);
  }
  const { results: whole } = results('2026-11-28-h200-tune-side-by-side.json') as { results: readonly Recorded[] };
  const { ratio } = foretold(whole.at(-1)!, true);
  assert.ok(ratio > 0.8 && ratio < 1.2, ratio.toFixed(2));
});
