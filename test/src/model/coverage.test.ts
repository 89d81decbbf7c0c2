import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { batchSequences } from '../../../src/model/batch.js';
import { coveringTokens } from '../../../src/model/coverage.js';
import { embedBatches, loadOuter } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { BlockState } from '../../../src/model/program.js';
import { loadWeights } from '../../../src/model/weights.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { designed, scratch } from '../../formats/scratch.js';
import { ARCHITECTURES, plainSource } from './fixtures.js';

const rt = createRuntime(1);

test('experts with too few tokens get those that came nearest; of equals the first', async () => {
  // Four tokens choose one of three experts: 0, 0, 0 and 2.
  const scores = fromTyped('f32', [4, 3], Float32Array.of(5, 1, 4, 3, 2, 0, 9, 8, 7, 0, 0, 2));
  const rows = fromTyped('i32', [4], Int32Array.of(0, 1, 2, 3));
  const offsets = fromTyped('i32', [4], Int32Array.of(0, 3, 3, 4));
  const tokens = (share: number) => coveringTokens(rt, { scores, rows, offsets, perToken: 1 }, share);
  // Expert 1 misses the best score by 4, 1, 1 and 2, expert 2 by 1, 3 and 2 (token 3 is its own).
  const lists = (found: (Int32Array | undefined)[]) => found.map((each) => each && [...each]);
  assert.deepEqual(lists(await tokens(0.25)), [undefined, [1], undefined]);
  assert.deepEqual(lists(await tokens(0.5)), [undefined, [1, 2], [0, 3]]);
  assert.deepEqual(lists(await tokens(0.75)), [undefined, [1, 2, 3], [0, 2, 3]]);
  assert.deepEqual(lists(await tokens(1)), [
    [0, 1, 2, 3],
    [0, 1, 2, 3],
    [0, 1, 2, 3],
  ]);
});

test('captures have at least the share of tokens for every expert; what the model computes stays', async () => {
  const source = plainSource(path.join(ARCHITECTURES, 'qwen3_moe'));
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const block = graph.blocks[0]!;
  const weights = await loadWeights(rt, source, block.tensors.keys());
  const ids = Int32Array.from({ length: 20 }, (_, i) => (i * 7) % 64);
  let state = embedBatches(rt, graph, outer, batchSequences(rt, [ids], 100))[0] as BlockState;
  const values = (x: Tensor) => [...typed<Float32Array>(x)];
  for (const stage of block.stages) {
    if (stage.id.startsWith('experts.')) {
      const sent = await stage.capture(rt, weights, state);
      const some = await stage.capture(rt, weights, state, 0.5);
      const all = await stage.capture(rt, weights, state, 1);
      await rt.sync();
      for (const [id, x] of sent) {
        const width = x.shape[1] as number;
        const rowsOf = (t: Tensor) =>
          Array.from({ length: t.shape[0] as number }, (_, r) =>
            values(t)
              .slice(r * width, (r + 1) * width)
              .join(),
          );
        assert.equal(some.get(id)?.shape[0], Math.max(10, x.shape[0] as number), id);
        assert.equal(all.get(id)?.shape[0], 20, id);
        // Each row depends on its token alone: those sent are among those of all tokens, bit by bit.
        for (const subset of [x, some.get(id)!]) {
          const whole = new Set(rowsOf(all.get(id)!));
          for (const row of rowsOf(subset)) assert.ok(whole.has(row), `${stage.id} ${id}`);
        }
      }
    }
    state = await stage.advance(rt, weights, state);
  }
});

test('a coverage of experts is refused where there are none', async () => {
  await assert.rejects(
    quantizeCheckpoint([rt], {
      source: path.join(ARCHITECTURES, 'llama'),
      output: path.join(scratch(), 'out'),
      scheme: schemeFromOptions({ bits: 8, groupSize: 32 }),
      rules: [],
      quantizer: gptqQuantizer({ ...GPTQ_DEFAULTS, coverage: 0.5 }),
      calibration: undefined,
      lmHead: false,
      options: {},
      version: 'test',
    }),
    designed('LPQ_USAGE', /no experts/),
  );
});
