// OPT, GPT-NeoX and GPT-2: settings that no golden at hand has.
import assert from 'node:assert/strict';
import test from 'node:test';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import { randomSource } from './fixtures.js';
import type { Rows } from './plain-forward.js';
import * as plain from './plain-forward.js';

import { agrees, places, rt } from './variants.js';

test('opt: norms after the sums, narrower embeddings between projections, no biases (350M)', () =>
  agrees(
    {
      model_type: 'opt',
      vocab_size: 90,
      hidden_size: 48,
      word_embed_proj_dim: 20,
      num_attention_heads: 4,
      num_hidden_layers: 2,
      ffn_dim: 80,
      max_position_embeddings: 16,
      do_layer_norm_before: false,
      enable_bias: false,
    },
    (l, ids) => {
      let h = l.linear(l.rows('model.decoder.embed_tokens', ids), 'model.decoder.project_in');
      h = plain.add(h, l.rows('model.decoder.embed_positions', places(ids, 2)));
      for (let i = 0; i < 2; i++) {
        const at = `model.decoder.layers.${i}.`;
        const [q, k, v] = ['q', 'k', 'v'].map((n) => l.linear(h, `${at}self_attn.${n}_proj`)) as [Rows, Rows, Rows];
        const a = l.linear(plain.attend(q, k, v, { headDim: 12, scale: 1 / Math.sqrt(12) }), `${at}self_attn.out_proj`);
        h = l.layerNorm(plain.add(h, a), `${at}self_attn_layer_norm`);
        const f = l.linear(
          plain.map(l.linear(h, `${at}fc1`), (x) => Math.max(x, 0)),
          `${at}fc2`,
        );
        h = l.layerNorm(plain.add(h, f), `${at}final_layer_norm`);
      }
      return l.linear(l.linear(h, 'model.decoder.project_out'), 'model.decoder.embed_tokens');
    },
  ));

test('opt: norms without weights, gelu, saved from the base class', () =>
  agrees(
    {
      model_type: 'opt',
      vocab_size: 90,
      hidden_size: 48,
      num_attention_heads: 2,
      num_hidden_layers: 1,
      ffn_dim: 64,
      max_position_embeddings: 13,
      layer_norm_elementwise_affine: false,
      activation_function: 'gelu_new',
    },
    (l, ids) => {
      let h = plain.add(l.rows('decoder.embed_tokens', ids), l.rows('decoder.embed_positions', places(ids, 2)));
      const at = 'decoder.layers.0.';
      const x = l.layerNorm(h, 'none');
      const [q, k, v] = ['q', 'k', 'v'].map((n) => l.linear(x, `${at}self_attn.${n}_proj`)) as [Rows, Rows, Rows];
      h = plain.add(
        h,
        l.linear(plain.attend(q, k, v, { headDim: 24, scale: 1 / Math.sqrt(24) }), `${at}self_attn.out_proj`),
      );
      const f = l.linear(plain.map(l.linear(l.layerNorm(h, 'none'), `${at}fc1`), plain.geluTanh), `${at}fc2`);
      return l.linear(l.layerNorm(plain.add(h, f), 'none'), 'decoder.embed_tokens');
    },
    'model.',
  ));

