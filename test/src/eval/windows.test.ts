import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { textDivergence } from '../../../src/eval/divergence.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { textPerplexity } from '../../../src/eval/perplexity.js';
import { evaluateChoices, evaluateLastWords } from '../../../src/eval/tasks.js';
import { textWindows } from '../../../src/eval/windows.js';
import { designed, scratch } from '../../formats/scratch.js';
import { BOS, bosModel, TINY, template } from '../calibrate/bos-model.js';
import { plainSource } from '../model/fixtures.js';
import { values } from '../model/reference-runtime.js';

const CTX = 12;
const dir = scratch();
const model = plainSource(bosModel(path.join(dir, 'bos')));
const plain = plainSource(TINY);
const rt = createRuntime(2);
const file = path.join(dir, 'text.txt');
writeFileSync(file, readFileSync(path.join(shareDirectory(), 'text', 'books-valid.txt'), 'utf8').slice(0, 200));
const encode = await openTokenizer(TINY);
const ids = await encode(readFileSync(file, 'utf8'));

/** Log-probabilities of a window of `tokens`, [T][V], from its logits in f64. */
async function logProbabilities(tokens: readonly number[]): Promise<Float64Array[]> {
  const tensor = await logitsOf(rt, plain, { ids: Int32Array.from(tokens), shape: [1, tokens.length] });
  const [all, vocab] = [values(tensor), tensor.shape[2] as number];
  return tokens.map((_, t) => {
    const row = Float64Array.from(all.subarray(t * vocab, (t + 1) * vocab));
    const most = row.reduce((a, b) => Math.max(a, b));
    const norm = most + Math.log(row.reduce((sum, score) => sum + Math.exp(score - most), 0));
    return row.map((score) => score - norm);
  });
}

/** Mean negative log-likelihood of each window: `prefix`, then tokens of the text, scored from the second of these on. */
async function windowMeans(prefix: readonly number[]): Promise<number[]> {
  const own = CTX - prefix.length;
  const means: number[] = [];
  for (let at = 0; at + own <= ids.length; at += own) {
    const window = [...prefix, ...ids.subarray(at, at + own)];
    const rows = await logProbabilities(window);
    let sum = 0;
    for (let t = prefix.length + 1; t < CTX; t++) sum -= rows[t - 1]?.[window[t] as number] as number;
    means.push(sum / (own - 1));
  }
  return means;
}

const mean = (all: readonly number[]) => all.reduce((a, b) => a + b, 0) / all.length;
const near = (got: number, want: number) => assert.ok(Math.abs(got - want) < 1e-9 * Math.abs(want), `${got} ${want}`);

test('windows begin as an engine begins a text: perplexity and divergence are those of the logits behind the token', async () => {
  for (const [bos, prefix] of [
    ['auto', [BOS]],
    ['always', [BOS]],
    ['never', []],
  ] as const) {
    const want = await windowMeans(prefix);
    const got = await textPerplexity(rt, model, file, { ctx: CTX, bos });
    near(got.nll, mean(want));
    assert.deepEqual([...got.prefix], prefix);
    assert.equal(got.windows, want.length);
    assert.equal(got.windows, Math.floor(ids.length / (CTX - prefix.length)));
    assert.equal(got.tokens, got.windows * (CTX - 1 - prefix.length));
    const apart = await textDivergence(rt, plain, model, file, { ctx: CTX, bos });
    near(Math.log(apart.ppl.mean), mean(want));
    near(Math.log(apart.referencePpl.mean), mean(want));
    assert.deepEqual([apart.tokens, apart.kl.mean, apart.sameTop.mean], [got.tokens, 0, 1]);
    assert.deepEqual([...apart.prefix], prefix);
  }
  assert.deepEqual(
    await textPerplexity(rt, model, file, { ctx: CTX }),
    await textPerplexity(rt, model, file, { ctx: CTX, bos: 'auto' }),
  );
});

