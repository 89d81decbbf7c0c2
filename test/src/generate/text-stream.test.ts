import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { type Codec, openCodec } from '../../../src/calibrate/tokenizer.js';
import { TextStream } from '../../../src/generate/text-stream.js';

/** Tokens are bytes of UTF-8. */
const bytewise: Codec = {
  encode: (text) => Int32Array.from(new TextEncoder().encode(text)),
  encodePrompt: (text) => Int32Array.from(new TextEncoder().encode(text)),
  decode: (ids) => new TextDecoder().decode(Uint8Array.from(ids)),
};

function streamed(
  text: string,
  stops: readonly string[],
  prompt = 'p',
): { pieces: string[]; stop?: string; text: string } {
  const stream = new TextStream(bytewise, bytewise.encode(prompt), stops);
  const pieces: string[] = [];
  for (const id of bytewise.encode(text)) {
    const added = stream.push(id);
    pieces.push(added.text);
    if (added.stop !== undefined) return { pieces, stop: added.stop, text: stream.text };
  }
  pieces.push(stream.end());
  return { pieces, text: stream.text };
}

test('characters come when they are whole', () => {
  const { pieces, text } = streamed('aé€b', []);
  assert.deepEqual(pieces, ['a', '', 'é', '', '', '€', 'b', '']);
  assert.equal(text, 'aé€b');
});

test('a character that is cut off comes in the end', () => {
  const stream = new TextStream(bytewise, Int32Array.of(112), []);
  assert.deepEqual(stream.push(0xe2), { text: '' });
  assert.equal(stream.end(), '\ufffd');
});

test('the beginning of a stop string waits, and comes when it was none', () => {
  assert.deepEqual(streamed('x##y', ['###']).pieces, ['x', '', '', '##y', '']);
  const found = streamed('x## ###y', ['###', 'never']);
  assert.deepEqual(found, { pieces: ['x', '', '', '## ', '', '', ''], stop: '###', text: 'x## ' });
  assert.equal(found.pieces.join(''), found.text);
  assert.equal(streamed('ab END', ['ND', 'EN']).stop, 'EN');
});

test('what is streamed is the text that the tokenizer makes of the tokens, spaces included', () => {
  const codec = openCodec(path.join(shareDirectory(), 'tiny-llama'));
  const text = 'The café was — as always — closed. “Well,” said he, “naïve!”';
  const [prompt, rest] = [codec.encode('Once.'), codec.encode(` ${text}`)];
  const stream = new TextStream(codec, prompt, []);
  const pieces = [...rest].map((id) => stream.push(id).text);
  pieces.push(stream.end());
  assert.equal(pieces.join(''), ` ${text}`);
});
