import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { before, test } from 'node:test';
import type { GgufValue } from '../../../../formats/gguf/metadata.js';
import { ggufDirectory, ggufFiles } from '../../../../formats/gguf/source/directory.js';
import { SOURCE_PRE_TOKENIZERS } from '../../../../formats/gguf/source/pre-tokenizers.js';
import { openSync } from '../../../../src/calibrate/confined/tokenizer.js';
import { lpq, model, root } from '../../../src/cli/lpq.js';
import { inFloats, openLlama } from '../../../src/pack/llama-cpp.js';
import { scratch } from '../../scratch.js';

const dir = scratch();
const file = path.join(dir, 'packed', 'model.gguf');

const TEXTS = [
  'Hello, world! HelloWorld fooBarBAZ',
  'def f(x):\n\treturn x**2  # comment\r\n\r\nif x:\r\n    y = 12345 // 3',
  '你好，世界！今天天气很好。カタカナひらがな',
  '🙂👩‍👩‍👧‍👦 émoji é café',
  '  leading   spaces \n\n\n trailing  ',
  "it's 2024's don't I'LL we'Ve",
  '½ ² Ⅷ １２３ 1234567',
  'Ünïcödé ÀÉÎ ñandú Ελληνικά русский العربية हिन्दी',
  '<a href="x">b</a> $100,000.00 \u00a0 x\u2003y',
  readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(2000, 6000),
];

before(async () => {
  const [quantized, output] = [path.join(dir, 'quantized'), path.join(dir, 'packed')];
  const options = ['--method', 'rtn', '--bits', '4', '--group-size', '32', '--no-report'];
  for (const args of [
    ['quantize', model, '-o', quantized, ...options],
    ['pack', quantized, '--target', 'gguf', '-o', output],
  ])
    assert.equal((await lpq(args)).code, 0);
});

/** A tokenizer made from the metadata of a .gguf file. */
const made = (place: string) => openSync(ggufDirectory(ggufFiles(place) as string[]).dir);

test('the tokenizer that a model was packed with comes back: the same tokens, and the texts of them', () => {
  const [own, original] = [made(file), openSync(model)];
  for (const text of TEXTS) {
    assert.deepEqual(own.encode(text, true), original.encode(text, true), text.slice(0, 40));
    assert.equal(own.decode(own.encode(text, false)), original.decode(original.encode(text, false)));
  }
});

// One name of each: which name means which is a fact of llama.cpp's own table.
const KINDS = new Map(
  Object.entries(SOURCE_PRE_TOKENIZERS).map(([name, each]) => [JSON.stringify(each.pre_tokenizer), name]),
);

for (const pre of KINDS.values())
  test(`pre-tokenizer ${pre}: the tokens of llama.cpp`, async (t) => {
    const llama = await openLlama(t);
    if (!llama) return;
    const changed = path.join(dir, `${pre}.gguf`);
    await inFloats(file, changed, new Map([['tokenizer.ggml.pre', { type: 'string', value: pre }]]));
    const theirs = await llama.loadModel({ modelPath: changed });
    const own = made(changed);
    for (const text of TEXTS)
      assert.deepEqual([...own.encode(text, false)], [...theirs.tokenize(text)], text.slice(0, 40));
    await theirs.dispose();
  });

/** A vocabulary with scores: bytes, every character (as SentencePiece has them), and pieces of words, the most frequent first. */
function scored(rows: number): Map<string, GgufValue> {
  const text = TEXTS.join(' ').replaceAll(' ', '▁');
  const pieces = new Map<string, number>();
  for (const word of text.match(/▁?[a-zA-Z]+|./gu) ?? [])
    for (let from = 0; from < word.length; from++)
      for (let to = from + 1; to <= Math.min(word.length, from + 6); to++) {
        const piece = word.slice(from, to);
        if (!/^[\udc00-\udfff]|[\ud800-\udbff]$/.test(piece))
          pieces.set(piece, (pieces.get(piece) ?? 0) + piece.length);
      }
  const best = [...pieces].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([piece]) => piece);
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`);
  const known = [
    '<unk>',
    '<s>',
    '</s>',
    ...bytes,
    ...new Set([...text]),
    ...best.filter((piece) => [...piece].length > 1),
  ].slice(0, rows);
  const tokens = [...known, ...Array.from({ length: rows - known.length }, (_, i) => `[PAD${i}]`)];
  const types = tokens.map((_, id) => (id === 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : id < known.length ? 1 : 5));
  return new Map<string, GgufValue>([
    ['tokenizer.ggml.model', { type: 'string', value: 'llama' }],
    ['tokenizer.ggml.pre', { type: 'string', value: 'default' }],
    ['tokenizer.ggml.tokens', { type: 'strings', value: tokens }],
    ['tokenizer.ggml.scores', { type: 'f32s', value: tokens.map((_, id) => (id < 259 ? 0 : -id)) }],
    ['tokenizer.ggml.token_type', { type: 'i32s', value: types }],
    ['tokenizer.ggml.bos_token_id', { type: 'u32', value: 1 }],
    ['tokenizer.ggml.eos_token_id', { type: 'u32', value: 2 }],
    ['tokenizer.ggml.unknown_token_id', { type: 'u32', value: 0 }],
    ['tokenizer.ggml.add_bos_token', { type: 'bool', value: true }],
  ]);
}

for (const prefix of [true, false])
  test(`pieces with scores, ${prefix ? 'a space' : 'nothing'} before a text: the tokens of llama.cpp`, async (t) => {
    const rows = (JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8')) as { vocab_size: number })
      .vocab_size;
    const changed = path.join(dir, `scored-${prefix}.gguf`);
    const space = ['tokenizer.ggml.add_space_prefix', { type: 'bool', value: prefix }] as const;
    await inFloats(file, changed, new Map([...scored(rows), space]));
    const own = made(changed);
    // The beginning of a text is a token of its own.
    assert.equal(own.encode('a b', true)[0], 1);
    for (const text of TEXTS.slice(0, 4)) assert.equal(own.decode(own.encode(text, false)), text);
    const llama = await openLlama(t);
    if (!llama) return;
    const theirs = await llama.loadModel({ modelPath: changed });
    for (const text of TEXTS)
      assert.deepEqual([...own.encode(text, false)], [...theirs.tokenize(text)], text.slice(0, 40));
    await theirs.dispose();
  });
