import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { modelShape } from '../../../bench/shapes.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { buildGraph } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';
import { memoryOf } from '../../../src/quantize/estimate.js';
import { ROOT } from '../model/fixtures.js';

interface Recorded {
  readonly commandLine: string;
  readonly shape: string;
  readonly calibration: { readonly tokens: number };
  readonly peak: { readonly device: number };
}

test('device memory is foretold within 20 % of what runs without a limit took (an H200, bench/results)', () => {
  const file = path.join(ROOT, 'bench', 'results', '2026-11-21-h200-quantize.json');
  const { runs } = JSON.parse(readFileSync(file, 'utf8')) as { runs: readonly Recorded[] };
  const free = runs.filter(({ commandLine }) => !commandLine.includes('--vram-limit'));
  assert.ok(free.length >= 4);
  for (const { commandLine, shape: name, calibration, peak } of free) {
    const shape = modelShape(name);
    const graph = buildGraph(planModel(architectureOf(shape.config, name), shape.config, name));
    const size = {
      tokens: calibration.tokens,
      original: !commandLine.includes('--gptaq 0'),
      kind: 'activations',
    } as const;
    const { device } = memoryOf(graph, 16e9, size, true);
    const ratio = device / peak.device;
    assert.ok(ratio > 0.8 && ratio < 1.2, `${commandLine}: ${ratio.toFixed(2)} of ${peak.device}`);
  }
});
