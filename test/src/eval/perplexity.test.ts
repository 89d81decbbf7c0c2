import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { LpqError } from '../../../src/core/error.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { perplexity, textPerplexity } from '../../../src/eval/perplexity.js';
import { openModel } from '../../../src/model/graph.js';
import { scratch } from '../../formats/scratch.js';
import { plainSource, SHARED, skipWithout } from '../model/fixtures.js';
import { ReferenceRuntime, values } from '../model/reference-runtime.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');
const TEXT = path.join(shareDirectory(), 'text', 'books-valid.txt');
const source = plainSource(MODEL);
const graph = openModel(source);

const ids = await (await openTokenizer(MODEL))(readFileSync(TEXT, 'utf8').slice(0, 20_000));

function firstWindows(count: number, ctx: number): Int32Array[] {
  return Array.from({ length: count }, (_, i) => ids.slice(i * ctx, (i + 1) * ctx));
}

test('perplexity is that of the logits, token by token, first tokens and the tail left out', async () => {
  const rt = new ReferenceRuntime();
  const windows = firstWindows(2, 12);
  const got = await perplexity(rt, source, graph, windows, { ctx: 12 });
  const means: number[] = [];
  for (const window of windows) {
    const logits = values(await logitsOf(rt, source, { ids: window, shape: [1, 12] }));
    let nll = 0;
    for (let t = 0; t < 11; t++) {
      const row = logits.subarray(t * graph.vocab, (t + 1) * graph.vocab);
      nll += Math.log(row.reduce((sum, score) => sum + Math.exp(score), 0)) - row[window[t + 1]!]!;
    }
    means.push(nll / 11);
  }
  const [a, b] = means as [number, number];
  assert.ok(Math.abs(got.nll - (a + b) / 2) < 1e-9);
  assert.equal(got.ppl, Math.exp(got.nll));
  assert.equal(got.tokens, 22);
  // Of two values: standard deviation |a-b|/sqrt(2), of their mean |a-b|/2.
  assert.ok(Math.abs(got.standardError! - got.ppl * (Math.abs(a - b) / 2)) < 1e-9);
});

test('batches and passes do not change the result', async () => {
  const rt = createRuntime(2);
  const windows = firstWindows(6, 64);
  const whole = await perplexity(rt, source, graph, windows, { ctx: 64 });
  const seen: number[] = [];
  const pieces = await perplexity(rt, source, graph, windows, {
    ctx: 64,
    batchTokens: 100,
    stateBytes: 2 * 64 * graph.hidden * 4,
    onProgress: (done, total) => seen.push(done / total),
  });
  assert.deepEqual(pieces, whole);
  assert.equal(seen.at(-1), 1);
  assert.ok(seen.every((share, i) => i === 0 || share > seen[i - 1]!));
  const one = await perplexity(createRuntime(1), source, graph, windows, { ctx: 64 });
  assert.deepEqual(one, whole);
});

// README of the shared data: fp32 arithmetic gives these to four decimals; the tolerance is the project's promise.
test('tiny-llama: the golden perplexity of the held-out books', async (t) => {
  const begin = performance.now();
  const got = await textPerplexity(createRuntime(2), SourceCheckpoint.open(MODEL), TEXT, { ctx: 512 });
  t.diagnostic(`${got.ppl} ± ${got.standardError}, ${((performance.now() - begin) / 1000).toFixed(1)} s`);
  assert.equal(got.tokens, 121_618);
  assert.ok(Math.abs(got.ppl - 24.8284) <= 0.005, `${got.ppl}`);
});

test('tiny-qwen3-moe: the golden perplexity of the held-out books', {
  skip: skipWithout('models', 'tiny-qwen3-moe'),
}, async (t) => {
  const begin = performance.now();
  const moe = plainSource(path.join(SHARED, 'models', 'tiny-qwen3-moe'));
  const got = await textPerplexity(createRuntime(2), moe, TEXT, { ctx: 512 });
  t.diagnostic(`${got.ppl} ± ${got.standardError}, ${((performance.now() - begin) / 1000).toFixed(1)} s`);
  assert.ok(Math.abs(got.ppl - 31.8739) <= 0.005, `${got.ppl}`);
});

test('a text without a window, a context of one token, and weights with NaN are refused', async () => {
  const rt = createRuntime(1);
  const short = path.join(scratch(), 'short.txt');
  writeFileSync(short, 'Once upon a time.');
  const refuses = (run: Promise<unknown>, code: string, words: RegExp) =>
    assert.rejects(run, (error) => error instanceof LpqError && error.code === code && words.test(error.message));
  await refuses(textPerplexity(rt, source, short, { ctx: 512 }), 'LPQ_CALIBRATION_TEXT', /short.txt is shorter/);
  await refuses(textPerplexity(rt, source, short, { ctx: 1 }), 'LPQ_USAGE', /context length/);
  const broken = {
    ...source,
    tensor: async (name: string) => {
      const tensor = await source.tensor(name);
      if (name === 'model.norm.weight') tensor.bytes().fill(0xff);
      return tensor;
    },
  };
  await refuses(perplexity(rt, broken, graph, firstWindows(1, 16), { ctx: 16 }), 'LPQ_MODULE_NUMERICS', /NaN/);
});
