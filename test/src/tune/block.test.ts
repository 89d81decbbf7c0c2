import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { batchSequences } from '../../../src/model/batch.js';
import { runBlock } from '../../../src/model/forward.js';
import { openModel, planSource } from '../../../src/model/graph.js';
import type { BlockPlan } from '../../../src/model/plan.js';
import type { BlockState } from '../../../src/model/program.js';
import { RopeCache } from '../../../src/model/rope-cache.js';
import { loadWeights } from '../../../src/model/weights.js';
import { passBlock, withoutGradient } from '../../../src/tune/block.js';
import { Random } from '../../native/support.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const rt = createRuntime(1);

/** A block of a fixture with random weights, and one batch of two sequences. */
async function opened(name: string, index: number) {
  const source = SourceCheckpoint.open(path.join(ARCHITECTURES, name));
  const graph = openModel(source);
  const plan = planSource(source).blocks[index] as BlockPlan;
  const block = graph.blocks[index]!;
  const random = new Random(index + name.length);
  const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
  // Of 1 / sqrt(K), so that no part of the block is negligible; norms about 1. States that last: what one token leaves may be nearly 0,
  // and the norm behind it far from linear.
  for (const [tensor, { shape }] of weights) {
    const k = shape.length > 1 ? shape.at(-1)! : 100;
    const values = random.normals(
      shape.reduce((a, b) => a * b, 1),
      1 / Math.sqrt(k),
    );
    const mean = tensor.endsWith('A_log') ? -4 : shape.length > 1 ? 0 : 1;
    weights.set(
      tensor,
      fromTyped(
        'f32',
        shape,
        values.map((value) => mean + value),
      ),
    );
  }
  const [batch] = batchSequences(rt, [new Int32Array(19), new Int32Array(30)], 64) as unknown as [BlockState['batch']];
  const h = fromTyped('f32', [49, graph.hidden], random.normals(49 * graph.hidden));
  const target = fromTyped('f32', h.shape, random.normals(49 * graph.hidden));
  const state = (): BlockState => {
    const copy = rt.allocate('f32', h.shape);
    ops.cast(rt, h, copy);
    return { batch, h: copy, aux: {}, carried: carried() };
  };
  // What earlier blocks and the embeddings hand on.
  const { attention, perLayer } = plan;
  const made = new Map<string, Tensor>();
  const kept = (name: string, width: number): void => {
    made.set(name, fromTyped('f32', [49, width], random.normals(49 * width)));
  };
  if (perLayer) kept('per_layer', planSource(source).blocks.length * perLayer.size);
  if (attention.kind === 'attention' && attention.reads !== undefined) {
    kept(`keys.${attention.reads}`, attention.kvHeads * attention.headDim);
    kept(`values.${attention.reads}`, attention.kvHeads * attention.valueDim);
  }
  const carried = () => Object.fromEntries([...made].map(([name, tensor]) => [name, tensor.view(tensor.shape)]));
  source.close();
  return { block, plan, weights, state, target, given: new Map([['h', h], ...made]) };
}

