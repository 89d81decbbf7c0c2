import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Tokenizer } from '@huggingface/tokenizers';
import { type BosMode, openPrefix, withPrefix } from '../../../src/calibrate/prefix.js';
import { openCodec } from '../../../src/calibrate/tokenizer.js';
import { designed, scratch } from '../../formats/scratch.js';
import { BOS, bosModel, type Changes, TINY, template } from './bos-model.js';

const dir = scratch();
let made = 0;
const model = (changes: Changes) => bosModel(path.join(dir, `m${made++}`), changes);
const ids = (place: string, mode: BosMode) => [...openPrefix(place, mode).ids];

/** What the library really puts before a text, by the text's own tokens in it. */
function seen(place: string): number[] {
  const read = (name: string) => JSON.parse(readFileSync(path.join(place, name), 'utf8'));
  const tokenizer = new Tokenizer(read('tokenizer.json'), read('tokenizer_config.json'));
  const [bare, whole] = [false, true].map(
    (special) => tokenizer.encode('The sea.', { add_special_tokens: special }).ids,
  ) as [number[], number[]];
  const at = whole.findIndex((_, i) => bare.every((id, j) => whole[i + j] === id));
  return whole.slice(0, at);
}

test('what stands before a text is what the tokenizer puts there, whatever kind of post-processor does', () => {
  const bytes = { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true };
  const roberta = { type: 'RobertaProcessing', sep: ['</s>', 2], cls: ['<s>', 1], trim_offsets: true };
  const kinds: readonly (readonly [unknown, readonly number[]])[] = [
    [null, []],
    [bytes, []],
    [template([]), []],
    [template([], ['</s>']), []],
    [template(['<s>']), [1]],
    [template(['<s>'], ['</s>']), [1]],
    [template(['<pad>', '<s>']), [0, 1]],
    [roberta, [1]],
    [{ ...roberta, type: 'BertProcessing' }, [1]],
    [{ type: 'Sequence', processors: [bytes, template(['<s>'])] }, [1]],
    [{ type: 'Sequence', processors: [template(['<s>']), template(['<pad>'])] }, [0, 1]],
  ];
  for (const [postProcessor, want] of kinds) {
    const place = model({ postProcessor });
    assert.deepEqual(ids(place, 'auto'), want);
    assert.deepEqual(seen(place), want);
    assert.deepEqual(ids(place, 'never'), []);
    // The bundled model names <s> as its bos token.
    assert.deepEqual(ids(place, 'always'), want.length > 0 ? want : [BOS]);
  }
  assert.deepEqual(openPrefix(model({}), 'auto').tokens, ['<s>']);
  assert.deepEqual(ids(TINY, 'auto'), []);
});

test('add_bos_token counts where the post-processor says nothing, and prompts begin alike', async () => {
  const none = template([]);
  const asks = model({ postProcessor: none, settings: { add_bos_token: true } });
  assert.deepEqual(ids(asks, 'auto'), [BOS]);
  const { encode, encodePrompt } = await openCodec(asks);
  const sea = await encode('The sea.');
  assert.deepEqual([...(await encodePrompt('The sea.'))], [BOS, ...sea]);
  assert.deepEqual([...(await encodePrompt('<s>The sea.'))], [BOS, ...sea]);
  assert.deepEqual(ids(model({ postProcessor: none, settings: { add_bos_token: false } }), 'auto'), []);
  // tokenizer.json is what engines run: transformers 5 leaves it as it is.
  assert.deepEqual(ids(model({ settings: { add_bos_token: false } }), 'auto'), [BOS]);
});

test('always: the bos token that the model names somewhere, or an error that says where it could', () => {
  const plain = { postProcessor: null };
  const named = { content: '</s>', lstrip: false };
  assert.deepEqual(ids(model({ ...plain, settings: { bos_token: named } }), 'always'), [2]);
  const unnamed = { ...plain, settings: { bos_token: null } };
  const map = model({ ...unnamed, config: { bos_token_id: null } });
  const refuses = (place: string) =>
    assert.throws(() => openPrefix(place, 'always'), designed('LPQ_CONFIG', /names no bos token, and --bos always/));
  refuses(map);
  writeFileSync(path.join(map, 'special_tokens_map.json'), '{"bos_token": "<s>"}');
  assert.deepEqual(ids(map, 'always'), [1]);
  assert.deepEqual(ids(model({ ...unnamed, config: { bos_token_id: 2 } }), 'always'), [2]);
  assert.deepEqual(openPrefix(model({ ...unnamed, config: { bos_token_id: 7 } }), 'always').tokens, ['token 7']);
  refuses(model({ ...plain, settings: { bos_token: 'no such token' }, config: { bos_token_id: -1 } }));
  // A tokenizer that wants a token it does not have puts none, as in transformers.
  assert.deepEqual(
    ids(
      model({ ...plain, settings: { bos_token: null, add_bos_token: true }, config: { bos_token_id: null } }),
      'auto',
    ),
    [],
  );
});

test('a malformed post-processor is refused by the file and the key', () => {
  const without = { ...template(['<s>']), special_tokens: {} };
  const wrong = { ...template(['<s>']), special_tokens: { '<s>': { ids: ['1'], tokens: ['<s>'] } } };
  for (const postProcessor of [without, wrong])
    assert.throws(
      () => openPrefix(model({ postProcessor }), 'auto'),
      designed('LPQ_CONFIG', /post_processor of .*tokenizer\.json is malformed: special_tokens/),
    );
  assert.throws(
    () => openPrefix(model({ postProcessor: { type: 'BertProcessing' } }), 'auto'),
    designed('LPQ_CONFIG', /malformed: cls/),
  );
});

test('a text that begins with the tokens itself has them once', () => {
  const of = (...values: number[]) => Int32Array.from(values);
  assert.deepEqual(withPrefix(of(5, 6), of(1)), of(1, 5, 6));
  assert.deepEqual(withPrefix(of(1, 5, 6), of(1)), of(1, 5, 6));
  assert.deepEqual(withPrefix(of(0, 5), of(0, 1)), of(0, 1, 0, 5));
  const same = of(5, 6);
  assert.equal(withPrefix(same, of()), same);
});
