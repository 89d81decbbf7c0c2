import assert from 'node:assert/strict';
import test from 'node:test';
import { typed } from '../../../native/binding.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { makeBatch } from '../../../src/model/batch.js';
import { loadOuter, runForward } from '../../../src/model/forward.js';
import { buildGraph, openModel, unusedTensors } from '../../../src/model/graph.js';
import { planModel } from '../../../src/model/plan.js';
import { randomSource } from './fixtures.js';
import type { Layers, Rows } from './plain-forward.js';
import * as plain from './plain-forward.js';

import { agrees, rt, SEQUENCES } from './variants.js';

for (const second of [false, true])
  test(`cohere${second ? '2: windows, positions only with one' : ': norms on the heads with weights of their own'}; biases`, () =>
    agrees(
      {
        model_type: second ? 'cohere2' : 'cohere',
        vocab_size: 90,
        hidden_size: 48,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        num_hidden_layers: 3,
        intermediate_size: 64,
        ...(second ? { sliding_window: 4, sliding_window_pattern: 2 } : { use_qk_norm: true }),
        attention_bias: true,
        logit_scale: 0.5,
        rope_theta: 300,
      },
      (l, ids) => {
        let h = l.rows('model.embed_tokens', ids);
        for (let i = 0; i < 3; i++) {
          const at = `model.layers.${i}.`;
          const sliding = second && i !== 1;
          const x = l.layerNorm(h, `${at}input_layernorm`);
          const turn = (n: string) => {
            const y = l.linear(x, `${at}self_attn.${n}_proj`);
            if (second) return sliding ? plain.rotated(y, 12, plain.turns(300, 12), true) : y;
            return plain.rotated(l.headLayerNorm(y, `${at}self_attn.${n}_norm`, 12), 12, plain.turns(300, 12), true);
          };
          const v = l.linear(x, `${at}self_attn.v_proj`);
          const a = plain.attend(turn('q'), turn('k'), v, {
            headDim: 12,
            scale: 1 / Math.sqrt(12),
            ...(sliding && { window: 4 }),
          });
          const gate = plain.map(l.linear(x, `${at}mlp.gate_proj`), plain.silu);
          const m = l.linear(plain.multiply(gate, l.linear(x, `${at}mlp.up_proj`)), `${at}mlp.down_proj`);
          h = plain.add(plain.add(h, l.linear(a, `${at}self_attn.o_proj`)), m);
        }
        return plain.times(l.linear(l.layerNorm(h, 'model.norm'), 'model.embed_tokens'), 0.5);
      },
    ));

const SHORT = [1, 1.1, 1.3, 2];
const LONG = [1.5, 3, 7, 20];
test('phi3: LongRoPE over part of a head, sequences on either side of the original length, a window', () =>
  agrees(
    {
      model_type: 'phi3',
      vocab_size: 90,
      hidden_size: 48,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      num_hidden_layers: 2,
      intermediate_size: 64,
      max_position_embeddings: 64,
      original_max_position_embeddings: 8,
      partial_rotary_factor: 0.7,
      rope_theta: 100,
      rope_scaling: { type: 'su', short_factor: SHORT, long_factor: LONG },
      sliding_window: 5,
    },
    (l, ids) => {
      const divisors = ids.length > 8 ? LONG : SHORT;
      const frequencies = plain.turns(100, 8).map((frequency, i) => frequency / divisors[i]!);
      const turn = (x: Rows) => plain.rotated(x, 12, frequencies, false, Math.sqrt(1 + Math.log(8) / Math.log(8)));
      let h = l.rows('model.embed_tokens', ids);
      for (let i = 0; i < 2; i++) {
        const at = `model.layers.${i}.`;
        const qkv = l.linear(l.rmsNorm(h, `${at}input_layernorm`, 1e-5), `${at}self_attn.qkv_proj`);
        const [q, k, v] = [plain.columns(qkv, 0, 48), plain.columns(qkv, 48, 24), plain.columns(qkv, 72, 24)];
        const a = plain.attend(turn(q), turn(k), v, { headDim: 12, scale: 1 / Math.sqrt(12), window: 5 });
        h = plain.add(h, l.linear(a, `${at}self_attn.o_proj`));
        const both = l.linear(l.rmsNorm(h, `${at}post_attention_layernorm`, 1e-5), `${at}mlp.gate_up_proj`);
        const inner = plain.multiply(plain.map(plain.columns(both, 0, 64), plain.silu), plain.columns(both, 64, 64));
        h = plain.add(h, l.linear(inner, `${at}mlp.down_proj`));
      }
      return l.linear(l.rmsNorm(h, 'model.norm', 1e-5), 'lm_head');
    },
  ));

