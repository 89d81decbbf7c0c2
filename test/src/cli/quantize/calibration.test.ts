import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { CALIB, events, lpq, model, scratch, text } from '../lpq.js';

/** The attention's projections only: a run of seconds. */
function small(dir: string): string[] {
  const recipe = path.join(dir, 'attention.json');
  writeFileSync(recipe, JSON.stringify({ rules: [{ match: 'mlp', skip: true }] }));
  return ['--bits', '4', '--recipe', recipe, '--device', 'cpu'];
}
const FEW = ['--samples', '3', '--seq-len', '40', ...CALIB];

/** The bundled model with a chat template. */
function instruct(dir: string, template?: string): string {
  const copy = path.join(dir, 'instruct');
  cpSync(model, copy, { recursive: true });
  if (template !== undefined) writeFileSync(path.join(copy, 'chat_template.jinja'), template);
  return copy;
}

const TEMPLATE = '{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}';

function conversations(dir: string): string {
  const file = path.join(dir, 'chat.jsonl');
  const talk = (i: number) => ({
    messages: [
      { role: 'user', content: `What is ${i} and ${i}?` },
      { role: 'assistant', content: `It is ${2 * i}.` },
    ],
  });
  writeFileSync(file, Array.from({ length: 9 }, (_, i) => `${JSON.stringify(talk(i))}\n`).join(''));
  return file;
}

function hashes(dir: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(dir).map((name) => [
      name,
      createHash('sha256')
        .update(readFileSync(path.join(dir, name)))
        .digest('hex'),
    ]),
  );
}

const manifest = (dir: string) => JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8'));
const quantize = (source: string, ...args: string[]) => lpq(['quantize', source, ...args]);

async function passes(ran: ReturnType<typeof lpq>) {
  const done = await ran;
  assert.equal(done.code, 0, done.stderr);
  return done;
}

async function refuses(ran: ReturnType<typeof lpq>, exit: number, code: string, words: RegExp) {
  const { code: got, stderr } = await ran;
  assert.equal(got, exit, stderr);
  assert.match(stderr, new RegExp(code));
  assert.match(stderr, words);
}

test('texts with weights and conversations: recorded, and the same bytes again', async (t: TestContext) => {
  const dir = scratch(t);
  const source = instruct(dir, TEMPLATE);
  const chat = conversations(dir);
  const books = text;
  const args = [
    '--calib',
    `${chat}:0.7`,
    '--calib',
    `${books}:0.3`,
    '--samples',
    '10',
    '--seq-len',
    '40',
    ...small(dir),
  ];
  const ran = await passes(quantize(source, '-o', path.join(dir, 'a'), ...args, '--json'));
  const said = events(ran).find(({ event }) => event === 'calibration');
  assert.deepEqual([said?.kind, said?.sequences], ['mix', 10]);
  const { calibration } = manifest(path.join(dir, 'a')).provenance;
  const sha = (file: string) => createHash('sha256').update(readFileSync(file)).digest('hex');
  assert.equal(calibration.name, 'chat.jsonl:0.7 + text.txt:0.3');
  assert.equal(
    calibration.sha256,
    createHash('sha256')
      .update(`${sha(chat)} 0.7\n${sha(books)} 0.3\n`)
      .digest('hex'),
  );
  assert.match(calibration.chatTemplate, /^[0-9a-f]{64}$/);
  assert.deepEqual(
    calibration.files.map((file: Record<string, unknown>) => [file.name, file.sha256, file.weight, file.sequences]),
    [
      ['chat.jsonl', sha(chat), 0.7, 7],
      ['text.txt', sha(books), 0.3, 3],
    ],
  );
  await passes(quantize(source, '-o', path.join(dir, 'b'), ...args));
  assert.deepEqual(hashes(path.join(dir, 'b')), hashes(path.join(dir, 'a')));
  // A file of conversations is a text to evaluate on, too.
  const evaluated = await passes(lpq(['eval', source, '--text', chat, '--ctx', '16', '--device', 'cpu', '--json']));
  assert.ok((events(evaluated).find(({ event }) => event === 'result')?.ppl as number) > 1);
  // The last statement about calibration that a user makes: the weights are missed by fewer texts.
  const short = await passes(
    quantize(
      source,
      '-o',
      path.join(dir, 'c'),
      '--calib',
      chat,
      '--calib',
      books,
      '--samples',
      '30',
      '--seq-len',
      '40',
      ...small(dir),
    ),
  );
  assert.match(short.stderr, /only 24 of the 30 sequences asked for: 9 of chat.jsonl, 15 of text.txt/);
});