test('gpt_neox: one after the other, older rotary keys, no biases in attention', () =>
  agrees(
    {
      model_type: 'gpt_neox',
      vocab_size: 90,
      hidden_size: 48,
      num_attention_heads: 4,
      num_hidden_layers: 2,
      intermediate_size: 100,
      max_position_embeddings: 64,
      rotary_pct: 0.5,
      rotary_emb_base: 500,
      use_parallel_residual: false,
      attention_bias: false,
      hidden_act: 'gelu_fast',
      layer_norm_eps: 1e-3,
    },
    (l, ids) => {
      let h = l.rows('gpt_neox.embed_in', ids);
      for (let i = 0; i < 2; i++) {
        const at = `gpt_neox.layers.${i}.`;
        const qkv = l.linear(l.layerNorm(h, `${at}input_layernorm`, 1e-3), `${at}attention.query_key_value`);
        // [heads, 3, headDim] in a row.
        const part = (which: number) => qkv.map((row) => row.filter((_, c) => Math.floor(c / 12) % 3 === which));
        const turn = (x: Rows) => plain.rotated(x, 12, plain.turns(500, 6), false);
        const a = plain.attend(turn(part(0)), turn(part(1)), part(2), { headDim: 12, scale: 1 / Math.sqrt(12) });
        h = plain.add(h, l.linear(a, `${at}attention.dense`));
        const x = l.linear(l.layerNorm(h, `${at}post_attention_layernorm`, 1e-3), `${at}mlp.dense_h_to_4h`);
        h = plain.add(h, l.linear(plain.map(x, plain.geluTanh), `${at}mlp.dense_4h_to_h`));
      }
      return l.linear(l.layerNorm(h, 'gpt_neox.final_layer_norm', 1e-3), 'embed_out');
    },
  ));

for (const scale_attn_weights of [true, false])
  test(`gpt2: as published, without the base's name; scores by layer, scaled: ${scale_attn_weights}`, () =>
    agrees(
      {
        model_type: 'gpt2',
        architectures: ['GPT2LMHeadModel'],
        vocab_size: 90,
        n_embd: 48,
        n_head: 4,
        n_layer: 3,
        n_positions: 20,
        n_inner: 52,
        scale_attn_weights,
        scale_attn_by_inverse_layer_idx: true,
      },
      (l, ids) => {
        let h = plain.add(l.rows('wte', ids), l.rows('wpe', places(ids)));
        for (let i = 0; i < 3; i++) {
          const qkv = l.conv1d(l.layerNorm(h, `h.${i}.ln_1`), `h.${i}.attn.c_attn`);
          const [q, k, v] = [0, 48, 96].map((first) => plain.columns(qkv, first, 48)) as [Rows, Rows, Rows];
          const scale = (scale_attn_weights ? 1 / Math.sqrt(12) : 1) / (i + 1);
          h = plain.add(h, l.conv1d(plain.attend(q, k, v, { headDim: 12, scale }), `h.${i}.attn.c_proj`));
          const x = plain.map(l.conv1d(l.layerNorm(h, `h.${i}.ln_2`), `h.${i}.mlp.c_fc`), plain.geluTanh);
          h = plain.add(h, l.conv1d(x, `h.${i}.mlp.c_proj`));
        }
        return l.linear(l.layerNorm(h, 'ln_f'), 'wte');
      },
      'transformer.',
    ));

test('a sequence beyond the learned positions is refused', async () => {
  const config = {
    model_type: 'gpt2',
    vocab_size: 90,
    n_embd: 16,
    n_head: 2,
    n_layer: 1,
    n_positions: 8,
  };
  const source = randomSource(config);
  const graph = openModel(source);
  const outer = await loadOuter(rt, source, graph);
  await assert.rejects(
    runForward(rt, source, graph, outer, [makeBatch(rt, [new Int32Array(9)])]),
    (error: Error & { code?: string }) => error.code === 'LPQ_CONFIG' && /positions/.test(error.message),
  );
});

test('a Conv1D weight that is stored the other way round is refused with the shape that its class has', () => {
  const config = { model_type: 'gpt2', vocab_size: 90, n_embd: 16, n_head: 2, n_layer: 1, n_positions: 8 };
  const source = randomSource(config);
  const name = 'transformer.h.0.mlp.c_fc.weight';
  assert.deepEqual(source.shape(name), [16, 64]);
  const turned = { ...source, shape: (which: string) => (which === name ? [64, 16] : source.shape(which)) };
  assert.throws(
    () => openModel(turned),
    (error: Error & { code?: string; expected?: unknown }) =>
      error.code === 'LPQ_TENSOR_SHAPE' && error.message.includes(name) && error.expected === '[16, 64]',
  );
  // The same tensor as a quantized module is the linear that it is.
  openModel({ ...turned, quantized: (which) => which === name });
});
