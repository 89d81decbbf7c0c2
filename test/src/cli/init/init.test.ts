import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { init } from '../../../../src/cli/init/command.js';
import { readRecipe } from '../../../../src/cli/quantize/recipe.js';
import type { Run } from '../../../../src/cli/run.js';
import { Reporter } from '../../../../src/cli/terminal/reporter.js';
import { LpqError } from '../../../../src/core/error.js';
import { lpq, scratch } from '../lpq.js';

/** Runs `lpq init -o FILE` for somebody who types these lines; returns what was asked, and what was printed. */
async function typed(file: string, lines: readonly string[]): Promise<{ asked: string; printed: string }> {
  const said = { asked: '', printed: '' };
  const stream = (name: keyof typeof said) =>
    new PassThrough().on('data', (chunk) => {
      said[name] += chunk;
    });
  const input = Object.assign(new PassThrough(), { isTTY: true });
  const output = { stdout: stream('printed'), stderr: stream('asked') } as never;
  const report = new Reporter(output, { json: false, quiet: false, verbose: false });
  input.end(lines.map((line) => `${line}\n`).join(''));
  await init(file, input, stream('asked'), { report } as Run);
  await report.delivered();
  return said;
}

test('five answers make a recipe that lpq quantize reads, and the command that does', async (t) => {
  const dir = scratch(t);
  const [file, text] = [path.join(dir, 'recipe.yaml'), path.join(dir, 'chat.txt')];
  writeFileSync(text, 'Hello.');
  const { asked, printed } = await typed(file, ['org/model', 'vlm', 'vllm', '9', '3', '/nowhere.txt', text, 'quick']);
  assert.match(asked, /Did you mean vllm\?/);
  assert.match(asked, /\/nowhere\.txt does not exist/);
  assert.match(printed, /next {2}lpq quantize org\/model -o OUT --recipe \S+recipe\.yaml --for vllm/);
  const { settings, calib, rules } = readRecipe(file);
  assert.deepEqual([settings.bits, settings.samples, settings.seqLen, rules], [3, 32, 512, []]);
  assert.deepEqual(calib, [text]);
});

test('Enter takes the value in brackets', async (t) => {
  const file = path.join(scratch(t), 'recipe.yaml');
  const { printed } = await typed(file, ['', '', '', '', '']);
  assert.match(printed, /lpq quantize MODEL -o OUT --recipe \S+ --for vllm/);
  assert.equal(readFileSync(file, 'utf8'), 'bits: 4\nsamples: 128\nseqLen: 512\nrules: []\n');
});

test('answers that end early, an existing file and a stdin that is no terminal are refused, and nothing is written', async (t) => {
  const dir = scratch(t);
  const file = path.join(dir, 'recipe.yaml');
  await assert.rejects(typed(file, ['model', 'vllm']), (error) => {
    assert.ok(error instanceof LpqError);
    assert.equal(error.code, 'LPQ_USAGE');
    assert.match(error.message, /ended before the last question/);
    return true;
  });
  const piped = await lpq(['init', '-o', file]);
  assert.equal(piped.code, 2, piped.stderr);
  assert.match(piped.stderr, /stdin is not a terminal/);
  assert.throws(() => readFileSync(file));
  writeFileSync(file, 'mine');
  const there = await lpq(['init', '-o', file]);
  assert.match(there.stderr, /^LPQ_OUTPUT_EXISTS/);
  assert.equal(readFileSync(file, 'utf8'), 'mine');
});
