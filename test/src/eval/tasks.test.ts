import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { createRuntime, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openCodec } from '../../../src/calibrate/tokenizer.js';
import { main } from '../../../src/cli/main.js';
import { estimate } from '../../../src/eval/estimate.js';
import { likelihoods } from '../../../src/eval/likelihood.js';
import { logitsOf } from '../../../src/eval/logits.js';
import { readClozes, readQuestions } from '../../../src/eval/read-tasks.js';
import { evaluateChoices, evaluateLastWords, judge } from '../../../src/eval/tasks.js';
import { designed, scratch } from '../../formats/scratch.js';
import { plainSource } from '../model/fixtures.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');
const source = plainSource(MODEL);
const codec = await openCodec(MODEL);
const rt = createRuntime(2);
const dir = scratch();
let files = 0;
const lines = (...records: unknown[]): string => {
  const file = path.join(dir, `tasks-${files++}.jsonl`);
  writeFileSync(file, records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  return file;
};

/** Log-likelihoods of the tokens of `text` behind those of `context`, one by one in f64, and whether each was the likeliest. */
async function asked(context: string, text: string): Promise<{ sum: number; greedy: boolean }> {
  const ids = await codec.encode(context + text);
  const first = (await codec.encode(context)).length;
  const logits = await logitsOf(rt, source, { ids, shape: [1, ids.length] });
  const vocab = logits.shape[2] as number;
  let [sum, greedy] = [0, true];
  for (let t = first; t < ids.length; t++) {
    const row = typed(logits).subarray((t - 1) * vocab, t * vocab);
    const most = Math.max(...row);
    sum += row[ids[t]!]! - most - Math.log(row.reduce((all, value) => all + Math.exp(value - most), 0));
    greedy &&= row.indexOf(most) === ids[t];
  }
  return { sum, greedy };
}

test('the likelihoods of the ends of sequences are those of their logits, whatever they are computed beside', async () => {
  const pairs = [
    ['The man went to', ' the house.'],
    ['It was', ' a'],
    ['Once upon a', ' time there was a king who'],
    ['He', ' xylophone'],
  ] as const;
  const items = await Promise.all(
    pairs.map(async ([context, text]) => {
      const ids = await codec.encode(context + text);
      return { ids, asked: ids.length - (await codec.encode(context)).length };
    }),
  );
  const found = await likelihoods(rt, source, items, { greedy: true });
  for (const [i, [context, text]] of pairs.entries()) {
    const want = await asked(context, text);
    // Sums of f64 over logits of fp32 that are the same.
    assert.ok(Math.abs(found[i]!.sum - want.sum) < 1e-9, `${found[i]!.sum} and ${want.sum}`);
    assert.equal(found[i]!.greedy, want.greedy);
  }
  assert.deepEqual(await likelihoods(rt, source, items.slice(1, 2)), [{ sum: found[1]!.sum }]);
});

test('the likeliest choice, and the likeliest a character; of equals the first', () => {
  // -6/2 = -3, -8/4 = -2, -9/3 = -3.
  const choices = ['ab', 'abcd', 'a😀c'];
  assert.deepEqual(judge({ choices, answer: 0 }, [-6, -8, -9]), { plain: 1, normalised: 0 });
  assert.deepEqual(judge({ choices, answer: 1 }, [-6, -8, -9]), { plain: 0, normalised: 1 });
  assert.deepEqual(judge({ choices: ['ab', 'cd'], answer: 0 }, [-6, -6]), { plain: 1, normalised: 1 });
});

test('standard errors', () => {
  // Three of four: mean 0.75, sample variance (3 * 0.0625 + 0.5625) / 3 = 0.25, error sqrt(0.25 / 4).
  assert.deepEqual(estimate([1, 1, 0, 1]), { mean: 0.75, error: 0.25 });
  assert.deepEqual(estimate([1]), { mean: 1, error: null });
});

test('questions, with a context for all choices or one for each', async () => {
  const questions = [
    { context: 'The man went to', choices: [' the house.', ' xylophone purple.'], answer: 0 },
    { context: 'Once upon a ', choices: ['zebra', 'time'], answer: 1 },
    { contexts: ['The king said to', 'The spoon said to'], choices: [' his men.', ' his men.'], answer: 1 },
  ];
  const file = lines(...questions);
  const got = await evaluateChoices(rt, source, file);
  const right = { plain: 0, normalised: 0 };
  for (const { context, contexts, choices, answer } of questions) {
    const sums = await Promise.all(
      choices.map(async (choice, i) => {
        const before = contexts?.[i] ?? (context as string);
        const bare = before.trimEnd();
        return (await asked(bare, before.slice(bare.length) + choice)).sum;
      }),
    );
    const best = (scores: number[]) => scores.indexOf(Math.max(...scores));
    if (best(sums) === answer) right.plain++;
    if (best(sums.map((sum, i) => sum / choices[i]!.length)) === answer) right.normalised++;
  }
  assert.equal(got.questions, 3);
  assert.equal(got.accuracy.mean, right.plain / 3);
  assert.equal(got.normalised.mean, right.normalised / 3);
  assert.ok(right.plain >= 2, 'the model knows the easy ones');
});

test('last words: whether the model would write them, and how likely they are', async () => {
  const texts = ['He looked at the old man', 'Once upon a time', 'She was very\n much xylophone. '];
  const got = await evaluateLastWords(rt, source, lines(...texts.map((text) => ({ text }))));
  const want = await Promise.all([
    asked('He looked at the old', ' man'),
    asked('Once upon a', ' time'),
    asked('She was very\n much', ' xylophone.'),
  ]);
  const mean = want.reduce((all, { sum }) => all - sum, 0) / 3;
  assert.equal(got.accuracy.mean, want.filter(({ greedy }) => greedy).length / 3);
  assert.ok(Math.abs(got.perplexity.mean - Math.exp(mean)) < 1e-9 * Math.exp(mean));
});

test('lines that are no questions, and what is too long, are refused by their number', async () => {
  const good = { context: 'a', choices: ['b', 'c'], answer: 1 };
  for (const wrong of [
    { ...good, answer: 2 },
    { ...good, answer: '1' },
    { ...good, choices: ['b'] },
    { ...good, choices: ['b', ''] },
    { ...good, contexts: ['a', 'b'] },
    { choices: ['b', 'c'], contexts: ['a'], answer: 0 },
    { choices: ['b', 'c'], answer: 0 },
    'text',
  ])
    assert.throws(() => readQuestions(lines(good, wrong)), designed('LPQ_CALIBRATION_TEXT', /line 2 of/));
  for (const wrong of [{ text: 'word' }, { text: 7 }, []])
    assert.throws(() => readClozes(lines({ text: 'two words' }, wrong)), designed('LPQ_CALIBRATION_TEXT', /line 2 of/));
  assert.throws(() => readClozes(lines()), designed('LPQ_CALIBRATION_TEXT', /holds no question/));
  assert.throws(() => readQuestions(path.join(dir, 'none.jsonl')), designed('LPQ_FILE', /none/));
  await assert.rejects(
    evaluateChoices(rt, source, lines({ ...good, context: ' ' })),
    designed('LPQ_CALIBRATION_TEXT', /line 1 of .* has no context before the answer/),
  );
  await assert.rejects(
    evaluateLastWords(rt, source, lines({ text: `${'word '.repeat(3000)}end` })),
    designed('LPQ_CONTEXT', /line 1 of .*at most 1024/s),
  );
});

test('the command line: one kind of evaluation at a time', async () => {
  const { PassThrough } = await import('node:stream');
  const run = async (...args: string[]) => {
    const [out, err] = [new PassThrough(), new PassThrough()];
    const text = { stdout: '', stderr: '' };
    out.on('data', (chunk) => {
      text.stdout += chunk;
    });
    err.on('data', (chunk) => {
      text.stderr += chunk;
    });
    const code = await main(['eval', MODEL, '--device', 'cpu', ...args], { stdout: out, stderr: err } as never);
    return { code, ...text };
  };
  const questions = lines({ context: 'Once upon a', choices: [' time', ' spoon'], answer: 0 });
  const words = lines({ text: 'Once upon a time' });
  const told = await run('--choices', questions);
  assert.match(told.stdout, /^accuracy 100\.00 % {3}a character 100\.00 % {3}1 question /, told.stderr);
  assert.match((await run('--last-word', words)).stdout, /^last words \d.* ppl .* 1 text /);
  for (const [args, words] of [
    [[], /--text FILE, --choices FILE/],
    [['--text', 'x', '--choices', 'y'], /--text and --choices exclude/],
    [['--choices', questions, '--report'], /--report has no effect without --text/],
  ] as const) {
    const ran = await run(...args);
    assert.equal(ran.code, 2);
    assert.match(ran.stderr, words);
  }
});
