import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { makeBatch } from '../../../src/model/batch.js';
import type { FoldSite } from '../../../src/model/fold-axes.js';
import { foldRewrite, permuted, refusedSites, rewrittenSource, scaleRewrite } from '../../../src/model/folded.js';
import { foldSites } from '../../../src/model/folds.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel, planSource } from '../../../src/model/graph.js';
import { scaleSites } from '../../../src/model/scale-sites.js';
import type { WeightSource } from '../../../src/model/source.js';
import { Random } from '../../native/support.js';
import { ARCHITECTURES, GOLDENS, PlainFile, plainSource } from './fixtures.js';

function shuffled(size: number, random: Random): Int32Array {
  const order = Int32Array.from({ length: size }, (_, i) => i);
  for (let i = size - 1; i > 0; i--) {
    const j = random.integer(0, i);
    [order[i], order[j]] = [order[j] as number, order[i] as number];
  }
  return order;
}

async function worst(source: WeightSource, golden: PlainFile): Promise<number> {
  const rt = createRuntime(2);
  const ids = golden.tensor('input_ids');
  const [rows, length] = ids.shape as [number, number];
  const flat = typed<Int32Array>(ids);
  const sequences = Array.from({ length: rows }, (_, row) => flat.slice(row * length, (row + 1) * length));
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)]);
  const logits = graph.logits(rt, outer, state!.h);
  await rt.sync();
  const want = typed(golden.tensor('logits'));
  return typed(logits).reduce((most, value, i) => Math.max(most, Math.abs(value - (want[i] as number))), 0);
}

for (const name of GOLDENS) {
  const dir = path.join(ARCHITECTURES, name);

  // The bound of the unpermuted model (golden.test.ts): sums run in another order, which is rounding and nothing else.
  test(`${name}: every fold site, shuffled at random, leaves transformers' logits`, async (t) => {
    const source = plainSource(dir);
    const graph = openModel(source);
    const all = foldSites(planSource(source));
    const refused = refusedSites(source, graph, all);
    // What a projector writes into the residual stream, or a tower may, is not the graph's: that stream keeps its order.
    const beside = architectureOf(source.config, dir).text !== undefined;
    assert.deepEqual([...refused.keys()], beside ? ['residual'] : [], [...refused.values()].join());
    const sites = all.filter(({ id }) => !refused.has(id));
    const random = new Random(7);
    const permutations = new Map(sites.map(({ id, size }) => [id, shuffled(size, random)]));
    const folded = rewrittenSource(source, foldRewrite(sites, permutations, graph.transposed));
    const difference = await worst(folded, new PlainFile(path.join(dir, 'golden.safetensors')));
    const kinds = [...new Set(sites.map(({ kind }) => kind))].join(', ');
    t.diagnostic(`${sites.length} sites (${kinds}), max |Δlogit| ${difference.toExponential(2)}`);
    assert.ok(difference <= 1e-4, `logits differ by ${difference}`);
  });

  // Powers of two change no product; bf16 weights keep every bit.
  test(`${name}: every scale site, raised at random, leaves transformers' logits`, async (t) => {
    const source = plainSource(dir);
    const graph = openModel(source);
    const sites = scaleSites(planSource(source));
    const random = new Random(5);
    const powers = new Map(
      sites.map(({ id, size }) => [id, Int32Array.from({ length: size }, () => random.integer(-4, 4))]),
    );
    const scaled = rewrittenSource(source, scaleRewrite(sites, powers, graph.transposed));
    const difference = await worst(scaled, new PlainFile(path.join(dir, 'golden.safetensors')));
    t.diagnostic(`${sites.length} sites, max |Δlogit| ${difference.toExponential(2)}`);
    assert.ok(difference <= 1e-4, `logits differ by ${difference}`);
  });

  // A site that changed nothing, or that every axis of were forgotten together, would pass the test above.
  test(`${name}: a site with one axis left out changes the logits`, async () => {
    const source = plainSource(dir);
    const graph = openModel(source);
    const sites = foldSites(planSource(source));
    const random = new Random(11);
    const seen = new Set<string>();
    for (const site of sites) {
      if (seen.has(site.kind)) continue;
      seen.add(site.kind);
      // Axes of matrices: a vector may be constant (a norm's weights of 1), and then its order means nothing.
      const axes = site.axes.filter(({ tensor }) => graphShape(source, graph, tensor).length > 1);
      const left = axes[random.integer(0, axes.length - 1)];
      const torn: FoldSite = { ...site, axes: site.axes.filter((axis) => axis !== left) };
      const rewrite = foldRewrite([torn], new Map([[site.id, shuffled(site.size, random)]]), graph.transposed);
      const golden = new PlainFile(path.join(dir, 'golden.safetensors'));
      const difference = await worst(rewrittenSource(source, rewrite), golden);
      assert.ok(difference > 1e-4, `${site.id} without ${left?.tensor} changes the logits by ${difference} only`);
    }
  });
}