for (const three of [false, true])
  test(`gemma${three ? '3_text' : '2'}: older keys, a head that is no part of hidden_size, the pattern of windows`, () =>
    agrees(
      {
        model_type: three ? 'gemma3_text' : 'gemma2',
        vocab_size: 90,
        hidden_size: 48,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        num_hidden_layers: 4,
        intermediate_size: 64,
        head_dim: 20,
        query_pre_attn_scalar: 30,
        sliding_window: 4,
        max_position_embeddings: 64,
        ...(three
          ? {
              sliding_window_pattern: 3,
              rope_theta: 900,
              rope_local_base_freq: 70,
              rope_scaling: { rope_type: 'linear', factor: 4 },
              final_logit_softcapping: 2,
            }
          : { attn_logit_softcapping: 3, final_logit_softcapping: null }),
      },
      (l, ids) => {
        let h = plain.times(l.rows('model.embed_tokens', ids), Math.sqrt(48));
        for (let i = 0; i < 4; i++) {
          const at = `model.layers.${i}.`;
          const norm = (x: Rows, name: string, over?: number) => l.rmsNorm(x, at + name, 1e-6, 1, over);
          const sliding = three ? i !== 2 : i % 2 === 0;
          const frequencies = three
            ? plain.turns(sliding ? 70 : 900, 20).map((frequency) => frequency / (sliding ? 1 : 4))
            : plain.turns(10_000, 20);
          const x = norm(h, 'input_layernorm');
          const turn = (n: string) => {
            const y = l.linear(x, `${at}self_attn.${n}_proj`);
            return plain.rotated(three ? norm(y, `self_attn.${n}_norm`, 20) : y, 20, frequencies, false);
          };
          const a = plain.attend(turn('q'), turn('k'), l.linear(x, `${at}self_attn.v_proj`), {
            headDim: 20,
            scale: 1 / Math.sqrt(30),
            ...(sliding && { window: 4 }),
            ...(!three && { cap: 3 }),
          });
          h = plain.add(h, norm(l.linear(a, `${at}self_attn.o_proj`), 'post_attention_layernorm'));
          const y = norm(h, 'pre_feedforward_layernorm');
          const gate = plain.map(l.linear(y, `${at}mlp.gate_proj`), plain.geluTanh);
          const m = l.linear(plain.multiply(gate, l.linear(y, `${at}mlp.up_proj`)), `${at}mlp.down_proj`);
          h = plain.add(h, norm(m, 'post_feedforward_layernorm'));
        }
        const logits = l.linear(l.rmsNorm(h, 'model.norm', 1e-6, 1), 'model.embed_tokens');
        return three ? plain.capped(logits, 2) : logits;
      },
    ));

