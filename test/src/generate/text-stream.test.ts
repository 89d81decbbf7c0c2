import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { type Codec, openCodec } from '../../../src/calibrate/tokenizer.js';
import { TextStream } from '../../../src/generate/text-stream.js';

/** Tokens are bytes of UTF-8. */
const bytewise: Codec = {
  encode: async (text) => Int32Array.from(new TextEncoder().encode(text)),
  encodePrompt: async (text) => Int32Array.from(new TextEncoder().encode(text)),
  decode: async (ids) => new TextDecoder().decode(Uint8Array.from(ids)),
};

async function streamed(
  text: string,
  stops: readonly string[],
  prompt = 'p',
): Promise<{ pieces: string[]; stop?: string; text: string }> {
  const stream = await TextStream.open(bytewise, await bytewise.encode(prompt), stops);
  const pieces: string[] = [];
  for (const id of await bytewise.encode(text)) {
    const added = await stream.push(id);
    pieces.push(added.text);
    if (added.stop !== undefined) return { pieces, stop: added.stop, text: stream.text };
  }
  pieces.push(stream.end());
  return { pieces, text: stream.text };
}

test('characters come when they are whole', async () => {
  const { pieces, text } = await streamed('aé€b', []);
  assert.deepEqual(pieces, ['a', '', 'é', '', '', '€', 'b', '']);
  assert.equal(text, 'aé€b');
});

test('a character that is cut off comes in the end', async () => {
  const stream = await TextStream.open(bytewise, Int32Array.of(112), []);
  assert.deepEqual(await stream.push(0xe2), { text: '' });
  assert.equal(stream.end(), '\ufffd');
});

test('the beginning of a stop string waits, and comes when it was none', async () => {
  assert.deepEqual((await streamed('x##y', ['###'])).pieces, ['x', '', '', '##y', '']);
  const found = await streamed('x## ###y', ['###', 'never']);
  assert.deepEqual(found, { pieces: ['x', '', '', '## ', '', '', ''], stop: '###', text: 'x## ' });
  assert.equal(found.pieces.join(''), found.text);
  assert.equal((await streamed('ab END', ['ND', 'EN'])).stop, 'EN');
});

test('what is streamed is the text that the tokenizer makes of the tokens, spaces included', async () => {
  const codec = await openCodec(path.join(shareDirectory(), 'tiny-llama'));
  const text = 'The café was — as always — closed. “Well,” said he, “naïve!”';
  const [prompt, rest] = [await codec.encode('Once.'), await codec.encode(` ${text}`)];
  const stream = await TextStream.open(codec, prompt, []);
  const pieces: string[] = [];
  for (const id of rest) pieces.push((await stream.push(id)).text);
  pieces.push(stream.end());
  assert.equal(pieces.join(''), ` ${text}`);
});