test('a tokenizer that puts nothing before a text: windows are the text alone, unless the token is asked for', async () => {
  const alone = await textWindows(TINY, file, { ctx: CTX });
  assert.deepEqual(alone.prefix, []);
  assert.deepEqual(
    alone.windows.flatMap((window) => [...window]),
    [...ids.subarray(0, alone.windows.length * CTX)],
  );
  const asked = await textPerplexity(rt, plain, file, { ctx: CTX, bos: 'always' });
  near(asked.nll, mean(await windowMeans([BOS])));
});

test('two tokens before a text; windows that leave nothing to score are refused', async () => {
  const two = plainSource(bosModel(path.join(dir, 'two'), { postProcessor: template(['<pad>', '<s>'], ['</s>']) }));
  const got = await textPerplexity(rt, two, file, { ctx: CTX });
  near(got.nll, mean(await windowMeans([0, 1])));
  assert.equal(got.tokens, got.windows * (CTX - 3));
  await assert.rejects(
    textPerplexity(rt, two, file, { ctx: 3 }),
    designed('LPQ_USAGE', /3 tokens leave no room .* after the 2 .*at least 4/s),
  );
  assert.equal((await textPerplexity(rt, two, file, { ctx: 4 })).tokens % 1, 0);
});

test('contexts of questions begin as an engine begins a text, and nothing behind the answer is asked about', async () => {
  const ending = plainSource(bosModel(path.join(dir, 'ending'), { postProcessor: template(['<s>'], ['</s>']) }));
  const words = path.join(dir, 'words.jsonl');
  writeFileSync(words, '{"text": "He looked at the old man"}\n');
  const [context, word] = [await encode('He looked at the old'), await encode(' man')];
  const sumBehind = async (prefix: readonly number[]) => {
    const tokens = [...prefix, ...context, ...word];
    const rows = await logProbabilities(tokens);
    let sum = 0;
    for (let t = prefix.length + context.length; t < tokens.length; t++) sum += rows[t - 1]?.[tokens[t] as number] ?? 0;
    return sum;
  };
  for (const [source, bos, prefix] of [
    [ending, 'auto', [BOS]],
    [ending, 'never', []],
    [plain, 'auto', []],
    [plain, 'always', [BOS]],
  ] as const) {
    const found = await evaluateLastWords(rt, source, words, { bos });
    near(found.perplexity.mean, Math.exp(-(await sumBehind(prefix))));
    assert.deepEqual(found.prefix, prefix);
  }
  const choices = path.join(dir, 'choices.jsonl');
  writeFileSync(choices, '{"context": "Once upon a", "choices": [" time", " spoon"], "answer": 0}\n');
  assert.deepEqual((await evaluateChoices(rt, ending, choices)).prefix, [BOS]);
});

test('what is told of the windows is told before a tensor is read', async () => {
  const order: string[] = [];
  const watched = {
    ...plain,
    tensor: (name: string) => {
      order.push('tensor');
      return plain.tensor(name);
    },
  };
  const options = { ctx: CTX, onWindows: () => void order.push('windows') };
  await textPerplexity(rt, watched, file, options);
  assert.deepEqual([order[0], order.filter((each) => each === 'windows').length], ['windows', 1]);
  order.length = 0;
  await textDivergence(rt, watched, watched, file, options);
  assert.deepEqual([order[0], order.filter((each) => each === 'windows').length], ['windows', 1]);
});

test('the first windows alone are those of the whole text, whether its beginning holds them or not', async () => {
  const book = readFileSync(path.join(shareDirectory(), 'text', 'books-valid.txt'), 'utf8').slice(0, 20_000);
  // Two windows of 12 tokens are looked for in the first line beyond 384 characters: here it holds a few long tokens.
  const sparse = `${'-'.repeat(600)}\n${book}`;
  for (const [name, content] of Object.entries({ 'book.txt': book, 'sparse.txt': sparse })) {
    const own = path.join(dir, name);
    writeFileSync(own, content);
    const all = await textWindows(TINY, own, { ctx: CTX });
    for (const windows of [1, 2, 30]) {
      const some = await textWindows(TINY, own, { ctx: CTX, windows });
      assert.deepEqual(some.windows, all.windows.slice(0, windows), `${name} ${windows}`);
      assert.equal(some.sha256, all.sha256);
    }
  }
});
