import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { events, lpq, model, scratch } from '../lpq.js';

const RTN = ['--method', 'rtn', '--device', 'cpu', '--no-report'];

test('quantize --for makes the directory of an engine, verified, and nothing else', async (t) => {
  const dir = scratch(t);
  const out = path.join(dir, 'out');
  const ran = await lpq(['quantize', model, '-o', out, '--bits', '4', '--for', 'vllm', '--json', ...RTN]);
  assert.equal(ran.code, 0, ran.stderr + ran.stdout);
  assert.deepEqual(readdirSync(dir), ['out']);
  const config = JSON.parse(readFileSync(path.join(out, 'config.json'), 'utf8'));
  assert.equal(config.quantization_config.quant_method, 'compressed-tensors');
  assert.ok(events(ran).some(({ event }) => event === 'deploy'));
  const served = events(ran).find(({ event }) => event === 'serve');
  assert.match(String(served?.command), /^vllm serve \S*out$/);
});

test('quantize --for llama.cpp makes one .gguf; --keep-quantized keeps what pack --for packs again', async (t) => {
  const dir = scratch(t);
  const [gguf, kept, other] = ['gguf', 'kept', 'other'].map((name) => path.join(dir, name)) as [string, string, string];
  const args = ['--bits', '4', '--for', 'llama.cpp', '--keep-quantized', kept, ...RTN];
  const ran = await lpq(['quantize', model, '-o', gguf, ...args]);
  assert.equal(ran.code, 0, ran.stderr);
  assert.deepEqual(
    readdirSync(gguf).filter((name) => name.endsWith('.gguf')),
    ['model.gguf'],
  );
  assert.match(ran.stderr, /llama-server -m \S*\/model\.gguf/);
  const packed = await lpq(['pack', kept, '--for', 'lmdeploy', '-o', other]);
  assert.equal(packed.code, 0, packed.stderr);
  assert.match(packed.stderr, /verified against the quantized checkpoint; for LMDeploy .*not run/);
  assert.ok(existsSync(path.join(other, 'quantize_config.json')));
});

test('what the engine would not load is refused before anything is computed', async (t) => {
  const dir = scratch(t);
  const out = path.join(dir, 'out');
  const recipe = path.join(dir, 'recipe.json');
  writeFileSync(recipe, JSON.stringify({ bits: 4, rules: [{ match: 'down_proj', bits: 3 }] }));
  const asked: [string[], RegExp][] = [
    [['--bits', '3', '--for', 'vllm'], /LPQ_ENGINE .*does not read the type[\s\S]*--bits 4/],
    [['--recipe', recipe, '--for', 'vllm'], /LPQ_ENGINE .*of 'model\.layers\.0\.mlp\.down_proj'/],
    [['--bits', '4', '--for', 'vllm', '--group-size', '96'], /no kernel for groups of 96/],
    [['--bits', '4', '--for', 'vllm', '--pack', 'gptq'], /--for does not go with --pack/],
    [['--target-bpw', '4', '--for', 'vllm'], /--for does not go with --target-bpw/],
    [['--bits', '4', '--for', 'sglang'], /--untested/],
    [['--bits', '4', '--keep-quantized', 'x'], /--keep-quantized has no effect without --for/],
    [['--bits', '4', '--untested'], /--untested has no effect without --for/],
  ];
  for (const [args, message] of asked) {
    const ran = await lpq(['quantize', model, '-o', out, ...args, ...RTN]);
    assert.equal(ran.code, 2, ran.stderr);
    assert.match(ran.stderr, message);
  }
  assert.deepEqual(readdirSync(dir), ['recipe.json']);
  const none = await lpq(['pack', model, '-o', out]);
  assert.match(none.stderr, /--target NAME or --for ENGINE/);
  const both = await lpq(['pack', model, '--for', 'vllm', '--target', 'gptq', '-o', out]);
  assert.match(both.stderr, /--for does not go with --target/);
});