test('conversations need a template; weights, several texts and templates go wrong by name', async (t) => {
  const dir = scratch(t);
  const chat = conversations(dir);
  const out = ['-o', path.join(dir, 'never'), ...small(dir)];
  await refuses(quantize(instruct(dir), ...out, '--calib', chat), 4, 'LPQ_CONFIG', /has no chat template/);
  await refuses(quantize(model, ...out, '--calib', `${chat}:0`), 2, 'LPQ_USAGE', /weight of/);
  await refuses(quantize(model, ...out, '--calib', 'a.txt', '--calib', 'b.txt'), 4, 'LPQ_FILE', /a\.txt/);
  const picky = instruct(path.join(dir, 'x'), "{{ raise_exception('no, thanks') }}");
  await refuses(
    quantize(picky, ...out, '--calib', chat),
    4,
    'LPQ_CALIBRATION_TEXT',
    /line \d of .*chat\.jsonl.*\n.*no, thanks/,
  );
  assert.ok(!existsSync(path.join(dir, 'never')));
});

test('--save-stats changes nothing about the output; --stats makes others of it', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  const run = [...FEW, ...small(dir)];
  await passes(quantize(model, '-o', at('plain'), ...run));
  const both = await passes(quantize(model, '-o', at('both'), '--save-stats', at('stats'), ...run, '--json'));
  assert.deepEqual(hashes(at('both')), hashes(at('plain')));
  const plan = events(both).find(({ event }) => event === 'statistics');
  assert.deepEqual([plan?.feeds, plan?.blocks], [16, 4]);
  // Statistics alone: no type, no output.
  const alone = await passes(quantize(model, '--save-stats', at('alone'), ...FEW, '--device', 'cpu', '--json'));
  assert.deepEqual(hashes(at('alone')), hashes(at('stats')));
  const result = events(alone).find(({ event }) => event === 'result');
  assert.deepEqual([result?.command, result?.statistics, result?.feeds], ['quantize', at('alone'), 16]);
  for (const bits of ['4', '3']) {
    const ran = await passes(
      quantize(model, '-o', at(`w${bits}`), ...small(dir), '--bits', bits, '--stats', at('stats')),
    );
    assert.doesNotMatch(ran.stderr, /calibrating on/);
  }
  const { options, calibration } = manifest(at('w3')).provenance;
  assert.deepEqual([options.gptaq, options.alpha, options.samples, options.bits], [0, 0, undefined, 3]);
  assert.deepEqual([calibration.sequences, calibration.tokens], [3, 120]);
  assert.equal(options.stats, hashes(at('stats'))['lpq.json']);
  // Finished statistics are kept where --resume says so, refused otherwise, and never those of another text.
  const again = ['--save-stats', at('stats'), ...run];
  await refuses(quantize(model, '-o', at('more'), ...again), 2, 'LPQ_OUTPUT_EXISTS', /stats already exist/);
  const resumed = await passes(quantize(model, '-o', at('more'), ...again, '--resume'));
  assert.match(resumed.stderr, /already exist/);
  assert.deepEqual(hashes(at('more')), hashes(at('plain')));
  await refuses(
    quantize(model, '--save-stats', at('stats'), ...FEW, '--seq-len', '41', '--device', 'cpu', '--resume'),
    2,
    'LPQ_RESUME',
    /saved with another calibration/,
  );
});

test('options about statistics that say nothing are refused', async (t) => {
  const dir = scratch(t);
  const out = ['-o', path.join(dir, 'never'), '--bits', '4'];
  const stats = ['--stats', path.join(dir, 'stats')];
  const usage = (words: RegExp, ...args: string[]) => refuses(quantize(model, ...args), 2, 'LPQ_USAGE', words);
  await usage(/--stats has no effect with --method rtn/, ...out, ...stats, '--method', 'rtn');
  await usage(/--save-stats has no effect with --method rtn/, ...out, '--save-stats', 'x', '--method', 'rtn');
  await usage(/--save-stats and --stats exclude/, ...out, ...stats, '--save-stats', 'x');
  await usage(/--calib has no effect with --stats/, ...out, ...stats, '--calib', 'x');
  await usage(/--seq-len has no effect with --stats/, ...out, ...stats, '--seq-len', '9');
  await usage(/--gptaq needs activations/, ...out, ...stats, '--gptaq', '0.25');
  await usage(/-o, --output/, '--bits', '4');
  await usage(/--pack has no effect without -o/, '--save-stats', path.join(dir, 's'), '--pack', 'marlin');
  await usage(/--dry-run has no effect without -o/, '--save-stats', path.join(dir, 's'), '--dry-run');
  await refuses(quantize(model, ...out, ...stats), 4, 'LPQ_STATISTICS', /holds no saved statistics/);
  assert.deepEqual(readdirSync(dir), []);
});
