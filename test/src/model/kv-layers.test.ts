import assert from 'node:assert/strict';
import { test } from 'node:test';
import { typed } from '../../../native/binding.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { KvModelScheme, WeightSource } from '../../../src/model/source.js';
import { randomSource } from './fixtures.js';
import * as plain from './plain-forward.js';
import { Layers, type Rows } from './plain-forward.js';
import { rt, SEQUENCES } from './variants.js';

const HEAD = 12;
const CONFIG = {
  model_type: 'llama',
  vocab_size: 90,
  hidden_size: 48,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  num_hidden_layers: 3,
  intermediate_size: 64,
  rope_theta: 300,
  rms_norm_eps: 1e-5,
};

type Bits = readonly [keys: number, values: number];

/** The nearest f16, ties to even. */
function halfOf(x: number): number {
  const unit = 2 ** (Math.max(-14, Math.floor(Math.log2(Math.abs(x) || 1))) - 10);
  return even(x / unit) * unit;
}

function even(x: number): number {
  const below = Math.floor(x);
  return x - below === 0.5 ? below + (Math.abs(below) % 2) : Math.round(x);
}

/** Numbers that share a scale, as formats/kv/spec.md stores them, read back. */
function stored(x: readonly number[], bits: number): number[] {
  const halves = x.map(halfOf);
  const [low, high] = [Math.min(...halves), Math.max(...halves)];
  const top = 2 ** bits - 1;
  const scale = halfOf(Math.fround(Math.fround(high - low) / top));
  return halves.map((value) => {
    const steps = scale === 0 ? 0 : Math.fround(Math.fround(value - low) / scale);
    return Math.min(top, even(steps)) * scale + low;
  });
}

const turned = (x: Rows): Rows => x[0]!.map((_, c) => x.map((row) => row[c]!));
/** Channels over all tokens, which are fewer than a group. */
const keysOf = (x: Rows, bits: number): Rows => turned(turned(x).map((channel) => stored(channel, bits)));
const valuesOf = (x: Rows, bits: number): Rows =>
  x.map((row) => [0, 1].flatMap((head) => stored(row.slice(head * HEAD, (head + 1) * HEAD), bits)));

/** Llama over one sequence, with the bits of each layer's cache; every token is packed before it is read. */
function forward(l: Layers, ids: number[], bits: readonly Bits[]): Rows {
  let h = l.rows('model.embed_tokens', ids);
  for (const [i, [keyBits, valueBits]] of bits.entries()) {
    const at = `model.layers.${i}.`;
    const x = l.rmsNorm(h, `${at}input_layernorm`, 1e-5);
    const turn = (n: string) =>
      plain.rotated(l.linear(x, `${at}self_attn.${n}_proj`), HEAD, plain.turns(300, HEAD), false);
    const [k, v] = [keysOf(turn('k'), keyBits), valuesOf(l.linear(x, `${at}self_attn.v_proj`), valueBits)];
    const a = plain.attend(turn('q'), k, v, { headDim: HEAD, scale: 1 / Math.sqrt(HEAD) });
    h = plain.add(h, l.linear(a, `${at}self_attn.o_proj`));
    const m = l.rmsNorm(h, `${at}post_attention_layernorm`, 1e-5);
    const gate = plain.map(l.linear(m, `${at}mlp.gate_proj`), plain.silu);
    h = plain.add(h, l.linear(plain.multiply(gate, l.linear(m, `${at}mlp.up_proj`)), `${at}mlp.down_proj`));
  }
  return l.linear(l.rmsNorm(h, 'model.norm', 1e-5), 'lm_head');
}

async function logits(source: WeightSource): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  const [state] = await runForward(rt, source, graph, outer, [makeBatch(rt, SEQUENCES)]);
  const found = graph.logits(rt, outer, state!.h);
  await rt.sync();
  return typed<Float32Array>(found);
}

test('bits by layer: each layer reads its own cache, as plain loops quantize it', async () => {
  const kv: KvModelScheme = {
    form: 'bitdecoding',
    keys: { bits: 4, granularity: 'channel', group: 32 },
    values: { bits: 4, group: HEAD },
    residual: 0,
    layers: { 0: { keys: 8, values: 4 }, 2: { keys: 2, values: 2 } },
  };
  const source = { ...randomSource(CONFIG), kv };
  const got = await logits(source);
  const layers = await Layers.of(source);
  /** How far the model is from plain loops with these bits, relative to the largest logit. */
  const distance = (bits: readonly Bits[]): number => {
    const want = SEQUENCES.flatMap((ids) => forward(layers, [...ids], bits)).flat();
    const most = Math.max(...want.map(Math.abs));
    return Math.max(...want.map((value, i) => Math.abs(got[i]! - value))) / most;
  };
  // fp32 through a few layers of width 48, as of variants.ts: with these weights no code lies so near a tie that it flips.
  const own = distance([
    [8, 4],
    [4, 4],
    [2, 2],
  ]);
  assert.ok(own < 1e-4, `${own}`);
  for (const others of [
    [
      [4, 4],
      [8, 4],
      [2, 2],
    ],
    [
      [8, 4],
      [4, 4],
      [4, 4],
    ],
    [
      [4, 8],
      [4, 4],
      [2, 2],
    ],
  ] as const)
    assert.ok(distance(others) > 1e-3, JSON.stringify(others));
});
