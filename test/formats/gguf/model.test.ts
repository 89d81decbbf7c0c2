import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ggufArchitecture } from '../../../formats/gguf/architectures/index.js';
import { ggufName as nameIn, ggufOrder as orderIn } from '../../../formats/gguf/names.js';
import { ggufTokenizer } from '../../../formats/gguf/tokenizer.js';
import { ggufModel } from '../../../src/model/gguf/model.js';
import { designed, scratch } from '../scratch.js';

const BASE = {
  model_type: 'llama',
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 4,
  num_hidden_layers: 2,
  intermediate_size: 128,
  max_position_embeddings: 8192,
  vocab_size: 300,
};

const MOE = {
  ...{ model_type: 'qwen3_moe', num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 32 },
  ...{ norm_topk_prob: true },
};
const LLAMA3 = {
  ...{ rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 },
  original_max_position_embeddings: 8192,
};
const MIXED = ['sliding_attention', 'full_attention'];

test('what llama.cpp would compute otherwise is refused, naming it', () => {
  const cases: [object, RegExp][] = [
    [{ model_type: 'opt' }, /no table for GGUF of model_type 'opt'/],
    [{ model_type: 'constructor' }, /'constructor'/],
    [{ rope_scaling: { rope_type: 'dynamic', factor: 2 } }, /RoPE scaling/],
    [{ rope_parameters: { rope_type: 'yarn', factor: 2, beta_fast: 16 } }, /RoPE scaling.*beta_fast 16/],
    [{ model_type: 'qwen2', rope_scaling: LLAMA3 }, /RoPE scaling.*got llama3/],
    [{ ...MOE, norm_topk_prob: false }, /norm_topk_prob.*got false.*expected true/],
    [{ ...MOE, mlp_only_layers: [0] }, /whether block 0 has experts/],
    [{ model_type: 'gemma2', head_dim: 16, query_pre_attn_scalar: 4 }, /gemma2 differently: the scale of attention/],
    [{ model_type: 'gemma2', head_dim: 16, tie_word_embeddings: false }, /the head is the embedding/],
    [{ model_type: 'olmo2', tie_word_embeddings: true }, /wants a head of its own/],
    [{ model_type: 'arcee', mlp_bias: true }, /biases of MLPs/],
    [{ model_type: 'seed_oss', attention_out_bias: true }, /a bias of attention's output of block 0/],
    [{ model_type: 'starcoder2', hidden_act: 'relu' }, /the activation.*got relu.*gelu_tanh or gelu/],
    [{ model_type: 'smollm3', no_rope_layer_interval: 2 }, /whether block 1 rotates positions/],
    [{ model_type: 'cohere', use_qk_norm: true }, /norms of q and k in models of 64 blocks/],
    [{ model_type: 'exaone4', sliding_window: 64, layer_types: MIXED }, /windows in models of 64 blocks/],
    [{ ...MOE, model_type: 'olmoe', num_key_value_heads: 2 }, /as many heads of keys as of queries/],
    [
      { model_type: 'lfm2', norm_eps: 1e-5, layer_types: ['conv', 'full_attention'], conv_bias: true },
      /biases of conv/,
    ],
    [
      { model_type: 'llama4_text', attention_chunk_size: 64, no_rope_layers: [1, 1] },
      /chunks of attention of block 0.*got 64.*8192/,
    ],
    [{ model_type: 'phimoe' }, /'phimoe' to GGUF.*SparseMixer/],
    [{ model_type: 'falcon_h1' }, /'falcon_h1' to GGUF.*multipliers/],
  ];
  for (const [config, message] of cases)
    assert.throws(() => ggufModel('DIR', { ...BASE, ...config }), designed('LPQ_TARGET', message));
  const { hidden_size: _, ...lacking } = BASE;
  assert.throws(() => ggufModel('DIR', lacking), designed('LPQ_CONFIG', /hidden_size/));
  assert.throws(() => ggufModel('DIR', { ...BASE, vocab_size: 'many' }), designed('LPQ_CONFIG', /vocab_size/));
});

test('Gemma 3n is refused with sizes and shares that llama.cpp has no keys for, naming them', () => {
  const layers = 25;
  const blocks = <T>(of: (i: number) => T) => Array.from({ length: layers }, (_, i) => of(i));
  const GEMMA = {
    ...{ ...BASE, model_type: 'gemma3n_text', num_hidden_layers: layers, num_kv_shared_layers: 5 },
    ...{ vocab_size_per_layer_input: 200, intermediate_size: 128, tie_word_embeddings: true },
    activation_sparsity_pattern: blocks((i) => (i < 10 ? 0.95 : 0)),
  };
  assert.equal(ggufModel('DIR', GEMMA).unread.length, 15);
  const cases: [object, RegExp][] = [
    [{ altup_num_inputs: 3 }, /has 4 streams \(altup_num_inputs\), and this one 3/],
    [{ laurel_rank: 32 }, /a laurel_rank of 64, and this one 32/],
    [{ hidden_size_per_layer_input: 128 }, /hidden_size_per_layer_input of 256, and this one 128/],
    [{ altup_correct_scale: false }, /altup_correct_scale/],
    [{ final_logit_softcapping: 20 }, /a cap of the logits.*got 20.*expected 30/],
    [{ num_kv_shared_layers: 0 }, /values of block 20 are those of block 18 there, and its own here/],
    [{ num_kv_shared_layers: 6 }, /values of block 19 are its own there, and those of block 14 here/],
    [{ activation_sparsity_pattern: blocks(() => 0.95) }, /activation_sparsity_pattern.*block 10 is no such/],
    [{ activation_sparsity_pattern: blocks(() => 0) }, /activation_sparsity_pattern.*block 0 is no such/],
    [{ intermediate_size: blocks((i) => (i === 3 ? 64 : 128)) }, /block 0 has 128 and block 3 64/],
    [{ vocab_size_per_layer_input: 301 }, /per-layer embeddings beyond the vocabulary.*got 301.*expected 300/],
  ];
  for (const [config, message] of cases)
    assert.throws(() => ggufModel('DIR', { ...GEMMA, ...config }), designed('LPQ_TARGET', message));
});

test('MiniMax-M3 is refused with indexers and gates that llama.cpp computes otherwise', () => {
  const M3 = {
    ...{ ...BASE, model_type: 'minimax_m3_vl_text', num_key_value_heads: 2, rotary_dim: 8, head_dim: 16 },
    ...{ intermediate_size: 64, num_local_experts: 4, num_experts_per_tok: 2 },
    ...{ shared_intermediate_size: 64, index_n_heads: 2, index_head_dim: 16 },
    ...{ layer_types: ['full_attention', 'minimax_m3_sparse'], mlp_layer_types: ['dense', 'sparse'] },
  };
  assert.equal(ggufModel('DIR', M3).metadata.get('minimax-m3.attention.indexer.top_k')?.value, 16);
  const cases: [object, RegExp][] = [
    [{ swiglu_limit: 5 }, /a limited gate/],
    [{ shared_intermediate_size: 96 }, /shared experts are as wide as several of the others, and this one's 96/],
    [{ layer_types: ['minimax_m3_sparse', 'minimax_m3_sparse'] }, /indexers in the blocks with experts, and block 0/],
    [{ index_n_heads: 4 }, /an indexer's head for each head of keys, and block 1 4 for 2/],
    [{ index_block_size: 96 }, /2, 4, 8 or so many keys, and this one of 96/],
  ];
  for (const [config, message] of cases)
    assert.throws(() => ggufModel('DIR', { ...M3, ...config }), designed('LPQ_TARGET', message));
});

test('what config.json leaves out is what the class takes, not what Llama does', () => {
  const values = (more: object) => {
    const { metadata } = ggufModel('DIR', { ...BASE, ...more });
    return ['rope.freq_base', 'attention.layer_norm_rms_epsilon', 'attention.key_length'].map(
      (key) => [...metadata].find(([name]) => name.endsWith(`.${key}`))?.[1].value,
    );
  };
  const experts = { num_experts_per_tok: 2, num_experts: 4, num_local_experts: 4, moe_intermediate_size: 32 };
  assert.deepEqual(values({}), [10_000, 1e-6, 16]);
  assert.deepEqual(values({ model_type: 'mixtral', ...experts }), [1_000_000, 1e-5, 16]);
  assert.deepEqual(values({ model_type: 'qwen3' }), [10_000, 1e-6, 128]);
  assert.deepEqual(values({ model_type: 'qwen3_moe', norm_topk_prob: true, ...experts }), [10_000, 1e-6, 16]);
});

test('the factors of Llama 3.1: short waves stay, long ones are stretched', () => {
  const rope_scaling = {
    ...{ rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 },
    original_max_position_embeddings: 8192,
  };
  const { ropeTensors } = ggufModel('DIR', { ...BASE, head_dim: 128, rope_theta: 500_000, rope_scaling });
  const ropeFactors = ropeTensors.get('rope_freqs.weight');
  assert.equal(ropeFactors?.length, 64);
  assert.equal(ropeFactors?.[0], 1);
  assert.equal(ropeFactors?.[63], 8);
  // Published with the 8B model's file: the first stretched frequency is number 29.
  const first = [...(ropeFactors ?? [])].findIndex((factor) => factor > 1);
  const wavelength = (i: number) => 2 * Math.PI * 500_000 ** (i / 64);
  assert.ok(wavelength(first - 1) < 2048 && wavelength(first) >= 2048);
  assert.equal(ggufModel('DIR', BASE).ropeTensors.size, 0);
});

const ggufName = (name: string, type = 'llama') => nameIn(ggufArchitecture(type)!, name);
const ggufOrder = (name: string) => orderIn(ggufArchitecture('llama')!, name);

test('names: experts of both families, biases, and what has no place', () => {
  assert.deepEqual(ggufName('model.layers.3.block_sparse_moe.experts.7.w2.weight', 'mixtral'), {
    name: 'blk.3.ffn_down_exps.weight',
    expert: 7,
  });
  assert.deepEqual(ggufName('model.layers.0.self_attn.k_proj.bias'), {
    name: 'blk.0.attn_k.bias',
    fix: 'interleaved-k',
  });
  for (const name of [
    'model.layers.0.self_attn.rotary_emb.inv_freq',
    'model.mtp.0.weight',
    'model.layers.0.mlp.experts.1.constructor.weight',
    'model.layers.0.toString.weight',
  ])
    assert.equal(ggufName(name), undefined);
  assert.ok(ggufOrder('token_embd.weight') < ggufOrder('blk.0.attn_q.weight'));
  assert.ok(ggufOrder('blk.9.ffn_down.weight') < ggufOrder('blk.10.attn_norm.weight'));
});

function tokenizer(json: object, settings?: object): string {
  const dir = scratch();
  writeFileSync(path.join(dir, 'tokenizer.json'), JSON.stringify(json));
  if (settings) writeFileSync(path.join(dir, 'tokenizer_config.json'), JSON.stringify(settings));
  return dir;
}

test('a tokenizer with byte fallback: types, scores by the rank of merges, added rows', () => {
  const vocab = { '<unk>': 0, '<s>': 1, '</s>': 2, '<0x0A>': 3, a: 4, b: 5, ab: 6, '▁a': 7, '▁': 8 };
  const dir = tokenizer(
    {
      model: { type: 'BPE', byte_fallback: true, unk_token: '<unk>', vocab, merges: ['▁ a', 'a b'] },
      added_tokens: [
        { id: 1, content: '<s>', special: true },
        { id: 9, content: '<tool>', special: false },
      ],
      normalizer: { type: 'Prepend', prepend: '▁' },
    },
    { bos_token: { content: '<s>' }, eos_token: '</s>', add_bos_token: true, chat_template: '{{ messages }}' },
  );
  const { metadata } = ggufTokenizer(dir, {}, 11);
  const value = (key: string) => metadata.get(`tokenizer.${key}`)?.value;
  assert.equal(value('ggml.model'), 'llama');
  assert.deepEqual(value('ggml.tokens'), [...Object.keys(vocab), '<tool>', '[PAD10]']);
  assert.deepEqual(value('ggml.token_type'), [2, 3, 1, 6, 1, 1, 1, 1, 1, 4, 5]);
  const scores = value('ggml.scores') as number[];
  // The first merge scores highest; what no merge makes scores below all of them.
  assert.deepEqual([scores[7], scores[6]], [-0, -1]);
  assert.ok([4, 5, 8].every((id) => scores[id]! < -1));
  assert.deepEqual(
    ['bos_token_id', 'eos_token_id', 'add_bos_token', 'add_eos_token', 'add_space_prefix'].map((key) =>
      value(`ggml.${key}`),
    ),
    [1, 2, true, false, true],
  );
  assert.equal(value('chat_template'), '{{ messages }}');
});

test('splitting patterns have names; an unknown one is told; other tokenizers are refused', () => {
  const bpe = { type: 'BPE', vocab: { a: 0 }, merges: [], ignore_merges: true };
  const split = (Regex: string) => ({
    type: 'Sequence',
    pretokenizers: [
      { type: 'Split', pattern: { Regex } },
      { type: 'ByteLevel', use_regex: false },
    ],
  });
  const qwen =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const pre = (pre_tokenizer: object) => {
    const { metadata, notes } = ggufTokenizer(tokenizer({ model: bpe, pre_tokenizer }), {}, 1);
    return [metadata.get('tokenizer.ggml.pre')?.value, notes.length];
  };
  assert.deepEqual(pre(split(qwen)), ['qwen2', 0]);
  assert.deepEqual(pre(split(qwen.replace('\\p{N}|', '\\p{N}{1,3}|'))), ['llama-bpe', 0]);
  assert.deepEqual(pre(split('.+')), ['default', 1]);
  assert.deepEqual(pre({ type: 'ByteLevel' }), ['gpt-2', 0]);
  assert.throws(
    () => ggufTokenizer(tokenizer({ model: { type: 'Unigram', vocab: [['a', 0]] } }), {}, 1),
    designed('LPQ_TARGET', /not a tokenizer that lpq can write/),
  );
  assert.throws(
    () => ggufTokenizer(tokenizer({ model: { ...bpe, vocab: { a: 5 } } }), {}, 1),
    designed('LPQ_CONFIG', /token "a" has no row/),
  );
  const none = ggufTokenizer(scratch(), {}, 1);
  assert.deepEqual([none.metadata.get('tokenizer.ggml.model')?.value, none.notes.length], ['none', 1]);
});