// qk-norms, post-norms with caps and windows, norms behind branches, fused projections, sinks' and partial rotation's kin; gated delta
// rules of every order of rows, gated convolutions, gated attention, latent attention, experts beside shared ones, chunks, temperatures;
// layer norms, one for all heads and one a head, projections head by head, clamped gates, xIELU, experts whose inputs have weights or that
// stand beside an MLP, per-layer embeddings, keys of another block or that are values, keys that an indexer chooses, blocks of one branch;
// state spaces of both kinds, norms of groups, attention beside a state space, experts behind a projection.
for (const [name, index] of [
  ['llama', 0],
  ['qwen3', 1],
  ['gemma2', 0],
  ['phi3', 1],
  ['olmo2', 0],
  ['qwen3_5_text', 0],
  ['qwen3_5_text', 1],
  ['olmo_hybrid', 0],
  ['kimi_linear', 0],
  ['lfm2', 0],
  ['qwen3_next', 0],
  ['mixtral', 0],
  ['qwen2_moe', 0],
  ['glm4_moe', 1],
  ['granitemoe', 0],
  ['minimax_m2', 0],
  ['deepseek_v3', 0],
  ['deepseek_v3', 1],
  ['ministral3', 0],
  ['gpt2', 1],
  ['cohere', 0],
  ['nemotron', 1],
  ['stablelm', 0],
  ['gpt_neox', 0],
  ['gpt_oss', 0],
  ['apertus', 0],
  ['llama4_text', 1],
  ['gemma4_text', 0],
  ['gemma4_text', 2],
  ['gemma4_moe', 1],
  ['deepseek_v32', 0],
  ['glm_moe_dsa', 0],
  ['minimax_m3_vl_text', 0],
  ['minimax_m3_vl_text', 1],
  ['nemotron_h', 0],
  ['nemotron_h', 1],
  ['nemotron_h', 2],
  ['nemotron_h-latent', 0],
  ['granitemoehybrid', 0],
  ['jamba', 0],
  ['falcon_h1', 0],
] as const)
  test(`${name}: the block as its stages make it, and gradients that central differences have`, async () => {
    const { block, plan, weights, state, target, given } = await opened(name, index);
    assert.equal(withoutGradient(plan), undefined);
    const linears = block.stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears));
    const gradients = new Map<string, Tensor>();
    for (const { name: linear, n, k } of linears) {
      const gradient = rt.allocate('f32', [n, k]);
      ops.zero(rt, gradient);
      gradients.set(linear, gradient);
    }
    const ropes = new RopeCache();
    const dy = rt.allocate('f32', target.shape);
    const sums = rt.allocate('f64', [49]);
    const pass = await passBlock(rt, plan, weights, ropes, state(), gradients, undefined, true);
    const loss = async (): Promise<number> => {
      // Tokens go to the experts and see the keys that they did: routers and indexers are no part of what is trained.
      const pass = await passBlock(rt, plan, weights, ropes, state(), new Map(), held);
      ops.outputError(rt, pass.output, target, dy, sums);
      await rt.sync();
      pass.dispose();
      return typed<Float64Array>(sums).reduce((a, b) => a + b, 0) / 2;
    };

    const { choices: held } = pass;
    const routes = held.routes;
    const staged = await runBlock(rt, block, weights, state());
    await rt.sync();
    const most = Math.max(...typed(staged.h).map(Math.abs));
    // Residual sums are added in another order: some roundings of the largest element.
    typed(staged.h).forEach((value, i) => {
      assert.ok(Math.abs(typed(pass.output)[i]! - value) <= 1e-5 * most, `element ${i}`);
    });
    ops.outputError(rt, pass.output, target, dy, sums);
    const kept = new Map<string, Tensor>();
    const before = pass.backward(dy, kept)!;
    await rt.sync();

    // Along the gradient itself the loss changes by its norm a unit. Steps of 3e-4 of the weight, or by which the loss changes by 3e-4 where
    // that is less, leave third derivatives (1e-7 of it) and the rounding of a loss in fp32 (about 1e-7 of it, over a change of 3e-4): a
    // bound of 1e-2.
    const whole = typed<Float64Array>(sums).reduce((a, b) => a + b, 0) / 2;
    const expectSlope = async (what: string, tensor: Tensor, gradient: Tensor): Promise<void> => {
      const norm = Math.sqrt(typed(gradient).reduce((sum, g) => sum + g * g, 0));
      const before = typed(tensor).slice();
      const step = 3e-4 * Math.min(Math.sqrt(before.reduce((sum, w) => sum + w * w, 0)), whole / norm);
      const at = async (sign: number): Promise<number> => {
        typed(tensor).forEach((_, i) => {
          typed(tensor)[i] = before[i]! + (sign * step * typed(gradient)[i]!) / norm;
        });
        return loss();
      };
      const slope = ((await at(1)) - (await at(-1))) / (2 * step);
      await at(0);
      assert.ok(Math.abs(slope - norm) <= 1e-2 * norm, `${what}: ${slope}, not ${norm}`);
    };
    for (const [linear, gradient] of gradients) {
      const norm = Math.sqrt(typed(gradient).reduce((sum, g) => sum + g * g, 0));
      // An expert that no token goes to has none, and nothing else.
      const expert = /\.experts\.(\d+)\./.exec(linear);
      const [first, end] = expert && routes ? routes.bounds.slice(Number(expert[1]), Number(expert[1]) + 2) : [0, 1];
      assert.equal(norm > 0, (first as number) < (end as number), linear);
      // All experts are computed alike: the first two stand for them.
      if (norm === 0 || Number(expert?.[1] ?? 0) > 1) continue;
      await expectSlope(linear, weights.get(`${linear}.weight`)!, gradient);
    }
    await expectSlope('the input', given.get('h')!, before);
    for (const [name, gradient] of kept) await expectSlope(name, given.get(name)!, gradient);
  });

test('blocks without a gradient are named by what lacks it; in all other families all blocks are trained', async () => {
  const lacking = (name: string, index: number): string | undefined => {
    const source = SourceCheckpoint.open(path.join(ARCHITECTURES, name));
    try {
      return withoutGradient(planSource(source).blocks[index] as BlockPlan);
    } finally {
      source.close();
    }
  };
  assert.equal(lacking('gemma3n_text', 0), 'alternating updates');
  assert.equal(lacking('longcat_flash', 0), 'experts that are added after a later block');
  assert.equal(lacking('deepseek_v4', 0), 'hyper-connections');
  const whole = (name: string): boolean => {
    const source = SourceCheckpoint.open(path.join(ARCHITECTURES, name));
    try {
      return planSource(source).blocks.every((plan) => withoutGradient(plan) === undefined);
    } finally {
      source.close();
    }
  };
  const some = readdirSync(ARCHITECTURES, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  assert.deepEqual(some.flatMap(({ name }) => (whole(name) ? [] : [name])).sort(), [
    'deepseek_v4',
    'gemma3n_text',
    'longcat_flash',
  ]);
});
