import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { openCodec } from '../../../../src/calibrate/tokenizer.js';
import { main } from '../../../../src/cli/main.js';
import { lpq, model, scratch } from '../lpq.js';

/** The command line in this process: what it prints and what it would exit with. */
async function generate(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const [out, err] = [new PassThrough(), new PassThrough()];
  const text = { stdout: '', stderr: '' };
  out.on('data', (chunk) => (text.stdout += chunk));
  err.on('data', (chunk) => (text.stderr += chunk));
  const output = { stdout: out, stderr: err } as unknown as Parameters<typeof main>[1];
  const code = await main(['generate', ...args, '--device', 'cpu'], output);
  return { code, ...text };
}

/** tiny-llama with other files beside its weights. */
function variant(dir: string, files: Readonly<Record<string, string>>, without: readonly string[] = []): string {
  for (const name of ['model.safetensors', 'tokenizer.json'])
    if (!without.includes(name)) symlinkSync(path.join(model, name), path.join(dir, name));
  for (const name of ['config.json', 'tokenizer_config.json', 'generation_config.json'])
    copyFileSync(path.join(model, name), path.join(dir, name));
  for (const [name, text] of Object.entries(files)) writeFileSync(path.join(dir, name), text);
  return dir;
}

test('text is streamed to stdout and nothing else; --json gives one result with all of it', async () => {
  const plain = await lpq(['generate', model, '--prompt', 'Once upon a time', '--max-tokens', '12', '--device', 'cpu']);
  assert.equal(plain.code, 0, plain.stderr);
  assert.match(plain.stderr, /prompt: 6 tokens in .*, 11 more at .*ended by length; cache f32/);
  const told = await generate(model, '--prompt', 'Once upon a time', '--max-tokens', '12', '--json');
  const events = told.stdout
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line));
  const { event, sequences, cache } = events.at(-1);
  assert.equal(event, 'result');
  assert.deepEqual([sequences.length, sequences[0].promptTokens, sequences[0].finish], [1, 6, 'length']);
  assert.equal(sequences[0].ids.length, 12);
  assert.equal(plain.stdout, `${sequences[0].text.replace(/\n$/, '')}`);
  assert.deepEqual(cache, { form: 'f32', bytes: 2 * 4 * 18 * 128 * 4 });
  assert.equal(told.stderr, '');
});

test('several prompts, from options and files, each under its own heading; draws repeat with the seed', async (t) => {
  const file = path.join(scratch(t), 'prompts.jsonl');
  writeFileSync(file, '{"prompt": "The old man"}\n\n{"prompt": "She said\\nnothing"}\n');
  const args = [model, '--prompt', 'Once', '--prompts', file, '--max-tokens', '6', '--temperature', '0.8', '--quiet'];
  const [a, b, c] = [await generate(...args), await generate(...args), await generate(...args, '--seed', '1')];
  assert.equal(a.code, 0, a.stderr);
  assert.match(a.stdout, /^--- 1: Once\n[\s\S]*\n--- 2: The old man\n[\s\S]*\n--- 3: She said\.\.\.\n/);
  assert.equal(b.stdout, a.stdout);
  assert.notEqual(c.stdout, a.stdout);
});

test('a cache of few bits, and the chat template with a system message', async (t) => {
  const chat_template =
    '{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}';
  const dir = variant(scratch(t), { 'chat_template.jinja': chat_template });
  const ran = await generate(
    ...[dir, '--chat', '--system', 'Be brief.', '--prompt', 'Who?', '--max-tokens', '4', '--kv', '4', '--json'],
  );
  assert.equal(ran.code, 0, ran.stdout);
  const { sequences, cache } = JSON.parse(ran.stdout.trim().split('\n').at(-1) as string);
  const prompt = '[system] Be brief.\n[user] Who?\n[assistant]';
  assert.equal(sequences[0].prompt, prompt);
  // The template prints special tokens itself: none is added.
  assert.equal(sequences[0].promptTokens, (await (await openCodec(dir)).encode(prompt)).length);
  assert.equal(cache.form, 'KV4 (bitdecoding)');
  const half = await generate(model, '--prompt', 'Who?', '--max-tokens', '2', '--kv', '16', '--json');
  assert.match(half.stdout, /"form":"f16"/);
});

