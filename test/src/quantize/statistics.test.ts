import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { StatisticsManifest } from '../../../formats/statistics/schema.js';
import { createRuntime, readTyped, type Tensor } from '../../../native/binding.js';
import { batchSequences } from '../../../src/model/batch.js';
import { embedBatches, loadOuter } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { BlockState, Feed } from '../../../src/model/program.js';
import { loadWeights } from '../../../src/model/weights.js';
import { collectStatistics } from '../../../src/quantize/collect.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { ARCHITECTURES, plainSource } from '../model/fixtures.js';
import {
  calibration,
  hashes,
  request,
  rt,
  saved,
  saving,
  scratch,
  tiny,
  tokens,
  triangleOf,
  withSaved,
} from './saved-statistics.js';

/** What every feed of a model sees, by plain forward passes: one state after another, no sweeps and no streams. */
async function inputs(dir: string, sequences: readonly Int32Array[]): Promise<Map<Feed, Float32Array[]>> {
  const source = plainSource(dir);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  let states: BlockState[] = embedBatches(rt, graph, outer, batchSequences(rt, sequences, 1));
  const found = new Map<Feed, Float32Array[]>();
  for (const block of graph.blocks) {
    const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
    for (const stage of block.stages) {
      const next: BlockState[] = [];
      for (const state of states) {
        const captured = await stage.capture(rt, weights, state);
        for (const feed of stage.feeds)
          found.set(feed, [...(found.get(feed) ?? []), await readTyped(rt, captured.get(feed.id) as Tensor)]);
        next.push(await stage.advance(rt, weights, state));
      }
      states = next;
    }
  }
  if (!graph.head.tied) {
    const feed = { id: 'lm_head', linears: [graph.head] };
    const heads = states.map(({ h }) => readTyped(rt, graph.headInput(rt, outer, h)));
    found.set(feed, await Promise.all(heads));
  }
  return found;
}

/** Compares saved statistics with sums in f64 over those inputs; returns how many rows were compared, feed by feed. */
async function compare(dir: string, source: string, sequences: readonly Int32Array[]): Promise<number[]> {
  const { feeds } = JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as StatisticsManifest;
  const expected = await inputs(source, sequences);
  assert.equal(Object.keys(feeds).length, expected.size);
  const rows: number[] = [];
  for (const [{ linears }, parts] of expected) {
    const name = `${linears[0]?.name}.moments`;
    const { k } = linears[0] as Feed['linears'][number];
    const x = parts.flatMap((part) =>
      Array.from({ length: part.length / k }, (_, r) => part.subarray(r * k, (r + 1) * k)),
    );
    assert.deepEqual(
      feeds[name]?.linears,
      linears.map((linear) => linear.name),
    );
    assert.deepEqual([feeds[name]?.k, feeds[name]?.rows], [k, x.length]);
    rows.push(x.length);
    const h = triangleOf(dir, name);
    for (let i = 0; i < k; i += 1 + (i % 7))
      for (let j = 0; j <= i; j += 1 + (j % 5)) {
        let [want, size] = [0, 0];
        for (const row of x) {
          const product = (row[i] as number) * (row[j] as number);
          want += product;
          size += Math.abs(product);
        }
        // Each of at most 512 products is added in f32 (2^-24 of the partial sum), and the result is rounded to f32 once more.
        const tolerance = (Math.min(x.length, 512) + 2) * 2 ** -24 * size;
        const got = h[(i * (i + 1)) / 2 + j] as number;
        assert.ok(Math.abs(got - want) <= tolerance, `${name} [${i}][${j}]: ${got}, not ${want} ± ${tolerance}`);
      }
  }
  return rows;
}

test('what is saved are the second moments of the unquantized model', async () => {
  await saving;
  assert.deepEqual(new Set(await compare(saved, tiny, calibration.sequences)), new Set([210]));
});

test('an untied head, linears stored as [K, N], and experts, one of which no token may reach', async (t) => {
  const dir = scratch(t);
  for (const [arch, count, lmHead] of [
    ['qwen3_moe', 2, false],
    ['gpt_oss', 2, false],
    ['deepseek_v3', 2, false],
    ['gpt2', 2, false],
    ['llama-yarn-bias', 2, true],
  ] as const) {
    const source = path.join(ARCHITECTURES, arch);
    const output = path.join(dir, arch);
    const few = tokens(1, count, 64);
    await collectStatistics([rt], { source, output, calibration: few, version: 'test' });
    const rows = await compare(output, source, few.sequences);
    if (arch === 'qwen3_moe') assert.ok(rows.includes(0) && rows.includes(count));
    await withSaved(output, async (statistics) => {
      const scheme = schemeFromOptions({ bits: 4, groupSize: 16 });
      const { modules } = await quantizeCheckpoint(
        [rt],
        request(`${output}-w4`, { source, statistics, scheme, lmHead }),
      );
      const methods = new Set(modules.map(({ method }) => method));
      // Two rows are too few for most: those are rounded, and say so.
      assert.ok(methods.has('rtn'));
      if (lmHead) assert.ok(modules.some(({ name }) => name === 'lm_head'));
    });
  }
});

test('two devices: the sums differ by rounding only, and the same statistics give the same bytes', async (t) => {
  await saving;
  const dir = scratch(t);
  const rts = [createRuntime(1), createRuntime(1)];
  const both = path.join(dir, 'both');
  const manifest = await collectStatistics(rts, { source: tiny, output: both, calibration, version: 'test' });
  assert.equal(manifest.backend, 'cpu x2');
  await compare(both, tiny, calibration.sequences);
  const weights = async (name: string, runtimes: typeof rts) => {
    const output = path.join(dir, name);
    await withSaved(saved, (statistics) => quantizeCheckpoint(runtimes, request(output, { statistics })));
    return hashes(output)['model.safetensors'];
  };
  assert.equal(await weights('one', [rt]), await weights('two', rts));
});
