import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { GgufValue } from '../../../../formats/gguf/metadata.js';
import { GgufFile } from '../../../../formats/gguf/read.js';
import { GgufTensors } from '../../../../formats/gguf/source/tensors.js';
import { typed } from '../../../../native/binding.js';
import { ggufModel } from '../../../../src/model/gguf/model.js';
import { ARCHITECTURES } from '../../../src/model/fixtures.js';
import { designed, scratch } from '../../scratch.js';
import { EMBEDDING, madeIn, NORM, number, type Part, text } from './made.js';

// Matrices whose halves of rows a file has apart, and numbers of blocks that it lists.

const GRANITE: Readonly<Record<string, GgufValue>> = {
  'general.architecture': text('granitehybrid'),
  ...Object.fromEntries(
    Object.entries({
      ...{ embedding_length: 8, block_count: 1, feed_forward_length: 4, context_length: 16 },
      ...{ 'attention.head_count': 2, 'attention.head_count_kv': 2 },
      ...{ 'ssm.time_step_rank': 2, 'ssm.inner_size': 16, 'ssm.state_size': 4, 'ssm.group_count': 1 },
      'ssm.conv_kernel': 4,
    }).map(([key, value]) => [`granitehybrid.${key}`, number(value)]),
  ),
  'granitehybrid.attention.layer_norm_rms_epsilon': { type: 'f32', value: 1e-5 },
};
const GATE: Part = { name: 'blk.0.ffn_gate.weight', dims: [8, 4] };
const UP: Part = { name: 'blk.0.ffn_up.weight', dims: [8, 4] };
const WHOLE = 'model.layers.0.shared_mlp.input_linear.weight';

test('halves of rows are one matrix of the checkpoint, and one for who reads the file', () => {
  const file = madeIn(scratch(), GRANITE, [EMBEDDING, NORM, GATE, UP], 'm.gguf');
  const tensors = GgufTensors.open([file]);
  assert.deepEqual(tensors.shape(WHOLE), [8, 8]);
  const rows = (part: number) => Array.from({ length: 32 }, (_, i) => 64 * part + i);
  const expected = [...rows(2), ...rows(3)];
  assert.deepEqual([...typed<Float32Array>(tensors.tensor(WHOLE))], expected);
  const gguf = GgufFile.open(file);
  const both = `${GATE.name}+${UP.name}`;
  assert.ok(gguf.has(both) && !gguf.has(`${GATE.name}+x`));
  assert.deepEqual([...typed<Float32Array>(gguf.tensor(both))], expected);
  assert.throws(
    () => gguf.matrix(`${GATE.name}+${EMBEDDING.name.replace('embd', 'x')}`),
    designed('LPQ_TENSOR_MISSING', /token_x/),
  );
  assert.throws(() => gguf.matrix(`${GATE.name}+${NORM.name}`), designed('LPQ_ARTIFACT', /no halves of one matrix/));
  for (const each of [tensors, gguf]) each.close();
});

test('a half without the other, or of another size, is refused', () => {
  const open = (...parts: Part[]) =>
    GgufTensors.open([madeIn(scratch(), GRANITE, [EMBEDDING, NORM, ...parts], 'm.gguf')]);
  const refused = designed('LPQ_GGUF', /lacks a half of 'model\.layers\.0\.shared_mlp\.input_linear\.weight'/);
  assert.throws(() => open(GATE), refused);
  assert.throws(() => open(UP), refused);
  assert.throws(() => open(GATE, { ...UP, dims: [8, 2] }), refused);
});

test('a list of numbers of blocks that is missing or too short is refused', () => {
  const apertus = (beta: GgufValue | undefined): Record<string, GgufValue | undefined> => ({
    ...Object.fromEntries(
      Object.entries(GRANITE).map(([key, value]) => [key.replace('granitehybrid', 'apertus'), value]),
    ),
    'general.architecture': text('apertus'),
    ...Object.fromEntries(
      ['alpha_p', 'alpha_n', 'eps'].map((key) => [`xielu.${key}`, { type: 'f32s', value: [0.5] } as const]),
    ),
    'xielu.beta': beta,
  });
  const open = (beta?: GgufValue) => GgufTensors.open([madeIn(scratch(), apertus(beta), [EMBEDDING, NORM], 'm.gguf')]);
  const tensors = open({ type: 'f32s', value: [0.25] });
  const name = 'model.layers.0.mlp.act_fn.beta';
  assert.deepEqual([tensors.dtype(name), tensors.shape(name)], ['F32', []]);
  assert.deepEqual([...typed<Float32Array>(tensors.tensor(name))], [0.25]);
  tensors.close();
  assert.throws(() => open(), designed('LPQ_GGUF', /xielu\.beta/));
  assert.throws(() => open({ type: 'f32s', value: [] }), designed('LPQ_GGUF', /xielu\.beta/));
});

test('positions of more axes than text, height and width are not written', () => {
  const config = JSON.parse(readFileSync(path.join(ARCHITECTURES, 'glm4v', 'config.json'), 'utf8')) as {
    text_config: { rope_parameters: object };
  };
  const text_config = {
    ...config.text_config,
    rope_parameters: { ...config.text_config.rope_parameters, mrope_section: [1, 1, 1, 1] },
  };
  assert.throws(() => ggufModel('DIR', { ...config, text_config }), designed('LPQ_TARGET', /axes of mrope_section/));
});

test('Granite 4 that llama.cpp computes otherwise is not written', () => {
  const config = JSON.parse(
    readFileSync(path.join(ARCHITECTURES, 'granitemoehybrid', 'config.json'), 'utf8'),
  ) as Record<string, unknown>;
  const refused = (more: object, message: RegExp) =>
    assert.throws(() => ggufModel('DIR', { ...config, ...more }), designed('LPQ_TARGET', message));
  assert.equal(ggufModel('DIR', config).metadata.get('granitehybrid.rope.scaling.finetuned')?.value, false);
  refused({ mamba_conv_bias: false }, /biases of convolutions/);
  refused({ mamba_n_groups: 2 }, /group by group/);
  refused({ layer_types: ['attention', 'attention'] }, /wants recurrent layers/);
});