test('granite, olmo2, glm4 and starcoder2: biases on and off, multipliers, shares of a head', async () => {
  const common = {
    vocab_size: 90,
    hidden_size: 48,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    num_hidden_layers: 2,
    intermediate_size: 64,
    max_position_embeddings: 64,
    rope_theta: 200,
  };
  const gated = (l: Layers, x: Rows, at: string) => {
    const gate = plain.map(l.linear(x, `${at}mlp.gate_proj`), plain.silu);
    return l.linear(plain.multiply(gate, l.linear(x, `${at}mlp.up_proj`)), `${at}mlp.down_proj`);
  };
  const through = (ids: number[], l: Layers, block: (h: Rows, at: string) => Rows, scale = 1) => {
    let h = plain.times(l.rows('model.embed_tokens', ids), scale);
    for (let i = 0; i < 2; i++) h = block(h, `model.layers.${i}.`);
    return h;
  };
  const attention = (l: Layers, x: Rows, at: string, p: { scale?: number; over?: boolean; window?: number }) => {
    const turn = (n: string) => {
      const y = l.linear(x, `${at}self_attn.${n}_proj`);
      return plain.rotated(
        p.over ? l.rmsNorm(y, `${at}self_attn.${n}_norm`, 1e-5) : y,
        12,
        plain.turns(200, 12),
        false,
      );
    };
    const a = plain.attend(turn('q'), turn('k'), l.linear(x, `${at}self_attn.v_proj`), {
      headDim: 12,
      scale: p.scale ?? 1 / Math.sqrt(12),
      ...(p.window && { window: p.window }),
    });
    return l.linear(a, `${at}self_attn.o_proj`);
  };
  await agrees(
    {
      ...common,
      model_type: 'granite',
      attention_bias: true,
      mlp_bias: true,
      embedding_multiplier: 3,
      attention_multiplier: 0.2,
      residual_multiplier: 0.7,
      logits_scaling: 1.3,
      tie_word_embeddings: true,
    },
    (l, ids) => {
      const h = through(
        ids,
        l,
        (x, at) => {
          const a = attention(l, l.rmsNorm(x, `${at}input_layernorm`, 1e-6), at, { scale: 0.2 });
          const y = plain.add(x, a, 0.7);
          return plain.add(y, gated(l, l.rmsNorm(y, `${at}post_attention_layernorm`, 1e-6), at), 0.7);
        },
        3,
      );
      return plain.times(l.linear(l.rmsNorm(h, 'model.norm', 1e-6), 'model.embed_tokens'), 1 / 1.3);
    },
  );
  await agrees({ ...common, model_type: 'olmo2', attention_bias: true }, (l, ids) => {
    const h = through(ids, l, (x, at) => {
      const a = attention(l, x, at, { over: true });
      const y = plain.add(x, l.rmsNorm(a, `${at}post_attention_layernorm`, 1e-5));
      return plain.add(y, l.rmsNorm(gated(l, y, at), `${at}post_feedforward_layernorm`, 1e-5));
    });
    return l.linear(l.rmsNorm(h, 'model.norm', 1e-5), 'lm_head');
  });
  await agrees(
    { ...common, model_type: 'starcoder2', use_bias: false, sliding_window: 3, tie_word_embeddings: false },
    (l, ids) => {
      const h = through(ids, l, (x, at) => {
        const y = plain.add(x, attention(l, l.layerNorm(x, `${at}input_layernorm`), at, { window: 3 }));
        const inner = l.linear(l.layerNorm(y, `${at}post_attention_layernorm`), `${at}mlp.c_fc`);
        return plain.add(y, l.linear(plain.map(inner, plain.geluTanh), `${at}mlp.c_proj`));
      });
      return l.linear(l.layerNorm(h, 'model.norm'), 'lm_head');
    },
  );
  await agrees(
    { ...common, model_type: 'glm4', head_dim: 16, partial_rotary_factor: 0.25, rms_norm_eps: 1e-4 },
    (l, ids) => {
      const h = through(ids, l, (x, at) => {
        const norm = (y: Rows, name: string) => l.rmsNorm(y, at + name, 1e-4);
        const z = norm(x, 'input_layernorm');
        const turn = (n: string) =>
          plain.rotated(l.linear(z, `${at}self_attn.${n}_proj`), 16, plain.turns(200, 4), true);
        const a = plain.attend(turn('q'), turn('k'), l.linear(z, `${at}self_attn.v_proj`), {
          headDim: 16,
          scale: 0.25,
        });
        const y = plain.add(x, norm(l.linear(a, `${at}self_attn.o_proj`), 'post_self_attn_layernorm'));
        const both = l.linear(norm(y, 'post_attention_layernorm'), `${at}mlp.gate_up_proj`);
        const inner = plain.multiply(plain.map(plain.columns(both, 0, 64), plain.silu), plain.columns(both, 64, 64));
        return plain.add(y, norm(l.linear(inner, `${at}mlp.down_proj`), 'post_mlp_layernorm'));
      });
      return l.linear(l.rmsNorm(h, 'model.norm', 1e-4), 'lm_head');
    },
  );
});

test('llama: dynamic RoPE beyond the trained length, each sequence by its own', () =>
  agrees(
    {
      model_type: 'llama',
      vocab_size: 90,
      hidden_size: 48,
      num_attention_heads: 4,
      num_hidden_layers: 1,
      intermediate_size: 64,
      max_position_embeddings: 6,
      rope_scaling: { type: 'dynamic', factor: 3 },
      rope_theta: 50,
    },
    (l, ids) => {
      const length = Math.max(ids.length, 6);
      const theta = 50 * ((3 * length) / 6 - 2) ** (12 / 10);
      const turn = (x: Rows) => plain.rotated(x, 12, plain.turns(theta, 12), false);
      const at = 'model.layers.0.';
      let h = l.rows('model.embed_tokens', ids);
      const x = l.rmsNorm(h, `${at}input_layernorm`, 1e-6);
      const [q, k, v] = ['q', 'k', 'v'].map((n) => l.linear(x, `${at}self_attn.${n}_proj`)) as [Rows, Rows, Rows];
      const a = plain.attend(turn(q), turn(k), v, { headDim: 12, scale: 1 / Math.sqrt(12) });
      h = plain.add(h, l.linear(a, `${at}self_attn.o_proj`));
      const y = l.rmsNorm(h, `${at}post_attention_layernorm`, 1e-6);
      const gate = plain.map(l.linear(y, `${at}mlp.gate_proj`), plain.silu);
      h = plain.add(h, l.linear(plain.multiply(gate, l.linear(y, `${at}mlp.up_proj`)), `${at}mlp.down_proj`));
      return l.linear(l.rmsNorm(h, 'model.norm', 1e-6), 'lm_head');
    },
  ));