test('stop strings end the text, and --ignore-eos goes on behind the stop token', async (t) => {
  const free = await generate(model, '--prompt', 'Once upon a time', '--max-tokens', '20', '--quiet');
  const word = free.stdout.trim().split(' ')[3] as string;
  const cut = await generate(model, '--prompt', 'Once upon a time', '--stop', word, '--quiet');
  assert.equal(cut.stdout, `${free.stdout.slice(0, free.stdout.indexOf(word))}\n`);
  // A stop token that the model takes at once.
  const told = await generate(model, '--prompt', 'Once upon a time', '--max-tokens', '3', '--json');
  const [first] = JSON.parse(told.stdout.trim().split('\n').at(-1) as string).sequences[0].ids;
  const dir = variant(scratch(t), { 'generation_config.json': JSON.stringify({ eos_token_id: [7, first] }) });
  const ended = await generate(dir, '--prompt', 'Once upon a time', '--quiet');
  assert.equal(ended.stdout, '\n');
  const on = await generate(dir, '--prompt', 'Once upon a time', '--max-tokens', '20', '--ignore-eos', '--quiet');
  assert.equal(on.stdout, free.stdout);
});

test('what cannot be done is refused, with the option or the file named', async (t) => {
  const dir = scratch(t);
  const odd = path.join(dir, 'odd.jsonl');
  writeFileSync(odd, '{"prompt": "a"}\n{"promt": "b"}\n');
  const empty = path.join(dir, 'empty.jsonl');
  writeFileSync(empty, '');
  const bare = variant(scratch(t), {}, ['tokenizer.json']);
  const wrong = variant(scratch(t), { 'generation_config.json': '{"eos_token_id": "</s>"}' });
  const config = JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8'));
  const dynamic = variant(scratch(t), {
    'config.json': JSON.stringify({
      ...config,
      max_position_embeddings: 4096,
      rope_parameters: {
        rope_type: 'longrope',
        rope_theta: 1e4,
        original_max_position_embeddings: 16,
        factor: 4,
        short_factor: Array(32).fill(1),
        long_factor: Array(32).fill(2),
      },
    }),
  });
  const cases: readonly (readonly [string[], number, string, RegExp])[] = [
    [[model], 2, 'LPQ_USAGE', /no prompt to continue.*--prompt/s],
    [[model, '--prompts', empty], 2, 'LPQ_USAGE', /holds no prompt/],
    [[model, '--prompts', odd], 2, 'LPQ_USAGE', /line 2 of .*odd\.jsonl is not a prompt/],
    [[model, '--prompts', path.join(dir, 'none.txt')], 4, 'LPQ_FILE', /none\.txt/],
    [[model, '--prompt', ''], 2, 'LPQ_USAGE', /prompt 1 has no token/],
    [[model, '--prompt', 'x', '--stop', ''], 2, 'LPQ_USAGE', /--stop/],
    [[model, '--prompt', 'x', '--system', 'y'], 2, 'LPQ_USAGE', /--system has no effect without --chat/],
    [[model, '--prompt', 'x', '--top-p', '0.5'], 2, 'LPQ_USAGE', /--top-p has no effect/],
    [[model, '--prompt', 'x', '--temperature', '-1'], 2, 'LPQ_USAGE', /--temperature does not take -1/],
    [[model, '--prompt', 'x', '--kv', '3'], 2, 'LPQ_USAGE', /--kv does not take '3'/],
    [[model, '--prompt', 'x', '--chat'], 4, 'LPQ_CONFIG', /has no chat template/],
    [[bare, '--prompt', 'x'], 4, 'LPQ_CONFIG', /has no tokenizer\.json/],
    [[wrong, '--prompt', 'x'], 4, 'LPQ_CONFIG', /'eos_token_id' of .*generation_config\.json is not a token/],
    [
      [model, '--prompt', 'x', '--max-tokens', '2000'],
      2,
      'LPQ_CONTEXT',
      /--max-tokens 2000 .*at most 1024: 'max_position/s,
    ],
    [[model, '--prompt', 'word '.repeat(3000)], 2, 'LPQ_CONTEXT', /leaves no room/],
    [[dynamic, '--prompt', 'x', '--max-tokens', '40'], 2, 'LPQ_CONTEXT', /at most 16: the scaling of positions/],
  ];
  for (const [args, code, name, words] of cases) {
    const ran = await generate(...args);
    assert.equal(ran.code, code, `${args.join(' ')}: ${ran.stderr}`);
    assert.equal(ran.stdout, '');
    assert.match(ran.stderr, new RegExp(name), args.join(' '));
    assert.match(ran.stderr, words, args.join(' '));
  }
});
