import assert from 'node:assert/strict';
import path from 'node:path';
import { before, test } from 'node:test';
import { CanonicalSource } from '../../../formats/canonical/source.js';
import { GgufTensors } from '../../../formats/gguf/source/tensors.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { scratch } from '../../formats/scratch.js';
import type { Forgery } from '../verify/gguf-forge.js';
import {
  configOf,
  containerOf,
  failuresOf,
  packedGguf,
  rewritten,
  type Stored,
  sameFile,
  withTokens,
} from './gguf-checkpoints.js';

// Gemma 3n: stacks outside the blocks, embeddings with fewer rows than the vocabulary, blocks that share keys and values.

const runtime = createRuntime(2);
const LAYERS = 22;
const CONFIG = {
  ...{ vocab_size: 320, vocab_size_per_layer_input: 300, num_hidden_layers: LAYERS, num_kv_shared_layers: 2 },
  ...{ hidden_size: 32, hidden_size_per_layer_input: 256, intermediate_size: 64, head_dim: 32 },
  ...{ altup_num_inputs: 4, laurel_rank: 64 },
  activation_sparsity_pattern: Array.from({ length: LAYERS }, (_, i) => (i < 10 ? 0.95 : 0)),
  layer_types: Array.from({ length: LAYERS }, (_, i) => (i % 5 < 4 ? 'sliding_attention' : 'full_attention')),
};
const root = scratch();
const at = (name: string) => path.join(root, name);

let said = '';
before(async () => {
  await withTokens('gemma3n_text', at('text'), CONFIG);
  said = await packedGguf(at('text'));
});

test('stacks and per-layer embeddings are what was quantized, by both readers', async () => {
  assert.deepEqual(await failuresOf(at('text')), []);
  const source = CanonicalSource.open(at('text-q'), runtime);
  const [artifact, read] = [
    artifactSource(at('text-g'), runtime),
    GgufTensors.open([path.join(at('text-g'), 'model.gguf')]),
  ];
  for (const name of source.names()) {
    if (/\.layers\.|embed_tokens\.weight/.test(name) || name === 'model.norm.weight') continue;
    const expected = await source.tensor(name);
    for (const reader of [artifact, read]) {
      assert.deepEqual(reader.shape(name), source.shape(name), name);
      const got = await reader.tensor(name);
      if (got.dtype === expected.dtype) assert.deepEqual(typed(got), typed(expected), name);
      else assert.equal(got.dtype, 'f32', name);
    }
  }
  for (const each of [source, artifact, read]) each.close();
});

test('blocks that share keys and values get zeros, and pack says so', () => {
  assert.match(said, /Blocks 20 to 21 read keys and values of others.*lpq wrote zeros/s);
  const file = containerOf(at('text'));
  assert.deepEqual(file.tensor('altup_proj.weight').dims, [32, 32, 3]);
  assert.deepEqual(file.tensor('per_layer_token_embd.weight').dims, [256 * LAYERS, 320]);
  for (const [part, type] of Object.entries({ attn_k: 1, attn_v: 1, attn_k_norm: 0 })) {
    const { data, type: stored } = file.tensor(`blk.20.${part}.weight`);
    assert.ok(stored === type && data.every((byte) => byte === 0), part);
    assert.ok(file.tensor(`blk.19.${part}.weight`).data.some((byte) => byte !== 0));
  }
});

test('with every hash redone, numbers in the place of zeros are found, and parts of a stack that change places', async () => {
  const put = (name: string, where: (length: number) => number): Forgery => ({
    gguf: (file) => {
      const { data } = file.tensor(name);
      data[where(data.length)] = 1;
    },
  });
  const last = await failuresOf(
    at('text'),
    put('per_layer_token_embd.weight', (length) => length - 1),
  );
  assert.match(last.join(), /'per_layer_token_embd.weight' is not zero in row 319/);
  const key = await failuresOf(
    at('text'),
    put('blk.21.attn_k.weight', () => 0),
  );
  assert.match(key.join(), /'blk.21.attn_k.weight' is not zero in row 0/);
  const moved = await failuresOf(at('text'), {
    gguf: (file) => {
      const stack = file.tensor('altup_unembd_proj.weight');
      const size = stack.data.length / 3;
      stack.data = Buffer.concat([stack.data.subarray(size), stack.data.subarray(0, size)]);
    },
  });
  assert.match(moved.join(), /altup_unembd_proj.weight\[0\]' differs from 'model.altup_unembed_projections.0.weight'/);
  const rows = await failuresOf(at('text'), {
    gguf: (file) => void file.key('lpq.per_layer_rows').value.writeUInt32LE(301),
  });
  assert.match(rows.join(), /'lpq.per_layer_rows'/);
  assert.deepEqual(await failuresOf(at('text'), { gguf: () => {} }), []);
});

test('keys and values that such blocks have in the checkpoint are carried as they are', async () => {
  const made = (name: string, shape: number[]): Stored => {
    const data = Uint16Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => 0x3f80 + (i % 32));
    return { name, dtype: 'BF16', shape, data };
  };
  const own = [20, 21].flatMap((layer) => [
    made(`model.layers.${layer}.self_attn.k_proj.weight`, [32, 32]),
    made(`model.layers.${layer}.self_attn.v_proj.weight`, [32, 32]),
    made(`model.layers.${layer}.self_attn.k_norm.weight`, [32]),
  ]);
  await rewritten(at('text'), at('own'), (all) => [...all, ...own], configOf(at('text')));
  assert.doesNotMatch(await packedGguf(at('own')), /lpq wrote zeros/);
  assert.deepEqual(await failuresOf(at('own')), []);
  const { data } = containerOf(at('own')).tensor('blk.20.attn_k.weight');
  assert.deepEqual([...new Uint16Array(data.buffer, data.byteOffset, 3)], [0x3f80, 0x3f81, 0x3f82]);
});

test('gemma3n is written as its language model: the same file', async () => {
  const { architectures: _, model_type: __, ...text } = configOf(at('text'));
  const { bos_token_id, eos_token_id, pad_token_id } = text;
  const inside = {
    architectures: ['Gemma3nForConditionalGeneration'],
    model_type: 'gemma3n',
    tie_word_embeddings: true,
  };
  const renamed = (all: readonly Stored[]) =>
    all.map((each) => ({ ...each, name: each.name.replace(/^model\./, 'model.language_model.') }));
  const config = {
    ...inside,
    bos_token_id,
    eos_token_id,
    pad_token_id,
    text_config: { ...text, model_type: 'gemma3n_text' },
  };
  await rewritten(at('text'), at('sees'), renamed, config);
  await packedGguf(at('sees'));
  assert.deepEqual(await failuresOf(at('sees')), []);
  sameFile(at('text'), at('sees'));
});