test('settings that would change the computation are refused by name', () => {
  const plan = (config: Record<string, unknown>) => planModel(architectureOf(config, 'dir'), config, 'dir');
  const gemma = {
    model_type: 'gemma3_text',
    vocab_size: 9,
    hidden_size: 8,
    num_attention_heads: 1,
    num_hidden_layers: 1,
  };
  const config = { ...gemma, intermediate_size: 8 };
  assert.equal(buildGraph(plan({ ...config, use_bidirectional_attention: false })).blocks.length, 1);
  const rejects = (more: Record<string, unknown>, message: RegExp) =>
    assert.throws(
      () => plan({ ...config, ...more }),
      (error: Error & { code?: string }) => error.code === 'LPQ_CONFIG' && message.test(error.message),
    );
  rejects({ use_bidirectional_attention: true }, /use_bidirectional_attention/);
  rejects({ query_pre_attn_scalar: 0 }, /query_pre_attn_scalar/);
  rejects({ model_type: 'gemma2', attn_logit_softcapping: -3 }, /attn_logit_softcapping/);
  // Gemma 3's class has the key and does not read it.
  assert.deepEqual(plan({ ...config, attn_logit_softcapping: 5 }), plan(config));
  rejects({ model_type: 'granite', logits_scaling: 0 }, /logits_scaling/);
});

test('gemma3: the language model inside, under either path, with its class defaults; the rest is left', async () => {
  const text_config = {
    hidden_size: 48,
    intermediate_size: 64,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 20,
    vocab_size: 90,
    sliding_window: 4,
    layer_types: ['sliding_attention', 'full_attention'],
  };
  const config = { model_type: 'gemma3', architectures: ['Gemma3ForConditionalGeneration'], text_config };
  const inner = randomSource({ ...text_config, model_type: 'gemma3_text' });
  const logits = async (prefix: string, source = config as Record<string, unknown>) => {
    const rename = (name: string) => name.replace(prefix, 'model.');
    const vision = 'vision_tower.vision_model.embeddings.patch_embedding.weight';
    const names = [...inner.names()].map((name) => name.replace('model.', prefix));
    const whole = {
      ...inner,
      config: source,
      names: () => [...names, vision],
      has: (name: string) => name === vision || names.includes(name),
      shape: (name: string) => (name === vision ? [4, 3, 2, 2] : inner.shape(rename(name))),
      tensor: (name: string) => inner.tensor(rename(name)),
    };
    const graph = openModel(whole);
    if (prefix !== 'model.') assert.deepEqual(unusedTensors(whole, graph), [vision]);
    const outer = await loadOuter(rt, whole, graph);
    const [state] = await runForward(rt, whole, graph, outer, [makeBatch(rt, SEQUENCES)]);
    const result = graph.logits(rt, outer, state!.h);
    await rt.sync();
    return [...typed(result)];
  };
  const want = await logits('model.', { ...text_config, model_type: 'gemma3_text' });
  assert.deepEqual(await logits('model.language_model.'), want);
  assert.deepEqual(await logits('language_model.model.'), want);

  // As the 4B is published: sizes that are not said are those of the class.
  const published = { ...config, text_config: { hidden_size: 2560, intermediate_size: 10_240, num_hidden_layers: 34 } };
  const plan = planModel(architectureOf(published, 'dir'), published, 'dir');
  assert.deepEqual([plan.vocab, plan.blocks.length, plan.tied], [262_208, 34, true]);
  const [first, sixth] = [plan.blocks[0]!.attention, plan.blocks[5]!.attention];
  assert.ok(first.kind === 'attention' && sixth.kind === 'attention');
  const { heads, kvHeads, headDim, window } = first;
  assert.deepEqual([heads, kvHeads, headDim, window, sixth.window], [8, 4, 256, 4096, 0]);
  const bare = { ...config, text_config: null };
  assert.throws(
    () => planModel(architectureOf(bare, 'dir'), bare, 'dir'),
    (error: Error & { code?: string }) => error.code === 'LPQ_CONFIG' && /text_config/.test(error.message),
  );
});
