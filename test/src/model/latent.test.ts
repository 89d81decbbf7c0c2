import assert from 'node:assert/strict';
import test from 'node:test';
import { createRuntime, fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { makeBatch } from '../../../src/model/batch.js';
import { buildGraph, openModel } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';
import type { BlockState, BlockWeights } from '../../../src/model/program.js';
import { CONFIGS } from './configs.js';
import { shapesOnly } from './fixtures.js';
import { ReferenceRuntime } from './reference-runtime.js';

// DeepSeek's attention with what the golden lacks, token by token as arXiv:2405.04434 (section 2.1) writes it.
const [HEADS, PLAIN, ROTARY, VALUE, LATENT, HIDDEN] = [4, 12, 8, 10, 24, 64];
const BLOCK = 'model.layers.0.self_attn.';

type Matrix = Float64Array[];
type Weights = (name: string) => Float64Array;

const times = (weight: Float64Array, x: Float64Array, bias?: Float64Array): Float64Array =>
  Float64Array.from({ length: weight.length / x.length }, (_, n) =>
    x.reduce((sum, value, k) => sum + value * weight[n * x.length + k]!, bias ? bias[n]! : 0),
  );
const rms = (x: Float64Array, gain: Float64Array, eps: number): Float64Array => {
  const by = 1 / Math.sqrt(x.reduce((sum, value) => sum + value * value, 0) / x.length + eps);
  return x.map((value, i) => value * by * gain[i]!);
};

/** Turns pairs of x by position * theta^(-2i/d), YaRN left out: its frequencies are rope.test.ts's. */
function turned(x: Float64Array, position: number, neighbours: boolean): Float64Array {
  const y = x.slice();
  const half = x.length / 2;
  for (let i = 0; i < half; i++) {
    const [a, b] = neighbours ? [2 * i, 2 * i + 1] : [i, i + half];
    const angle = position * 10_000 ** (-i / half);
    y[a] = x[a]! * Math.cos(angle) - x[b]! * Math.sin(angle);
    y[b] = x[b]! * Math.cos(angle) + x[a]! * Math.sin(angle);
  }
  return y;
}

function attend(
  h: Matrix,
  w: Weights,
  p: { direct: boolean; bias: boolean; neighbours: boolean; scale: number },
): Matrix {
  const bias = (name: string) => (p.bias ? w(`${BLOCK}${name}.bias`) : undefined);
  const weight = (name: string) => w(`${BLOCK}${name}.weight`);
  const size = PLAIN + ROTARY;
  const tokens = h.map((row, t) => {
    const x = rms(row, w('model.layers.0.input_layernorm.weight'), 1e-5);
    const compressed = times(weight('kv_a_proj_with_mqa'), x, bias('kv_a_proj_with_mqa'));
    const both = times(weight('kv_b_proj'), rms(compressed.slice(0, LATENT), weight('kv_a_layernorm'), 1e-6));
    const q = p.direct
      ? times(weight('q_proj'), x)
      : times(weight('q_b_proj'), rms(times(weight('q_a_proj'), x, bias('q_a_proj')), weight('q_a_layernorm'), 1e-6));
    const common = turned(compressed.slice(LATENT), t, p.neighbours);
    const heads = Array.from({ length: HEADS }, (_, head) => {
      const own = both.slice(head * (PLAIN + VALUE), (head + 1) * (PLAIN + VALUE));
      const query = q.slice(head * size, (head + 1) * size);
      return {
        q: [...query.slice(0, PLAIN), ...turned(query.slice(PLAIN), t, p.neighbours)],
        k: [...own.slice(0, PLAIN), ...common],
        v: own.slice(PLAIN),
      };
    });
    return heads;
  });
  return h.map((row, t) => {
    const out = new Float64Array(HEADS * VALUE);
    for (let head = 0; head < HEADS; head++) {
      const { q } = tokens[t]![head]!;
      const shares = tokens.slice(0, t + 1).map((each) => {
        const { k } = each[head]!;
        return Math.exp(p.scale * q.reduce((sum, value, i) => sum + value * k[i]!, 0));
      });
      const total = shares.reduce((a, b) => a + b, 0);
      for (let i = 0; i < VALUE; i++)
        out[head * VALUE + i] = shares.reduce((sum, share, u) => sum + (share / total) * tokens[u]![head]!.v[i]!, 0);
    }
    const o = times(weight('o_proj'), out, bias('o_proj'));
    return row.map((value, i) => value + o[i]!);
  });
}

const { rope_parameters: _, ...old } = CONFIGS.deepseek_v3!;
const theta = { rope_theta: 10_000 };
// Linear scaling by 1 leaves the angles and takes the path of scaled scores.
const scaled = { rope_type: 'linear', factor: 1, mscale_all_dim: 0 };
const VARIANTS = {
  'compressed queries, neighbours': {},
  'compressed queries, halves, biases': { rope_interleave: false, attention_bias: true },
  'direct queries, biases': { q_lora_rank: null, attention_bias: true },
  'direct queries, V2': { ...CONFIGS.deepseek_v2, rope_parameters: undefined, rope_scaling: scaled },
};

for (const [title, change] of Object.entries(VARIANTS))
  for (const [kind, rt, bound] of [
    ['reference', new ReferenceRuntime(), 4e-6],
    ['native', createRuntime(2), 2e-5],
  ] as [string, NativeRuntime, number][])
    test(`latent attention, ${title}: the graph on ${kind} operations gives the paper's formulas`, async () => {
      const config: Record<string, unknown> = { ...old, ...theta, num_hidden_layers: 1, ...change };
      const graph = buildGraph(planModel(architectureOf(config, 'models/test'), config, 'models/test'));
      const block = graph.blocks[0]!;
      let state = 20_240_607;
      const draw = () => {
        state = (state * 16_807) % 2_147_483_647;
        return state / 2_147_483_647 - 0.5;
      };
      const weights: BlockWeights = new Map();
      for (const [name, shape] of block.tensors) {
        const count = shape.reduce((a, b) => a * b, 1);
        weights.set(
          name,
          fromTyped(
            'f32',
            shape,
            Float32Array.from({ length: count }, () => 0.6 * draw()),
          ),
        );
      }
      const [T, first] = [11, Float32Array.from({ length: 11 * HIDDEN }, () => 2 * draw())];
      let at: BlockState = {
        batch: makeBatch(rt, [new Int32Array(T)]),
        h: fromTyped('f32', [T, HIDDEN], first),
        aux: {},
      };
      for (const stage of block.stages.slice(0, 3)) at = await stage.advance(rt, weights, at);
      await rt.sync();
      const rows = Array.from({ length: T }, (_, t) => Float64Array.from(first.slice(t * HIDDEN, (t + 1) * HIDDEN)));
      const want = attend(rows, (name) => Float64Array.from(typed(weights.get(name) as Tensor)), {
        direct: config.q_lora_rank === null,
        bias: config.attention_bias === true,
        neighbours: config.rope_interleave !== false,
        scale: 1 / Math.sqrt(PLAIN + ROTARY),
      });
      const got = typed(at.h);
      // Some five linears in sequence, each a sum of at most 64 terms of size 0.3, stored in f32: some units of 2^-24 * 64 at
      // worst, and outputs are of size 1 to 10.
      for (const [t, row] of want.entries())
        for (const [i, value] of row.entries()) {
          const found = got[t * HIDDEN + i]!;
          assert.ok(Math.abs(found - value) < bound, `token ${t}, channel ${i}: ${found}, not ${value}`);
        }
    });

test('tensors of all experts: names, and what is no such tensor', async () => {
  const config = { ...CONFIGS.gpt_oss, num_hidden_layers: 1 };
  const graph = buildGraph(planModel(architectureOf(config, 'models/test'), config, 'models/test'));
  const own = [...graph.outer, ...graph.blocks[0]!.tensors].filter(([name]) => !name.includes('experts.'));
  const block = 'model.layers.0.mlp.experts';
  const fused: [string, readonly number[]][] = [
    [`${block}.gate_up_proj`, [8, 64, 192]],
    [`${block}.gate_up_proj_bias`, [8, 192]],
    [`${block}.down_proj`, [8, 96, 64]],
    [`${block}.down_proj_bias`, [8, 64]],
  ];
  openModel(shapesOnly(config, new Map([...own, ...fused])));
  const refused = (change: Record<string, readonly number[]>, code: string, name: string) =>
    assert.throws(
      () => openModel(shapesOnly(config, new Map([...own, ...fused, ...Object.entries(change)]))),
      (error: { code?: string; message: string }) => error.code === code && error.message.includes(name),
    );
  refused({ [`${block}.gate_up_proj`]: [8, 64, 191] }, 'LPQ_TENSOR_SHAPE', 'gate_up_proj');
  refused({ [`${block}.down_proj`]: [8 * 96, 64] }, 'LPQ_TENSOR_SHAPE', 'down_proj');
  // Stored the other way round: not what config.json says.
  refused({ [`${block}.down_proj`]: [8, 64, 96] }, 'LPQ_TENSOR_SHAPE', 'experts.down_proj');
  refused({ [`${block}.gate_up_proj`]: [7, 64, 192] }, 'LPQ_TENSOR_MISSING', 'experts.7.gate_proj.weight');
});
