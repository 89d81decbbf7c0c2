import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hintFor } from '../../../src/core/names.js';
import { quantType } from '../../../src/core/quant-type.js';
import { counted } from '../../../src/core/words.js';
import { PACK_TARGETS, packTarget } from '../../../src/pack/targets/index.js';
import { designed } from '../../formats/scratch.js';

test('a name that a list does not have: what it means elsewhere, or the nearest, or nothing', () => {
  const names = ['gptq', 'rtn', 'fmpq', 'compressed-tensors'];
  assert.equal(hintFor('AWQ', names, { awq: 'Pack for awq.' }), 'Pack for awq.');
  assert.equal(hintFor('gtpq', names), 'Did you mean gptq?');
  assert.equal(hintFor('compresed_tensor', names), 'Did you mean compressed-tensors?');
  for (const given of ['', 'x', 'everything', 'constructor', '__proto__'])
    assert.equal(hintFor(given, names), undefined);
});

test('names of other tools are pointed to what was meant: types', () => {
  for (const [given, says] of [
    ['int4', /--dtype i4 .*--dtype u4 --asym/],
    ['fp8', /f8e4m3/],
    ['nf4', /no NF4.*--bits 4/],
    ['FP16', /recipe rule with skip/],
    ['q4_k_m', /lpq pack --target gguf-q4_k/],
    ['f8e4m', /Did you mean f8e4m3/],
    ['u99', /Use for example/],
  ] as const)
    assert.throws(() => quantType(given), designed('LPQ_TYPE', says), given);
});

test('names of other tools are pointed to what was meant: targets', () => {
  for (const [given, says] of [
    ['vllm', /--for vllm/],
    ['llama.cpp', /Use gguf/],
    ['H100', /sm90/],
    ['grtq', /Did you mean gptq/],
    ['compressed_tensors', /Did you mean compressed-tensors/],
  ] as const)
    assert.throws(() => packTarget(given), designed('LPQ_TARGET', says), given);
  for (const { name } of PACK_TARGETS) assert.equal(packTarget(name).name, name);
});

test('counts agree with their nouns', () => {
  assert.deepEqual(
    [0, 1, 2, 12345].map((n) => counted(n, 'question')),
    ['0 questions', '1 question', '2 questions', '12,345 questions'],
  );
  assert.equal(counted(1, 'entry', 'entries'), '1 entry');
});
