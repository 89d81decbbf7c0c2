import assert from 'node:assert/strict';
import test from 'node:test';
import { type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { batchSequences, makeBatch } from '../../../src/model/batch.js';
import { embedBatches, runForward } from '../../../src/model/forward.js';
import { openModel, unusedTensors } from '../../../src/model/graph.js';
import type { BlockState, BlockWeights, ModelGraph } from '../../../src/model/program.js';
import type { WeightSource } from '../../../src/model/source.js';
import { CONFIGS } from './configs.js';
import { demanded, randomSource, shapesOnly } from './fixtures.js';
import { ReferenceRuntime } from './reference-runtime.js';

async function load(source: WeightSource, graph: ModelGraph): Promise<{ outer: BlockWeights; block: BlockWeights }> {
  const read = async (names: Iterable<string>) => {
    const weights: BlockWeights = new Map();
    for (const name of names) weights.set(name, await source.tensor(name));
    return weights;
  };
  return { outer: await read(graph.outer.keys()), block: await read(graph.blocks[0]!.tensors.keys()) };
}

test('tensors by architecture: names and shapes', () => {
  const llama = demanded(CONFIGS.llama!);
  assert.equal(llama.size, 3 + 4 * 9);
  assert.deepEqual(llama.get('model.layers.3.self_attn.k_proj.weight'), [32, 64]);
  assert.deepEqual(llama.get('model.layers.0.mlp.down_proj.weight'), [64, 96]);
  assert.deepEqual(llama.get('lm_head.weight'), [100, 64]);
  assert.equal(demanded({ ...CONFIGS.llama, tie_word_embeddings: true }).has('lm_head.weight'), false);
  assert.deepEqual(demanded(CONFIGS.qwen2!).get('model.layers.1.self_attn.v_proj.bias'), [32]);
  assert.equal(demanded(CONFIGS.qwen2!).has('model.layers.1.self_attn.o_proj.bias'), false);
  assert.deepEqual(demanded(CONFIGS.qwen3!).get('model.layers.1.self_attn.q_norm.weight'), [32]);
  const moe = demanded(CONFIGS.qwen3_moe!);
  assert.deepEqual(moe.get('model.layers.2.mlp.gate.weight'), [8, 64]);
  assert.deepEqual(moe.get('model.layers.2.mlp.experts.7.up_proj.weight'), [48, 64]);
});

test('a missing tensor and a wrong shape are named', () => {
  const tensors = demanded(CONFIGS.llama!);
  const without = new Map(tensors);
  without.delete('model.layers.2.mlp.up_proj.weight');
  assert.throws(
    () => openModel(shapesOnly(CONFIGS.llama!, without)),
    (error) =>
      error instanceof LpqError &&
      error.code === 'LPQ_TENSOR_MISSING' &&
      error.message.includes("'model.layers.2.mlp.up_proj.weight'"),
  );
  const turned = new Map(tensors).set('model.layers.1.mlp.gate_proj.weight', [64, 96]);
  assert.throws(
    () => openModel(shapesOnly(CONFIGS.llama!, turned)),
    (error) =>
      error instanceof LpqError &&
      error.code === 'LPQ_TENSOR_SHAPE' &&
      error.message.includes("'model.layers.1.mlp.gate_proj.weight'") &&
      error.got === '[64, 96]' &&
      error.expected === '[96, 64]',
  );
});

test('tensors that the graph does not use are listed', () => {
  const tensors = demanded(CONFIGS.llama!).set('model.layers.0.self_attn.rotary_emb.inv_freq', [8]);
  const source = shapesOnly(CONFIGS.llama!, tensors);
  assert.deepEqual(unusedTensors(source, openModel(source)), ['model.layers.0.self_attn.rotary_emb.inv_freq']);
});

test('ragged batches: places, bounds, and no split', () => {
  const sequences = [3, 5, 0, 2, 9, 1].map((length, s) => new Int32Array(length).fill(s));
  const rt = new ReferenceRuntime();
  const batch = makeBatch(rt, sequences);
  assert.deepEqual([...typed<Int32Array>(batch.starts)], [0, 3, 8, 10, 19, 20]);
  assert.deepEqual([...typed<Int32Array>(batch.positions)].slice(0, 10), [0, 1, 2, 0, 1, 2, 3, 4, 0, 1]);
  assert.equal(batch.longest, 9);
  assert.deepEqual(
    batchSequences(rt, sequences, 8).map(({ tokens }) => tokens),
    [8, 2, 9, 1],
  );
});

for (const name of ['llama', 'qwen3_moe', 'qwen2_moe', 'deepseek_v2', 'deepseek_v3', 'gpt_oss'])
  test(`${name}: a batch of several sequences gives each what it gives alone`, async () => {
    const config = { ...CONFIGS[name], num_hidden_layers: 2 };
    const source = randomSource(config);
    const graph = openModel(source);
    const rt = new ReferenceRuntime();
    const { outer } = await load(source, graph);
    const sequences = [Int32Array.of(5, 9, 30, 2), Int32Array.of(77), Int32Array.of(1, 1, 99)];
    const [together] = await runForward(rt, source, graph, outer, [makeBatch(rt, sequences)]);
    const alone = await runForward(rt, source, graph, outer, batchSequences(rt, sequences, 1));
    // The reference sums in the same order either way: equal bits.
    assert.deepEqual(
      [...typed(together!.h)],
      alone.flatMap(({ h }) => [...typed(h)]),
    );
  });

for (const name of Object.keys(CONFIGS))
  test(`${name}: stages cover the block's linears once, and capture what the linears read`, async () => {
    const config = { ...CONFIGS[name], num_hidden_layers: 1 };
    const source = randomSource(config);
    const graph = openModel(source);
    const rt = new ReferenceRuntime();
    const { outer, block: weights } = await load(source, graph);
    const block = graph.blocks[0]!;
    const linears = block.stages.flatMap((stage) => stage.feeds.flatMap((feed) => feed.linears));
    assert.equal(new Set(linears.map((linear) => linear.name)).size, linears.length);
    for (const { name: linear, n, k } of linears) assert.deepEqual(block.tensors.get(`${linear}.weight`), [n, k]);
    const routers = /\.(gate|router|shared_expert_gate)\.weight$/;
    const matrices = [...block.tensors].filter(([tensor, shape]) => shape.length === 2 && !routers.test(tensor));
    assert.equal(linears.length, matrices.length);

    const ids = [Int32Array.of(3, 14, 15, 92, 6), Int32Array.of(53, 58)];
    let [state] = embedBatches(rt, graph, outer, [makeBatch(rt, ids)]) as [BlockState];
    for (const stage of block.stages) {
      const before = typed(state.h).slice();
      const captured = await stage.capture(rt, weights, state);
      assert.deepEqual(typed(state.h), before, 'capture must not change the state');
      assert.deepEqual(
        [...captured.keys()],
        stage.feeds.map((feed) => feed.id),
      );
      const expert = (id: string) => stage.feeds.find((feed) => feed.id === id)?.linears[0]?.expert !== undefined;
      const rows = (list: [string, Tensor][]) => list.reduce((sum, [, x]) => sum + x.shape[0]!, 0);
      const routed = [...captured].filter(([id]) => expert(id));
      assert.equal(rows(routed), routed.length > 0 ? 7 * 2 : 0);
      for (const [id, x] of captured) assert.ok(expert(id) || x.shape[0] === 7, id);
      for (const feed of stage.feeds) assert.equal(captured.get(feed.id)!.shape[1], feed.linears[0]!.k);
      for (const x of captured.values()) x.dispose();
      state = await stage.advance(rt, weights, state);
    }
    assert.deepEqual(state.aux, {});
  });

test('what a stage captures times its weights is what the next stage works on', async () => {
  // down's input is silu(gate) * up of gate_up's input: recomputed here in plain loops.
  const config = { ...CONFIGS.llama, num_hidden_layers: 1 };
  const source = randomSource(config);
  const graph = openModel(source);
  const rt = new ReferenceRuntime();
  const { outer, block: weights } = await load(source, graph);
  const stages = graph.blocks[0]!.stages;
  let [state] = embedBatches(rt, graph, outer, [makeBatch(rt, [Int32Array.of(1, 2, 3)])]) as [BlockState];
  for (const stage of stages.slice(0, 2)) state = await stage.advance(rt, weights, state);
  const x = typed((await stages[2]!.capture(rt, weights, state)).get('gate_up')!).slice();
  state = await stages[2]!.advance(rt, weights, state);
  const inner = typed((await stages[3]!.capture(rt, weights, state)).get('down')!);
  const row = (linear: string, t: number, n: number) => {
    const w = typed(weights.get(`model.layers.0.mlp.${linear}.weight`)!);
    let sum = 0;
    for (let i = 0; i < 64; i++) sum += x[t * 64 + i]! * w[n * 64 + i]!;
    return sum;
  };
  for (let t = 0; t < 3; t++)
    for (let n = 0; n < 96; n++) {
      const gate = row('gate_proj', t, n);
      const want = (gate / (1 + Math.exp(-gate))) * row('up_proj', t, n);
      // gate and up are stored in f32 between: three roundings of 2^-24.
      assert.ok(Math.abs(inner[t * 96 + n]! - want) <= 4 * 2 ** -24 * Math.max(1, Math.abs(want)));
    }
});

test('tokens outside the vocabulary are refused', () => {
  const source = randomSource(CONFIGS.llama!);
  const graph = openModel(source);
  const rt = new ReferenceRuntime();
  for (const id of [100, -1])
    assert.throws(
      () => embedBatches(rt, graph, new Map(), [makeBatch(rt, [Int32Array.of(1, id)])]),
      (error) => error instanceof LpqError && error.code === 'LPQ_CONFIG' && error.got === id,
    );
});
