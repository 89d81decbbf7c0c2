import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { ChatTemplate } from '../../../src/calibrate/chat.js';
import { loadCalibration } from '../../../src/calibrate/text.js';
import { openTokenizer } from '../../../src/calibrate/tokenizer.js';
import { designed, scratch } from '../../formats/scratch.js';
import { vectors } from '../../formats/vectors.js';

interface Golden {
  readonly specialTokens: Record<string, string>;
  readonly templates: Record<string, string>;
  readonly cases: readonly ({
    readonly template: string;
    readonly text?: string;
    readonly refused?: string;
  } & Record<'messages' | 'tools' | 'documents' | 'variables', never>)[];
}

const golden = vectors<Golden>('chat-templates.json');
const root = scratch();
let models = 0;

/** A directory with the files given; objects become JSON. */
function model(files: Record<string, unknown>): string {
  const dir = path.join(root, `model-${models++}`);
  mkdirSync(dir);
  for (const [name, content] of Object.entries(files))
    writeFileSync(path.join(dir, name), typeof content === 'string' ? content : JSON.stringify(content));
  return dir;
}

const lines = (name: string, ...records: unknown[]): string => {
  const file = path.join(root, name);
  writeFileSync(file, records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  return file;
};

const hello = [
  { role: 'user', content: 'Who wrote Faust?' },
  { role: 'assistant', content: 'Goethe.' },
];

test('conversations become the text that Jinja2 makes of them', async () => {
  for (const { template, text, refused, ...parts } of golden.cases) {
    const chat = await ChatTemplate.open(
      model({ 'chat_template.jinja': golden.templates[template], 'tokenizer_config.json': golden.specialTokens }),
    );
    const render = () => chat.render({ line: 7, ...parts }, 'chat.jsonl');
    if (refused === undefined) assert.equal(await render(), text);
    else
      await assert.rejects(render, designed('LPQ_CALIBRATION_TEXT', new RegExp(`line 7 of chat.jsonl .*${refused}`)));
  }
  assert.ok(golden.cases.length >= 10);
});

test('the places where a template may lie, in order; named ones; tokens that are objects', async () => {
  const config = { chat_template: 'config{{ eos_token }}', eos_token: { content: '</s>', lstrip: false } };
  const conversation = { line: 1, messages: hello };
  const render = async (files: Record<string, unknown>, more = {}) =>
    (await ChatTemplate.open(model(files))).render({ ...conversation, ...more }, 'f');
  assert.equal(await render({ 'tokenizer_config.json': config }), 'config</s>');
  const legacy = { 'tokenizer_config.json': config, 'chat_template.json': { chat_template: 'legacy{{ eos_token }}' } };
  assert.equal(await render(legacy), 'legacy</s>');
  assert.equal(await render({ ...legacy, 'chat_template.jinja': 'file{{ eos_token }}' }), 'file</s>');
  const map = { 'chat_template.jinja': '{{ bos_token }}', 'special_tokens_map.json': { bos_token: '<b>' } };
  assert.equal(await render(map), '<b>');
  const list = [
    { name: 'default', template: 'plain' },
    { name: 'tool_use', template: 'with {{ tools[0].name }}' },
  ];
  const several = { 'tokenizer_config.json': { chat_template: list } };
  assert.equal(await render(several), 'plain');
  assert.equal(await render(several, { tools: [{ name: 'weather' }] }), 'with weather');
  await assert.rejects(
    render({ 'tokenizer_config.json': { chat_template: [{ name: 'rag', template: 'x' }] } }),
    designed('LPQ_CONFIG', /none named default.*rag/),
  );
  const sha = async (files: Record<string, unknown>) => (await ChatTemplate.open(model(files))).sha256;
  assert.equal(await sha({ 'tokenizer_config.json': config }), await sha({ 'tokenizer_config.json': config }));
  assert.notEqual(
    await sha({ 'tokenizer_config.json': config }),
    await sha({ 'tokenizer_config.json': { ...config, eos_token: 'x' } }),
  );
});

test('no template, or a broken one', async () => {
  await assert.rejects(
    ChatTemplate.open(model({ 'tokenizer_config.json': {} })),
    designed('LPQ_CONFIG', /has no chat template.*tokenizer_config.json/),
  );
  await assert.rejects(ChatTemplate.open(model({})), designed('LPQ_CONFIG', /no file with a template/));
  const refuses = (files: Record<string, unknown>, words: RegExp) =>
    assert.rejects(ChatTemplate.open(model(files)), designed('LPQ_CONFIG', words));
  await refuses({ 'chat_template.jinja': '{% if %}' }, /chat_template.jinja is not Jinja/);
  await refuses({ 'tokenizer_config.json': { chat_template: 3 } }, /chat_template of .* is malformed.*3/);
  await refuses({ 'tokenizer_config.json': { chat_template: [{ name: 'default' }] } }, /malformed/);
  await refuses({ 'tokenizer_config.json': '{' }, /not valid JSON/);
  await refuses({ 'chat_template.json': '[]' }, /does not hold an object/);
});

test('a file of conversations: one sequence each, special tokens as ids and once', async () => {
  // A tokenizer that would put <s> before every text if it were asked to.
  const dir = model({
    'chat_template.jinja':
      "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}",
    'tokenizer_config.json': { bos_token: '<s>', eos_token: '</s>' },
  });
  const json = JSON.parse(readFileSync(path.join(shareDirectory(), 'tiny-llama', 'tokenizer.json'), 'utf8'));
  const bos = json.added_tokens.find(({ content }: { content: string }) => content === '<s>').id as number;
  const eos = json.added_tokens.find(({ content }: { content: string }) => content === '</s>').id as number;
  json.post_processor = {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [],
    special_tokens: { '<s>': { id: '<s>', ids: [bos], tokens: ['<s>'] } },
  };
  writeFileSync(path.join(dir, 'tokenizer.json'), JSON.stringify(json));
  const encode = await openTokenizer(dir);
  const chat = () => ChatTemplate.open(dir);
  const file = lines('chat.jsonl', { messages: hello }, { messages: hello.slice(0, 1), tools: [] });
  const found = await loadCalibration(file, encode, { samples: 9, length: 500, seed: 0, chat });
  assert.equal(found.kind, 'conversations');
  assert.equal(found.available, 2);
  assert.equal(found.chatTemplate, (await chat()).sha256);
  const words = async (text: string) => [...(await encode(text))];
  const both = [
    [bos, ...(await words('user: Who wrote Faust?')), eos],
    [bos, ...(await words('user: Who wrote Faust?')), eos, ...(await words('assistant: Goethe.')), eos],
  ];
  assert.deepEqual(
    found.sequences.map((ids) => [...ids]).sort((a, b) => a.length - b.length),
    both,
  );
  // Conversations begin as the template has it, whatever the tokenizer puts before a text, and never twice.
  const prefix = Int32Array.of(bos);
  const begun = (prefixConversations: boolean) =>
    loadCalibration(file, encode, { samples: 9, length: 500, seed: 0, chat, prefix, prefixConversations });
  assert.deepEqual(await begun(false), found);
  assert.deepEqual(await begun(true), { ...found, prefix: [bos] });
  const joined = await loadCalibration(file, encode, { samples: 9, length: 5, seed: 0, join: true, chat });
  assert.equal(joined.kind, 'windows');
  assert.equal(joined.available, Math.floor(both.flat().length / 5));
  // A template that prints none: one stands there only where it is asked for.
  writeFileSync(path.join(dir, 'chat_template.jinja'), '{% for m in messages %}{{ m.content }}{% endfor %}');
  assert.ok((await begun(false)).sequences.every((ids) => ids[0] !== bos));
  assert.ok((await begun(true)).sequences.every((ids) => ids[0] === bos && ids[1] !== bos));
  // Without a template the file is refused; text goes on as before.
  rmSync(path.join(dir, 'chat_template.jinja'));
  await assert.rejects(
    loadCalibration(file, encode, { samples: 1, length: 9, seed: 0, chat }),
    designed('LPQ_CONFIG', /no chat template/),
  );
  const text = lines('text.jsonl', { text: 'Who wrote Faust?' });
  assert.deepEqual(
    [...((await loadCalibration(text, encode, { samples: 1, length: 99, seed: 0, chat })).sequences[0] ?? [])],
    [...(await encode('Who wrote Faust?'))],
  );
});

test('lines that are no conversations', async () => {
  const encode = async (text: string) => Int32Array.from(text, (letter) => letter.charCodeAt(0));
  const options = { samples: 1, length: 9, seed: 0 };
  const refuses = (words: RegExp, ...records: unknown[]) =>
    assert.rejects(
      loadCalibration(lines('bad.jsonl', ...records), encode, options),
      designed('LPQ_CALIBRATION_TEXT', words),
    );
  for (const messages of [[], 'x', [3], [{ content: 'x' }], [{ role: 'user', content: 3 }], null])
    await refuses(/line 1 of .*bad.jsonl has "messages" that are not a conversation/, { messages });
  await refuses(/line 1 .* has "tools" that is not a list/, { messages: hello, tools: {} });
  await refuses(/line 1 .* has "chat_template_kwargs" that is not an object/, {
    messages: hello,
    chat_template_kwargs: [1],
  });
  await refuses(/line 2 .* differs in kind/, { messages: hello }, { text: 'x' });
  await refuses(/line 2 .* differs in kind/, { text: 'x' }, { messages: hello });
  await refuses(/no model with a chat template/, { messages: hello });
  // A line with a text is a document, whatever else it has.
  const both = lines('both.jsonl', { text: 'abc', messages: hello });
  assert.equal((await loadCalibration(both, encode, options)).kind, 'documents');
});

test('the variables of a template cannot replace what lpq says', async () => {
  const chat = await ChatTemplate.open(
    model({
      'chat_template.jinja': "{{ messages[0].role }} {{ 'open' if add_generation_prompt else 'closed' }} {{ x }}",
    }),
  );
  const variables = { messages: [], add_generation_prompt: true, x: 1 };
  assert.equal(await chat.render({ line: 1, messages: hello, variables }, 'f'), 'user closed 1');
});
