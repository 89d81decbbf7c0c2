import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { BOS, bosModel } from '../calibrate/bos-model.js';
import { CALIB, events, lpq, model, scratch } from './lpq.js';

/** One projection of each block, on a few tokens: a run of seconds. */
function small(dir: string, calib: readonly string[] = CALIB): string[] {
  const recipe = path.join(dir, 'one.json');
  writeFileSync(recipe, JSON.stringify({ rules: [{ match: '[kvo]_proj|mlp', skip: true }] }));
  return [
    '--bits',
    '4',
    '--recipe',
    recipe,
    ...calib,
    '--samples',
    '3',
    '--seq-len',
    '40',
    '--device',
    'cpu',
    '--json',
  ];
}

async function passes(...args: string[]) {
  const ran = await lpq(args);
  assert.equal(ran.code, 0, ran.stderr);
  return { ...ran, events: ran.stdout.startsWith('{') ? events(ran) : [] };
}

const named = (ran: { events: Record<string, unknown>[] }, name: string) =>
  ran.events.find(({ event }) => event === name) as Record<string, unknown>;
const read = (...parts: string[]) => JSON.parse(readFileSync(path.join(...parts), 'utf8'));
const weights = (dir: string) => readFileSync(path.join(dir, 'model.safetensors'));

test('calibration begins as the tokenizer begins a text: --bos chooses, the output says what it came to', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  const source = bosModel(at('source'));
  const few = small(dir);
  const auto = await passes('quantize', source, '-o', at('auto'), '--save-stats', at('stats'), ...few);
  assert.deepEqual(named(auto, 'calibration').prefix, [BOS]);
  const { options, calibration } = read(at('auto'), 'lpq.json').provenance;
  assert.deepEqual([options.bos, calibration.prefix, calibration.tokens], [undefined, [BOS], 120]);
  assert.deepEqual(read(at('stats'), 'lpq.json').calibration.prefix, [BOS]);
  assert.deepEqual(read(`${at('auto')}.report.json`).calibration.prefix, [BOS]);
  assert.match(readFileSync(`${at('auto')}.report.html`, 'utf8'), /sequences begin with token/);

  // The weights are those of the bundled model, so that they come out as its own where the same tokens are read.
  await passes('quantize', source, '-o', at('never'), '--bos', 'never', ...few);
  await passes('quantize', model, '-o', at('plain'), ...few);
  await passes('quantize', model, '-o', at('always'), '--bos', 'always', ...few);
  assert.deepEqual(weights(at('never')), weights(at('plain')));
  assert.deepEqual(weights(at('always')), weights(at('auto')));
  assert.notDeepEqual(weights(at('auto')), weights(at('plain')));
  const record = (name: string) => read(at(name), 'lpq.json').provenance;
  assert.deepEqual([record('never').options.bos, record('never').calibration.prefix], ['never', undefined]);
  assert.deepEqual([record('always').options.bos, record('always').calibration.prefix], ['always', [BOS]]);
  // A model whose tokenizer puts nothing there: not a word of it.
  assert.doesNotMatch(JSON.stringify(record('plain')), /bos|prefix/);

  const stats = ['--stats', at('stats'), '--bits', '4', '--device', 'cpu'];
  const idle = await lpq(['quantize', source, '-o', at('no'), ...stats, '--bos', 'never']);
  assert.equal(idle.code, 2);
  assert.match(idle.stderr, /--bos has no effect with --stats/);
  const wrong = await lpq(['quantize', source, '-o', at('no'), '--bits', '4', '--bos', 'sometimes']);
  assert.match(wrong.stderr, /--bos does not take 'sometimes'.*auto, always or never/s);
});

test('an evaluation says which tokens its windows begin with; its report keeps one for each', async (t) => {
  const dir = scratch(t);
  const source = bosModel(path.join(dir, 'source'));
  const output = path.join(dir, 'out');
  await passes('quantize', source, '-o', output, '--bits', '4', '--method', 'rtn', '--device', 'cpu');
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, 'The old man went down to the sea, and the sea was calm. '.repeat(20));
  const run = (...args: string[]) =>
    passes('eval', output, '--text', text, '--ctx', '16', '--device', 'cpu', '--report', ...args);
  const begun = named(await run('--source', source, '--json'), 'result');
  assert.deepEqual(begun.prefix, [BOS]);
  assert.equal(begun.tokens, (begun.windows as number) * 14);
  const bare = await run('--bos', 'never');
  assert.match(bare.stdout, /windows of 16 {3}/);
  assert.match((await run()).stdout, /windows of 16, each behind token 1 {3}/);
  const { evaluations } = read(`${output}.report.json`);
  assert.deepEqual(
    evaluations.map(({ prefix, source: of }: { prefix: number[]; source: object | null }) => [prefix, of !== null]),
    [
      [[], false],
      [[BOS], true],
    ],
  );
  const wrong = await lpq(['eval', output, '--text', text, '--bos', 'yes']);
  assert.equal(wrong.code, 2);
  assert.match(wrong.stderr, /--bos does not take 'yes'/);
});

test('windows beyond the model are warned of before anything is computed: of evaluation and of calibration', async (t) => {
  const dir = scratch(t);
  const source = bosModel(path.join(dir, 'source'), { config: { max_position_embeddings: 32 } });
  const text = path.join(dir, 'text.txt');
  writeFileSync(text, 'The old man went down to the sea, and the sea was calm. '.repeat(20));
  const evaluated = await passes('eval', source, '--text', text, '--ctx', '40', '--device', 'cpu');
  assert.match(evaluated.stderr, /windows of 40 tokens are longer than the 32 .* use --ctx 32 or less/);
  const quantized = await passes('quantize', source, '-o', path.join(dir, 'out'), ...small(dir, ['--calib', text]));
  const place = (fits: (line: Record<string, unknown>) => boolean) => quantized.events.findIndex(fits);
  const told = place(({ message }) => /sequences of up to 40 .* than the 32 .* --seq-len 32/.test(String(message)));
  assert.ok(told >= 0 && told < place(({ event }) => event === 'plan'), quantized.stdout);
});