function graphShape(source: WeightSource, graph: ReturnType<typeof openModel>, name: string): readonly number[] {
  return (
    graph.outer.get(name) ??
    graph.blocks.map((block) => block.tensors.get(name)).find((shape) => shape !== undefined) ??
    source.shape(name)
  );
}

test('a tensor beside the graph with an axis of the stream refuses the residual site by name', () => {
  const source = plainSource(path.join(ARCHITECTURES, 'llama'));
  const extra = 'model.layers.2.eh_proj.weight';
  const more: WeightSource = {
    ...source,
    names: () => [...source.names(), extra],
    has: (name) => name === extra || source.has(name),
    shape: (name) => (name === extra ? [32, 64] : source.shape(name)),
  };
  const sites = foldSites(planSource(more));
  const refused = refusedSites(more, openModel(more), sites);
  assert.deepEqual([...refused.keys()], ['residual']);
  assert.match(refused.get('residual') ?? '', /eh_proj.*32/);
});

test('scaling by powers of two: bits of every dtype, and what leaves the range', () => {
  const site = { id: 's', size: 2, raise: [{ tensor: 't', axis: 1 as const, starts: [0] }], lower: [], readers: [] };
  const by = (power: number) => scaleRewrite([site], new Map([['s', Int32Array.of(power, -power)]]), new Set());
  const row = (dtype: 'f32' | 'f16' | 'bf16', data: ArrayBufferView) => fromTyped(dtype, [1, 2], data);
  assert.deepEqual([...typed(by(3)('t', row('f32', Float32Array.of(1.5, -8))))], [12, -1]);
  // 1.0 and -1.0: the exponent moves.
  assert.deepEqual([...typed<Uint16Array>(by(3)('t', row('bf16', Uint16Array.of(0x3f80, 0xbf80))))], [0x4100, 0xbe00]);
  assert.deepEqual([...typed<Uint16Array>(by(3)('t', row('f16', Uint16Array.of(0x3c00, 0xbc00))))], [0x4800, 0xb000]);
  // f16: the smallest subnormal becomes 4 of them; 3 * 2^-24 divided by 4 is 0.75 of one, and 2^-14 becomes a subnormal.
  assert.deepEqual([...typed<Uint16Array>(by(2)('t', row('f16', Uint16Array.of(1, 3))))], [4, 1]);
  assert.deepEqual([...typed<Uint16Array>(by(-2)('t', row('f16', Uint16Array.of(0x0400, 0x0000))))], [0x0100, 0]);
  for (const [dtype, data] of [
    ['f16', Uint16Array.of(0x7bff, 0)],
    ['bf16', Uint16Array.of(0x7f00, 0)],
    ['f32', Float32Array.of(3e38, 0)],
  ] as const)
    assert.throws(
      () => by(1)('t', row(dtype, data)),
      (error: unknown) =>
        error instanceof LpqError && error.code === 'LPQ_MODULE_NUMERICS' && /'t'/.test(error.message),
    );
});

test('what is not a permutation is refused', () => {
  const site: FoldSite = { id: 's', kind: 'hidden', size: 3, axes: [], readers: [] };
  for (const order of [Int32Array.of(0, 1), Int32Array.of(0, 1, 1), Int32Array.of(0, 1, 3)])
    assert.throws(
      () => foldRewrite([site], new Map([['s', order]]), new Set()),
      (error: unknown) =>
        error instanceof LpqError && error.code === 'LPQ_INTERNAL' && /'?s is not a permutation/.test(error.message),
    );
});

test('rows and columns move whole elements of every width', () => {
  const wide = fromTyped('f64', [2, 3], Float64Array.of(1, 2, 3, 4, 5, 6));
  const moved = permuted(wide, Int32Array.of(1, 0), Int32Array.of(2, 0, 1));
  assert.deepEqual([...typed<Float64Array>(moved)], [6, 4, 5, 3, 1, 2]);
  const bytes = fromTyped('u8', [3], Uint8Array.of(7, 8, 9));
  assert.deepEqual([...typed<Uint8Array>(permuted(bytes, Int32Array.of(2, 0, 1), undefined))], [9, 7, 8]);
});
