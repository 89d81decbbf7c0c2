import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { shareDirectory } from '../../../../src/calibrate/bundled.js';
import { ChatTemplate } from '../../../../src/calibrate/chat.js';
import type { Allowance } from '../../../../src/calibrate/confined/allowance.js';
import { Confined } from '../../../../src/calibrate/confined/host.js';
import { openCodec } from '../../../../src/calibrate/tokenizer.js';
import { designed, scratch } from '../../../formats/scratch.js';
import { BAIT, catastrophic, modelWith } from './hostile.js';

const dir = scratch();
const MODEL = path.join(shareDirectory(), 'tiny-llama');
const SHORT: Allowance = { open: 60, call: 0.3, each: 0, memory: 120 };
const hostile = catastrophic(path.join(dir, 'hostile'));

function template(text: string): string {
  const at = path.join(dir, `template-${text.length}`);
  mkdirSync(at, { recursive: true });
  writeFileSync(path.join(at, 'chat_template.jinja'), text);
  return at;
}

const conversation = { line: 3, messages: [{ role: 'user', content: 'Who?' }] };

test('untrusted input that never ends: a pattern of tokenizer.json, named with its file', async () => {
  const codec = await openCodec(hostile, SHORT);
  const refused = designed(
    'LPQ_BUDGET',
    /hostile\/tokenizer.json cannot encode 62 characters within its limit of time.*\(a\+\)\+\$/,
  );
  await assert.rejects(codec.encode(BAIT), refused);
  await assert.rejects(codec.encodePrompt(BAIT), refused);
  // The same tokenizer goes on with what it can encode, in a new process.
  const [own, honest] = [await codec.encode('Who?'), await (await openCodec(MODEL)).encode('Who?')];
  assert.deepEqual(own, honest);
});

test('untrusted input that never ends: a decoder', async () => {
  const slow = modelWith(path.join(dir, 'decoder'), (json) => {
    json.decoder = { type: 'Replace', pattern: { Regex: `(${'.*'.repeat(20)})*x` }, content: '' };
  });
  const codec = await openCodec(slow, SHORT);
  const ids = [...(await codec.encode('nothing but a long text without that letter '.repeat(3)))];
  await assert.rejects(
    codec.decode(ids),
    designed('LPQ_BUDGET', /tokenizer.json cannot decode \d+ tokens within its limit of time/),
  );
});

test('untrusted input that takes all memory: a pre-tokenizer that never moves on, a list that grows', async () => {
  const stuck = modelWith(path.join(dir, 'stuck'), (json) => {
    json.pre_tokenizer = { type: 'FixedLength', length: 0 };
  });
  const memory = { ...SHORT, call: 60 };
  const codec = await openCodec(stuck, memory);
  await assert.rejects(
    codec.encode('Who?'),
    designed('LPQ_BUDGET', /stuck\/tokenizer.json cannot encode .*memory.*120 MiB/),
  );
  const growing =
    '{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [range(99999)] %}{% endfor %}';
  const chat = await ChatTemplate.open(template(growing), memory);
  await assert.rejects(
    chat.render(conversation, 'chat.jsonl'),
    designed('LPQ_BUDGET', /chat_template.jinja cannot print line 3 of chat.jsonl within its limit of memory/),
  );
});

test('untrusted input that never ends: nested loops of a chat template, a range without end, recursion', async () => {
  const nested = '{% for a in range(99999) %}'.repeat(6) + '{% endfor %}'.repeat(6);
  const chat = await ChatTemplate.open(template(nested), SHORT);
  await assert.rejects(
    chat.render(conversation, 'chat.jsonl'),
    designed('LPQ_BUDGET', /chat_template.jinja cannot print line 3 of chat.jsonl within its limit of time/),
  );
  const endless = await ChatTemplate.open(template('{% for a in range(999999999999) %}x{% endfor %}'), SHORT);
  await assert.rejects(
    endless.render(conversation, 'chat.jsonl'),
    designed('LPQ_CALIBRATION_TEXT', /line 3 of chat.jsonl/),
  );
  const recursion = '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}';
  const deep = await ChatTemplate.open(template(recursion), SHORT);
  await assert.rejects(
    deep.render(conversation, 'chat.jsonl'),
    designed('LPQ_CALIBRATION_TEXT', /line 3 of chat.jsonl/),
  );
});

test('signals: what runs confined is ended at once', async () => {
  const codec = await openCodec(hostile);
  const asked = codec.encode(BAIT);
  const queued = codec.encode('Who?');
  const ends = Promise.all([assert.rejects(asked, designed('LPQ_ABORTED', /interrupted/)), assert.rejects(queued)]);
  setTimeout(() => Confined.stopAll(), 100);
  await ends;
});

test('a process that is killed leaves nothing behind; one that ends is not held up', async () => {
  const tokenizer = new URL('../../../../src/calibrate/tokenizer.js', import.meta.url).href;
  const program = (text: string) => `
    const { openCodec } = await import(${JSON.stringify(tokenizer)});
    const codec = await openCodec(${JSON.stringify(hostile)});
    await codec.encode('Who?');
    console.log('ready');
    await codec.encode(${JSON.stringify(text)});
  `;
  const run = (text: string) =>
    spawn(process.execPath, ['--input-type=module', '--eval', program(text)], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = run('Who?');
  assert.deepEqual(await once(ended, 'exit'), [0, null]);
  const killed = run(BAIT);
  await once(killed.stdout, 'data');
  const [child] = readFileSync(`/proc/${killed.pid}/task/${killed.pid}/children`, 'utf8').trim().split(' ');
  killed.kill('SIGKILL');
  await once(killed, 'exit');
  const deadline = performance.now() + 30_000;
  const lives = () =>
    existsSync(`/proc/${child}`) && !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${child}/stat`, 'latin1'));
  while (lives() && performance.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 100));
  assert.ok(!lives());
});
