import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { openModel } from '../../../src/model/graph.js';
import { designed } from '../../formats/scratch.js';

const tiny = path.join(shareDirectory(), 'tiny-llama');

/** Reads the tiny model with its config.json changed. */
function opened(change: Record<string, unknown>): void {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-ranges-'));
  try {
    const config = JSON.parse(readFileSync(path.join(tiny, 'config.json'), 'utf8')) as object;
    // 1e999 is JSON, and infinite.
    const text = JSON.stringify({ ...config, ...change }).replaceAll('"1e999"', '1e999');
    writeFileSync(path.join(dir, 'config.json'), text);
    cpSync(path.join(tiny, 'model.safetensors'), path.join(dir, 'model.safetensors'));
    const source = SourceCheckpoint.open(dir);
    try {
      openModel(source);
    } finally {
      source.close();
    }
  } finally {
    rmSync(dir, { recursive: true });
  }
}

test('every number of config.json has a range: negative, zero, fractional, infinite and absurd ones are refused by name', () => {
  const sizes = ['hidden_size', 'num_hidden_layers', 'num_attention_heads', 'num_key_value_heads', 'head_dim'];
  for (const key of [...sizes, 'vocab_size', 'intermediate_size', 'max_position_embeddings'])
    for (const value of [-1, 0, 0.5, 1e15, '1e999'])
      assert.throws(() => opened({ [key]: value }), designed('LPQ_CONFIG', new RegExp(`'${key}' `)), `${key} ${value}`);
  for (const [key, ...values] of [
    ['rms_norm_eps', -1, 0, 2, '1e999'],
    ['sliding_window', -5, 1.5, 1e15],
    ['rope_theta', -1, 0, 1e30],
    ['partial_rotary_factor', -0.5, 0, 3],
    ['first_k_dense_replace', -1],
    ['attention_multiplier', -1, 1e20],
    ['final_logit_softcapping', -30],
  ] as const)
    for (const value of values)
      assert.throws(
        () => opened({ [key]: value }),
        designed('LPQ_CONFIG', new RegExp(`'${key}' is `)),
        `${key} ${value}`,
      );
  for (const scaling of ['rope_scaling', 'rope_parameters'])
    for (const [key, value] of [
      ['factor', -2],
      ['original_max_position_embeddings', 1.5],
      ['low_freq_factor', 0],
    ] as const) {
      const parameters = { rope_type: 'llama3', factor: 2, original_max_position_embeddings: 32, [key]: value };
      assert.throws(() => opened({ [scaling]: parameters }), designed('LPQ_CONFIG', new RegExp(`'${key}' is `)));
    }
  opened({ sliding_window: null, max_position_embeddings: 1, rms_norm_eps: 1e-12 });
});

test('a tokenizer of an unknown kind is refused', async () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-ranges-'));
  const json = JSON.parse(readFileSync(path.join(tiny, 'tokenizer.json'), 'utf8')) as { model: { type?: string } };
  json.model.type = 'Evil';
  writeFileSync(path.join(dir, 'tokenizer.json'), JSON.stringify(json));
  await assert.rejects(
    openTokenizer(dir),
    designed('LPQ_CONFIG', /tokenizer\.json: 'model' has a type .*"Evil".*BPE, Unigram/),
  );
  rmSync(dir, { recursive: true });
});
