import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { lpq, model, scratch, spawned, text } from '../lpq.js';

const RTN = ['--bits', '4', '--method', 'rtn', '--device', 'cpu'];
const evaluationsOf = (output: string) => JSON.parse(readFileSync(`${output}.report.json`, 'utf8')).evaluations;

test('a run ends with perplexity and divergence on the bundled book, as lpq eval finds them; --no-eval leaves them out', async (t) => {
  const at = (name: string) => path.join(scratch(t), name);
  const output = at('out');
  const ran = await spawned(['quantize', model, '-o', output, ...RTN]);
  assert.equal(ran.code, 0, ran.stderr);
  const [measured, ...others] = evaluationsOf(output);
  assert.deepEqual(others, []);
  assert.match(`${ran.stdout}${ran.stderr}`, /KL \d\.\d+ nats per token, perplexity \+/);
  const book = path.join(path.dirname(model), 'text', 'books-valid.txt');
  const again = await lpq([
    'eval',
    output,
    '--text',
    book,
    '--ctx',
    '512',
    '--windows',
    '8',
    '--source',
    model,
    '--json',
  ]);
  const found = JSON.parse(again.stdout.split('\n').at(-1) as string);
  if (measured.perplexity.windows === 8) assert.equal(measured.perplexity.ppl, found.ppl, again.stdout);
  const bare = at('bare');
  assert.equal((await spawned(['quantize', model, '-o', bare, ...RTN, '--no-eval'])).code, 0);
  assert.deepEqual(evaluationsOf(bare), []);
});

test('--eval takes a text of its own, and one that is missing is refused before anything is computed', async (t) => {
  const dir = scratch(t);
  const output = path.join(dir, 'out');
  const ran = await lpq(['quantize', model, '-o', output, ...RTN, '--eval', text]);
  assert.equal(ran.code, 0, ran.stderr);
  assert.equal(evaluationsOf(output)[0].text, path.basename(text));
  const wrong = await lpq([
    'quantize',
    model,
    '-o',
    path.join(dir, 'no'),
    ...RTN,
    '--eval',
    path.join(dir, 'absent.txt'),
  ]);
  assert.equal(wrong.code, 4, wrong.stderr);
  assert.match(wrong.stderr, /^LPQ_\w+ .*absent\.txt/);
  assert.ok(!existsSync(path.join(dir, 'no')));
});
