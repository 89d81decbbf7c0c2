import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { cut, openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { LpqError } from '../../../src/core/error.js';
import { scratch } from '../../formats/scratch.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');

test('pieces are counted in code points, and joined they are the text', () => {
  const text = 'a🎓b🎓🎓c';
  assert.deepEqual(cut(text, 2), ['a🎓', 'b🎓', '🎓c']);
  assert.deepEqual(cut(text, 100), [text]);
  assert.deepEqual(cut('', 5), []);
});

test('byte-level BPE of the bundled model: ids by hand from its tables', async () => {
  // An oracle for one word: merge the pair of lowest rank until none is left, over the file's own vocab and merges.
  const { model } = JSON.parse(readFileSync(path.join(MODEL, 'tokenizer.json'), 'utf8'));
  const ranks = new Map<string, number>(
    model.merges.map((pair: string | string[], rank: number) => [Array.isArray(pair) ? pair.join(' ') : pair, rank]),
  );
  const merge = (word: string): number[] => {
    const parts = [...word];
    for (;;) {
      const pairs = parts.slice(1).map((part, i) => ranks.get(`${parts[i]} ${part}`) ?? Number.POSITIVE_INFINITY);
      const best = Math.min(...pairs);
      if (!Number.isFinite(best)) return parts.map((part) => model.vocab[part] as number);
      const i = pairs.indexOf(best);
      parts.splice(i, 2, `${parts[i]}${parts[i + 1]}`);
    }
  };
  const encode = await openTokenizer(MODEL);
  for (const word of ['harvest', 'Ġphilosophy', 'Germania', 'zzyzx'])
    assert.deepEqual([...(await encode(word.replace('Ġ', ' ')))], merge(word));
});

test('the evaluation text has the number of tokens that its golden perplexity was counted over', async () => {
  const ids = await (await openTokenizer(MODEL))(
    readFileSync(path.join(shareDirectory(), 'text', 'books-valid.txt'), 'utf8'),
  );
  assert.equal(Math.floor(ids.length / 512) * 511, 121_618);
});

test('a directory without a tokenizer, or with a broken one, is refused', async () => {
  const dir = scratch();
  const refuses = (words: RegExp) =>
    assert.rejects(
      () => openTokenizer(dir),
      (error) => error instanceof LpqError && error.code === 'LPQ_CONFIG' && words.test(error.message),
    );
  await refuses(/has no tokenizer.json/);
  writeFileSync(path.join(dir, 'tokenizer.json'), '{');
  await refuses(/not valid JSON/);
  writeFileSync(path.join(dir, 'tokenizer.json'), '[]');
  await refuses(/does not hold an object/);
  writeFileSync(path.join(dir, 'tokenizer.json'), '{"model": {"type": "Oracle"}}');
  await refuses(/'model' has a type that lpq cannot run/);
  // tokenizer_config.json may be absent.
  copyFileSync(path.join(MODEL, 'tokenizer.json'), path.join(dir, 'tokenizer.json'));
  const [copy, own] = [await openTokenizer(dir), await openTokenizer(MODEL)];
  assert.deepEqual(await copy('So it was.'), await own('So it was.'));
});
